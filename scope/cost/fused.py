"""Kernels that a compiler or a package wrote: Triton kernels of compiled graphs, Transformer Engine, aiter.

A compiled kernel's arguments are the tensors it reads and writes: each is moved once at least, which gives its bytes;
which of them are results, and the arithmetic, the trace does not say. Matrix templates give FLOPs by their shapes.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from scope.cost import gemm
from scope.cost.dtypes import matrix_path
from scope.cost.result import OperatorCost, cost, sized, stored, unknown

if TYPE_CHECKING:
    from collections.abc import Callable

    from scope.cost.call import OperatorCall, TensorArg

TRITON_PREFIX: Final = "triton_"
_TEMPLATE: Final = "triton_tem_"
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
    return _template(call.name, tensors, base) if call.name.startswith(_TEMPLATE) else base


def _template(name: str, tensors: tuple[TensorArg, ...], base: OperatorCost) -> OperatorCost:
    """A matrix product template: its operands and result are the tensors whose shapes make a product."""
    if "mm" not in name:
        return replace(base, flops_reason="a template whose arithmetic is not a matrix product's")
    for left_index, left in enumerate(tensors):
        for right in tensors[left_index + 1 :]:
            result = _product_shape(left, right)
            if result is not None and any(each.dims == result for each in tensors if each not in (left, right)):
                flops = 2 * math.prod(result) * left.dims[-1]
                return replace(
                    base,
                    family="gemm",
                    flops=flops,
                    flops_reason=None,
                    math_dtype=matrix_path(left.dtype),
                    misaligned=gemm.misaligned(left.dtype, M=result[-2], N=result[-1], K=left.dims[-1]),
                )
    return replace(base, flops_reason="the shapes of the template's arguments make no matrix product")


def _product_shape(left: TensorArg, right: TensorArg) -> tuple[int, ...] | None:
    if len(left.dims) != len(right.dims) or len(left.dims) not in {2, 3}:
        return None
    if left.dims[-1] != right.dims[-2] or left.dims[:-2] != right.dims[:-2]:
        return None
    return (*left.dims[:-1], right.dims[-1])


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
    return unknown("gemm", "the shapes are not those of a linear layer")


def weight_by_rows(call: OperatorCall) -> OperatorCost:
    """Aiter's `gemm_a8w8(XQ[M,K], WQ[N,K], ...)` and kin: the weight lies by rows; scales and bias are read."""
    x, weight = call.tensor(0), call.tensor(1)
    if x is None or weight is None or len(x.dims) != 2 or len(weight.dims) != 2 or x.dims[1] != weight.dims[1]:
        return unknown("gemm", "the shapes are not those of a matrix product")
    out = next((each for each in call.tensors[2:] if each.dims == (x.dims[0], weight.dims[0])), None)
    extra = tuple(each for each in call.tensors[2:] if each is not out)
    # Without the output among the arguments its dtype is 16 bits wide, as these kernels write it.
    written = sized(x.dims[0] * weight.dims[0], "bfloat16" if out is None else out.dtype)
    base = cost(
        "gemm",
        flops=2 * x.dims[0] * weight.dims[0] * x.dims[1],
        read=stored((x, weight, *extra)),
        written=written,
        math_dtype=matrix_path(x.dtype),
    )
    return replace(base, misaligned=gemm.misaligned(x.dtype, M=x.dims[0], N=weight.dims[0], K=x.dims[1]))


MODELS: Final[dict[str, Callable[[OperatorCall], OperatorCost]]] = {
    "_Linear": transformer_engine_linear,
    "_LayerNormLinear": transformer_engine_linear,
    "aiter::gemm_a8w8": weight_by_rows,
    "aiter::gemm_a8w8_CK": weight_by_rows,
    "aiter::gemm_a8w8_bpreshuffle": weight_by_rows,
    "aiter::gemm_a8w8_blockscale": weight_by_rows,
    "aiter::gemm_a16w16": weight_by_rows,
}
