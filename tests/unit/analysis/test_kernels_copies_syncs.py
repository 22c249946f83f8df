"""Tables of kernels, copies and blocking calls, worked out by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scope.analysis.copies import summarize_copies
from scope.analysis.idle import find_idle_spans
from scope.analysis.kernels import key_events, summarize_kernels
from scope.analysis.modules import innermost_calls
from scope.analysis.options import Options
from scope.analysis.syncs import summarize_syncs
from scope.analysis.windows import Timeline, build_timeline, narrow_to_step
from scope.trace.model import RankTrace
from scope.trace.schema import PythonCalls

MakeTrace = Callable[..., RankTrace]


def timeline_of(trace: RankTrace) -> Timeline:
    """Return the timeline of a trace."""
    return build_timeline(trace, options=Options())


@pytest.fixture
def grouped(make_trace: MakeTrace) -> Timeline:
    """Return three gemms of two operators, a copy without an operator, and a step."""
    return timeline_of(
        make_trace(
            ops=[{"name": "aten::mm", "start_ns": 0, "end_ns": 5}, {"name": "aten::addmm", "start_ns": 6, "end_ns": 9}],
            steps=[{"start_ns": 0, "end_ns": 100}],
            device_events=[
                {"name": "gemm", "kernel_class": "gemm", "start_ns": 0, "end_ns": 30, "op_id": 0},
                {"name": "gemm", "kernel_class": "gemm", "start_ns": 30, "end_ns": 40, "op_id": 1, "step_id": 0},
                {"name": "Memcpy HtoD", "copy_kind": "H2D", "start_ns": 35, "end_ns": 45, "stream": 9},
                {"name": "big", "kernel_class": "gemm", "start_ns": 50, "end_ns": 100, "op_id": 1, "step_id": 0},
            ],
        )
    )


def test_kernels_group_by_name(grouped: Timeline) -> None:
    """Counts, sums, extremes and shares of each name, the largest first."""
    table = summarize_kernels([key_events(grouped, by="name")])
    assert table.rows() == [
        ("big", "compute", "gemm", 1, 50, 50, 50, 50, 0.5),
        ("gemm", "compute", "gemm", 2, 40, 10, 10, 30, 0.4),
        ("Memcpy HtoD", "memory", "memory", 1, 10, 10, 10, 10, 0.1),
    ]


def test_kernels_group_by_operator_and_class(grouped: Timeline) -> None:
    """What no operator launched is a group of its own with no key."""
    by_operator = summarize_kernels([key_events(grouped, by="operator")])
    assert by_operator.select("key", "num_events", "total_ns").rows() == [
        ("aten::addmm", 2, 60),
        ("aten::mm", 1, 30),
        (None, 1, 10),
    ]
    by_class = summarize_kernels([key_events(grouped, by="kernel_class")])
    assert by_class.select("key", "total_ns").rows() == [("gemm", 90), ("memory", 10)]


def test_kernels_of_several_ranks_add_up(grouped: Timeline) -> None:
    """Two ranks have twice the events, and the shares stay."""
    twice = summarize_kernels([key_events(grouped, by="name")] * 2)
    assert twice.select("key", "num_events", "device_time_ratio").rows() == [
        ("big", 2, 0.5),
        ("gemm", 4, 0.4),
        ("Memcpy HtoD", 2, 0.1),
    ]
    assert summarize_kernels([]).is_empty()


def test_a_step_has_the_events_that_start_in_its_window(grouped: Timeline) -> None:
    """The step begins with its first compute kernel; what started before it belongs elsewhere."""
    step = narrow_to_step(grouped, step_id=0)
    inside = summarize_kernels([key_events(step, by="name")])
    assert inside.select("key", "num_events").rows() == [("big", 1), ("Memcpy HtoD", 1), ("gemm", 1)]
    assert summarize_copies([step])["num_copies"].to_list() == [1]


def test_backward_kernels_belong_to_the_forward_module(make_trace: MakeTrace) -> None:
    """A kernel counts for the innermost module around its operator, in backward around its forward operator."""
    places = [{"op_id": 0}, {"op_id": 1}, {"op_id": 3}, {"op_id": 4}, {"launch_id": 0}, {}]
    trace = make_trace(
        python_calls=[
            {"name": "nn.Module: Net_0", "module_id": 0, "start_ns": 0, "end_ns": 100},
            {"name": "nn.Module: Linear_0", "module_id": 0, "start_ns": 10, "end_ns": 50},
            {"name": "forward", "start_ns": 11, "end_ns": 49},
        ],
        ops=[
            {"name": "aten::linear", "start_ns": 20, "end_ns": 30},
            {"name": "aten::relu", "start_ns": 60, "end_ns": 70},
            {"name": "node", "start_ns": 200, "end_ns": 300, "thread": 2, "forward_op_id": 0, "is_leaf": False},
            {"name": "aten::mm", "start_ns": 210, "end_ns": 220, "thread": 2, "parent_id": 2, "depth": 1},
            {"name": "aten::add", "start_ns": 400, "end_ns": 410},
        ],
        launches=[{"start_ns": 45, "end_ns": 46, "num_device_events": 1}],
        device_events=[
            {"start_ns": 500 + 10 * index, "end_ns": 510 + 10 * index, **place} for index, place in enumerate(places)
        ],
    )
    found = key_events(timeline_of(trace), by="module")["key"].cast(pl.String).to_list()
    linear, net = "nn.Module: Linear_0", "nn.Module: Net_0"
    assert found == [linear, net, linear, None, linear, None]


@pytest.mark.parametrize("frames", ["of all", "none inside the node", "none of its thread"])
def test_operators_of_a_node_that_build_a_graph_count_for_a_module(make_trace: MakeTrace, frames: str) -> None:
    """Under checkpointing the node that asks first computes other modules again: theirs, or unknown, not the node's.

    Without a module inside, although the thread's are known, it is a double backward, all of it the node's.
    """
    around = [{"name": "nn.Module: Trainer_0", "module_id": 9, "thread": 2, "start_ns": 0, "end_ns": 900}]
    again = [
        {"name": "nn.Module: Block_0", "module_id": 0, "thread": 2, "start_ns": 210, "end_ns": 250},
        {"name": "nn.Module: Linear_0", "module_id": 1, "thread": 2, "start_ns": 215, "end_ns": 235},
    ]
    inner: dict[str, Any] = {"thread": 2, "parent_id": 2, "depth": 1}
    trace = make_trace(
        python_calls=[
            *(around if frames != "none of its thread" else []),
            {"name": "nn.Module: Head_0", "module_id": 2, "start_ns": 10, "end_ns": 50},
            *(again if frames == "of all" else []),
        ],
        ops=[
            {"name": "aten::linear", "start_ns": 20, "end_ns": 30, "sequence_number": 7},
            {"name": "aten::fill_", "start_ns": 100, "end_ns": 110, "thread": 2},
            {
                "name": "autograd::engine::evaluate_function: AddmmBackward0",
                "start_ns": 200,
                "end_ns": 300,
                "thread": 2,
                "forward_op_id": 0,
                "sequence_number": 7,
            },
            {"name": "aten::addmm", "start_ns": 220, "end_ns": 230, "sequence_number": 1, **inner},
            {"name": "aten::relu", "start_ns": 240, "end_ns": 245, "sequence_number": 2, **inner},
            {"name": "aten::mul", "start_ns": 252, "end_ns": 255, "sequence_number": 3, **inner},
            {"name": "aten::mm", "start_ns": 260, "end_ns": 280, **inner},
        ],
        device_events=[{"start_ns": 500 + 10 * op, "end_ns": 510 + 10 * op, "op_id": op} for op in range(7)],
    )
    found = key_events(timeline_of(trace), by="module")["key"].cast(pl.String).to_list()
    head, trainer = "nn.Module: Head_0", "nn.Module: Trainer_0"
    expected = {
        "of all": [head, trainer, head, "nn.Module: Linear_0", "nn.Module: Block_0", None, head],
        "none inside the node": [head, trainer, head, head, head, head, head],
        "none of its thread": [head, None, head, None, None, None, head],
    }
    assert found == expected[frames]


@st.composite
def nested(draw: st.DrawFn) -> list[tuple[int, int]]:
    """Return spans of one thread that are nested or disjoint, some with equal edges."""
    spans: list[tuple[int, int]] = []

    def fill(start: int, end: int, depth: int) -> None:
        while start < end and depth < 4 and draw(st.booleans()):
            begin = draw(st.integers(start, end - 1))
            finish = draw(st.integers(begin + 1, end))
            spans.append((begin, finish))
            fill(begin, finish, depth + 1)
            start = finish

    fill(0, 30, 0)
    return spans


@given(nested(), st.lists(st.integers(-2, 32), max_size=10))
def test_innermost_call_is_the_shortest_that_runs(calls: list[tuple[int, int]], moments: list[int]) -> None:
    """Of nested calls the innermost at a moment is the shortest one that holds it (the later listed of equals)."""
    rows = [
        {"python_id": index, "name": str(index), "thread": 1, "start_ns": start, "end_ns": end}
        for index, (start, end) in enumerate(calls)
    ]
    frame = pl.DataFrame(rows, schema=PythonCalls.schema())
    schema = {"at_thread": pl.Int64, "time_ns": pl.Int64}
    found = innermost_calls(frame, pl.DataFrame([(1, now) for now in moments], schema=schema, orient="row"))
    expected = [
        min(
            ((end - start, -index) for index, (start, end) in enumerate(calls) if start <= now < end),
            default=None,
        )
        for now in moments
    ]
    assert found.to_list() == [None if each is None else -each[1] for each in expected]


def test_copies_have_bytes_bandwidth_and_exposed_time(make_trace: MakeTrace) -> None:
    """Bandwidth is over copies that say their bytes and last; exposed is what neither compute nor communication hid."""
    trace = make_trace(
        device_events=[
            {"start_ns": 0, "end_ns": 50},
            {"name": "H", "copy_kind": "H2D", "copy_bytes": 1_000, "start_ns": 40, "end_ns": 60, "stream": 8},
            {"name": "H", "copy_kind": "H2D", "copy_bytes": 3_000, "start_ns": 55, "end_ns": 75, "stream": 9},
            {"name": "H", "copy_kind": "H2D", "copy_bytes": 500, "start_ns": 80, "end_ns": 80, "stream": 9},
            {"name": "H", "copy_kind": "H2D", "start_ns": 90, "end_ns": 100, "stream": 9},
            {"name": "S", "copy_kind": "set", "start_ns": 95, "end_ns": 105, "stream": 10},
            {"start_ns": 70, "end_ns": 72, "category": "communication", "stream": 11},
        ],
    )
    rows = summarize_copies([timeline_of(trace)]).rows(named=True)
    assert rows[0] == {
        "copy_kind": "H2D",
        "name": "H",
        "num_copies": 4,
        "num_sized": 2,
        "total_ns": 50,
        "exposed_ns": (70 - 50) + (75 - 72) + (100 - 90),
        "total_bytes": 4_500,
        "max_bytes": 3_000,
        "bandwidth_bytes_per_s": 4_000 / 40e-9,
    }
    assert (rows[1]["name"], rows[1]["exposed_ns"], rows[1]["total_bytes"], rows[1]["bandwidth_bytes_per_s"]) == (
        "S",
        10,
        None,
        None,
    )


def test_no_copies_no_rows(make_trace: MakeTrace) -> None:
    """A trace without copies has an empty table."""
    assert summarize_copies([timeline_of(make_trace(device_events=[{"start_ns": 0, "end_ns": 5}]))]).is_empty()


def test_blocking_calls_name_their_operator_and_the_idle_time_they_leave(make_trace: MakeTrace) -> None:
    """`item()` waits in a call inside two operators; the device idles until the thread launches again."""
    ops: list[dict[str, Any]] = [
        {"name": "aten::item", "start_ns": 40_000, "end_ns": 120_000, "is_leaf": False},
        {"name": "aten::_local_scalar_dense", "start_ns": 41_000, "end_ns": 119_000, "parent_id": 0, "depth": 1},
    ]
    trace = make_trace(
        ops=ops,
        launches=[
            {"start_ns": 0, "end_ns": 1_000, "num_device_events": 1},
            {"kind": "sync", "name": "cudaStreamSynchronize", "start_ns": 50_000, "end_ns": 110_000, "op_id": 1},
            {"kind": "sync", "name": "cudaDeviceSynchronize", "start_ns": 200_000, "end_ns": 201_000},
            {"start_ns": 150_000, "end_ns": 151_000, "num_device_events": 1},
        ],
        device_events=[
            {"start_ns": 5_000, "end_ns": 100_000, "launch_id": 0},
            {"start_ns": 160_000, "end_ns": 170_000, "launch_id": 3},
        ],
    )
    timeline = timeline_of(trace)
    assert summarize_syncs([(timeline, find_idle_spans(timeline))]).rows() == [
        (
            "cudaStreamSynchronize",
            "sync",
            "aten::_local_scalar_dense",
            "aten::item",
            1,
            60_000,
            60_000,
            10_000,
            1,
            10_000,
        ),
        ("cudaDeviceSynchronize", "sync", None, None, 1, 1_000, 1_000, 0, 1, 0),
    ]


def test_an_asynchronous_copy_on_the_device_never_blocks(make_trace: MakeTrace) -> None:
    """A slow call of an asynchronous copy within the device, or of a set, waited for nothing."""
    launches = [
        {"kind": "memcpy", "name": "cudaMemcpyAsync", "start_ns": 0, "end_ns": 50, "num_device_events": 1},
        {"kind": "memset", "name": "cudaMemsetAsync", "start_ns": 60, "end_ns": 90, "num_device_events": 1},
        {"kind": "memcpy", "name": "cudaMemcpyAsync", "start_ns": 100, "end_ns": 150, "num_device_events": 1},
        {"kind": "memcpy", "name": "cudaMemcpy", "start_ns": 200, "end_ns": 250, "num_device_events": 1},
    ]
    kinds = ["D2D", "set", "D2H", "D2D"]
    events = [
        {"copy_kind": kind, "start_ns": call["start_ns"] + 5, "end_ns": call["start_ns"] + 10, "launch_id": index}
        for index, (kind, call) in enumerate(zip(kinds, launches, strict=True))
    ]
    timeline = timeline_of(make_trace(launches=launches, device_events=events))
    assert timeline.blocking["launch_id"].to_list() == [2, 3]
