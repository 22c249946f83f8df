"""Memory peaks and recomputed operators on hand-made tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from scope.analysis.memory import compute_memory_peaks, compute_step_memory
from scope.analysis.options import Options
from scope.analysis.recompute import Recompute, compute_recompute
from scope.analysis.windows import build_timeline
from scope.trace.model import RankTrace

MakeTrace = Callable[..., RankTrace]
NODE = "autograd::engine::evaluate_function: "


def block(time: int, address: int, size: int, total: int | None, **more: Any) -> dict[str, Any]:
    """Return an allocation (positive size) or release of a block, and what is in use after it."""
    return {"time_ns": time, "address": address, "size_bytes": size, "allocated_bytes": total, **more}


def test_peak_is_held_by_the_operators_whose_blocks_live(make_trace: MakeTrace) -> None:
    """Blocks released before the peak or allocated after it hold nothing; what came before the recording is unseen."""
    trace = make_trace(
        ops=[{"name": "aten::empty", "start_ns": 0, "end_ns": 1}, {"name": "aten::mm", "start_ns": 2, "end_ns": 3}],
        memory=[
            block(1, 10, 100, 1_100, op_id=0, reserved_bytes=4_000),
            block(2, 20, 50, 1_150, op_id=1),
            block(3, 20, -50, 1_100),
            block(4, 20, 300, 1_400, op_id=1, reserved_bytes=6_000),
            block(5, 30, 7, 1_407),
            block(6, 99, -400, 1_007),
            block(7, 10, -100, 907),
            block(8, 40, 500, 1_407, op_id=0),
        ],
    )
    (peak,) = compute_memory_peaks(trace)
    peak.check()
    assert (peak.peak_ns, peak.peak_allocated_bytes, peak.peak_reserved_bytes) == (5, 1_407, 6_000)
    assert (peak.start_allocated_bytes, peak.end_allocated_bytes, peak.growth_bytes) == (1_000, 1_407, 407)
    assert peak.holders.rows() == [("aten::mm", 1, 300), ("aten::empty", 1, 100), (None, 1, 7)]
    assert peak.unseen_bytes == 1_000


def test_host_and_devices_have_peaks_of_their_own(make_trace: MakeTrace) -> None:
    """Blocks at one address on two devices are two blocks."""
    trace = make_trace(
        memory=[
            block(1, 10, 5, 5, device=0),
            block(2, 10, 9, 9, device=1),
            block(3, 10, 2, 2, device_type=0, device=-1),
            block(4, 10, -9, 0, device=1),
        ]
    )
    peaks = [each.check() for each in compute_memory_peaks(trace)]
    assert [(each.device_type, each.device, each.peak_allocated_bytes, each.seen_bytes) for each in peaks] == [
        (0, -1, None, 2),
        (1, 0, 5, 5),
        (1, 1, 9, 9),
    ]


def test_without_totals_the_peak_is_relative_and_says_so(make_trace: MakeTrace) -> None:
    """Traces that do not say the total in use give the holders of the peak, and no totals."""
    (peak,) = compute_memory_peaks(
        make_trace(memory=[block(1, 10, 5, None), block(2, 11, 7, None), block(3, 11, -7, None)])
    )
    peak.check()
    assert peak.peak_ns == 2
    assert peak.peak_allocated_bytes is None
    assert peak.holders.rows() == [(None, 2, 12)]


def test_steps_have_peaks(make_trace: MakeTrace) -> None:
    """Each step has the largest use of its own events; events outside every step belong to none."""
    trace = make_trace(
        steps=[{"start_ns": 10, "end_ns": 20, "number": 4}, {"start_ns": 20, "end_ns": 30, "number": 5}],
        memory=[
            block(5, 1, 90, 90),
            block(10, 2, 10, 100),
            block(19, 2, -10, 90),
            block(20, 3, 1, 91),
            block(30, 4, 500, 591),
        ],
    )
    assert compute_step_memory(trace).rows() == [(4, 1, 0, 2, 100, None, 0), (5, 1, 0, 1, 91, None, 1)]


def test_nothing_reserves_on_the_host(make_trace: MakeTrace) -> None:
    """The 0 that torch writes for the host's reserved memory is no figure, of the window and of a step alike."""
    trace = make_trace(
        steps=[{"start_ns": 0, "end_ns": 9, "number": 1}],
        memory=[block(1, 10, 5, 5, device_type=0, device=-1, reserved_bytes=0)],
    )
    (peak,) = compute_memory_peaks(trace)
    assert (peak.check().peak_reserved_bytes, peak.absent["peak_reserved_bytes"][:11]) == (None, "on the host")
    assert compute_step_memory(trace).rows() == [(1, 0, -1, 1, None, None, 5)]


def test_the_total_of_the_host_is_no_peak(make_trace: MakeTrace) -> None:
    """What the host used before the recording is in no total of torch, so no peak, start or rest is made of it."""
    trace = make_trace(
        memory=[
            # 200 bytes stood before; torch releases them as 0, since it never saw them allocated.
            block(1, 10, 5, 5, device_type=0, device=-1),
            block(2, 77, 0, 5, device_type=0, device=-1),
            block(3, 11, 7, 12, device_type=0, device=-1),
            block(4, 10, -5, 7, device_type=0, device=-1),
        ],
    )
    (peak,) = compute_memory_peaks(trace)
    peak.check()
    totals = ("peak_allocated_bytes", "start_allocated_bytes", "end_allocated_bytes", "unseen_bytes")
    assert [getattr(peak, name) for name in totals] == [None] * 4
    assert {peak.absent[name] for name in totals} == {
        "of the host torch counts only what is allocated while a profiler records"
    }
    assert (peak.peak_ns, peak.seen_bytes, peak.growth_bytes) == (3, 12, 7)


def test_no_memory_events_no_peaks(make_trace: MakeTrace) -> None:
    """A trace recorded without memory has no peaks at all."""
    assert compute_memory_peaks(make_trace()) == ()


def op(name: str, start: int, end: int, parent: int | None = None, **more: Any) -> dict[str, Any]:
    """Return an operator of thread 1."""
    return {"name": name, "start_ns": start, "end_ns": end, "parent_id": parent, "depth": 0, **more}


def recompute_of(trace: RankTrace) -> Recompute:
    """Return the checked recompute of a trace."""
    return compute_recompute(build_timeline(trace, options=Options())).check()


def test_forward_operators_inside_backward_are_recompute(make_trace: MakeTrace) -> None:
    """Only operators with a sequence number of their own count, outermost once, with all kernels below them."""
    trace = make_trace(
        ops=[
            op("aten::linear", 0, 10, sequence_number=1),
            op(NODE + "ReluBackward0", 100, 200, sequence_number=2),
            op("ReluBackward0", 110, 190, 1, sequence_number=2),
            op("aten::linear", 120, 150, 2, sequence_number=7),
            op("aten::addmm", 125, 145, 3, sequence_number=7),
            op("aten::threshold_backward", 160, 180, 2),
        ],
        device_events=[
            {"start_ns": 1_000 + 100 * index, "end_ns": 1_000 + 100 * index + length, "op_id": op_id}
            for index, (op_id, length) in enumerate([(0, 40), (4, 30), (3, 5), (5, 25)])
        ],
    )
    found = recompute_of(trace)
    assert (found.num_ops, found.recompute_ns, found.compute_ns, found.recompute_ratio) == (1, 35, 100, 0.35)
    assert (found.step_num_ops, found.step_recompute_ns, found.step_compute_ns) == (1, 35, 100)


def test_operators_of_step_time_are_counted_beside_all(make_trace: MakeTrace) -> None:
    """Of three recomputed operators one ran in the whole step, one in the cut step, one launched nothing."""
    trace = make_trace(
        ops=[
            op(NODE + "ReluBackward0", 100, 400, sequence_number=2),
            op("aten::linear", 120, 150, 0, sequence_number=7, step_id=0),
            op("aten::addmm", 125, 145, 1, sequence_number=7, step_id=0),
            op("aten::linear", 220, 250, 0, sequence_number=8, step_id=1),
            op("aten::linear", 320, 350, 0, sequence_number=9, step_id=0),
        ],
        steps=[{"start_ns": 0, "end_ns": 200}, {"start_ns": 200, "end_ns": 400, "is_cut": True}],
        device_events=[
            {"start_ns": 1_000, "end_ns": 1_040, "op_id": 2, "step_id": 0},
            {"start_ns": 1_100, "end_ns": 1_102, "op_id": 1, "step_id": 0},
            {"start_ns": 1_200, "end_ns": 1_208, "op_id": 3, "step_id": 1},
        ],
    )
    found = recompute_of(trace)
    assert (found.num_ops, found.recompute_ns) == (3, 50)
    assert (found.step_num_ops, found.step_recompute_ns, found.step_compute_ns) == (1, 42, 42)


def test_ordinary_backward_recomputes_nothing(make_trace: MakeTrace) -> None:
    """A node and its own operator bear sequence numbers without recomputing anything."""
    trace = make_trace(
        ops=[
            op("aten::linear", 0, 10, sequence_number=1),
            op(NODE + "AddmmBackward0", 100, 200, sequence_number=1),
            op("AddmmBackward0", 110, 190, 1, sequence_number=1),
            op("aten::mm", 120, 150, 2),
        ],
        device_events=[{"start_ns": 300, "end_ns": 350, "op_id": 3}],
    )
    found = recompute_of(trace)
    assert (found.num_ops, found.recompute_ns, found.recompute_ratio) == (0, 0, 0.0)


@pytest.mark.parametrize(
    ("ops", "reason"),
    [
        ([op("aten::mm", 0, 10, sequence_number=1)], "no backward"),
        ([op(NODE + "MmBackward0", 0, 10), op("aten::mm", 2, 5, 0)], "no autograd sequence numbers"),
    ],
)
def test_recompute_is_absent_where_it_cannot_be_seen(
    make_trace: MakeTrace, ops: list[dict[str, Any]], reason: str
) -> None:
    """Without backward or sequence numbers nothing can be said, which is not 0."""
    found = recompute_of(make_trace(ops=ops, device_events=[{"start_ns": 20, "end_ns": 30}]))
    assert found.recompute_ns is None
    assert reason in found.absent["recompute_ratio"]
