"""Host spans beside the stretches of devices: whose each instant is, and how much is made of many of them."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from scope.analysis.host_activity import HostSpans, find_blocking_calls, find_host_spans, find_launched
from scope.analysis.host_overlap import begun_within, overlap_with_host
from scope.analysis.idle import IdleSpans, compute_part_idle_causes, find_idle_spans
from scope.analysis.options import Options
from scope.analysis.syncs import summarize_syncs
from scope.analysis.windows import build_timeline

if TYPE_CHECKING:
    from collections.abc import Callable

    from scope.trace.model import RankTrace

    MakeTrace = Callable[..., RankTrace]

GAP = range(10, 95)
"""Idle time of a device up to the call that launches its second kernel."""
_calls = st.lists(st.tuples(st.integers(1, 2), st.integers(0, 90), st.integers(1, 60)), max_size=6, unique=True)


def waiting(calls: list[tuple[int, int, int]]) -> dict[str, Any]:
    """Return two kernels, a gap before a late launch of thread 1, and calls that wait (thread, start, length)."""
    syncs = [
        {"kind": "sync", "name": f"sync{number}", "thread": thread, "start_ns": start, "end_ns": start + length}
        for number, (thread, start, length) in enumerate(calls)
    ]
    launches = [{"start_ns": 0, "end_ns": 0, "num_device_events": 1}, {"start_ns": GAP.stop, "end_ns": GAP.stop}]
    kernels = [(0, GAP.start), (100, 110)]
    events = [{"start_ns": start, "end_ns": end, "launch_id": row} for row, (start, end) in enumerate(kernels)]
    return {"launches": [*launches, *syncs], "device_events": events}


@given(_calls)
def test_idle_time_is_that_of_the_call_that_began_first(
    make_trace: MakeTrace, calls: list[tuple[int, int, int]]
) -> None:
    """Each nanosecond of a gap is of one of the calls around it that began before the gap: the first, outer one."""
    expected: Counter[str] = Counter()
    for now in GAP:
        around = [
            (start, -length, f"sync{number}")
            for number, (thread, start, length) in enumerate(calls)
            if thread == 1 and start < GAP.start and start <= now < start + length
        ]
        if around:
            expected[min(around)[2]] += 1
    timeline = build_timeline(make_trace(**waiting(calls)), options=Options())
    idle = find_idle_spans(timeline)
    found = summarize_syncs([(timeline, idle)])
    assert {name: ns for name, ns in found.select("name", "idle_ns").iter_rows() if ns} == expected
    assert sum(each.sync_ns for each in compute_part_idle_causes(timeline, idle).values()) == expected.total()


@given(_calls, st.lists(st.integers(0, 150), min_size=2, max_size=6, unique=True))
def test_calls_begun_within_stretches_equal_a_look_at_all_pairs(
    make_trace: MakeTrace, calls: list[tuple[int, int, int]], edges: list[int]
) -> None:
    """A call that begins at the first instant of a stretch began with it, not within it; threads take turns."""
    edges = sorted(edges)
    stretches = [(0, 1 + place % 2, *pair) for place, pair in enumerate(zip(edges[::2], edges[1::2], strict=False))]
    expected = {
        (begin, start, min(start + length, end))
        for _, thread, begin, end in stretches
        for own, start, length in calls
        if own == thread and begin < start < end
    }
    rows = [
        {
            HostSpans.thread: thread,
            HostSpans.activity: "sync",
            "began_ns": start,
            "start_ns": start,
            "end_ns": start + own,
        }
        for thread, start, own in sorted(calls, key=lambda call: call[1])
    ]
    schema = (IdleSpans.device, IdleSpans.thread, IdleSpans.start_ns, IdleSpans.end_ns)
    frame = pl.DataFrame(stretches, schema={str(each): each.dtype for each in schema}, orient="row")
    frame = frame.with_columns(pl.col(IdleSpans.start_ns).alias("begin"))
    found = begun_within(frame, pl.DataFrame(rows, schema=HostSpans.schema()))
    assert set(found.select("begin", IdleSpans.start_ns, IdleSpans.end_ns).rows()) == expected


def test_calls_that_overlap_are_not_paired_with_every_stretch(make_trace: MakeTrace) -> None:
    """Of 100 stretches and 100 blocking calls of one thread that last to the end there are 100 pairs, not 5,000."""
    num = 100
    launches = [{"kind": "sync", "start_ns": 10 * turn, "end_ns": 10 * num} for turn in range(num)]
    blocking = make_trace(launches=launches).launches
    host = find_host_spans(make_trace(launches=launches), blocking)
    stretches = pl.DataFrame(
        {
            "device": [0] * num,
            "thread": [1] * num,
            "start_ns": range(5, 10 * num, 10),
            "end_ns": range(9, 10 * num, 10),
        },
        schema_overrides={"device": pl.Int32},
    )
    assert overlap_with_host(stretches, host).height == num
    assert set(overlap_with_host(stretches, host)[HostSpans.launch_id]) == {0}


def test_what_holds_up_every_thread_is_kept_once(make_trace: MakeTrace) -> None:
    """Of 60 threads that launch and 60 overheads on a track that launches nothing there are 60 spans, not 3,600."""
    num = 60
    events = [{"start_ns": 100 * turn + 50, "end_ns": 100 * turn + 60, "launch_id": turn} for turn in range(num)]
    trace = make_trace(
        launches=[
            {"thread": turn + 1, "start_ns": 100 * turn + 40, "end_ns": 100 * turn + 41, "num_device_events": 1}
            for turn in range(num)
        ],
        device_events=events,
        annotations=[
            {
                "category": "overhead",
                "name": "Buffer Flush",
                "thread": 0,
                "start_ns": 100 * turn + 10,
                "end_ns": 100 * turn + 17,
            }
            for turn in range(num)
        ],
    )
    blocking = find_blocking_calls(trace.launches, find_launched(trace.device_events, trace.launches))
    assert find_host_spans(trace, blocking).height == num
    timeline = build_timeline(trace, options=Options())
    causes = compute_part_idle_causes(timeline, find_idle_spans(timeline)).values()
    assert sum(each.profiler_ns for each in causes) == 7 * (num - 1)
