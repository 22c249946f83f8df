"""Products and attention of serving packages, counted by hand from the packages' own declarations."""

from __future__ import annotations

import json

import pytest

from scope.cost import OperatorCost, estimate_operator, has_model, is_matrix_operator

Argument = tuple[list[object], str, str]
NONE: Argument = ([], "", "")
BF16, FP8, INT8, BYTE, INT, INT64 = (
    "c10::BFloat16", "c10::Float8_e4m3fn", "signed char", "unsigned char", "int", "long int",
)  # fmt: skip
BF16_NUMBER, HALF_NUMBER = "15", "5"


def _cost(name: str, arguments: list[Argument]) -> OperatorCost:
    dims, types, values = (json.dumps(list(column)) for column in zip(*arguments, strict=True))
    return estimate_operator(name, dims, types, None, values)


def _tensor(*dims: int, dtype: str = "float") -> Argument:
    return [*dims], dtype, ""


def _value(text: str | float) -> Argument:
    return [], "Scalar", str(text)


def _list(*shapes: tuple[int, ...]) -> Argument:
    return [[*shape] for shape in shapes], "TensorList", ""


# 8 rows of 64 meet 32 columns: 2 x 8 x 32 x 64 FLOPs.
M, N, K = 8, 32, 64
FLOPS = 2 * M * N * K
OUT = _tensor(M, N, dtype=BF16)
A8, B8 = _tensor(M, K, dtype=FP8), _tensor(K, N, dtype=FP8)
ROWS, COLUMNS = _tensor(M, 1), _tensor(1, N)
PRODUCTS = [
    # The result is the first argument and is not read; FP8 operands, a float32 scale a row and a column, a bias.
    ("_C::cutlass_scaled_mm", [OUT, A8, B8, ROWS, COLUMNS, _tensor(N, dtype=BF16)],
     M * K + K * N + 4 * M + 4 * N + 2 * N, "float8"),
    # INT8 with a zero point for each row and its correction for each column.
    ("_C::cutlass_scaled_mm_azp", [OUT, _tensor(M, K, dtype=INT8), _tensor(K, N, dtype=INT8), ROWS, COLUMNS,
                                   _tensor(N, dtype=INT), _tensor(M, dtype=INT), NONE],
     M * K + K * N + 4 * (M + N) + 4 * (N + M), "int8"),
    # Two FP4 values a byte, both operands by rows; a scale of a byte for 16 of them; one factor.
    ("_C::cutlass_scaled_fp4_mm", [OUT, _tensor(M, K // 2, dtype=BYTE), _tensor(N, K // 2, dtype=BYTE),
                                   _tensor(M, K // 16, dtype=FP8), _tensor(N, K // 16, dtype=FP8), _tensor(1)],
     (M * K + N * K) // 2 + (M * K + N * K) // 16 + 4, "float4"),
    # Rows are cut among four experts, each with a weight of its own; the offsets and sizes are read.
    ("_C::cutlass_moe_mm", [OUT, A8, _tensor(4, K, N, dtype=FP8), ROWS, _tensor(4, N), _tensor(5, dtype=INT),
                            _tensor(4, 3, dtype=INT), *[_tensor(4, dtype=INT64)] * 3, _value("True"), _value("True")],
     M * K + 4 * K * N + 4 * M + 4 * 4 * N + 4 * 5 + 4 * 12 + 3 * 32, "float8"),
    # 4-bit weights in words of 32 bits: K / 8 rows of them; a scale for 32 rows.
    ("_C::machete_mm", [_tensor(M, K, dtype=BF16), _tensor(K // 8, N, dtype=INT), _value(1125899906843648), NONE,
                        _tensor(K // 32, N, dtype=BF16), NONE, _value(32), NONE, NONE, NONE],
     2 * M * K + K * N // 2 + 2 * 2 * N, "bfloat16"),
    # 8-bit weights by rows with a scale for each; 4-bit ones, eight in a word, cut into tiles of 8 x 32, and in bytes,
    # with a scale and a zero for each of 32 along K.
    ("aten::_weight_int8pack_mm", [_tensor(M, K, dtype=BF16), _tensor(N, K, dtype=INT8), _tensor(N, dtype=BF16)],
     2 * M * K + N * K + 2 * N, "bfloat16"),
    ("aten::_weight_int4pack_mm", [_tensor(M, K, dtype=BF16), _tensor(N // 8, K // 32, 32, 1, dtype=INT), _value(32),
                                   _tensor(K // 32, N, 2, dtype=BF16)],
     2 * M * K + N * K // 2 + 2 * 2 * 2 * N, "bfloat16"),
    ("aten::_weight_int4pack_mm_for_cpu", [_tensor(M, K, dtype=BF16), _tensor(N, K // 2, dtype=BYTE), _value(32),
                                           _tensor(K // 32, N, 2, dtype=BF16)],
     2 * M * K + N * K // 2 + 2 * 2 * 2 * N, "bfloat16"),
    # Few bits in words, along N.
    ("_C::awq_gemm", [_tensor(M, K, dtype=BF16), _tensor(K, N // 8, dtype=INT), _tensor(2, N, dtype=BF16),
                      _tensor(2, N // 8, dtype=INT), _value(8)],
     2 * M * K + K * N // 2 + 2 * 2 * N + 2 * N // 2, "bfloat16"),
    ("_C::gptq_gemm", [_tensor(M, K, dtype=BF16), _tensor(K // 8, N, dtype=INT), _tensor(2, N // 8, dtype=INT),
                       _tensor(2, N, dtype=BF16), _tensor(K, dtype=INT), _value("True"), _value("False"), _value(4)],
     2 * M * K + K * N // 2 + 2 * N // 2 + 2 * 2 * N + 4 * K, "bfloat16"),
    # The weight behind the scale of the activations, the result behind both.
    ("vllm::fp8_gemm_nt_op", [A8, _tensor(M, 1), _tensor(N, K, dtype=FP8), _tensor(1, 1), OUT, _value("False")],
     M * K + N * K + 4 * M + 4, "float8"),
    # 16-bit activations that it quantises itself.
    ("vllm::flashinfer_fp8_blockscale_gemm", [_tensor(M, K, dtype=BF16), _tensor(N, K, dtype=FP8), _tensor(1, 1),
                                              _value(128), _value("False")],
     2 * M * K + N * K + 4, "float8"),
    ("sgl_kernel::fp8_scaled_mm", [A8, B8, ROWS, COLUMNS, _value(BF16_NUMBER), NONE],
     M * K + K * N + 4 * M + 4 * N, "float8"),
    ("sgl_kernel::int8_scaled_mm", [_tensor(M, K, dtype=INT8), _tensor(K, N, dtype=INT8), ROWS, COLUMNS,
                                    _value(HALF_NUMBER), _tensor(N, dtype="c10::Half")],
     M * K + K * N + 4 * M + 4 * N + 2 * N, "int8"),
    ("sgl_kernel::dsv3_router_gemm", [OUT, _tensor(M, K, dtype=BF16), _tensor(N, K, dtype=BF16)],
     2 * (M * K + N * K), "bfloat16"),
    # 4-bit weights meet 8-bit activations, which decide the path.
    ("torchao::rowwise_scaled_linear_cutlass_s8s4", [_tensor(M, K, dtype=INT8), _tensor(M),
                                                     _tensor(N, K // 2, dtype=INT8), _tensor(N), NONE,
                                                     _value(BF16_NUMBER)],
     M * K + N * K // 2 + 4 * M + 4 * N, "int8"),
    ("fbgemm::f4f4bf16", [_tensor(M, K // 2, dtype=BYTE), _tensor(N, K // 2, dtype=BYTE), _tensor(M, 2, dtype=BYTE),
                          _tensor(N, 2, dtype=BYTE), OUT],
     (M * K + N * K) // 2 + 2 * M + 2 * N, "float4"),
    ("mslk::f8f8bf16_rowwise", [A8, _tensor(N, K, dtype=FP8), _tensor(M), _tensor(N)],
     M * K + N * K + 4 * M + 4 * N, "float8"),
    ("vllm::rocm_aiter_gemm_a8w8", [_tensor(M, K, dtype=INT8), _tensor(N, K, dtype=INT8), _tensor(M, 1), _tensor(N, 1),
                                    NONE, _value(BF16_NUMBER)],
     M * K + N * K + 4 * M + 4 * N, "int8"),
    # Transformer Engine: two weights [N,K] share the rows.
    ("_GroupedLinear", [_tensor(2, M // 2, K, dtype=BF16), *[_tensor(N, K, dtype=BF16)] * 2],
     2 * (M * K + 2 * N * K), "bfloat16"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "arguments", "read", "path"), PRODUCTS, ids=[each[0] for each in PRODUCTS])
def test_products_of_serving_packages(name: str, arguments: list[Argument], read: int, path: str) -> None:
    """8 x 64 meets 64 x 32: operands and scales are read once, the 16-bit result is written and not read."""
    cost = _cost(name, arguments)
    assert is_matrix_operator(name)
    assert (cost.family, cost.flops, cost.bytes_read, cost.math_dtype) == ("gemm", FLOPS, read, path)
    assert cost.bytes_written == 2 * M * N


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        # vLLM: a, result, weight, bias, scales, of activations, global, zeros, order, permutation, scratch; type; sizes
        ("_C::marlin_gemm", [_tensor(M, K, dtype=BF16), OUT, _tensor(K // 16, 2 * N, dtype=INT), NONE,
                             _tensor(2, N, dtype=BF16), NONE, NONE, NONE, NONE, NONE, _tensor(528, dtype=INT),
                             _value(1125899906843648), _value(M), _value(N), _value(K), _value("True")]),
        # an older one: a, weight, scales, zeros, order, permutation, scratch
        ("_C::gptq_marlin_gemm", [_tensor(M, K, dtype=BF16), _tensor(K // 16, 2 * N, dtype=INT),
                                  _tensor(2, N, dtype=BF16), NONE, NONE, NONE, _tensor(528, dtype=INT),
                                  _value(1125899906843648), _value(M), _value(N), _value(K), _value("True")]),
    ],
)  # fmt: skip
def test_marlin_names_its_sizes(name: str, arguments: list[Argument]) -> None:
    """M, N and K stand in the call, behind arguments that differ by version; 4-bit weights are half a byte."""
    cost = _cost(name, arguments)
    assert (cost.flops, cost.math_dtype) == (FLOPS, "bfloat16")
    assert cost.bytes_read == 2 * M * K + N * K // 2 + 2 * 2 * N
    assert cost.bytes_written == 2 * M * N


def test_half_of_a_sparse_weight_is_work() -> None:
    """Two of four values of the weight are kept: their multiplications alone are counted, and they alone are read."""
    arguments = [OUT, A8, _tensor(N, K // 2, dtype=FP8), _tensor(N, K // 8, dtype=BYTE), ROWS, COLUMNS, NONE]
    cost = _cost("_C::cutlass_scaled_sparse_mm", arguments)
    assert cost.flops == FLOPS // 2
    assert cost.bytes_read == M * K + N * K // 2 + N * K // 8 + 4 * M + 4 * N


def test_experts_of_few_rows() -> None:
    """Eight rows cannot reach all of sixteen experts: the work is known, whose weights were read is not."""
    arguments = [OUT, A8, _tensor(16, K, N, dtype=FP8), ROWS, _tensor(16, N)]
    cost = _cost("_C::cutlass_moe_mm", arguments)
    assert (cost.flops, cost.num_bytes) == (FLOPS, None)
    assert "fewer rows than experts" in (cost.bytes_reason or "")


def test_lists_of_experts() -> None:
    """FBGEMM's lists of FP8 operands: two experts of 8 and 24 rows; element types are in the name."""
    lists = [_list((8, 64), (24, 64)), _list((32, 64), (32, 64)), _list((8,), (24,)), _list((32,), (32,))]
    cost = _cost("fbgemm::f8f8bf16_rowwise_grouped", lists)
    assert cost.flops == 2 * 32 * 64 * (8 + 24)
    assert cost.bytes_read == (8 + 24) * 64 + 2 * 32 * 64 + 4 * (8 + 24 + 32 + 32)
    assert (cost.bytes_written, cost.math_dtype) == (2 * 32 * (8 + 24), "float8")
    wide = _cost("fbgemm::bf16bf16bf16_grouped", lists[:2])
    assert wide.bytes_read == 2 * ((8 + 24) * 64 + 2 * 32 * 64)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("_C::cutlass_scaled_mm", [OUT, A8, _tensor(K + 1, N, dtype=FP8), ROWS, COLUMNS, NONE]),
        ("_C::cutlass_scaled_mm", [_tensor(M + 1, N, dtype=BF16), A8, B8, ROWS, COLUMNS, NONE]),
        # 17 bits a weight are no quantisation
        ("_C::machete_mm", [_tensor(M, K, dtype=BF16), _tensor(K, N, dtype=INT)]),
        ("_C::cutlass_moe_mm", [OUT, _tensor(2, M, K, dtype=FP8), _tensor(4, K, N, dtype=FP8)]),
        ("_C::marlin_gemm", [_tensor(M, K, dtype=BF16), OUT, _value(M), _value(N), _value(K + 1)]),
        ("fbgemm::f8f8bf16_rowwise_grouped_dynamic", [_tensor(4, M, K, dtype=FP8), _tensor(4, N, K, dtype=FP8)]),
        ("FusedAttnFunc", [_tensor(2, 128, 8, 64, dtype=BF16)] * 3),
    ],
)  # fmt: skip
def test_what_is_no_such_product_is_unknown(name: str, arguments: list[Argument]) -> None:
    """Shapes that do not fit, or rows that are not recorded: absent with a reason, never a wrong figure."""
    cost = _cost(name, arguments)
    assert has_model(name)
    assert (cost.flops, cost.num_bytes) == (None, None)
    assert cost.flops_reason


HEADS = _tensor(2, 128, 8, 64, dtype=BF16)  # batch, tokens, heads, width
PACKED = _tensor(256, 8, 64, dtype=BF16)  # two sequences of 128 behind each other
CUTS = _tensor(3, dtype=INT)
# 4 x pairs x width for each of 16 heads; causal: half of 128 x 128.
FULL = 4 * 128 * 128 * 64 * 16
SPAN = [_value(128), _value(128)]
WINDOW = [_value(-1), _value(-1)]
ATTENTION = [
    ("flash_attn_3::_flash_attn_forward", [HEADS, HEADS, HEADS, *[NONE] * 20, _value(0.125), _value("True"), *WINDOW],
     FULL // 2),
    # vLLM's: result, cuts of both; lengths in use, padding, block table, slopes; longest; rates; zero, causal, window
    ("_vllm_fa2_C::varlen_fwd", [PACKED, PACKED, PACKED, PACKED, CUTS, CUTS, NONE, NONE, NONE, NONE, *SPAN,
                                 _value(0.0), _value(0.125), _value("False"), _value("True"), *WINDOW], FULL // 2),
    ("_vllm_fa3_C::fwd", [PACKED, PACKED, PACKED, *[NONE] * 4, CUTS, CUTS, *[NONE] * 3, *SPAN, *[NONE] * 9,
                          _value(0.125), _value("False"), *WINDOW], FULL),
    ("aiter::fmha_v3_fwd", [HEADS, HEADS, HEADS, _value(0.0), _value(0.125), _value("True"), *WINDOW], FULL // 2),
    # the shortest length and the cap of the logits came later
    ("aiter::mha_varlen_fwd", [PACKED, PACKED, PACKED, CUTS, CUTS, *SPAN, _value(0), _value(0.0), _value(0.125),
                               _value(0.0), _value("False"), _value("True"), *WINDOW], FULL // 2),
    ("aiter::mha_varlen_fwd", [PACKED, PACKED, PACKED, CUTS, CUTS, *SPAN, _value(0.0), _value(0.125), _value("False"),
                               _value("True"), *WINDOW], FULL // 2),
    # five products instead of two
    ("aiter::mha_bwd", [HEADS] * 5 + [_tensor(2, 8, 128), _value(0.0), _value(0.125), _value("True"), *WINDOW],
     FULL * 5 // 4),
    ("aiter::_flash_attn_backward", [*[HEADS] * 5, _tensor(2, 8, 128), *[HEADS] * 3, _value(0.0), _value(0.125),
                                     _value("True"), *WINDOW], FULL * 5 // 4),
    ("aiter::_flash_attn_backward", [*[HEADS] * 5, _tensor(2, 8, 128), *[HEADS] * 3, NONE, _value(0.0), _value(0.125),
                                     _value("False"), *WINDOW], FULL * 5 // 2),
    ("xformers_flash::flash_bwd", [_value("False"), PACKED, PACKED, PACKED, PACKED, PACKED, _tensor(2, 8, 128), CUTS,
                                   CUTS, *SPAN, _value(0.0), _value(0.125), _value("True"), *WINDOW], FULL * 5 // 4),
    ("xformers_flash3::flash_fwd", [HEADS, HEADS, HEADS, *[NONE] * 4, *SPAN, _value(0.0), _value(0.125),
                                    _value("True"), *[NONE] * 4, _value("False"), *WINDOW], FULL // 2),
    ("xformers_flash3::flash_fwd", [HEADS, HEADS, HEADS, *[NONE] * 3, *SPAN, _value(0.0), _value(0.125),
                                    _value("True")], FULL // 2),
    ("xformers::efficient_attention_forward_ck", [HEADS, HEADS, HEADS, NONE, NONE, NONE, NONE, _value(0.0),
                                                  _value("True"), _value(1), _value(0.125), NONE, NONE], FULL // 2),
]  # fmt: skip


@pytest.mark.parametrize(("name", "arguments", "flops"), ATTENTION)
def test_attention_of_serving_packages(name: str, arguments: list[Argument], flops: int) -> None:
    """Two batches of 8 heads, 128 tokens of width 64, whatever the package calls it and wherever its flags stand."""
    cost = _cost(name, arguments)
    assert (cost.family, cost.flops, cost.math_dtype) == ("attention", flops, "bfloat16")
    operands = 2 * 128 * 8 * 64 * 2
    rows = 2 * 8 * 128 * 4
    backward = "bwd" in name or "backward" in name
    assert cost.num_bytes == (8 * operands + rows if backward else 4 * operands + rows)


PAGES = _tensor(1000, 16, 8, 64, dtype=BF16)
TABLE, LENGTHS = _tensor(2, 64, dtype=INT), _tensor(2, dtype=INT)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("_vllm_fa2_C::varlen_fwd", [PACKED, PAGES, PAGES, PACKED, CUTS, CUTS, LENGTHS, NONE, TABLE]),
        ("flash_attn_3::fwd", [PACKED, PAGES, PAGES, *[NONE] * 4, CUTS, *[NONE] * 3, LENGTHS, *SPAN, TABLE]),
        ("flash_attn_3::fwd", [HEADS, HEADS, HEADS, _tensor(2, 1, 8, 64, dtype=BF16)]),
        ("vllm::unified_attention_with_output", [PACKED, PACKED, PACKED, PACKED]),
        ("_C::paged_attention_v1", [PACKED, PACKED, PAGES, PAGES]),
    ],
)
def test_attention_to_a_cache_is_unknown(name: str, arguments: list[Argument]) -> None:
    """Of a cache of 1,000 pages a call reads what its block table says, whose values no trace holds."""
    cost = _cost(name, arguments)
    assert (cost.family, cost.flops, cost.num_bytes) == ("attention", None, None)
    assert "cache" in (cost.bytes_reason or "")


def test_a_band_of_the_efficient_kernels_is_unknown() -> None:
    """A width of a window says nothing of its place: FLOPs are absent, the bytes are not."""
    arguments = [HEADS, HEADS, HEADS, *[NONE] * 5, _value(0.0), _value(1), _value("False"), NONE, NONE, _value(32)]
    cost = _cost("xformers::efficient_attention_forward_cutlass", arguments)
    assert cost.flops is None
    assert "window" in (cost.flops_reason or "")
    assert cost.num_bytes is not None
