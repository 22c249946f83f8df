"""Indexing, sorting, running sums, pooling, interpolation and losses, counted by hand."""

from __future__ import annotations

import json

import pytest

from scope.cost import OperatorCost, estimate_operator

Argument = tuple[list[object], str, str]
NONE: Argument = ([], "", "")
INT64 = "long int"


def _cost(name: str, arguments: list[Argument], **rest: str) -> OperatorCost:
    dims, types, values = (json.dumps(list(column)) for column in zip(*arguments, strict=True))
    return estimate_operator(name, dims, types, None, values, **rest)


def _tensor(*dims: int, dtype: str = "float") -> Argument:
    return [*dims], dtype, ""


def _value(text: str) -> Argument:
    return [], "ScalarList" if text.startswith("[") else "Scalar", text


# name, arguments, FLOPs, bytes read, bytes written; float has 4 bytes, long int 8, int 4.
CASES = [
    # Three slices of 8 of the first axis: 3 indices and 24 values read, 24 written.
    ("aten::index_copy_", [_tensor(10, 8), _value("0"), _tensor(3, dtype=INT64), _tensor(3, 8)],
     0, 3 * 8 + 24 * 4, 24 * 4),
    ("aten::index_fill_", [_tensor(10, 8), _value("-1"), _tensor(3, dtype=INT64), _value("0")], 0, 3 * 8, 30 * 4),
    # 32 sums into what is read first.
    ("aten::scatter_reduce_", [_tensor(8, 16), _value("0"), _tensor(2, 16, dtype=INT64), _tensor(2, 16), NONE,
                               _value("True")], 32, 32 * 8 + 32 * 4 + 32 * 4, 32 * 4),
    ("aten::index_reduce_", [_tensor(8, 16), _value("0"), _tensor(2, dtype=INT64), _tensor(2, 16), NONE,
                             _value("True")], 32, 2 * 8 + 32 * 4 + 32 * 4, 32 * 4),
    ("aten::sort", [_tensor(8, 16), _value("1"), _value("False")], 0, 128 * 4, 128 * (4 + 8)),
    ("aten::sort", [_tensor(8, 16), _value("False"), _value("1"), _value("False")], 0, 128 * 4, 128 * (4 + 8)),
    ("aten::argsort", [_tensor(8, 16), _value("1"), _value("False")], 0, 128 * 4, 128 * 8),
    # The largest 3 of each of 8 rows; along the first axis, of each of 16 columns.
    ("aten::topk", [_tensor(8, 16), _value("3"), _value("1"), _value("True"), _value("True")],
     0, 128 * 4, 24 * (4 + 8)),
    ("aten::topk", [_tensor(8, 16), _value("3"), _value("0"), _value("True"), _value("True")],
     0, 128 * 4, 48 * (4 + 8)),
    ("aten::bucketize", [_tensor(8, 16), _tensor(5), _value("False"), _value("False")], 0, 133 * 4, 128 * 8),
    ("aten::searchsorted", [_tensor(5), _tensor(8, 16), _value("True"), _value("False"), NONE, NONE],
     0, 133 * 4, 128 * 4),
    ("aten::cumsum", [_tensor(8, 16), _value("1"), NONE], 128, 128 * 4, 128 * 4),
    # Sums of integers are int64, unless a dtype is asked for (ScalarType 3 is int32).
    ("aten::cumsum", [_tensor(8, dtype="int"), _value("0"), NONE], 8, 8 * 4, 8 * 8),
    ("aten::cumsum", [_tensor(8, dtype="int"), _value("0"), _value("3")], 8, 8 * 4, 8 * 4),
    ("aten::cumsum_", [_tensor(8, dtype="int"), _value("0"), NONE], 8, 8 * 4, 8 * 4),
    # 238, 242, ... 266: 8 numbers below 270.
    ("aten::arange", [_value("238"), _value("270"), _value("4"), _tensor(0, dtype=INT64)], 0, 0, 8 * 8),
    ("aten::arange", [_value("0"), _value("1"), _value("0.3"), _tensor(0)], 0, 0, 4 * 4),
    # One axis: its slices are single values, whichever way the dimension was lost.
    ("aten::index_select", [_tensor(755), NONE, _tensor(10, dtype="int")], 0, 10 * (4 + 4), 10 * 4),
    # Bags of 6 rows of 16: rows, indices and 3 offsets read; 3 bags, the bag of each index, each bag's size written.
    ("aten::_embedding_bag", [_tensor(100, 16), _tensor(6, dtype=INT64), _tensor(3, dtype=INT64), _value("False"),
                              _value("0"), _value("False"), NONE, _value("False"), _value("-1")],
     96, 96 * 4 + 9 * 8, 48 * 4 + 9 * 8),
    # With the last offset among them there are 2 bags; scales are read and multiply.
    ("aten::_embedding_bag", [_tensor(100, 16), _tensor(6, dtype=INT64), _tensor(3, dtype=INT64), _value("False"),
                              _value("0"), _value("False"), _tensor(6), _value("True"), _value("-1")],
     192, 96 * 4 + 9 * 8 + 6 * 4, 32 * 4 + 8 * 8),
    # 2 x 2 windows on 4 x 4 make 2 x 2.
    ("aten::avg_pool2d", [_tensor(1, 3, 4, 4), _value("[2, 2]"), _value("[]"), _value("[0, 0]"), _value("False"),
                          _value("True"), NONE], 12 * 4, 48 * 4, 12 * 4),
    # 3 x 3, stride 2 on 6 x 6: 2 x 2, and in ceil mode 3 x 3.
    ("aten::avg_pool2d", [_tensor(1, 1, 6, 6), _value("[3, 3]"), _value("[2, 2]"), _value("[0, 0]"), _value("False"),
                          _value("True"), NONE], 4 * 9, 36 * 4, 4 * 4),
    ("aten::avg_pool2d", [_tensor(1, 1, 6, 6), _value("[3, 3]"), _value("[2, 2]"), _value("[0, 0]"), _value("True"),
                          _value("True"), NONE], 9 * 9, 36 * 4, 9 * 4),
    ("aten::avg_pool2d_backward", [_tensor(1, 3, 2, 2), _tensor(1, 3, 4, 4), _value("[2, 2]"), _value("[]"),
                                   _value("[0, 0]"), _value("False"), _value("True"), NONE],
     12 * 4, 12 * 4, 48 * 4),
    ("aten::_adaptive_avg_pool2d", [_tensor(2, 3, 8, 8), _value("[2, 2]")], 384, 384 * 4, 24 * 4),
    ("aten::_adaptive_avg_pool2d_backward", [_tensor(2, 3, 2, 2), _tensor(2, 3, 8, 8)], 384, 24 * 4, 384 * 4),
    # Four neighbours for each of 128 outputs: 4 products and 3 sums.
    ("aten::upsample_bilinear2d", [_tensor(1, 2, 4, 4), _value("[8, 8]"), _value("False"), NONE, NONE],
     7 * 128, 32 * 4, 128 * 4),
    ("aten::upsample_nearest2d", [_tensor(1, 2, 4, 4), _value("[8, 8]"), NONE, NONE], 0, 32 * 4, 128 * 4),
    ("aten::upsample_bilinear2d_backward", [_tensor(1, 2, 8, 8), _value("[8, 8]"), _value("[1, 2, 4, 4]"),
                                            _value("False"), NONE, NONE], 7 * 128, 128 * 4, 32 * 4),
    ("aten::upsample_nearest2d_backward", [_tensor(1, 2, 8, 8), _value("[8, 8]"), _value("[1, 2, 4, 4]"), NONE, NONE],
     128, 128 * 4, 32 * 4),
    # One column left, two right, no row above, three below: 4 x 4 becomes 7 x 7.
    ("aten::reflection_pad2d", [_tensor(1, 2, 4, 4), _value("[1, 2, 0, 3]")], 0, 32 * 4, 2 * 49 * 4),
    ("aten::mse_loss", [_tensor(8, 16), _tensor(8, 16), _value("1")], 2 * 128, 256 * 4, 128 * 4),
    ("aten::smooth_l1_loss", [_tensor(8, 16), _tensor(8, 16), _value("1"), _value("1.")], 4 * 128, 256 * 4, 128 * 4),
    ("aten::huber_loss_backward", [_tensor(), _tensor(8, 16), _tensor(8, 16), _value("1"), _value("1.")],
     3 * 128, 257 * 4, 128 * 4),
    ("aten::binary_cross_entropy_backward", [_tensor(8, 16), _tensor(8, 16), _tensor(8, 16), NONE, _value("1")],
     5 * 128, 384 * 4, 128 * 4),
    ("aten::_fused_dropout", [_tensor(8, 16), _value("0.9"), NONE], 2 * 128, 128 * 4, 128 * 4 + 128),
]  # fmt: skip


@pytest.mark.parametrize(("name", "arguments", "flops", "read", "written"), CASES)
def test_work_counted_by_hand(name: str, arguments: list[Argument], flops: int, read: int, written: int) -> None:
    """What is chosen is read and written, and the indices are read."""
    cost = _cost(name, arguments)
    assert (cost.flops, cost.bytes_read, cost.bytes_written) == (flops, read, written)
    assert cost.num_bytes == read + written


@pytest.mark.parametrize(
    ("name", "arguments", "reason"),
    [
        ("aten::index", [_tensor(8, 16), NONE], "shapes of the indices"),
        ("aten::_index_put_impl_", [_tensor(8, 16), NONE, _tensor(3, 16), _value("False"), _value("False")],
         "shapes of the indices"),
        ("aten::nonzero", [_tensor(8, 16, dtype="bool")], "depends on their values"),
        ("aten::masked_select", [_tensor(8, 16), _tensor(8, 16, dtype="bool")], "depends on their values"),
        ("aten::topk", [_tensor(8, 16), NONE, NONE], "Concrete Inputs"),
        ("aten::index_select", [_tensor(8, 16), NONE, _tensor(3, dtype=INT64)], "Concrete Inputs"),
        ("aten::arange", [_value("5"), NONE, NONE, NONE, _value("False")], "range"),
        ("aten::avg_pool2d", [_tensor(1, 3, 4, 4), NONE, NONE, NONE, NONE, NONE, NONE], "window"),
        ("aten::upsample_nearest2d", [_tensor(1, 2, 4, 4), NONE, NONE, NONE], "size of the result"),
    ],
)  # fmt: skip
def test_what_a_trace_does_not_hold_is_said(name: str, arguments: list[Argument], reason: str) -> None:
    """A count that depends on values, or on arguments that are not printed, is absent with that reason."""
    cost = _cost(name, arguments)
    assert cost.num_bytes is None
    assert reason in (cost.bytes_reason or "")


def test_a_scan_kernel_does_the_work_of_a_running_sum() -> None:
    """CUB's scan moves the data; the kernel that sets its states moves none of it."""
    arguments = [_tensor(2048, dtype="long"), _value("0"), NONE]
    scan = _cost("aten::cumsum", arguments, part="void cub::DeviceScanKernel<cub::AgentScanPolicy<128, 15, long>>")
    assert (scan.flops, scan.num_bytes) == (2048, 2 * 2048 * 8)
    init = _cost("aten::cumsum", arguments, part="void cub::DeviceScanInitKernel<cub::ScanTileState<long, true>>(int)")
    assert init.num_bytes is None
    assert "one of several kernels of aten::cumsum" in (init.bytes_reason or "")
