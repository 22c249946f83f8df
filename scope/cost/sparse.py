"""Products with a weight of which two of four values are kept (2:4): torch's operators over CUTLASS and cuSPARSELt.

Multiplications by kept values alone count: M N K FLOPs, half of those of the dense product. Their share of the dense
peak, which the GPU catalogue holds, is the share that the dense product's FLOPs have of the vendor's "sparse" peak,
which is twice as high. What the operator is given (kept values, where they stood, bias) is read once, and the result is
written once.

Signatures: torch, `native_functions.yaml` and `_meta_registrations.py`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from scope.cost.dtypes import matrix_path, scalar_type
from scope.cost.result import OperatorCost, cost, sized, stored, unknown

if TYPE_CHECKING:
    from collections.abc import Callable

    from scope.cost.call import OperatorCall, TensorArg

_SHAPES: Final = "the shapes are not those of a product with a 2:4 sparse matrix"
_KEPT: Final = 2
"""One value in so many is kept."""


def linear(call: OperatorCall) -> OperatorCost:
    """`_sparse_semi_structured_linear(input[...,K], weight[N,K/2], meta, bias, activation, out_dtype)`."""
    x, weight = call.tensor(0), call.tensor(1)
    if x is None or weight is None or not x.dims or len(weight.dims) != 2 or x.dims[-1] != _KEPT * weight.dims[1]:
        return unknown("gemm", _SHAPES)
    return _cost(call, (math.prod(x.dims[:-1]), weight.dims[0], x.dims[-1]), dense=x, dtype_at=5)


def mm(call: OperatorCall) -> OperatorCost:
    """`_sparse_semi_structured_mm(mat1[M,K/2], meta, mat2[K,N], out_dtype)`.

    `_sparse_semi_structured_addmm(input[M], mat1, meta, mat2, alpha, beta, out_dtype)` adds its first argument.
    """
    first = 1 if "addmm" in call.name else 0
    kept, dense = call.tensor(first), call.tensor(first + 2)
    if kept is None or dense is None or len(kept.dims) != 2 or len(dense.dims) != 2:
        return unknown("gemm", _SHAPES)
    if dense.dims[0] != _KEPT * kept.dims[1]:
        return unknown("gemm", _SHAPES)
    return _cost(call, (kept.dims[0], dense.dims[1], dense.dims[0]), dense=dense, dtype_at=6 if first else 3)


def compressed_mm(call: OperatorCall) -> OperatorCost:
    """`_cslt_sparse_mm(compressed, dense[K,N], bias, alpha, out_dtype, ...)`: cuSPARSELt's own layout of M x K.

    Kept values and where they stood are one tensor: M rows, or in older versions all in one, 9/16 as many elements as
    the dense matrix has, of 8-bit types 10/16 (`_cslt_compress`).
    """
    compressed, dense = call.tensor(0), call.tensor(1)
    if compressed is None or dense is None or len(dense.dims) != 2 or not dense.dims[0] or not compressed.dims:
        return unknown("gemm", _SHAPES)
    k, n = dense.dims
    sixteenths = 10 if compressed.dtype in {"int8", "float8_e4m3fn"} else 9
    m = compressed.dims[0] if len(compressed.dims) == 2 else compressed.num_elements * 16 // (sixteenths * k)
    if _KEPT * compressed.num_elements < m * k:
        return unknown("gemm", _SHAPES)
    return _cost(call, (m, n, k), dense=dense, dtype_at=4)


def _cost(call: OperatorCall, extents: tuple[int, int, int], *, dense: TensorArg, dtype_at: int) -> OperatorCost:
    m, n, k = extents
    return cost(
        "gemm",
        flops=2 * m * n * k // _KEPT,
        read=stored(call.tensors),
        written=sized(m * n, scalar_type(call.integer(dtype_at)) or dense.dtype),
        math_dtype=matrix_path(dense.dtype),
    )


MODELS: Final[dict[str, Callable[[OperatorCall], OperatorCost]]] = {
    "aten::_sparse_semi_structured_linear": linear,
    "aten::_sparse_semi_structured_mm": mm,
    "aten::_sparse_semi_structured_addmm": mm,
    "aten::_cslt_sparse_mm": compressed_mm,
}
