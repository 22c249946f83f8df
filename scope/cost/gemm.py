"""Matrix products: 2 M N K FLOPs, whatever the layout; operands read once, result written once.

Source: `torch.utils.flop_counter` counts the same; NVIDIA, Matrix Multiplication Background User's Guide.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from scope.cost.dtypes import element_bytes, matrix_path, scalar_type
from scope.cost.result import OperatorCost, added, cost, sized, stored, unknown

if TYPE_CHECKING:
    from collections.abc import Callable

    from scope.cost.call import OperatorCall, TensorArg

_ALIGNMENT_BYTES: Final = 16
_SHAPES: Final = "the shapes are not those of a matrix product"
_NO_SCALES: Final = "the trace does not hold the scales"
_GROUPED_PLACES: Final = {
    "aten::_grouped_mm": (2, 4),
    "aten::_scaled_grouped_mm": (4, 7),
    "aten::_scaled_grouped_mm_v2": (8, 10),
}
"""Where grouped products take their offsets, with the bias behind them, and the dtype of their result."""
_SCALES: Final = {"aten::_scaled_mm": (2, 3, 5), "aten::_scaled_grouped_mm": (2, 3, 6)}
_SCALE_LISTS: Final = ((2, 3), (5, 6))
"""Where the `_v2` forms keep lists of scales, and how each of them is laid out."""
_SCALE_DTYPES: Final = {2: "float8_e4m3fn", 3: "float8_e8m0fnu"}
"""`at::blas::ScalingType` of blocks of 16 and of 32 values; other scales are float32 (ATen/BlasBackend.h)."""


class _Extents(NamedTuple):
    batch: int
    m: int
    n: int
    k: int


def mm(call: OperatorCall) -> OperatorCost:
    """`mm(self[M,K], mat2[K,N], out_dtype)`, `bmm`, `_int_mm`, whose result of 8-bit integers is int32."""
    out = call.tensor(2)
    named = "int32" if call.name == "aten::_int_mm" else scalar_type(call.integer(2))
    return _product(call.tensor(0), call.tensor(1), out_dtype=named if out is None else out.dtype)


def addmm(call: OperatorCall) -> OperatorCost:
    """`addmm(self, mat1[M,K], mat2[K,N], beta, alpha)`, `baddbmm`: what is added is read unless beta is 0.

    With an `out_dtype`, that stands before `beta`.
    """
    # A sixth argument is the result, a flag, or says that there is a dtype.
    typed = len(call.arguments) > 5 and call.tensor(5) is None and not call.name.endswith("_activation")
    out_dtype = scalar_type(call.integer(3)) if typed else None
    added_term = _added_term(call, beta=4 if typed else 3)
    return _product(call.tensor(1), call.tensor(2), added_term=added_term, out_dtype=out_dtype)


def linear(call: OperatorCall) -> OperatorCost:
    """`linear(input[...,K], weight[N,K], bias)`."""
    x, weight = call.tensor(0), call.tensor(1)
    if x is None or weight is None or not x.dims or len(weight.dims) != 2 or x.dims[-1] != weight.dims[1]:
        return unknown("gemm", _SHAPES)
    rows = math.prod(x.dims[:-1])
    return _cost(_Extents(1, rows, weight.dims[0], weight.dims[1]), operands=(x, weight), added_term=call.tensor(2))


def matmul(call: OperatorCall) -> OperatorCost:
    """`matmul(self, other)` with torch's broadcasting of batches and vectors."""
    a, b = call.tensor(0), call.tensor(1)
    if a is None or b is None or not a.dims or not b.dims:
        return unknown("gemm", _SHAPES)
    left = a.dims if len(a.dims) > 1 else (1, *a.dims)
    right = b.dims if len(b.dims) > 1 else (*b.dims, 1)
    batch = _broadcast(left[:-2], right[:-2])
    if batch is None or left[-1] != right[-2]:
        return unknown("gemm", _SHAPES)
    return _cost(_Extents(math.prod(batch), left[-2], right[-1], left[-1]), operands=(a, b))


def mv(call: OperatorCall) -> OperatorCost:
    """`mv(self[M,K], vec[K])`."""
    return matmul(call)


def addmv(call: OperatorCall) -> OperatorCost:
    """`addmv(self[M], mat[M,K], vec[K])`."""
    a, b = call.tensor(1), call.tensor(2)
    if a is None or b is None or len(a.dims) != 2 or b.dims != a.dims[1:]:
        return unknown("gemm", _SHAPES)
    return _cost(_Extents(1, a.dims[0], 1, a.dims[1]), operands=(a, b), added_term=call.tensor(0))


def scaled_mm(call: OperatorCall) -> OperatorCost:
    """`_scaled_mm(self[M,K], mat2[K,N], scale_a, scale_b, bias, scale_result, out_dtype)`: FP8 with scales.

    The result has `out_dtype`; left out, that of the operands.
    """
    a, b = call.tensor(0), call.tensor(1)
    if a is None or b is None:
        return unknown("gemm", _SHAPES)
    v2 = call.name.endswith("_v2")
    out_dtype = scalar_type(call.integer(9 if v2 else 6)) or a.dtype
    product = _product(a, b, out_dtype=out_dtype, extra=(call.tensor(8 if v2 else 4),))
    return _unpacked(_reading(product, _scale_bytes(call)), a)


def _scale_bytes(call: OperatorCall) -> int | None:
    """Return the bytes of the scales of a product; None when the trace does not hold them."""
    if not call.name.endswith("_v2"):
        return stored(call.tensor(place) for place in _SCALES.get(call.name, ()))
    sizes: list[int | None] = []
    for place, layouts_at in _SCALE_LISTS:
        scales, layouts = call.arguments[place : place + 1], call.integers(layouts_at) or ()
        if not scales or not scales[0].tensors or len(scales[0].tensors) != len(layouts):
            return None
        dtypes = [_SCALE_DTYPES.get(layout, "float32") for layout in layouts]
        sizes += [sized(each.num_stored, dtype) for each, dtype in zip(scales[0].tensors, dtypes, strict=True)]
    return added(*sizes)


def _reading(product: OperatorCost, more: int | None) -> OperatorCost:
    """Return a product that reads some bytes more; what it reads is unknown when those are."""
    if product.bytes_read is None or more == 0:
        return product
    if more is None:
        return msgspec.structs.replace(product, bytes_read=None, num_bytes=None, bytes_reason=_NO_SCALES)
    return msgspec.structs.replace(
        product, bytes_read=product.bytes_read + more, num_bytes=added(product.num_bytes, more)
    )


def _unpacked(product: OperatorCost, a: TensorArg) -> OperatorCost:
    """Count both values that each element of a packed 4-bit operand holds along K."""
    if a.dtype != "float4_e2m1fn_x2" or product.flops is None:
        return product
    return msgspec.structs.replace(product, flops=product.flops * 2)


def grouped_mm(call: OperatorCall) -> OperatorCost:
    """`_grouped_mm(self, mat2, offs, ...)` and `_scaled_grouped_mm*`: one product for each expert of an MoE layer.

    Rows (or columns) are cut into groups at `offs`, whose values no trace holds; the groups are taken to cover the
    whole extent, so padding rows beyond the last offset count as work.
    """
    a, b = call.tensor(0), call.tensor(1)
    if a is None or b is None:
        return unknown("gemm", _SHAPES)
    scaled = "scaled" in call.name
    offsets_at, dtype_at = _GROUPED_PLACES[call.name]
    offsets = call.tensor(offsets_at)
    out_dtype = scalar_type(call.integer(dtype_at)) or ("bfloat16" if scaled else a.dtype)
    shape, extra = (len(a.dims), len(b.dims)), (offsets, call.tensor(offsets_at + 1))
    scale_bytes = _scale_bytes(call) if scaled else 0
    if shape == (3, 3):
        return _unpacked(_reading(_product(a, b, out_dtype=out_dtype, extra=extra), scale_bytes), a)
    rows, k, columns = a.dims[-2], a.dims[-1], b.dims[-1]
    if shape not in {(2, 3), (3, 2), (2, 2)} or b.dims[-2] != k or offsets is None:
        return unknown("gemm", _SHAPES)
    num_groups = offsets.num_elements
    # Both 2D: K itself is cut, and every group has a result of its own.
    num_out = rows * columns * (num_groups if shape == (2, 2) else 1)
    product = _cost(_Extents(1, rows, columns, k), operands=(a, b), out_dtype=out_dtype, extra=extra)
    product = _unpacked(_reading(product, scale_bytes), a)
    written = sized(num_out, out_dtype)
    total = added(product.bytes_read, written)
    return msgspec.structs.replace(product, bytes_written=written, num_bytes=total)


def dot(call: OperatorCall) -> OperatorCost:
    """`dot(self[K], tensor[K])`."""
    a, b = call.tensor(0), call.tensor(1)
    if a is None or b is None or a.dims != b.dims:
        return unknown("gemm", _SHAPES)
    return _cost(_Extents(1, 1, 1, a.num_elements), operands=(a, b))


def _added_term(call: OperatorCall, *, beta: int) -> TensorArg | None:
    text = call.text(beta)
    is_zero = text != "" and float(text) == 0.0 if _is_number(text) else False
    return None if is_zero else call.tensor(0)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _product(
    a: TensorArg | None,
    b: TensorArg | None,
    *,
    added_term: TensorArg | None = None,
    out_dtype: str | None = None,
    extra: tuple[TensorArg | None, ...] = (),
) -> OperatorCost:
    if a is None or b is None or len(a.dims) != len(b.dims) or len(a.dims) not in {2, 3}:
        return unknown("gemm", _SHAPES)
    if a.dims[-1] != b.dims[-2] or a.dims[:-2] != b.dims[:-2]:
        return unknown("gemm", _SHAPES)
    extents = _Extents(math.prod(a.dims[:-2]), a.dims[-2], b.dims[-1], a.dims[-1])
    return _cost(extents, operands=(a, b), added_term=added_term, out_dtype=out_dtype, extra=extra)


def _cost(
    extents: _Extents,
    *,
    operands: tuple[TensorArg, TensorArg],
    added_term: TensorArg | None = None,
    out_dtype: str | None = None,
    extra: tuple[TensorArg | None, ...] = (),
) -> OperatorCost:
    dtype = operands[0].dtype
    read = stored((*operands, added_term, *extra))
    written = sized(extents.batch * extents.m * extents.n, out_dtype or dtype)
    flops = 2 * extents.batch * extents.m * extents.n * extents.k
    base = cost("gemm", flops=flops, read=read, written=written, math_dtype=matrix_path(dtype))
    return msgspec.structs.replace(base, misaligned=misaligned(dtype, M=extents.m, N=extents.n, K=extents.k))


def misaligned(dtype: str | None, **extents: int) -> tuple[str, ...]:
    """Return the extents that are no multiple of 16 bytes, as `NAME=extent`; none when the dtype is unknown."""
    size = element_bytes(dtype)
    if size is None:
        return ()
    return tuple(f"{name}={extent}" for name, extent in extents.items() if extent * size % _ALIGNMENT_BYTES)


def _broadcast(left: tuple[int, ...], right: tuple[int, ...]) -> tuple[int, ...] | None:
    length = max(len(left), len(right))
    pairs = zip((1,) * (length - len(left)) + left, (1,) * (length - len(right)) + right, strict=True)
    sizes = [max(pair) if 1 in pair or pair[0] == pair[1] else None for pair in pairs]
    return None if None in sizes else tuple(size for size in sizes if size is not None)


MODELS: Final[dict[str, Callable[[OperatorCall], OperatorCost]]] = {
    "aten::mm": mm,
    "aten::_int_mm": mm,
    "aten::addmm": addmm,
    "aten::_addmm_activation": addmm,
    "aten::addmm_": addmm,
    "aten::bmm": mm,
    "aten::baddbmm": addmm,
    "aten::baddbmm_": addmm,
    "aten::linear": linear,
    "aten::mkldnn_linear": linear,
    "aten::matmul": matmul,
    "aten::mv": mv,
    "aten::addmv": addmv,
    "aten::addmv_": addmv,
    "aten::dot": dot,
    "aten::vdot": dot,
    "aten::_scaled_mm": scaled_mm,
    "aten::_scaled_mm_v2": scaled_mm,
    "aten::_grouped_mm": grouped_mm,
    "aten::_scaled_grouped_mm": grouped_mm,
    "aten::_scaled_grouped_mm_v2": grouped_mm,
    # vllm/model_executor/layers/utils.py
    "vllm::rocm_unquantized_gemm": linear,
}
