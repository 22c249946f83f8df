"""Operators of FBGEMM and Transformer Engine, and flex attention of compiled graphs, counted by hand."""

from __future__ import annotations

import json

import pytest

from scope.cost import OperatorCost, estimate_operator, has_model, has_part_models, is_matrix_operator

Argument = tuple[list[object], str, str]
NONE: Argument = ([], "", "")
BF16, FP8, INT64 = "c10::BFloat16", "c10::Float8_e4m3fn", "long int"
SCAN = "void cub::DeviceScanKernel<cub::AgentScanPolicy<128, 15, int>>(int*)"


def _cost(name: str, arguments: list[Argument], **rest: str) -> OperatorCost:
    dims, types, values = (json.dumps(list(column)) for column in zip(*arguments, strict=True))
    return estimate_operator(name, dims, types, None, values, **rest)


def _tensor(*dims: int, dtype: str = "float") -> Argument:
    return [*dims], dtype, ""


def _value(text: str) -> Argument:
    return [], "Scalar", text


def _lookup(
    *, tables: int, total_width: str, widest: str, weights: int = 4096, num_indices: int = 60, bags: int = 8
) -> list[Argument]:
    """Arguments of `split_embedding_codegen_lookup_rowwise_adagrad_function`; momentum holds one number a row of 32."""
    return [
        _tensor(0), _tensor(weights), _tensor(0), _tensor(0, 0), _tensor(tables, dtype="int"),
        _tensor(tables, dtype=INT64), _tensor(tables + 1, dtype="int"), _value(total_width), _value(widest),
        _tensor(tables + 1, dtype=INT64), _value(""), _tensor(num_indices, dtype=INT64),
        _tensor(tables * bags + 1, dtype=INT64), _value("0"), NONE, NONE, _tensor(0, dtype="int"), _value(""),
        _value(""), _value(""), _tensor(weights // 32), _tensor(0),
    ]  # fmt: skip


LOOKUP = "fbgemm::split_embedding_codegen_lookup_rowwise_adagrad_function"
FORWARD = "void split_embedding_codegen_forward_unweighted_kernel<float, float, c10::Half, false, long>(int)"


def test_a_lookup_in_equally_wide_tables() -> None:
    """60 rows of 32 floats are read and summed to 3 x 8 bags of half-precision numbers, as the kernel's name says."""
    arguments = _lookup(tables=3, total_width="96", widest="32")
    cost = _cost(LOOKUP, arguments, part=FORWARD)
    assert cost.flops == 60 * 32
    # Rows; indices; 25 offsets; 4 sums of widths.
    assert cost.bytes_read == 60 * 32 * 4 + 60 * 8 + 25 * 8 + 4 * 4
    assert cost.bytes_written == 24 * 32 * 2


def test_a_kernel_name_of_megabytes_is_searched_at_once() -> None:
    """A name that begins as a lookup kernel's, over and over, takes the time of its length and not of its square."""
    name = "embedding_codegen_forward_" * 200_000
    assert _cost(LOOKUP, _lookup(tables=3, total_width="96", widest="32"), part=name).num_bytes is None


def test_a_lookup_without_pooling_writes_each_row() -> None:
    """The kernel's name says that rows are not summed: as many are written as read, and nothing is added."""
    kernel = "void split_embedding_nobag_codegen_forward_unweighted_kernel<float, float, float, long, 32ul>(int)"
    cost = _cost(LOOKUP, _lookup(tables=1, total_width="32", widest="32"), part=kernel)
    assert cost.flops == 0
    assert cost.bytes_written == 60 * 32 * 4


def test_one_table_alone_has_the_width_of_its_rows() -> None:
    """Old traces hold no values; a row-wise optimizer's state has one number for each row of a single table."""
    cost = _cost(LOOKUP, _lookup(tables=1, total_width="", widest=""), part=FORWARD)
    assert cost.bytes_written == 8 * 32 * 2
    unequal = _cost(LOOKUP, _lookup(tables=3, total_width="", widest=""), part=FORWARD)
    assert unequal.num_bytes is None
    assert "differ in width" in (unequal.bytes_reason or "")


def test_a_lookup_in_tables_of_unequal_width_is_unknown() -> None:
    """Three tables of 80 columns in all, the widest of 32: how many rows of which are read no trace holds."""
    cost = _cost(LOOKUP, _lookup(tables=3, total_width="80", widest="32"), part=FORWARD)
    assert cost.num_bytes is None
    assert "differ in width" in (cost.bytes_reason or "")


def test_the_forward_operator_of_newer_versions() -> None:
    """`split_embedding_codegen_forward_weighted_cuda` has its tables first, and the weights of the indices last."""
    arguments = [
        _tensor(4096, dtype="c10::Half"), _tensor(0), _tensor(0, 0), _tensor(2, dtype="int"), _tensor(2, dtype=INT64),
        _tensor(3, dtype="int"), _value("64"), _value("32"), _tensor(60, dtype=INT64), _tensor(17, dtype=INT64),
        _value("0"), _tensor(60), _tensor(0, dtype="int"),
    ]  # fmt: skip
    kernel = "void split_embedding_codegen_forward_weighted_kernel<c10::Half, c10::Half, float, false, long>(int)"
    cost = _cost("fbgemm::split_embedding_codegen_forward_weighted_cuda", arguments, part=kernel)
    assert cost.flops == 2 * 60 * 32
    assert cost.bytes_read == 60 * 32 * 2 + 60 * 8 + 17 * 8 + 3 * 4 + 60 * 4
    assert cost.bytes_written == 16 * 32 * 4


@pytest.mark.parametrize(
    "name",
    [
        "torch::autograd::CppNode<SplitLookupFunction_rowwise_adagrad_Op>",
        "torch::autograd::CppNode<SplitNoBagLookupFunction_sgd_Op>",
        "fbgemm::split_embedding_backward_codegen_rowwise_adagrad_unweighted_exact_cuda",
    ],
)
def test_gradients_of_tables_are_unknown(name: str) -> None:
    """How many different rows are updated depends on the indices' values: absent, with that reason, in every kernel."""
    assert has_model(name)
    assert has_part_models(name)
    for part in (
        "void cub::DeviceRadixSortOnesweepKernel<long>",
        "split_embedding_backward_codegen_warp_per_row<float>",
    ):
        cost = _cost(name, [_tensor(8192, 96)], part=part)
        assert cost.num_bytes is None
        assert "how many rows" in (cost.bytes_reason or "")


# Three features of 4 samples: 12 lengths of int32, 50 values of int64 with float weights.
FEATURES = [_tensor(3, dtype="int"), _tensor(3, 4, dtype="int"), _tensor(50, dtype=INT64), _tensor(50)]


@pytest.mark.parametrize(
    ("kernel", "read", "written"),
    [
        ("void fbgemm_gpu::permute_2D_lengths_kernel<int>(int)", 12 * 4 + 3 * 4, 12 * 4),
        # Lengths before and after, in two scans that share this.
        (SCAN, 24 * 4, 24 * 4),
        # Values and weights; both rows of offsets; the permutation.
        ("void fbgemm_gpu::permute_2D_data_kernel<true, int, long, float>(int)", 50 * 12 + 2 * 48 + 12, 50 * 12),
        ("void fbgemm_gpu::permute_indices_weights_kernel<true, int, float>(int)", 50 * 12 + 2 * 48 + 12, 50 * 12),
    ],
)
def test_kernels_of_a_permutation_of_features(kernel: str, read: int, written: int) -> None:
    """Lengths, offsets and values are each moved by a kernel of their own."""
    cost = _cost("fbgemm::permute_2D_sparse_data", [*FEATURES, NONE], part=kernel)
    assert (cost.bytes_read, cost.bytes_written) == (read, written)


def test_a_selection_of_features_needs_its_sum() -> None:
    """Two of three features: how many values they hold, only the call's own sum says."""
    kernel = "void fbgemm_gpu::permute_2D_data_kernel<true, int, long, float>(int)"
    chosen = [_tensor(2, dtype="int"), *FEATURES[1:]]
    unknown = _cost("fbgemm::permute_2D_sparse_data", [*chosen, NONE], part=kernel)
    assert unknown.num_bytes is None
    assert "how many values" in (unknown.bytes_reason or "")
    known = _cost("fbgemm::permute_2D_sparse_data", [*chosen, _value("31")], part=kernel)
    assert (known.bytes_read, known.bytes_written) == (31 * 12 + 2 * 8 * 4 + 8, 31 * 12)


@pytest.mark.parametrize(
    ("name", "arguments", "read", "written"),
    [
        ("fbgemm::bounds_check_indices", [_tensor(3, dtype=INT64), _tensor(60, dtype=INT64), _tensor(25, dtype=INT64),
                                          _value("1"), _tensor(1, dtype=INT64), NONE], (3 + 60 + 25) * 8, 0),
        ("fbgemm::permute_pooled_embs_auto_grad", [_tensor(16, 96), *[_tensor(5, dtype=INT64)] * 4],
         16 * 96 * 4 + 3 * 5 * 8, 16 * 96 * 4),
        ("fbgemm::recat_embedding_grad_output_mixed_D_batch", [_tensor(16, 96), *[_tensor(8, dtype=INT64)] * 2],
         16 * 96 * 4 + 2 * 8 * 8, 16 * 96 * 4),
        # 256 bytes and a scale and a bias of four make 256 floats.
        ("fbgemm::FP8RowwiseQuantizedToFloat", [_tensor(100, 264, dtype="unsigned char"), _value("False")],
         100 * 264, 100 * 256 * 4),
        ("fbgemm::FP8RowwiseQuantizedToFloat", [_tensor(100, 264, dtype="unsigned char"), _value("True"), _value("5")],
         100 * 264, 100 * 256 * 2),
        ("fbgemm::FloatToHFP8Quantized", [_tensor(1000), _value("4"), _value("14"), _value("0.9375")], 4000, 1000),
        ("fbgemm::HFP8QuantizedToFloat", [_tensor(1000, dtype="unsigned char"), _value("4"), _value("14")], 1000, 4000),
    ],
)  # fmt: skip
def test_single_kernels_of_fbgemm(name: str, arguments: list[Argument], read: int, written: int) -> None:
    """Checks, exchanges of columns and conversions read and write each value once."""
    cost = _cost(name, arguments)
    assert (cost.bytes_read, cost.bytes_written) == (read, written)


def test_kernels_of_rowwise_quantisation() -> None:
    """One kernel finds each row's scale, the other writes a byte for each float; both read all floats."""
    arguments = [_tensor(100, 256), _value("True")]
    scale = _cost("fbgemm::FloatToFP8RowwiseQuantized", arguments, part="_get_FP8_qparam_cuda_kernel<float>(...)")
    assert (scale.bytes_read, scale.bytes_written) == (100 * 256 * 4, 100 * 4)
    write = _cost("fbgemm::FloatToFP8RowwiseQuantized", arguments, part="_compute_FP8_quantize_cuda_kernel<float>(...)")
    assert (write.bytes_read, write.bytes_written) == (100 * 256 * 4 + 100 * 4, 100 * 256)
    complete = _cost("fbgemm::asynchronous_complete_cumsum", [_tensor(12, dtype="int")], part=SCAN)
    assert (complete.bytes_read, complete.bytes_written) == (12 * 4, 13 * 4)


MATRICES = [
    # FP8 rows with a float32 scale for each row of both; the result is bfloat16.
    ("fbgemm::f8f8bf16_rowwise", [_tensor(8, 32, dtype=FP8), _tensor(16, 32, dtype=FP8), _tensor(8), _tensor(16), NONE,
                                  _value("True")], 2 * 8 * 32 * 16, 8 * 32 + 16 * 32 + 24 * 4, 8 * 16 * 2, "float8"),
    ("fbgemm::f8f8bf16_rowwise_batched", [_tensor(3, 8, 32, dtype=FP8), _tensor(3, 16, 32, dtype=FP8), _tensor(3, 8),
                                          _tensor(3, 16), NONE, _value("True"), NONE],
     3 * 2 * 8 * 32 * 16, 3 * (8 * 32 + 16 * 32 + 24 * 4), 3 * 8 * 16 * 2, "float8"),
    # Rows cut among four experts: each meets one matrix.
    ("fbgemm::f8f8bf16_rowwise_grouped_stacked", [_tensor(8, 32, dtype=FP8), _tensor(4, 16, 32, dtype=FP8), _tensor(8),
                                                  _tensor(4, 16), _tensor(4, dtype=INT64)],
     2 * 8 * 32 * 16, 8 * 32 + 4 * 16 * 32 + 8 * 4 + 64 * 4 + 4 * 8, 8 * 16 * 2, "float8"),
    # Two 4-bit values in each byte of the weight.
    ("fbgemm::bf16i4bf16_rowwise", [_tensor(8, 32, dtype=BF16), _tensor(16, 16, dtype="signed char"),
                                    _tensor(1, 16), _tensor(1, 16)],
     2 * 8 * 32 * 16, 8 * 32 * 2 + 16 * 16 + 32 * 4, 8 * 16 * 2, "bfloat16"),
    # A weight by rows, transposed; column-major BLAS names it first: 16 x 32 meets 8 x 32.
    ("tex_ts::te_gemm_ts", [_tensor(16, 32, dtype=BF16), NONE, NONE, NONE, _value("True"), _tensor(8, 32, dtype=BF16),
                            NONE, NONE, NONE, _value("False"), _tensor(8, 16, dtype=BF16)],
     2 * 8 * 32 * 16, (16 * 32 + 8 * 32) * 2, 8 * 16 * 2, "bfloat16"),
    # The weight's gradient: inputs 8 x 32 and gradients 8 x 16 make 16 x 32, depth 8.
    ("tex_ts::te_gemm_ts", [_tensor(8, 32, dtype=BF16), NONE, NONE, NONE, _value("False"), _tensor(8, 16, dtype=BF16),
                            NONE, NONE, NONE, _value("True"), _tensor(16, 32, dtype="float")],
     2 * 8 * 32 * 16, (8 * 32 + 8 * 16) * 2, 16 * 32 * 4, "bfloat16"),
    # 8 rows of 32, a gated layer of 2 x 64, back from 64: both products' operands and the layer between.
    ("_LayerNormMLP", [_tensor(4, 2, 32, dtype=BF16), _tensor(32, dtype=BF16), _tensor(128, 32, dtype=BF16),
                       _tensor(32, 64, dtype=BF16)],
     2 * 8 * (128 * 32 + 32 * 64), 2 * (256 + 4096 + 2048 + 8 * 192), 2 * (8 * 192 + 256), "bfloat16"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "arguments", "flops", "read", "written", "path"), MATRICES)
def test_matrix_products_of_packages(
    name: str, arguments: list[Argument], flops: int, read: int, written: int, path: str
) -> None:
    """Two FLOPs for each pair of operands, in FP8 where the operands are; scales are read."""
    cost = _cost(name, arguments)
    assert is_matrix_operator(name)
    assert (cost.flops, cost.bytes_read, cost.bytes_written, cost.math_dtype) == (flops, read, written, path)


@pytest.mark.parametrize("name", ["_LinearBackward", "_LayerNormLinearBackward", "FlashAttnFuncBackward"])
def test_backward_of_an_autograd_function_is_unknown(name: str) -> None:
    """The profiler records the gradient that enters it, not what the function saved: absent with that reason."""
    cost = _cost(name, [_tensor(4096, 2, 8192, dtype=BF16)])
    assert (cost.flops, cost.num_bytes) == (None, None)
    assert "gradient alone" in (cost.flops_reason or "")


def test_a_template_of_square_matrices() -> None:
    """Operands and result of one shape are three tensors, whose product is counted."""
    cost = _cost("triton_tem_fused_mm_0", [_tensor(64, 64, dtype=BF16)] * 3)
    assert (cost.family, cost.flops, cost.num_bytes) == ("gemm", 2 * 64**3, 3 * 64 * 64 * 2)
    assert cost.math_dtype == "bfloat16"
    assert _cost("triton_tem_fused_mm_0", [_tensor(64, 64, dtype=BF16)] * 2).flops is None


def test_flex_attention_is_at_most_attention_without_a_mask() -> None:
    """What its block mask leaves is computed on the device: FLOPs are absent, and 4 x pairs x width is their bound."""
    heads = [_tensor(2, 8, 128, 64, dtype=BF16)] * 3
    blocks = [_tensor(2, 1, 1, dtype="int"), _tensor(2, 1, 1, 1, dtype="int")]
    arguments = [*heads, _tensor(2, 8, 128), *blocks, heads[0]]
    cost = _cost("triton_tem_fused_flex_attention_0", arguments)
    assert cost.family == "attention"
    assert cost.flops is None
    assert "block mask" in (cost.flops_reason or "")
    assert cost.flops_unmasked == 4 * 2 * 8 * 128 * 128 * 64
    assert cost.num_bytes == 4 * 131_072 * 2 + 2_048 * 4 + 2 * 4 + 2 * 4
    backward = _cost("triton_tem_fused_flex_attention_backward_1", arguments)
    assert (backward.flops, backward.flops_unmasked) == (None, None)
