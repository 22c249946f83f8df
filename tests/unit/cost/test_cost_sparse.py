"""Products with a 2:4 sparse matrix and with 4-bit weights, counted by hand from torch's own declarations."""

from __future__ import annotations

import json

import pytest

from scope.cost import OperatorCost, estimate_operator, has_model, is_matrix_operator

Argument = tuple[list[int], str, str]
NONE: Argument = ([], "", "")
HALF, INT8, FP8, SHORT, INT, BYTE = (
    "c10::Half", "signed char", "c10::Float8_e4m3fn", "short int", "int", "unsigned char",
)  # fmt: skip
INT_NUMBER, BF16_NUMBER = "3", "15"


def _cost(name: str, arguments: list[Argument]) -> OperatorCost:
    dims, types, values = (json.dumps(list(column)) for column in zip(*arguments, strict=True))
    return estimate_operator(name, dims, types, None, values)


def _tensor(*dims: int, dtype: str) -> Argument:
    return [*dims], dtype, ""


def _value(text: str) -> Argument:
    return [], "Scalar", text


# A sparse matrix of 64 x 128, of which 64 are kept a row, meets 128 x 96: 64 x 96 results of 64 products each.
M, N, K = 64, 96, 128
KEPT_FLOPS = 2 * M * N * (K // 2)
# Of each 16 values of 16 bits a 16-bit word says which 8 are kept, of each 32 of 8 bits a 32-bit word which 16.
HALF_META, INT8_META = _tensor(M, K // 16, dtype=SHORT), _tensor(M, K // 32, dtype=INT)
HALF_READ = 2 * (M * K // 2 + K * N) + 2 * M * K // 16
INT8_READ = M * K // 2 + K * N + 4 * M * K // 32
SPARSE = [
    ("aten::_sparse_semi_structured_mm", [_tensor(M, K // 2, dtype=HALF), HALF_META, _tensor(K, N, dtype=HALF), NONE],
     HALF_READ, 2, "float16"),
    ("aten::_sparse_semi_structured_mm", [_tensor(M, K // 2, dtype=INT8), INT8_META, _tensor(K, N, dtype=INT8),
                                          _value(INT_NUMBER)],
     INT8_READ, 4, "int8"),
    # The added term is one number a row of the sparse matrix.
    ("aten::_sparse_semi_structured_addmm", [_tensor(M, dtype=HALF), _tensor(M, K // 2, dtype=HALF), HALF_META,
                                             _tensor(K, N, dtype=HALF), _value("1"), _value("1"), NONE],
     HALF_READ + 2 * M, 2, "float16"),
    # Rows of the input in two dimensions; the weight is the sparse one.
    ("aten::_sparse_semi_structured_linear", [_tensor(3, N // 3, K, dtype=HALF), _tensor(M, K // 2, dtype=HALF),
                                              HALF_META, _tensor(M, dtype=HALF), NONE, NONE],
     HALF_READ + 2 * M, 2, "float16"),
    ("aten::_sparse_semi_structured_linear", [_tensor(N, K, dtype=INT8), _tensor(M, K // 2, dtype=INT8), INT8_META,
                                              NONE, NONE, _value(INT_NUMBER)],
     INT8_READ, 4, "int8"),
    # cuSPARSELt: values and metadata in one tensor, by rows (torch 2.13) or flat (before); a bias and a factor a row.
    ("aten::_cslt_sparse_mm", [_tensor(M, K * 9 // 16, dtype=HALF), _tensor(K, N, dtype=HALF), _tensor(M, dtype=HALF),
                               NONE, NONE, _value("False"), _value("0"), _value("1"), _value("-1")],
     2 * (M * K * 9 // 16 + K * N) + 2 * M, 2, "float16"),
    ("aten::_cslt_sparse_mm", [_tensor(M * K * 9 // 16, dtype=HALF), _tensor(K, N, dtype=HALF), NONE, NONE, NONE,
                               _value("True"), _value("0")],
     2 * (M * K * 9 // 16 + K * N), 2, "float16"),
    ("aten::_cslt_sparse_mm", [_tensor(M * K * 10 // 16, dtype=INT8), _tensor(K, N, dtype=INT8), NONE,
                               _tensor(M, dtype="float"), _value(BF16_NUMBER), _value("False"), _value("0")],
     M * K * 10 // 16 + K * N + 4 * M, 2, "int8"),
    ("aten::_cslt_sparse_mm", [_tensor(M, K * 10 // 16, dtype=FP8), _tensor(K, N, dtype=FP8), NONE, NONE,
                               _value(BF16_NUMBER), _value("False"), _value("0")],
     M * K * 10 // 16 + K * N, 2, "float8"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "arguments", "read", "out_bytes", "path"), SPARSE)
def test_products_by_kept_values(name: str, arguments: list[Argument], read: int, out_bytes: int, path: str) -> None:
    """Half of the dense product's FLOPs; kept values, where they stood and the dense matrix are read once."""
    cost = _cost(name, arguments)
    assert is_matrix_operator(name)
    assert (cost.family, cost.flops, cost.math_dtype) == ("gemm", KEPT_FLOPS, path)
    assert (cost.bytes_read, cost.bytes_written) == (read, out_bytes * M * N)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("aten::_sparse_semi_structured_mm", [_tensor(M, K, dtype=HALF), HALF_META, _tensor(K, N, dtype=HALF), NONE]),
        ("aten::_sparse_semi_structured_linear", [_tensor(N, K, dtype=HALF), _tensor(M, K, dtype=HALF), HALF_META]),
        ("aten::_cslt_sparse_mm", [_tensor(M, K // 4, dtype=HALF), _tensor(K, N, dtype=HALF), NONE]),
        ("aten::_cslt_sparse_mm", [_tensor(0, dtype=HALF), _tensor(0, N, dtype=HALF), NONE]),
        ("aten::_dyn_quant_matmul_4bit", [_tensor(M, K, dtype="float"), _tensor(9, dtype=BYTE), _value("32"),
                                          _value(str(K + 1)), _value(str(N))]),
        ("aten::_dyn_quant_matmul_4bit", [_tensor(M, K, dtype="float"), _tensor(9, dtype=BYTE), NONE, NONE, NONE]),
    ],
)  # fmt: skip
def test_what_is_no_such_product_is_unknown(name: str, arguments: list[Argument]) -> None:
    """Shapes that do not fit, or sizes that are not recorded: absent with a reason, never a wrong figure."""
    cost = _cost(name, arguments)
    assert has_model(name)
    assert (cost.flops, cost.num_bytes) == (None, None)
    assert cost.flops_reason


def test_dynamic_quantisation() -> None:
    """Sizes are arguments; 4-bit weights, a scale for each column and a bias are one packed tensor of bytes."""
    packed = N * K // 2 + 4 * N + 4 * N
    arguments = [_tensor(M, K, dtype="float"), _tensor(packed, dtype=BYTE), *(_value(str(each)) for each in (K, K, N))]
    cost = _cost("aten::_dyn_quant_matmul_4bit", arguments)
    assert (cost.flops, cost.math_dtype) == (2 * M * N * K, "int8")
    assert (cost.bytes_read, cost.bytes_written) == (4 * M * K + packed, 4 * M * N)


def test_scales_and_zeros_apart() -> None:
    """Eight 4-bit weights in a word; a 16-bit scale and an 8-bit zero for each 32 along K."""
    groups = K // 32
    arguments = [_tensor(M, K, dtype=HALF), _tensor(N, K // 8, dtype=INT), _value("32"),
                 _tensor(groups, N, dtype=HALF), _tensor(groups, N, dtype=INT8)]  # fmt: skip
    cost = _cost("aten::_weight_int4pack_mm_with_scales_and_zeros", arguments)
    assert (cost.flops, cost.math_dtype) == (2 * M * N * K, "float16")
    assert (cost.bytes_read, cost.bytes_written) == (2 * M * K + N * K // 2 + 3 * groups * N, 2 * M * N)
