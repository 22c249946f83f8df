"""Kernels that a compiler or a package wrote: Triton kernels of compiled graphs, Transformer Engine, aiter, FBGEMM.

A compiled kernel's arguments are the tensors it reads and writes: each is moved once at least, which gives its bytes;
which of them are results, and the arithmetic, the trace does not say. Matrix templates give FLOPs by their shapes.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import msgspec

from scope.cost import gemm
from scope.cost.dtypes import matrix_path
from scope.cost.result import OperatorCost, added, cost, sized, stored, unknown

if TYPE_CHECKING:
    from collections.abc import Callable

    from scope.cost.call import OperatorCall, TensorArg

_EIGHT_BIT_FLOATS: Final = ("fbgemm::f8", "mslk::f8")
TRITON_PREFIX: Final = "triton_"
_TEMPLATE: Final = "triton_tem_"
_NOT_LINEAR: Final = "the shapes are not those of a linear layer"
_NO_PRODUCT: Final = "the shapes are not those of a matrix product"
_NO_SPLIT: Final = "which arguments of a compiled kernel are its results is not recorded"


def triton(call: OperatorCall) -> OperatorCost:
    """Any kernel of a compiled graph (`triton_poi_...`, `triton_red_...`, `triton_per_...`, `triton_tem_...`)."""
    tensors = call.tensors
    if not tensors:
        return unknown("fused", "the trace holds no tensor argument")
    total = stored(tensors)
    base = OperatorCost(
        family="fused",
        flops_reason="the arithmetic of a compiled kernel is not recorded",
        num_bytes=total,
        bytes_reason=_NO_SPLIT if total is not None else "the trace does not say the dtype",
    )
    if not call.name.startswith(_TEMPLATE):
        return base
    return triton_attention(call, base) if "flex_attention" in call.name else _template(call.name, tensors, base)


def _template(name: str, tensors: tuple[TensorArg, ...], base: OperatorCost) -> OperatorCost:
    """A matrix product template: its operands and result are the tensors whose shapes make a product."""
    if "mm" not in name:
        return msgspec.structs.replace(base, flops_reason="a template whose arithmetic is not a matrix product's")
    for left_index, left in enumerate(tensors):
        for right_index, right in enumerate(tensors[left_index + 1 :], start=left_index + 1):
            result = _product_shape(left, right)
            # By place and not by likeness: square operands look like their product.
            others = (each for index, each in enumerate(tensors) if index not in {left_index, right_index})
            if result is not None and any(each.dims == result for each in others):
                flops = 2 * math.prod(result) * left.dims[-1]
                return msgspec.structs.replace(
                    base,
                    family="gemm",
                    flops=flops,
                    flops_reason=None,
                    math_dtype=matrix_path(left.dtype),
                    misaligned=gemm.misaligned(left.dtype, M=result[-2], N=result[-1], K=left.dims[-1]),
                )
    return msgspec.structs.replace(base, flops_reason="the shapes of the template's arguments make no matrix product")


def _product_shape(left: TensorArg, right: TensorArg) -> tuple[int, ...] | None:
    if len(left.dims) != len(right.dims) or len(left.dims) not in {2, 3}:
        return None
    if left.dims[-1] != right.dims[-2] or left.dims[:-2] != right.dims[:-2]:
        return None
    return (*left.dims[:-1], right.dims[-1])


def triton_attention(call: OperatorCall, base: OperatorCost) -> OperatorCost:
    """A flex attention template (`triton_tem_..._flex_attention...`): queries, keys and values come first.

    Which blocks its mask leaves is computed while it runs, so its FLOPs are known only as at most those without a mask
    (`flops_unmasked`); the templates of its backward pass do not say which of their arguments are which.
    """
    tensors = call.tensors
    if "backward" in call.name or len(tensors) < 3 or any(len(each.dims) != 4 for each in tensors[:3]):
        return msgspec.structs.replace(
            base, family="attention", flops_reason="the arguments are not those of a forward pass"
        )
    q, k, v = tensors[:3]
    if q.dims[3] != k.dims[3] or k.dims[2] != v.dims[2]:
        return msgspec.structs.replace(base, family="attention", flops_reason="the shapes are not those of attention")
    pairs = q.dims[0] * q.dims[1] * q.dims[2] * k.dims[2]
    return msgspec.structs.replace(
        base,
        family="attention",
        flops_reason="how much of the score matrix the block mask leaves is not recorded",
        flops_unmasked=2 * pairs * (q.dims[3] + v.dims[3]),
        math_dtype=matrix_path(q.dtype),
    )


def transformer_engine_linear(call: OperatorCall) -> OperatorCost:
    """Transformer Engine's `_Linear` and `_LayerNormLinear` (forward): a weight `[N,K]` and an input `[...,K]`.

    The profiler records the tensors of an autograd function; the weight is the one of two dimensions whose width is
    that of the input. Whether the product runs in FP8 the tensors do not show, so the dtype is theirs.
    """
    tensors = call.tensors
    for weight in tensors:
        for x in tensors:
            if x is weight or len(weight.dims) != 2 or len(x.dims) < 2 or x.dims[-1] != weight.dims[1]:
                continue
            if call.name == "_LayerNormLinear" and x is not tensors[0]:
                continue
            rows = math.prod(x.dims[:-1])
            return cost(
                "gemm",
                flops=2 * rows * weight.dims[0] * weight.dims[1],
                read=stored((x, weight)),
                written=sized(rows * weight.dims[0], x.dtype),
                math_dtype=matrix_path(x.dtype),
            )
    return unknown("gemm", _NOT_LINEAR)


def transformer_engine_grouped(call: OperatorCall) -> OperatorCost:
    """Transformer Engine's `_GroupedLinear` (forward): rows `[...,K]` cut among weights `[N,K]`, one for each expert.

    Each row meets one weight, so that the work is that of one product, whatever the split.
    """
    tensors = call.tensors
    if len(tensors) < 2 or len(tensors[0].dims) < 2:
        return unknown("gemm", _NOT_LINEAR)
    x, weights = tensors[0], [each for each in tensors[1:] if len(each.dims) == 2]
    if not weights or any(each.dims != weights[0].dims for each in weights) or weights[0].dims[1] != x.dims[-1]:
        return unknown("gemm", _NOT_LINEAR)
    rows = math.prod(x.dims[:-1])
    return cost(
        "gemm",
        flops=2 * rows * weights[0].num_elements,
        read=stored((x, *weights)),
        written=sized(rows * weights[0].dims[0], x.dtype),
        math_dtype=matrix_path(x.dtype),
    )


def transformer_engine_mlp(call: OperatorCall) -> OperatorCost:
    """Transformer Engine's `_LayerNormMLP` (forward): two products; a gated first layer is twice as wide.

    The two weights are the tensors `[F1,K]` and `[K,F2]` of an input `[...,K]`, F1 being F2 or 2 F2.
    """
    tensors = call.tensors
    if not tensors or len(tensors[0].dims) < 2:
        return unknown("gemm", _NOT_LINEAR)
    x, width = tensors[0], tensors[0].dims[-1]
    matrices = [each for each in tensors[1:] if len(each.dims) == 2]
    pairs = [
        (first, second)
        for first in matrices
        for second in matrices
        if first is not second
        and first.dims[1] == second.dims[0] == width
        and first.dims[0] in {second.dims[1], 2 * second.dims[1]}
    ]
    if len(pairs) != 1:
        return unknown("gemm", _NOT_LINEAR)
    first, second = pairs[0]
    rows = math.prod(x.dims[:-1])
    hidden = sized(rows * (first.dims[0] + second.dims[1]), x.dtype)
    return cost(
        "gemm",
        flops=2 * rows * (first.num_elements + second.num_elements),
        read=added(stored((x, first, second)), hidden),
        written=added(hidden, sized(rows * width, x.dtype)),
        math_dtype=matrix_path(x.dtype),
    )


def transformer_engine_gemm(call: OperatorCall) -> OperatorCost:
    """Transformer Engine 1's `te_gemm_ts(A, _, _, _, transa, B, _, _, _, transb, D, ...)`, as column-major BLAS has it.

    In row-major terms the result is B A^T: A holds `[N,K]` when transposed and `[K,N]` when not, B holds `[K,M]` when
    transposed and `[M,K]` when not.
    """
    a, b, out = call.tensor(0), call.tensor(5), call.tensor(10)
    transposed_a, transposed_b = call.flag(4), call.flag(9)
    if a is None or b is None or out is None or len(a.dims) != 2 or len(b.dims) != 2:
        return unknown("gemm", _NOT_LINEAR)
    if transposed_a is None or transposed_b is None:
        return unknown("gemm", "the trace does not hold which operand is transposed (Concrete Inputs)")
    n, k = a.dims if transposed_a else a.dims[::-1]
    m, depth = b.dims[::-1] if transposed_b else b.dims
    if depth != k:
        return unknown("gemm", _NOT_LINEAR)
    base = cost(
        "gemm", flops=2 * m * n * k, read=stored((a, b)), written=sized(m * n, out.dtype),
        math_dtype=matrix_path("float8" if a.dtype == "uint8" else a.dtype),
    )  # fmt: skip
    return msgspec.structs.replace(base, misaligned=gemm.misaligned(a.dtype, M=m, N=n, K=k))


def attention_by_layout(call: OperatorCall) -> OperatorCost:
    """Transformer Engine's `FusedAttnFunc`: the order of axes and the mask are arguments that no trace holds."""
    return unknown("attention", "the trace holds neither the order of the axes nor the mask (qkv_format, mask type)")


def gradient_alone(call: OperatorCall) -> OperatorCost:
    """An autograd function's backward pass: the profiler records the gradients that enter it and nothing it saved."""
    family = "attention" if "Attn" in call.name else "gemm"
    return unknown(family, "the trace holds the gradient alone, not the weights and inputs that the function saved")


def weight_by_rows(call: OperatorCall) -> OperatorCost:
    """`gemm_a8w8(XQ[...,M,K], WQ[...,N,K], ...)`: the weight lies by rows; scales and bias are read.

    Of aiter and FBGEMM. A 4-bit weight holds two values in each byte along K. A stacked group has a weight `[G,N,K]`
    for rows `[M,K]` that are cut among the groups.
    """
    x, weight = call.tensor(0), call.tensor(1)
    if x is None or weight is None or len(x.dims) < 2 or len(weight.dims) not in {2, 3}:
        return unknown("gemm", _NO_PRODUCT)
    packed = 2 if "i4bf16" in call.name else 1
    is_batch = len(weight.dims) == 3 and len(x.dims) == 3
    if x.dims[-1] != weight.dims[-1] * packed or (is_batch and x.dims[0] != weight.dims[0]):
        return unknown("gemm", _NO_PRODUCT)
    if len(weight.dims) == 3 and not is_batch and "grouped" not in call.name:
        return unknown("gemm", _NO_PRODUCT)
    rows, columns = math.prod(x.dims[:-1]), weight.dims[-2]
    shape = (*x.dims[:-1], columns)
    out = next((each for each in call.tensors[2:] if each.dims == shape and each.num_elements > 1), None)
    extra = tuple(each for each in call.tensors[2:] if each is not out)
    # Without the output among the arguments its dtype is 16 bits wide, as these kernels write it.
    written = sized(rows * columns, "bfloat16" if out is None else out.dtype)
    base = cost(
        "gemm",
        flops=2 * rows * columns * x.dims[-1],
        read=stored((x, weight, *extra)),
        written=written,
        math_dtype=matrix_path(
            "float8" if call.name.startswith(("fbgemm::f8", "mslk::f8")) and x.dtype == "uint8" else x.dtype
        ),
    )
    return msgspec.structs.replace(base, misaligned=gemm.misaligned(x.dtype, M=x.dims[-2], N=columns, K=x.dims[-1]))


_BY_ROWS: Final = (
    "aiter::gemm_a8w8", "aiter::gemm_a8w8_CK", "aiter::gemm_a8w8_bpreshuffle", "aiter::gemm_a8w8_blockscale",
    "aiter::gemm_a16w16", "fbgemm::f8f8bf16", "fbgemm::f8f8bf16_tensorwise", "fbgemm::f8f8bf16_cublas",
    "fbgemm::f8f8bf16_rowwise", "fbgemm::f8f8bf16_rowwise_out", "fbgemm::f8f8bf16_rowwise_batched",
    "fbgemm::f8f8bf16_blockwise", "fbgemm::f8f8bf16_rowwise_grouped_stacked", "fbgemm::bf16bf16bf16_grouped_stacked",
    "fbgemm::i8i8bf16", "fbgemm::i8i8bf16_dynamic", "fbgemm::bf16i4bf16_rowwise", "fbgemm::f8i4bf16_rowwise",
    "fbgemm::f8f8f16_rowwise", "fbgemm::f8f8bf16_rowwise_preshuffle", "fbgemm::f8f8f16_rowwise_preshuffle",
    # aiter/ops/gemm_op_a8w8.py: the operators inside those above, which name their result
    "aiter::gemm_a8w8_ck", "aiter::gemm_a8w8_bpreshuffle_ck", "aiter::gemm_a8w8_bpreshuffle_cktile",
    "aiter::gemm_a8w8_blockscale_ck", "aiter::gemm_a8w8_blockscale_cktile",
    "aiter::gemm_a8w8_blockscale_bpreshuffle_ck", "aiter::gemm_a8w8_blockscale_bpreshuffle_cktile",
    # vllm/_aiter_ops.py and its predecessors
    "vllm::rocm_aiter_gemm_a8w8", "vllm::rocm_aiter_gemm_a8w8_blockscale", "vllm::rocm_aiter_gemm_a8w8_bpreshuffle",
    "vllm::rocm_aiter_triton_gemm_a8w8_blockscale", "vllm::rocm_aiter_gemm_w8a8",
    "vllm::rocm_aiter_gemm_w8a8_blockscale",
)  # fmt: skip
MODELS: Final[dict[str, Callable[[OperatorCall], OperatorCost]]] = {
    "_Linear": transformer_engine_linear,
    "_LayerNormLinear": transformer_engine_linear,
    "_LayerNormMLP": transformer_engine_mlp,
    "_GroupedLinear": transformer_engine_grouped,
    "FusedAttnFunc": attention_by_layout,
    "tex_ts::te_gemm_ts": transformer_engine_gemm,
    **dict.fromkeys(
        ("_LinearBackward", "_LayerNormLinearBackward", "_LayerNormMLPBackward", "_GroupedLinearBackward"),
        gradient_alone,
    ),
    **dict.fromkeys(("FlashAttnFuncBackward", "FusedAttnFuncBackward", "FlashAttnVarlenFuncBackward"), gradient_alone),
    **dict.fromkeys(_BY_ROWS, weight_by_rows),
    # FBGEMM's products moved to a package of their own
    **dict.fromkeys((name.replace("fbgemm::", "mslk::") for name in _BY_ROWS), weight_by_rows),
}
