"""Bytes and FLOPs of each operator family, counted by hand."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scope.cost import OperatorCost, dtype_in_kernel_name, estimate_operator, has_model, modelled_operators, parse_call

BF16 = "c10::BFloat16"


def _cost(
    name: str, arguments: list[tuple[list[object], str, str]], strides: list[object] | None = None, **rest: str
) -> OperatorCost:
    """Estimate a call whose arguments are (shape, type, printed value)."""
    dims, types, values = (json.dumps(list(column)) for column in zip(*arguments, strict=True))
    return estimate_operator(name, dims, types, None if strides is None else json.dumps(strides), values, **rest)


def _tensor(*dims: int, dtype: str = BF16) -> tuple[list[object], str, str]:
    return [*dims], dtype, ""


def _value(text: str) -> tuple[list[object], str, str]:
    return [], "ScalarList" if text.startswith("[") else "Scalar", text


def _list(*shapes: list[int]) -> tuple[list[object], str, str]:
    return [*shapes], "TensorList", ""


NONE: tuple[list[object], str, str] = ([], "", "")

# name, arguments, FLOPs, bytes read, bytes written; bf16 has 2 bytes, float32 4, int64 8, bool 1.
CASES = [
    ("aten::mm", [_tensor(4, 8), _tensor(8, 16)], 2 * 4 * 8 * 16, 2 * (32 + 128), 2 * 64),
    ("aten::addmm", [_tensor(16), _tensor(4, 8), _tensor(8, 16), _value("1"), _value("1")],
     1024, 2 * (16 + 32 + 128), 128),
    # beta 0: what would be added is not read.
    ("aten::addmm", [_tensor(16), _tensor(4, 8), _tensor(8, 16), _value("0"), _value("1")], 1024, 2 * 160, 128),
    ("aten::bmm", [_tensor(3, 4, 8), _tensor(3, 8, 2)], 2 * 3 * 4 * 8 * 2, 2 * (96 + 48), 2 * 24),
    ("aten::baddbmm", [_tensor(3, 4, 2), _tensor(3, 4, 8), _tensor(3, 8, 2), _value("1"), _value("1")],
     384, 2 * (24 + 96 + 48), 48),
    ("aten::linear", [_tensor(5, 4, 8), _tensor(16, 8), _tensor(16)], 2 * 20 * 8 * 16, 2 * (160 + 128 + 16), 2 * 320),
    ("aten::matmul", [_tensor(8), _tensor(8, 16)], 2 * 8 * 16, 2 * (8 + 128), 2 * 16),
    ("aten::matmul", [_tensor(7, 1, 4, 8), _tensor(2, 8, 3)], 2 * 14 * 4 * 8 * 3, 2 * (224 + 48), 2 * 168),
    ("aten::mv", [_tensor(4, 8), _tensor(8)], 64, 2 * 40, 8),
    # FP8 operands, float32 scales, bf16 result (ScalarType 15).
    ("aten::_scaled_mm", [_tensor(16, 32, dtype="c10::Float8_e4m3fn"), _tensor(32, 64, dtype="c10::Float8_e4m3fn"),
                          _tensor(1, dtype="float"), _tensor(1, dtype="float"), NONE, NONE, _value("15"),
                          _value("False")], 2 * 16 * 32 * 64, 512 + 2048 + 8, 2 * 1024),
    # Four experts, 16 rows cut among them: every row meets one expert's 32 x 24 matrix.
    ("aten::_grouped_mm", [_tensor(16, 32), _tensor(4, 32, 24), _tensor(4, dtype="int"), NONE, NONE],
     2 * 16 * 32 * 24, 2 * (512 + 3072) + 16, 2 * 16 * 24),
    # The weight's gradient: 16 rows cut into four groups, each with a result of 32 x 24.
    ("aten::_grouped_mm", [_tensor(32, 16), _tensor(16, 24), _tensor(4, dtype="int"), NONE, NONE],
     2 * 16 * 32 * 24, 2 * (512 + 384) + 16, 2 * 4 * 32 * 24),
    # Two FP4 values in each element along K: 64 of them in 32 bytes; FP8 scales, one for 16 values.
    ("aten::_scaled_mm",
     [_tensor(16, 32, dtype="c10::Float4_e2m1fn_x2"), _tensor(32, 48, dtype="c10::Float4_e2m1fn_x2"),
      _tensor(64, dtype="c10::Float8_e4m3fn"), _tensor(192, dtype="c10::Float8_e4m3fn"), NONE, NONE,
      _value("15"), _value("False")], 2 * 16 * 48 * 64, 512 + 1536 + 64 + 192, 2 * 768),
    # Four experts of 32 x 24 in FP8 whose scales are lists; offsets after them, bf16 result.
    ("aten::_scaled_grouped_mm_v2",
     [_tensor(16, 32, dtype="c10::Float8_e4m3fn"), _tensor(4, 32, 24, dtype="c10::Float8_e4m3fn"), _list([16]),
      _value("[1]"), _value("[0]"), _list([4, 24]), _value("[1]"), _value("[0]"), _tensor(4, dtype="int"), NONE,
      _value("15")], 2 * 16 * 32 * 24, 512 + 3072 + 16 + 4 * (16 + 96), 2 * 16 * 24),
    # The same in FP4: 64 values along K; FP8 scales, one for 16 values.
    ("aten::_scaled_grouped_mm_v2",
     [_tensor(16, 32, dtype="c10::Float4_e2m1fn_x2"), _tensor(4, 32, 24, dtype="c10::Float4_e2m1fn_x2"), _list([16]),
      _value("[2]"), _value("[1]"), _list([4, 24]), _value("[2]"), _value("[1]"), _tensor(4, dtype="int"), NONE, NONE],
     2 * 16 * 64 * 24, 512 + 3072 + 16 + 16 + 96, 2 * 16 * 24),
    # Operands of 8-bit integers, a result of 32-bit ones.
    ("aten::_int_mm", [_tensor(512, 1024, dtype="signed char"), _tensor(1024, 2048, dtype="signed char")],
     2 * 512 * 1024 * 2048, 512 * 1024 + 1024 * 2048, 4 * 512 * 2048),
    # A result of another dtype, asked for: float32 is ScalarType 6. The argument before beta moves it.
    ("aten::mm", [_tensor(4, 8), _tensor(8, 16), _value("6")], 2 * 4 * 8 * 16, 2 * (32 + 128), 4 * 64),
    ("aten::bmm", [_tensor(3, 4, 8), _tensor(3, 8, 2), _value("6")], 2 * 3 * 4 * 8 * 2, 2 * (96 + 48), 4 * 24),
    ("aten::mm", [_tensor(4, 8), _tensor(8, 16), _tensor(4, 16, dtype="float")], 2 * 4 * 8 * 16, 2 * (32 + 128),
     4 * 64),
    ("aten::addmm", [_tensor(4, 16, dtype="float"), _tensor(4, 8), _tensor(8, 16), _value("6"), _value("1"),
                     _value("1")], 1024, 4 * 64 + 2 * (32 + 128), 4 * 64),
    ("aten::addmm", [_tensor(4, 16, dtype="float"), _tensor(4, 8), _tensor(8, 16), _value("6"), _value("0"),
                     _value("1")], 1024, 2 * (32 + 128), 4 * 64),
    # Written to a tensor that is given, and with an activation: the sixth argument is no dtype.
    ("aten::addmm", [_tensor(16), _tensor(4, 8), _tensor(8, 16), _value("1"), _value("1"), _tensor(4, 16)],
     1024, 2 * (16 + 32 + 128), 128),
    ("aten::_addmm_activation", [_tensor(16), _tensor(4, 8), _tensor(8, 16), _value("1"), _value("1"),
                                 _value("True")], 1024, 2 * (16 + 32 + 128), 128),
    # Eight experts of 1024 x 2048 in FP8, a float32 scale for each row and for each column of an expert.
    ("aten::_scaled_grouped_mm",
     [_tensor(512, 1024, dtype="c10::Float8_e4m3fn"), _tensor(8, 1024, 2048, dtype="c10::Float8_e4m3fn"),
      _tensor(512, dtype="float"), _tensor(8, 2048, dtype="float"), _tensor(8, dtype="int"), NONE, NONE, _value("15"),
      _value("False")], 2 * 512 * 1024 * 2048, 512 * 1024 + 8 * 1024 * 2048 + 4 * (512 + 8 * 2048) + 4 * 8,
     2 * 512 * 2048),
    # Lists of scales: of FP4 both the FP8 ones and the one of the whole tensor.
    ("aten::_scaled_mm_v2",
     [_tensor(16, 32, dtype="c10::Float4_e2m1fn_x2"), _tensor(32, 48, dtype="c10::Float4_e2m1fn_x2"),
      _list([64], [1]), _value("[2, 0]"), _value("[1, 0]"), _list([192], [1]), _value("[2, 0]"), _value("[1, 0]"),
      NONE, _value("15"), _value("[]"), _value("False")],
     2 * 16 * 48 * 64, 512 + 1536 + 64 + 192 + 2 * 4, 2 * 768),
    # Softmax of 16 bits that makes float32: by a flag, or by the dtype that is asked for.
    ("aten::_softmax", [_tensor(4, 8), _value("1"), _value("True")], 5 * 32, 64, 4 * 32),
    ("aten::softmax", [_tensor(4, 8), _value("1"), _value("6")], 5 * 32, 64, 4 * 32),
    ("aten::_safe_softmax", [_tensor(4, 8), _value("1"), _value("6")], 5 * 32, 64, 4 * 32),
    # Sums in another dtype than that of what they add up, over all and over some.
    ("aten::sum", [_tensor(64, 32), _value("6")], 2048, 4096, 4),
    ("aten::sum", [_tensor(64, 32), _value("[1]"), _value("False"), _value("6")], 2048, 4096, 4 * 64),
    ("aten::sum", [_tensor(64, 32), _value("[1]"), _value("False"), NONE, _tensor(64, dtype="float")], 2048, 4096,
     4 * 64),
    ("aten::mean", [_tensor(64, 32), _value("[0]"), _value("False"), _value("7")], 2048, 4096, 8 * 32),
    ("aten::prod", [_tensor(64, 32), _value("6")], 2048, 4096, 4),
    ("aten::prod", [_tensor(64, 32), _value("1"), _value("False"), _value("6")], 2048, 4096, 4 * 64),
    ("aten::linalg_vector_norm", [_tensor(64, 32), _value("2"), _value("[0]"), _value("False"), _value("6")],
     2 * 2048, 4096, 4 * 32),
    ("vllm::rocm_unquantized_gemm", [_tensor(5, 8), _tensor(16, 8), _tensor(16)], 2 * 5 * 8 * 16,
     2 * (40 + 128 + 16), 2 * 80),
    # 3 x 3, stride 2, padding 1 on 8 x 8 makes 4 x 4.
    ("aten::cudnn_convolution", [_tensor(2, 3, 8, 8), _tensor(5, 3, 3, 3), _value("[1, 1]"), _value("[2, 2]"),
                                 _value("[1, 1]"), _value("1"), _value("False"), _value("False"), _value("True")],
     2 * 2 * 16 * 5 * 27, 2 * (384 + 135), 2 * 2 * 5 * 16),
    ("aten::add", [_tensor(4, 8), _tensor(4, 8), _value("1")], 32, 2 * 64, 64),
    # A row is spread over all rows; a number is no traffic.
    ("aten::mul", [_tensor(4, 8), _tensor(8)], 32, 2 * (32 + 8), 64),
    ("aten::mul", [_tensor(4, 8), _tensor(dtype="double")], 32, 64, 64),
    ("aten::add_", [_tensor(4, 8), _tensor(4, 8, dtype="float"), _value("1")], 32, 64 + 128, 64),
    ("aten::add", [_tensor(4, 8), _tensor(4, 8, dtype="float"), _value("1")], 32, 64 + 128, 128),
    ("aten::eq", [_tensor(4, 8), _value("0")], 32, 64, 32),
    ("aten::gelu", [_tensor(4, 8), NONE], 32, 64, 64),
    ("aten::where", [_tensor(4, 8, dtype="bool"), _tensor(4, 8), _tensor(1)], 0, 32 + 64 + 2, 64),
    ("aten::masked_fill_", [_tensor(4, 8), _tensor(4, 8, dtype="bool"), _value("0")], 0, 64 + 32, 64),
    ("aten::addcmul", [_tensor(4, 8), _tensor(4, 8), _tensor(4, 8), _value("1")], 96, 192, 64),
    ("aten::copy_", [_tensor(4, 8), _tensor(4, 8, dtype="float"), _value("False")], 0, 128, 64),
    ("aten::_to_copy", [_tensor(4, 8, dtype="float"), _value("15"), NONE, NONE, NONE, _value("False"), NONE],
     0, 128, 64),
    ("aten::fill_", [_tensor(4, 8), _value("0")], 0, 0, 64),
    ("aten::native_dropout", [_tensor(4, 8), _value("0.1"), _value("True")], 64, 64, 64 + 32),
    ("aten::sum", [_tensor(4, 8), _value("[1]"), _value("False"), NONE], 32, 64, 8),
    ("aten::sum", [_tensor(4, 8), NONE], 32, 64, 2),
    ("aten::mean", [_tensor(4, 8, 2), _value("[0, -1]"), _value("False"), NONE], 64, 128, 16),
    ("aten::argmax", [_tensor(4, 8), _value("-1"), _value("False")], 32, 64, 32),
    ("aten::max", [_tensor(4, 8), _value("1"), _value("False")], 32, 64, 4 * (2 + 8)),
    ("aten::max", [_tensor(4, 8), _tensor(4, 8)], 32, 128, 64),
    ("aten::any", [_tensor(4, 8, dtype="bool")], 32, 32, 1),
    ("aten::linalg_vector_norm", [_tensor(4, 8), _value("2"), _value("[-1]"), _value("True"), NONE], 64, 64, 8),
    # Mean and 1/std of each row are kept in float32.
    ("aten::native_layer_norm", [_tensor(4, 8), _value("[8]"), _tensor(8), _tensor(8), _value("1e-5")],
     7 * 32, 64 + 32, 64 + 4 * 8),
    ("aten::native_layer_norm_backward",
     [_tensor(4, 8), _tensor(4, 8), _value("[8]"), _tensor(4, 1, dtype="float"), _tensor(4, 1, dtype="float"),
      _tensor(8), _tensor(8), _value("[True, True, True]")], 11 * 32, 128 + 32 + 16, 64 + 32),
    # The sums of weight and bias alone, as of a first layer, whose input needs no gradient.
    ("aten::native_layer_norm_backward",
     [_tensor(4, 8), _tensor(4, 8), _value("[8]"), _tensor(4, 1, dtype="float"), _tensor(4, 1, dtype="float"),
      _tensor(8), _tensor(8), _value("[False, True, True]")], 6 * 32, 128 + 32 + 16, 32),
    ("aten::_fused_rms_norm", [_tensor(4, 8), _value("[8]"), _tensor(8), NONE], 4 * 32, 64 + 16, 64 + 16),
    # Four running and two saved values for each of 3 channels, the running ones read as well.
    ("aten::cudnn_batch_norm",
     [_tensor(2, 3, 4, 4, dtype="float"), *[_tensor(3, dtype="float")] * 4, _value("True"), _value("0.1"),
      _value("1e-5")], 7 * 96, 4 * (96 + 12), 4 * (96 + 12)),
    # Synchronised over ranks: sums of each of 3 channels, then the result; backward 4 sums, then the gradient.
    ("aten::batch_norm_stats", [_tensor(2, 3, 4, 4), _value("1e-5")], 4 * 96, 192, 4 * 6),
    ("aten::batch_norm_elemt", [_tensor(2, 3, 4, 4), *[_tensor(3, dtype="float")] * 4, _value("1e-5")],
     4 * 96, 192 + 48, 192),
    ("aten::batch_norm_backward_reduce", [_tensor(2, 3, 4, 4), _tensor(2, 3, 4, 4), *[_tensor(3, dtype="float")] * 3,
                                          _value("True"), _value("True"), _value("True")], 4 * 96, 384 + 36, 4 * 12),
    ("aten::batch_norm_backward_elemt", [_tensor(2, 3, 4, 4), _tensor(2, 3, 4, 4), *[_tensor(3, dtype="float")] * 5,
                                         _tensor(2, dtype="int")], 5 * 96, 384 + 60 + 8, 192),
    ("aten::_softmax", [_tensor(4, 8), _value("-1"), _value("False")], 5 * 32, 64, 64),
    ("aten::_softmax", [_tensor(4, 8, dtype="c10::Half"), _value("-1"), _value("True")], 5 * 32, 64, 128),
    ("aten::_log_softmax_backward_data", [_tensor(4, 8), _tensor(4, 8), _value("1"), _value("15")], 128, 128, 64),
    ("aten::nll_loss_forward", [_tensor(4, 8, dtype="float"), _tensor(4, dtype="long int"), NONE, _value("1"),
                                _value("-100")], 4, 4 * 4 + 4 * 8, 8),
    ("aten::nll_loss_backward", [_tensor(dtype="float"), _tensor(4, 8, dtype="float"), _tensor(4, dtype="long int"),
                                 NONE, _value("1"), _value("-100"), _tensor(dtype="float")], 4, 4 + 32 + 4, 16),
    ("aten::embedding", [_tensor(100, 8), _tensor(2, 3, dtype="long int"), _value("-1"), _value("False"),
                         _value("False")], 0, 6 * 16 + 48, 6 * 16),
    ("aten::embedding_dense_backward", [_tensor(2, 3, 8), _tensor(2, 3, dtype="long int"), _value("4"), _value("-1"),
                                        _value("False")], 48, 96 + 48, 4 * 16),
    ("aten::index_select", [_tensor(10, 4, 8), _value("1"), _tensor(3, dtype="long int")], 0, 2 * 240 + 24, 480),
    ("aten::gather", [_tensor(10, 8), _value("1"), _tensor(10, 2, dtype="long int"), _value("False")],
     0, 40 + 160, 40),
    ("aten::scatter_add_", [_tensor(10, 8), _value("0"), _tensor(5, 8, dtype="long int"), _tensor(5, 8)],
     40, 320 + 80 + 80, 80),
    ("aten::index_add_", [_tensor(10, 8), _value("0"), _tensor(5, dtype="long int"), _tensor(5, 8), _value("1")],
     40, 40 + 80 + 80, 80),
    # 3 x 3 windows, stride 2, padding 1 on 8 x 8 make 4 x 4 values and as many int64 indices.
    ("aten::max_pool2d_with_indices", [_tensor(1, 2, 8, 8, dtype="float"), _value("[3, 3]"), _value("[2, 2]"),
                                       _value("[1, 1]"), _value("[1, 1]"), _value("False")],
     32 * 9, 512, 32 * (4 + 8)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "arguments", "flops", "read", "written"), CASES)
def test_work_counted_by_hand(
    name: str, arguments: list[tuple[list[object], str, str]], flops: int, read: int, written: int
) -> None:
    """Each operator reads its inputs once and writes its results once."""
    cost = _cost(name, arguments)
    assert (cost.flops, cost.bytes_read, cost.bytes_written) == (flops, read, written)
    assert cost.num_bytes == read + written


# name, lists, FLOPs, elements read, elements written, for float32 lists of 2 x 3 and 5 elements: 11 in all.
SHAPES = [[2, 3], [5]]
LISTS = [
    ("aten::_fused_adam_", [*[_list(*SHAPES)] * 4, _list(), _list([], [])], 15 * 11, 44, 33),
    ("aten::_fused_adamw_", [*[_list(*SHAPES)] * 4, _list(), _list([], [])], 14 * 11, 44, 33),
    # AMSGrad also keeps the largest second moment.
    ("aten::_fused_adamw_", [*[_list(*SHAPES)] * 5, _list([], [])], 14 * 11, 55, 44),
    ("aten::_fused_sgd_", [*[_list(*SHAPES)] * 3, _value("0.1")], 6 * 11, 33, 22),
    ("aten::_foreach_add_", [_list(*SHAPES), _list(*SHAPES), _value("1")], 11, 22, 11),
    ("aten::_foreach_mul_", [_list(*SHAPES), _value("0.9")], 11, 11, 11),
    ("aten::_foreach_addcdiv_", [*[_list(*SHAPES)] * 3, _value("1")], 33, 33, 11),
    ("aten::_foreach_sqrt", [_list(*SHAPES)], 11, 11, 11),
    ("aten::_foreach_norm", [_list(*SHAPES), _value("2"), NONE], 22, 11, 2),
    ("aten::_foreach_copy_", [_list(*SHAPES), _list(*SHAPES), _value("False")], 0, 11, 11),
    ("aten::_foreach_zero_", [_list(*SHAPES)], 0, 0, 11),
    ("aten::cat", [_list(*SHAPES), _value("0")], 0, 11, 11),
    # Cut along the first axis into 4 chunks: 2 rows become 4, 5 values become 8.
    ("aten::_chunk_cat", [_list(*SHAPES), _value("0"), _value("4")], 0, 11, 4 * 3 + 8),
]


@pytest.mark.parametrize(("name", "arguments", "flops", "read", "written"), LISTS)
def test_lists_counted_by_hand(
    name: str, arguments: list[tuple[list[object], str, str]], flops: int, read: int, written: int
) -> None:
    """Operators over lists move every element of every list that they use, of the dtype that the caller names."""
    cost = _cost(name, arguments, list_dtype="float32")
    assert (cost.flops, cost.bytes_read, cost.bytes_written) == (flops, 4 * read, 4 * written)


def test_a_list_without_a_dtype_has_no_bytes() -> None:
    """A trace does not say what a list holds: FLOPs are known, bytes are not, and the reason says so."""
    cost = _cost("aten::_foreach_add_", [_list(*SHAPES), _list(*SHAPES), _value("1")])
    assert cost.flops == 11
    assert cost.num_bytes is None
    assert cost.bytes_reason == "the trace does not say the dtype"


def test_scales_without_shapes_leave_the_bytes_unknown() -> None:
    """A product whose list of scales has no shapes has FLOPs, and no bytes, with the reason."""
    operands = [_tensor(16, 32, dtype="c10::Float8_e4m3fn"), _tensor(32, 48, dtype="c10::Float8_e4m3fn")]
    scales = [([], "TensorList", ""), _value("[1]"), _value("[0]")]
    cost = _cost("aten::_scaled_mm_v2", [*operands, *scales, *scales, NONE, _value("15")])
    assert (cost.flops, cost.num_bytes) == (2 * 16 * 32 * 48, None)
    assert "scales" in (cost.bytes_reason or "")


def test_a_list_without_shapes_is_unknown() -> None:
    """Traces of torch before 2.0 print an empty shape for a list."""
    cost = _cost("aten::cat", [([], "TensorList", ""), _value("0")])
    assert cost.num_bytes is None
    assert "list" in (cost.bytes_reason or "")


def test_expanded_inputs_are_read_once() -> None:
    """A dimension of stride 0 repeats what memory holds once; the result holds all of it."""
    cost = _cost("aten::copy_", [_tensor(4, 8), _tensor(4, 8), _value("False")], strides=[[8, 1], [0, 1], []])
    assert (cost.bytes_read, cost.bytes_written) == (16, 64)


def test_misaligned_products_say_which_extent() -> None:
    """16-bit extents want multiples of 8 elements, 16 bytes: 5185 is none, 64 is one."""
    cost = _cost("aten::bmm", [_tensor(16, 5185, 64), _tensor(16, 64, 5185)])
    assert cost.misaligned == ("M=5185", "N=5185")
    assert _cost("aten::mm", [_tensor(8, 16), _tensor(16, 8)]).misaligned == ()


@pytest.mark.parametrize(
    ("dtype", "path"),
    [
        ("float", "float32"),
        ("c10::Half", "float16"),
        (BF16, "bfloat16"),
        ("double", "float64"),
        ("c10::Float8_e5m2fnuz", "float8"),
        ("signed char", "int8"),
    ],
)
def test_the_dtype_of_the_arithmetic(dtype: str, path: str) -> None:
    """Traces' names of types lead to the matrix path that the product takes; float32 is never taken for TF32."""
    assert _cost("aten::mm", [_tensor(4, 8, dtype=dtype), _tensor(8, 4, dtype=dtype)]).math_dtype == path


def test_compiled_kernels_move_their_arguments_once() -> None:
    """A Triton kernel moves each tensor argument at least once; which are results, and FLOPs, are unknown."""
    cost = _cost("triton_poi_fused_add_3", [_tensor(8, 4), _tensor(8, 4), _tensor(4, dtype="float"), _value("32")])
    assert cost.num_bytes == 64 + 64 + 16
    assert cost.bytes_read is None
    assert cost.flops is None
    assert "compiled" in (cost.flops_reason or "")


def test_compiled_matrix_templates_have_flops() -> None:
    """A matrix template is a product of the two arguments whose shapes make the third."""
    cost = _cost("triton_tem_fused_mm_0", [_tensor(8, 16), _tensor(16, 4), _tensor(8, 4)])
    assert (cost.family, cost.flops, cost.math_dtype) == ("gemm", 2 * 8 * 16 * 4, "bfloat16")


def test_packages_with_weights_by_rows() -> None:
    """Transformer Engine's linear layer and aiter's products hold the weight as [N, K]."""
    te = _cost("_Linear", [_tensor(32, 16), _tensor(4, 2, 16)])
    assert (te.flops, te.bytes_read, te.bytes_written) == (2 * 8 * 16 * 32, 2 * (512 + 128), 2 * 256)
    aiter = _cost("aiter::gemm_a8w8", [_tensor(8, 16, dtype="c10::Float8_e4m3fnuz"),
                                       _tensor(32, 16, dtype="c10::Float8_e4m3fnuz"), _tensor(8, 1, dtype="float"),
                                       _tensor(1, 32, dtype="float"), _tensor(8, 32)])  # fmt: skip
    assert (aiter.flops, aiter.math_dtype) == (2 * 8 * 16 * 32, "float8")
    assert (aiter.bytes_read, aiter.bytes_written) == (128 + 512 + 32 + 128, 512)


def test_gradients_of_old_convolutions() -> None:
    """Torch up to 1.10 has an operator for each gradient: 2 x batch x positions x weights FLOPs each."""
    geometry = [_value("[1, 1]"), _value("[1, 1]"), _value("[1, 1]"), _value("1")]
    grad_input = _cost(
        "aten::cudnn_convolution_backward_input",
        [_value("[2, 3, 8, 8]"), _tensor(2, 5, 8, 8), _tensor(5, 3, 3, 3), *geometry],
    )
    assert (grad_input.flops, grad_input.bytes_written) == (2 * 2 * 64 * 135, 2 * 384)
    grad_weight = _cost(
        "aten::cudnn_convolution_backward_weight",
        [_value("[5, 3, 3, 3]"), _tensor(2, 5, 8, 8), _tensor(2, 3, 8, 8), *geometry],
    )
    assert (grad_weight.flops, grad_weight.bytes_written) == (2 * 2 * 64 * 135, 2 * 135)


@pytest.mark.parametrize("mask", [(True, True, True), (True, False, True), (False, True, False), (False, False, False)])
def test_convolution_gradients_that_are_asked_for(mask: tuple[bool, bool, bool]) -> None:
    """Each of the two products costs a forward pass, and only what the mask asks for is read and written."""
    arguments = [
        _tensor(2, 5, 8, 8), _tensor(2, 3, 8, 8), _tensor(5, 3, 3, 3), _value("[5]"), _value("[1, 1]"),
        _value("[1, 1]"), _value("[1, 1]"), _value("False"), _value("[0, 0]"), _value("1"), _value(str(list(mask))),
    ]  # fmt: skip
    cost = _cost("aten::convolution_backward", arguments)
    forward = 2 * 2 * 64 * 135
    assert cost.flops == forward * (mask[0] + mask[1])
    assert cost.bytes_read == 2 * (640 + 135 * mask[0] + 384 * mask[1])
    assert cost.bytes_written == 2 * (384 * mask[0] + 135 * mask[1] + 5 * mask[2])


def test_what_is_missing_is_said() -> None:
    """No model, no shapes, no values: None with the reason, never 0."""
    assert "no model for my::op" in (estimate_operator("my::op", "[[4]]").flops_reason or "")
    assert "record_shapes" in (estimate_operator("aten::mm", None).flops_reason or "")
    old = estimate_operator("aten::cudnn_convolution", "[[2, 3, 8, 8], [5, 3, 3, 3], [], [], []]", "[]")
    assert old.flops is None
    assert "Concrete Inputs" in (old.flops_reason or "")
    wrong = _cost("aten::mm", [_tensor(4, 8), _tensor(9, 16)])
    assert wrong.flops is None
    assert wrong.num_bytes is None


@given(st.sampled_from(modelled_operators()), st.text(), st.text(), st.text(), st.text())
def test_any_text_gives_a_cost(name: str, dims: str, types: str, strides: str, values: str) -> None:
    """Whatever a broken trace holds in place of shapes, the answer is a cost, known or with a reason."""
    cost = estimate_operator(name, dims, types, strides, values)
    assert cost.flops is not None or cost.flops_reason
    assert cost.num_bytes is not None or cost.bytes_reason


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.sampled_from(["float", BF16, "Scalar", "", "[1]"]),
    lambda children: st.lists(children, max_size=5),
    max_leaves=24,
)
_ROWS = st.lists(_JSON, max_size=18).map(json.dumps)


@given(st.sampled_from(modelled_operators()), _ROWS, _ROWS, _ROWS, _ROWS)
def test_any_json_gives_a_cost(name: str, dims: str, types: str, strides: str, values: str) -> None:
    """Nor do lists of the wrong shape, length or kind break a model."""
    cost = estimate_operator(name, dims, types, strides, values)
    assert cost.flops is None or cost.flops >= 0
    assert cost.num_bytes is not None or cost.bytes_reason


def test_parsed_call() -> None:
    """A call holds its tensors, lists, values and gaps at their positions."""
    call = parse_call(
        "op",
        input_dims="[[2, 3], [], [], [[4], [5, 6]]]",
        input_types='["long int", "ScalarList", "", "TensorList"]',
        input_strides="[[3, 1], [], [], [[1], [6, 1]]]",
        concrete_inputs='["", "[True, False]", "", ""]',
    )
    assert [argument.kind for argument in call.arguments] == ["tensor", "scalar", "none", "list"]
    first = call.tensor(0)
    assert first is not None
    assert (first.dims, first.dtype, first.strides) == ((2, 3), "int64", (3, 1))
    assert call.integers(1) == (1, 0)
    assert [tensor.dims for tensor in call.lists[0].tensors] == [(4,), (5, 6)]
    assert call.tensor(1) is None


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("void at::native::multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<float, 4>>", "float32"),
        ("void at::native::CatArrayBatchedCopy<at::native::OpaqueType<2u>, unsigned int, 2>", "float16"),
        ("multi_tensor_apply_kernel<TensorListMetadata<2>, BinaryOpListAlphaFunctor<c10::BFloat16>>", "bfloat16"),
        ("ampere_sgemm_128x64_nn", None),
        ("multi_tensor_apply_kernel<TensorListMetadata<2>, CopyFunctor<float, c10::BFloat16, 2, 1, 1>>", None),
        ("multi_tensor_apply_kernel<TensorListMetadata<2>, CopyFunctor<float, float, 2, 1, 1>>", "float32"),
        ("void at::native::chunk_cat_cuda_kernel<float, float>(float**, float*)", "float32"),
        ("void at::native::chunk_cat_cuda_kernel<float, c10::BFloat16>(c10::BFloat16**, float*)", None),
    ],
)  # fmt: skip
def test_dtype_in_a_kernel_name(name: str, dtype: str | None) -> None:
    """Template arguments of torch's kernels say what a list of tensors holds, at least its size."""
    assert dtype_in_kernel_name(name) == dtype


def test_models_exist_for_every_family() -> None:
    """The families of training all have models, in-place and compiled forms included."""
    for name in ("aten::add_", "aten::silu", "aten::_fused_adamw_", "triton_red_fused_1", "aten::_scaled_mm"):
        assert has_model(name), name
    assert not has_model("aten::item")
