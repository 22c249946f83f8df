"""FBGEMM's operators of recommendation models: embedding tables in batches, sparse features, quantised copies.

Signatures: FBGEMM, `fbgemm_gpu/codegen` and `fbgemm_gpu/src`. Most of these operators launch several kernels; each
kernel whose name tells its part has its own cost, the others have none.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from scope.cost.dtypes import normalise_dtype
from scope.cost.result import OperatorCost, added, cost, sized, stored, unknown

if TYPE_CHECKING:
    from collections.abc import Callable

    from scope.cost.call import OperatorCall, TensorArg

_NO_TENSOR: Final = "the trace holds no tensor argument"
_WIDTHS: Final = "the tables differ in width, and the trace does not say how many rows of each are read"
_ROWS: Final = "the trace does not say how many rows of the tables have gradients"
_COUNT: Final = "the trace does not say how many values the permuted features hold"
_RESULT: Final = "only the name of the kernel says the dtype of the result"

_LOOKUP: Final = re.compile(r"^fbgemm::(?:split_embedding|dense_embedding)(?:_nobag)?_codegen_(?:lookup|forward)_\w+$")
_BACKWARD: Final = re.compile(
    r"^fbgemm::(?:split|dense)_embedding(?:_nobag)?_backward_codegen_\w+$"
    r"|^torch::autograd::CppNode<Split(?:NoBag)?(?:VBE)?LookupFunction_\w+>$"
)
# The forward kernels' first template arguments: types of the tables, of their cache, of the result.
_LOOKUP_KERNEL: Final = re.compile(
    r"embedding(?:_nobag)?_codegen_forward_\w{0,200}kernel<\s*([\w:]+),\s*([\w:]+),\s*([\w:]+)"
)
_SPARSE_TYPES: Final = {0: "float32", 1: "float16", 5: "bfloat16"}
"""FBGEMM's `SparseType`, which names the dtype of a result."""
_QUANTISED_TAIL_BYTES: Final = 8
"""What each row of FBGEMM's 8-bit formats ends in: scale and bias."""


class _Lookup(NamedTuple):
    """Positions of the arguments of one form of the lookup; the tables' weights are the first."""

    weights: int
    num_weights: int
    widths: int
    """Position of `D_offsets`, `total_D` and `max_D` behind it."""
    indices: int
    """Position of the indices; offsets, pooling mode and the indices' weights follow."""


_SPLIT_LOOKUP: Final = _Lookup(weights=1, num_weights=3, widths=6, indices=11)
_SPLIT_FORWARD: Final = _Lookup(weights=0, num_weights=3, widths=5, indices=8)
_DENSE_LOOKUP: Final = _Lookup(weights=0, num_weights=1, widths=2, indices=7)
_MOMENTUM: Final = 20
"""Position of the row-wise optimizers' state in the split lookup: one number for each row."""


def has_model(name: str) -> bool:
    """Return whether a name is that of an operator whose model is found by a pattern."""
    return bool(_LOOKUP.match(name) or _BACKWARD.match(name))


def by_pattern(call: OperatorCall) -> OperatorCost:
    """Any operator with `has_model`."""
    if _BACKWARD.match(call.name):
        return unknown("embedding", _ROWS)
    return _lookup(call, out_dtype=None, is_pooled=True)


def lookup_part(call: OperatorCall, kernel: str) -> OperatorCost | None:
    """One kernel of a lookup: the forward kernel does all of its work."""
    if _BACKWARD.match(call.name):
        return unknown("embedding", _ROWS)
    types = _LOOKUP_KERNEL.search(kernel)
    if types is None:
        return None
    return _lookup(call, out_dtype=normalise_dtype(types[3]), is_pooled="_nobag_" not in kernel)


def _lookup(call: OperatorCall, *, out_dtype: str | None, is_pooled: bool) -> OperatorCost:
    """Rows of equally wide tables, summed by bag: each index reads one row, nothing is known of repeats."""
    layout = _layout(call)
    tables, widths = call.tensor(layout.weights), call.tensor(layout.widths)
    indices, offsets = call.tensor(layout.indices), call.tensor(layout.indices + 1)
    if tables is None or widths is None or indices is None or offsets is None or len(indices.dims) != 1:
        return unknown("embedding", "the arguments are not those of a lookup in tables")
    num_tables = widths.num_elements - 1
    width = _width(call, layout, num_tables=num_tables)
    if width is None or num_tables < 1 or (offsets.num_elements - 1) % num_tables:
        return unknown("embedding", _WIDTHS)
    num_indices = indices.num_elements
    scales = call.tensor(layout.indices + 3)
    num_out = (offsets.num_elements - 1) * width if is_pooled else num_indices * width
    read = added(sized(num_indices * width, tables.dtype), stored((indices, offsets, widths, scales)))
    written = None if out_dtype is None else sized(num_out, out_dtype)
    flops = num_indices * width * (int(is_pooled) + int(scales is not None))
    result = cost("embedding", flops=flops, read=read, written=written, math_dtype="float32")
    return result if written is not None else _without_bytes(result, _RESULT)


def _layout(call: OperatorCall) -> _Lookup:
    if "::dense_" in call.name:
        return _DENSE_LOOKUP
    return _SPLIT_LOOKUP if "_lookup_" in call.name else _SPLIT_FORWARD


def _width(call: OperatorCall, layout: _Lookup, *, num_tables: int) -> int | None:
    total, most = call.integer(layout.widths + 1), call.integer(layout.widths + 2)
    if total is not None and (num_tables == 1 or (most is not None and total == num_tables * most)):
        return total // max(1, num_tables)
    if num_tables != 1 or "_lookup_rowwise_" not in call.name:
        return None
    # One table alone, whose row-wise state has a number for each row.
    tables = [call.tensor(layout.weights + place) for place in range(layout.num_weights - 1)]
    states = [call.tensor(_MOMENTUM + place) for place in range(layout.num_weights - 1)]
    num_weights, num_rows = (sum(each.num_elements for each in group if each is not None) for group in (tables, states))
    return num_weights // num_rows if num_rows and num_weights % num_rows == 0 else None


def permute_part(call: OperatorCall, kernel: str) -> OperatorCost | None:
    """One kernel of `permute_2D_sparse_data(permute[P], lengths[T,B], values[N], weights, sum)` and its kin.

    The lengths are permuted, both forms of them are summed to offsets, and the values are moved segment by segment. As
    many segments out as in are taken to be a permutation of them.
    """
    permute, lengths, values = (call.tensor(position) for position in range(3))
    if permute is None or lengths is None or values is None or not lengths.dims:
        return unknown("embedding", _NO_TENSOR)
    num_in = lengths.num_elements
    num_out = num_in // max(1, lengths.dims[0]) * permute.num_elements
    moved = sized(num_out, lengths.dtype)
    if "lengths_kernel" in kernel:
        return cost("copy", flops=0, read=added(moved, stored((permute,))), written=moved)
    if _is_scan(kernel):
        both = sized(num_in + num_out, lengths.dtype)
        return cost("reduction", flops=num_in + num_out, read=both, written=both, math_dtype=lengths.dtype)
    if "data_kernel" not in kernel and "indices_weights_kernel" not in kernel:
        return None
    num_values = values.num_elements if permute.num_elements == lengths.dims[0] else call.integer(4)
    if num_values is None:
        return unknown("copy", _COUNT)
    weights = call.tensor(3)
    out = added(sized(num_values, values.dtype), 0 if weights is None else sized(num_values, weights.dtype))
    return cost("copy", flops=0, read=added(out, moved, moved, stored((permute,))), written=out)


def bounds_check(call: OperatorCall) -> OperatorCost:
    """`bounds_check_indices(rows_per_table, indices, offsets, ...)`: all are read; nothing is written when all fit."""
    tensors = [call.tensor(position) for position in range(3)]
    if any(each is None for each in tensors):
        return unknown("embedding", _NO_TENSOR)
    return cost("embedding", flops=0, read=stored(tensors), written=0)


def permute_pooled(call: OperatorCall) -> OperatorCost:
    """`permute_pooled_embs(pooled[B,D], ...)`, its gradient and the other exchanges of columns: a copy."""
    pooled = call.tensor(0)
    if pooled is None:
        return unknown("copy", _NO_TENSOR)
    read = stored((pooled, *(call.tensor(position) for position in (1, 2, 3))))
    return cost("copy", flops=0, read=read, written=sized(pooled.num_elements, pooled.dtype))


def complete_cumsum(call: OperatorCall) -> OperatorCost:
    """`asynchronous_complete_cumsum(t)`: one more sum than numbers in each row; the other forms have as many."""
    lengths = call.tensor(0)
    if lengths is None or not lengths.dims:
        return unknown("reduction", _NO_TENSOR)
    more = lengths.num_elements // max(1, lengths.dims[-1]) if "complete" in call.name else 0
    written = sized(lengths.num_elements + more, lengths.dtype)
    return cost(
        "reduction", flops=lengths.num_elements, read=stored((lengths,)), written=written, math_dtype=lengths.dtype
    )


def scan_part(call: OperatorCall, kernel: str) -> OperatorCost | None:
    """One kernel of a running sum: the scan does its work, what sets the scan's states does none of it."""
    return complete_cumsum(call) if _is_scan(kernel) else None


def quantise_part(call: OperatorCall, kernel: str) -> OperatorCost | None:
    """One kernel of `FloatToFP8RowwiseQuantized(t[R,C], ...)`: first each row's largest value, then the bytes."""
    rows = call.tensor(0)
    if rows is None or len(rows.dims) != 2:
        return unknown("copy", _NO_TENSOR)
    scales = sized(rows.dims[0], "float32")
    if "qparam" in kernel:
        return cost("reduction", flops=rows.num_elements, read=stored((rows,)), written=scales, math_dtype=rows.dtype)
    if "quantize" not in kernel:
        return None
    return cost(
        "elementwise",
        flops=rows.num_elements,
        read=added(stored((rows,)), scales),
        written=rows.num_elements,
        math_dtype=rows.dtype,
    )


def dequantise_rows(call: OperatorCall) -> OperatorCost:
    """`FP8RowwiseQuantizedToFloat(input[R,C+8], forward, output_dtype)` and the 8-bit form: each row has a scale."""
    rows = call.tensor(0)
    if rows is None or len(rows.dims) != 2 or rows.dims[1] < _QUANTISED_TAIL_BYTES:
        return unknown("copy", _NO_TENSOR)
    number = call.integer(len(call.arguments) - 1) if len(call.arguments) > 1 else None
    dtype = _SPARSE_TYPES.get(0 if number is None else number)
    num_out = rows.dims[0] * (rows.dims[1] - _QUANTISED_TAIL_BYTES)
    return cost("elementwise", flops=num_out, read=stored((rows,)), written=sized(num_out, dtype), math_dtype=dtype)


def convert(call: OperatorCall) -> OperatorCost:
    """`FloatToHFP8Quantized` and its kin: each value in another type."""
    values = call.tensor(0)
    if values is None:
        return unknown("copy", _NO_TENSOR)
    dtype = "float32" if call.name.endswith("ToFloat") else _CONVERSIONS[call.name]
    return cost("copy", flops=0, read=stored((values,)), written=sized(_num_values(call, values), dtype))


def _num_values(call: OperatorCall, values: TensorArg) -> int:
    # Bfloat16 travels as pairs of bytes where its tensor is one of bytes.
    is_pairs = "Bfloat16QuantizedToFloat" in call.name and values.dtype == "uint8"
    return values.num_elements // 2 if is_pairs else values.num_elements


def _is_scan(kernel: str) -> bool:
    return "ScanKernel" in kernel


def _without_bytes(known: OperatorCost, reason: str) -> OperatorCost:
    return OperatorCost(family=known.family, flops=known.flops, bytes_reason=reason, math_dtype=known.math_dtype)


_CONVERSIONS: Final = {
    "fbgemm::FloatToHFP8Quantized": "uint8",
    "fbgemm::HFP8QuantizedToFloat": "float32",
    "fbgemm::FloatToBfloat16Quantized": "bfloat16",
    "fbgemm::Bfloat16QuantizedToFloat": "float32",
}
_POOLED_GRADIENT: Final = (
    "torch::autograd::CppNode<fbgemm_gpu::PermutePooledEmbsFunction<&fbgemm_gpu::permute_pooled_embs_gpu> >"
)
MODELS: Final[dict[str, Callable[[OperatorCall], OperatorCost]]] = {
    **dict.fromkeys(_CONVERSIONS, convert),
    "fbgemm::bounds_check_indices": bounds_check,
    "fbgemm::permute_pooled_embs": permute_pooled,
    "fbgemm::permute_pooled_embs_auto_grad": permute_pooled,
    _POOLED_GRADIENT: permute_pooled,
    "fbgemm::recat_embedding_grad_output": permute_pooled,
    "fbgemm::recat_embedding_grad_output_mixed_D": permute_pooled,
    "fbgemm::recat_embedding_grad_output_mixed_D_batch": permute_pooled,
    "fbgemm::FP8RowwiseQuantizedToFloat": dequantise_rows,
    "fbgemm::Fused8BitRowwiseQuantizedToFloat": dequantise_rows,
}
PART_MODELS: Final[dict[str, Callable[[OperatorCall, str], OperatorCost | None]]] = {
    **dict.fromkeys(
        (
            "fbgemm::permute_2D_sparse_data", "fbgemm::permute_1D_sparse_data", "fbgemm::permute_sparse_data",
            "fbgemm::permute_sparse_features",
        ),
        permute_part,
    ),
    **dict.fromkeys(
        (
            "fbgemm::asynchronous_complete_cumsum", "fbgemm::asynchronous_exclusive_cumsum",
            "fbgemm::asynchronous_inclusive_cumsum", "fb::asynchronous_complete_cumsum",
        ),
        scan_part,
    ),
    "fbgemm::FloatToFP8RowwiseQuantized": quantise_part,
    "fbgemm::FloatToFused8BitRowwiseQuantized": quantise_part,
}  # fmt: skip
