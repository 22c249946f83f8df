"""Matrix products of serving and low-precision packages: vLLM, SGLang, torchao, FBGEMM, DeepGEMM behind vLLM.

Their operators differ in where operands stand, which of them is transposed, how many values one stored element holds
and whether the result is an argument. The orders below are those of the packages' own declarations (vLLM
`csrc/torch_bindings.cpp`, `csrc/libtorch_stable/torch_bindings.cpp` and `fp8_utils.py`, SGLang
`sgl-kernel/csrc/common_extension.cc`, torchao `torchao/ops.py`, FBGEMM `gen_ai/src/quantize/quantize.cpp`).

Work is 2 M N K FLOPs; operands, scales and biases are read once and the result is written once. Of a product of
experts the rows are taken to be all filled, as in `aten::_grouped_mm`. The matrix path is that of the activations: a
weight of fewer bits is widened before it is multiplied.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import msgspec

from scope.cost import gemm
from scope.cost.dtypes import element_bytes, matrix_path, scalar_type
from scope.cost.result import OperatorCost, added, cost, sized, stored, unknown
from scope.units import BITS_PER_BYTE

if TYPE_CHECKING:
    from collections.abc import Callable

    from scope.cost.call import OperatorCall, TensorArg

_NO_PRODUCT: Final = "the shapes are not those of a matrix product"
_ROWS_HIDDEN: Final = "how many rows of each expert are filled is not recorded"
_EXPERTS_HIDDEN: Final = "fewer rows than experts: whose weights were read is not recorded"
_LEAST_WEIGHT_BITS: Final = 1
_MOST_WEIGHT_BITS: Final = 16


class _Product(msgspec.Struct, frozen=True, kw_only=True):
    """Where an operator keeps its arguments, and how it stores them."""

    a: int = 0
    """Position of the activations, `[...,K]`."""
    b: int = 1
    """Position of the weight, `[K,N]` or `[N,K]`, of each expert behind each other when there are several."""
    out: int | None = None
    """Position of what the result is written to, `[...,N]`; None where the call returns it."""
    dtype: int | None = None
    """Position of the result's dtype."""
    columns: tuple[int, int] | None = None
    """Axis of the weight that counts the columns of the result, and how many of them one element holds."""
    a_values: int = 1
    """Values that one element of the activations holds along K."""
    b_values: int | None = 1
    """The same of the weight; None where it depends on the quantisation."""
    density: int = 1
    """One value in so many of the weight is kept; the others are 0 and cost nothing."""
    path: str | None = None
    """Matrix path, where the element types do not tell."""
    experts: bool = False
    unread: tuple[int, ...] = ()
    """Positions of tensors that are scratch space."""


class _Extents(msgspec.Struct, frozen=True, kw_only=True):
    experts: int
    m: int
    n: int
    k: int


def product(call: OperatorCall) -> OperatorCost:
    """Any product whose arguments stand where the table says."""
    where = _PRODUCTS[call.name]
    a, b = call.tensor(where.a), call.tensor(where.b)
    out = None if where.out is None else call.tensor(where.out)
    if a is None or b is None or (where.out is not None and out is None):
        return unknown("gemm", _NO_PRODUCT)
    if where.experts and len(a.dims) != 2:
        return unknown("gemm", _ROWS_HIDDEN)
    extents = _extents(where, a, b, out)
    if extents is None:
        return unknown("gemm", _NO_PRODUCT)
    out_dtype = out.dtype if out is not None else _returned_dtype(call, where, a)
    results = {where.out} if where.out is not None else _results(call, extents, operands=(where.a, where.b))
    skipped = {*where.unread, *results}
    return _cost(call, extents, where, skipped=skipped, out_dtype=out_dtype)


def _extents(where: _Product, a: TensorArg, b: TensorArg, out: TensorArg | None) -> _Extents | None:
    if not a.dims or len(b.dims) != (3 if where.experts else 2):
        return None
    experts = b.dims[0] if where.experts else 1
    m, k = math.prod(a.dims[:-1]), a.dims[-1] * where.a_values
    n = _num_columns(where, b, out, depth=experts * k)
    if not experts or not k or n is None or (out is not None and math.prod(out.dims[:-1]) != m):
        return None
    if where.b_values is not None:
        fits = b.num_elements * where.b_values * where.density == experts * n * k
    else:
        bits = (element_bytes(b.dtype) or 0) * BITS_PER_BYTE * b.num_elements
        fits = _LEAST_WEIGHT_BITS * experts * n * k <= bits <= _MOST_WEIGHT_BITS * experts * n * k
    return _Extents(experts=experts, m=m, n=n, k=k) if fits else None


def _num_columns(where: _Product, b: TensorArg, out: TensorArg | None, *, depth: int) -> int | None:
    if out is not None:
        return out.dims[-1] if out.dims else None
    if where.columns is not None:
        axis, each = where.columns
        return b.dims[axis] * each
    stored_values = b.num_elements * (where.b_values or 1) * where.density
    return stored_values // depth if depth else None


def _returned_dtype(call: OperatorCall, where: _Product, a: TensorArg) -> str | None:
    named = None if where.dtype is None else scalar_type(call.integer(where.dtype))
    if named is not None:
        return named
    # Kernels of 8-bit and 4-bit operands return 16-bit numbers.
    return a.dtype if (element_bytes(a.dtype) or 0) > 1 else "bfloat16"


def _cost(
    call: OperatorCall, extents: _Extents, where: _Product, *, skipped: set[int], out_dtype: str | None
) -> OperatorCost:
    a = call.tensor(where.a)
    assert a is not None
    read = stored(call.tensor(place) for place in range(len(call.arguments)) if place not in skipped)
    base = cost(
        "gemm",
        flops=2 * extents.m * extents.n * extents.k // where.density,
        read=read,
        written=sized(extents.m * extents.n, out_dtype),
        math_dtype=where.path or matrix_path(a.dtype),
    )
    if where.a_values == 1:
        aligned = gemm.misaligned(a.dtype, N=extents.n, K=extents.k)
        base = msgspec.structs.replace(base, misaligned=aligned)
    return base if extents.m >= extents.experts else _without_bytes(base, _EXPERTS_HIDDEN)


def _without_bytes(base: OperatorCost, reason: str) -> OperatorCost:
    return msgspec.structs.replace(base, bytes_read=None, num_bytes=None, bytes_reason=reason)


def by_sizes(call: OperatorCall) -> OperatorCost:
    """Marlin's products: the weight is shuffled into tiles, and M, N and K are arguments, in this order.

    Versions differ in what stands before them, so they are found by the shape `[M,K]` of the activations. What is
    written to and the scratch space, the last tensor, are not read.
    """
    a, where = call.tensor(0), _sizes_at(call)
    if a is None or where is None:
        return unknown("gemm", _NO_PRODUCT)
    m, n, k = (call.integer(where + each) or 0 for each in range(3))
    extents = _Extents(experts=1, m=m, n=n, k=k)
    scratch = max(place for place in range(len(call.arguments)) if call.tensor(place) is not None)
    skipped = {scratch, *_results(call, extents, operands=(0,))}
    dtype = a.dtype if (element_bytes(a.dtype) or 0) > 1 else "bfloat16"
    return _cost(call, extents, _Product(), skipped=skipped, out_dtype=dtype)


def _sizes_at(call: OperatorCall) -> int | None:
    a = call.tensor(0)
    if a is None or len(a.dims) != 2:
        return None
    for place in range(1, len(call.arguments) - 2):
        m, n, k = (call.integer(place + each) for each in range(3))
        if (m, k) == a.dims and n is not None and n > 0:
            return place
    return None


def _results(call: OperatorCall, extents: _Extents, *, operands: tuple[int, ...]) -> set[int]:
    """Return the positions of what looks like the result: 16-bit numbers of its shape."""
    found: set[int] = set()
    for place in range(len(call.arguments)):
        tensor = call.tensor(place)
        if place not in operands and tensor is not None and tensor.dims == (extents.m, extents.n):
            found |= {place} if tensor.dtype in {"float16", "bfloat16"} else set()
    return found


def listed_experts(call: OperatorCall) -> OperatorCost:
    """FBGEMM's `*_grouped(XQ[], WQ[], ...)`: a product `[M,K]` by `[N,K]` of each expert, in lists.

    Traces hold the shapes of a list and not its element type; the operator's name does: `f8f8bf16` or `bf16bf16bf16`.
    """
    lists = call.lists
    if len(lists) < 2 or not lists[0].tensors or len(lists[0].tensors) != len(lists[1].tensors):
        return unknown("gemm", _NO_PRODUCT)
    pairs = list(zip(lists[0].tensors, lists[1].tensors, strict=True))
    if any(len(x.dims) != 2 or len(w.dims) != 2 or x.dims[1] != w.dims[1] for x, w in pairs):
        return unknown("gemm", _NO_PRODUCT)
    dtype = "float8_e4m3fn" if "f8f8" in call.name else "bfloat16"
    scales = sum(each.num_elements for scale in lists[2:4] for each in scale.tensors) if "f8f8" in call.name else 0
    operands = sum(x.num_elements + w.num_elements for x, w in pairs)
    return cost(
        "gemm",
        flops=sum(2 * x.dims[0] * w.dims[0] * x.dims[1] for x, w in pairs),
        read=added(sized(operands, dtype), sized(scales, "float32")),
        written=sized(sum(x.dims[0] * w.dims[0] for x, w in pairs), "bfloat16"),
        math_dtype=matrix_path(dtype),
    )


def packed_int4(call: OperatorCall) -> OperatorCost:
    """`_weight_int4pack_mm(self[M,K], mat2, group size, scales and zeros)`: 4-bit values in any layout.

    `_with_scales_and_zeros` takes the two apart.
    """
    a, b = call.tensor(0), call.tensor(1)
    k = a.dims[-1] if a is not None and a.dims else 0
    width = None if b is None else element_bytes(b.dtype)
    if a is None or b is None or not k or width is None or b.num_elements * width * 2 % k:
        return unknown("gemm", _NO_PRODUCT)
    extents = _Extents(experts=1, m=math.prod(a.dims[:-1]), n=b.num_elements * width * 2 // k, k=k)
    return _cost(call, extents, _Product(), skipped=set(), out_dtype=a.dtype)


def dynamic_int4(call: OperatorCall) -> OperatorCost:
    """`_dyn_quant_matmul_4bit(inp[M,K], packed weights, block size, K, N)`: activations become 8-bit integers first.

    Weights, scales and bias are one tensor, whose layout is the kernel's.
    """
    a, k, n = call.tensor(0), call.integer(3), call.integer(4)
    if a is None or call.tensor(1) is None or not k or not n or a.dims[-1:] != (k,):
        return unknown("gemm", _NO_PRODUCT)
    extents = _Extents(experts=1, m=math.prod(a.dims[:-1]), n=n, k=k)
    return _cost(call, extents, _Product(path="int8"), skipped=set(), out_dtype=a.dtype)


def rows_hidden(call: OperatorCall) -> OperatorCost:
    """A product of experts whose rows are padded: the trace does not hold how many count."""
    return unknown("gemm", _ROWS_HIDDEN)


_INTO: Final = _Product(out=0, a=1, b=2)
_INTO_FP4: Final = _Product(out=0, a=1, b=2, a_values=2, b_values=2, path="float4")
_INTO_EXPERTS: Final = _Product(out=0, a=1, b=2, experts=True)
_INTO_FP4_EXPERTS: Final = _Product(out=0, a=1, b=2, a_values=2, b_values=2, path="float4", experts=True)
_PRODUCTS: Final = {
    # vLLM: (out, a, b, scales...), b [K,N]; FP4 operands are bytes of two values, both by rows
    "_C::cutlass_scaled_mm": _INTO,
    "_C::cutlass_scaled_mm_azp": _INTO,
    "_C::cutlass_scaled_fp4_mm": _INTO_FP4,
    "_C::cutlass_scaled_sparse_mm": _Product(out=0, a=1, b=2, density=2),
    "_C::cutlass_moe_mm": _INTO_EXPERTS,
    "_C::cutlass_blockwise_scaled_grouped_mm": _INTO_EXPERTS,
    "_C::cutlass_fp4_group_mm": _INTO_FP4_EXPERTS,
    "_C::cutlass_mxfp4_group_mm": _INTO_FP4_EXPERTS,
    "_C::cutlass_mxfp8_grouped_mm": _Product(out=4, experts=True),
    "_C::cutlass_w4a8_moe_mm": _Product(out=0, a=1, b=2, b_values=None, experts=True),
    "_C::dsv3_fused_a_gemm": _INTO,
    # weights of few bits in words, their columns along the second axis
    "_C::machete_mm": _Product(dtype=3, columns=(1, 1), b_values=None),
    "_C::cutlass_w4a8_mm": _Product(dtype=6, columns=(1, 1), b_values=None),
    "_C::gptq_gemm": _Product(columns=(1, 1), b_values=None),
    "_C::awq_gemm": _Product(columns=(1, 8), b_values=None),
    # DeepGEMM and its like behind vLLM: the weight lies by rows
    "vllm::fp8_gemm_nt_op": _Product(a=0, b=2, out=4),
    "vllm::w8a8_triton_block_scaled_mm_func": _Product(dtype=5),
    "vllm::padded_cutlass": _Product(dtype=5),
    # it quantises the activations before it multiplies
    "vllm::flashinfer_fp8_blockscale_gemm": _Product(path="float8"),
    # SGLang
    "sgl_kernel::int8_scaled_mm": _Product(dtype=4),
    "sgl_kernel::fp8_scaled_mm": _Product(dtype=4),
    "sgl_kernel::fp8_blockwise_scaled_mm": _Product(dtype=4),
    "sgl_kernel::cutlass_scaled_fp4_mm": _INTO_FP4,
    "sgl_kernel::cutlass_fp4_group_mm": _INTO_FP4_EXPERTS,
    "sgl_kernel::fp8_blockwise_scaled_grouped_mm": _Product(out=0, a=6, b=7, experts=True, unread=(17,)),
    "sgl_kernel::cutlass_w4a8_moe_mm": _Product(out=0, a=1, b=2, b_values=None, experts=True),
    "sgl_kernel::dsv3_fused_a_gemm": _INTO,
    "sgl_kernel::dsv3_router_gemm": _INTO,
    "sgl_kernel::gptq_gemm": _Product(columns=(1, 1), b_values=None),
    # torchao: (input, input_scale, weight, ...), 4-bit values in bytes
    "torchao::rowwise_scaled_linear_cutlass_s8s4": _Product(b=2, b_values=2, dtype=5),
    "torchao::rowwise_scaled_linear_cutlass_s4s4": _Product(b=2, a_values=2, b_values=2, dtype=5),
    "torchao::rowwise_scaled_linear_sparse_cutlass_f8f8": _Product(b=2, density=2, dtype=6),
    # FBGEMM: FP4 operands are bytes of two values, both by rows
    "fbgemm::f4f4bf16": _Product(a_values=2, b_values=2, path="float4"),
    "fbgemm::f4f4bf16_grouped_stacked": _Product(a_values=2, b_values=2, path="float4", experts=True),
    "fbgemm::mx8mx8bf16_grouped_stacked": _Product(experts=True),
    # torch: 8-bit weights by rows, a scale for each
    "aten::_weight_int8pack_mm": _Product(),
    # aiter/ops/gemm_op_a4w4.py: the same, of AMD
    "aiter::gemm_a4w4": _Product(a_values=2, b_values=2, path="float4"),
}
MODELS: Final[dict[str, Callable[[OperatorCall], OperatorCost]]] = {
    **dict.fromkeys(_PRODUCTS, product),
    "aten::_weight_int4pack_mm": packed_int4,
    "aten::_weight_int4pack_mm_for_cpu": packed_int4,
    "aten::_weight_int4pack_mm_with_scales_and_zeros": packed_int4,
    "aten::_dyn_quant_matmul_4bit": dynamic_int4,
    **dict.fromkeys(
        ("_C::marlin_gemm", "_C::gptq_marlin_gemm", "_C::fp8_marlin_gemm", "_C::marlin_qqq_gemm",
         "sgl_kernel::gptq_marlin_gemm"),
        by_sizes,
    ),
    **dict.fromkeys(
        ("fbgemm::f8f8bf16_rowwise_grouped", "fbgemm::f8f8bf16_rowwise_grouped_cat", "fbgemm::bf16bf16bf16_grouped",
         "fbgemm::bf16bf16bf16_grouped_cat"),
        listed_experts,
    ),
    **dict.fromkeys(
        ("fbgemm::f8f8bf16_rowwise_grouped_dynamic", "fbgemm::bf16bf16bf16_grouped_dynamic"), rows_hidden,
    ),
}  # fmt: skip
