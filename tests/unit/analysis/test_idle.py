"""Idle causes on hand-made timelines: each cause shown and not shown, first match, parts that sum to the gap."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from scope.analysis.idle import IDLE_CAUSES, compute_part_idle_causes, find_idle_spans
from scope.analysis.options import Options
from scope.analysis.windows import build_timeline
from scope.trace.model import RankTrace

MakeTrace = Callable[..., RankTrace]
GAP_START, GAP_END, CALL = 100_000, 200_000, 195_000


def gap(launch_start: int | None = CALL, **tables: Any) -> dict[str, Any]:
    """Return the tables of two kernels with one gap of 100 us before the second, launched on thread 1."""
    launches = [{"start_ns": 0, "end_ns": 1_000, "num_device_events": 1}, *tables.pop("launches", [])]
    second: dict[str, Any] = {"start_ns": GAP_END, "end_ns": 250_000}
    if launch_start is not None:
        launches.append({"start_ns": launch_start, "end_ns": launch_start + 2_000, "num_device_events": 1})
        second["launch_id"] = len(launches) - 1
    first = {"start_ns": 10_000, "end_ns": GAP_START, "launch_id": 0}
    return {"device_events": [first, *tables.pop("copies", []), second], "launches": launches, **tables}


def causes(trace: RankTrace) -> dict[str, int]:
    """Return the nanoseconds of every cause that is not 0, over the whole window."""
    timeline = build_timeline(trace, options=Options())
    (found,) = compute_part_idle_causes(timeline, find_idle_spans(timeline)).values()
    found.check()
    return {cause: ns for cause in IDLE_CAUSES if (ns := getattr(found, f"{cause}_ns"))}


def loader(start: int, end: int, thread: int = 1) -> dict[str, Any]:
    """Return a range of the data loader."""
    name = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    return {"name": name, "start_ns": start, "end_ns": end, "thread": thread}


def call(kind: str, start: int, end: int, thread: int = 1) -> dict[str, Any]:
    """Return a call of the runtime that launches nothing."""
    return {"kind": kind, "name": kind, "start_ns": start, "end_ns": end, "thread": thread}


def test_a_late_launch_leaves_host_time_and_latency(make_trace: MakeTrace) -> None:
    """With nothing else seen, the gap is the host's up to the call and latency from there."""
    assert causes(make_trace(**gap())) == {"host": 95_000, "launch_latency": 5_000}


def test_input_counts_only_on_the_launching_thread(make_trace: MakeTrace) -> None:
    """A data loader's range is the cause where it overlaps the gap, and only if it ran on the launching thread."""
    shown = make_trace(**gap(annotations=[loader(90_000, 130_000)]))
    assert causes(shown) == {"input": 30_000, "host": 65_000, "launch_latency": 5_000}
    other = make_trace(**gap(annotations=[loader(90_000, 130_000, thread=2)]))
    assert causes(other) == {"host": 95_000, "launch_latency": 5_000}


def test_sync_must_have_begun_before_the_device_ran_dry(make_trace: MakeTrace) -> None:
    """A blocking call that began before the gap is `sync`; one that began in it waits for nothing and is `host`."""
    shown = make_trace(**gap(launches=[call("sync", 50_000, 120_000)]))
    assert causes(shown) == {"sync": 20_000, "host": 75_000, "launch_latency": 5_000}
    late = make_trace(**gap(launches=[call("sync", GAP_START, 120_000)]))
    assert causes(late) == {"host": 95_000, "launch_latency": 5_000}


def test_a_copy_blocks_when_its_call_outlasts_it(make_trace: MakeTrace) -> None:
    """A copy whose call returns after the copy ended is a sync; one that returns before is not."""
    copied = {"start_ns": 60_000, "end_ns": GAP_START, "launch_id": 1, "copy_kind": "D2H", "stream": 8}
    shown = make_trace(**gap(launches=[call("memcpy", 50_000, 110_000)], copies=[copied]))
    assert causes(shown) == {"sync": 10_000, "host": 85_000, "launch_latency": 5_000}
    quick = make_trace(**gap(launches=[call("memcpy", 50_000, 52_000)], copies=[copied]))
    assert causes(quick) == {"host": 95_000, "launch_latency": 5_000}


def test_allocation_profiler_and_gc_are_told_from_host(make_trace: MakeTrace) -> None:
    """Each has its own stretch of the gap; a profiler record on a track of its own holds up every thread."""
    trace = make_trace(
        **gap(
            launches=[call("allocation", 110_000, 120_000), call("allocation", 120_000, 125_000, thread=2)],
            annotations=[
                {"category": "overhead", "name": "Buffer Flush", "thread": 0, "start_ns": 130_000, "end_ns": 137_000},
                {"category": "overhead", "name": "Resource", "thread": 2, "start_ns": 140_000, "end_ns": 150_000},
            ],
            python_calls=[{"name": "Python GC", "start_ns": 160_000, "end_ns": 163_000}],
        )
    )
    assert causes(trace) == {
        "allocation": 10_000,
        "profiler": 7_000,
        "gc": 3_000,
        "host": 75_000,
        "launch_latency": 5_000,
    }


def test_the_first_match_wins_at_each_instant(make_trace: MakeTrace) -> None:
    """Where activities overlap, input comes before sync, sync before allocation, and so on."""
    trace = make_trace(
        **gap(
            annotations=[
                loader(100_000, 110_000),
                {"category": "overhead", "name": "Buffer Flush", "thread": 0, "start_ns": 100_000, "end_ns": 140_000},
            ],
            launches=[call("sync", 90_000, 120_000), call("allocation", 100_000, 130_000)],
            python_calls=[{"name": "Python GC", "start_ns": 100_000, "end_ns": 150_000}],
        )
    )
    assert causes(trace) == {
        "input": 10_000,
        "sync": 10_000,
        "allocation": 10_000,
        "profiler": 10_000,
        "gc": 10_000,
        "host": 45_000,
        "launch_latency": 5_000,
    }


def test_a_kernel_launched_in_time_was_blocked_or_followed_back_to_back(make_trace: MakeTrace) -> None:
    """A long gap before a kernel launched no later than the gap is `blocked`, one below 10 us `back_to_back`."""
    assert causes(make_trace(**gap(launch_start=GAP_START))) == {"blocked": 100_000}
    short = gap(launch_start=GAP_START)
    short["device_events"][-1]["start_ns"] = GAP_START + 9_999
    assert causes(make_trace(**short)) == {"back_to_back": 9_999}
    short["device_events"][-1]["start_ns"] = GAP_START + 10_000
    assert causes(make_trace(**short)) == {"blocked": 10_000}


def test_no_launch_seen_is_unknown(make_trace: MakeTrace) -> None:
    """A gap before an event without a launch says so, whatever the host did."""
    assert causes(make_trace(**gap(launch_start=None, annotations=[loader(0, 300_000)]))) == {"unknown": 100_000}


def test_a_call_after_its_event_leaves_no_latency(make_trace: MakeTrace) -> None:
    """When clocks disagree so that the call starts after its event, the whole gap is the host's."""
    assert causes(make_trace(**gap(launch_start=GAP_END + 5_000))) == {"host": 100_000}


def test_of_two_events_that_end_a_gap_the_one_launched_first_counts(make_trace: MakeTrace) -> None:
    """An event launched in time decides over one that starts at the same instant and was launched late."""
    tables = gap()
    tables["device_events"].append({"start_ns": GAP_END, "end_ns": 230_000, "launch_id": 0, "stream": 9})
    assert causes(make_trace(**tables)) == {"blocked": 100_000}


def test_an_event_of_no_length_splits_a_gap(make_trace: MakeTrace) -> None:
    """An event of length 0 ends one gap and begins the next, each with its own cause."""
    tables = gap()
    tables["device_events"].insert(1, {"start_ns": 150_000, "end_ns": 150_000})
    assert causes(make_trace(**tables)) == {"unknown": 50_000, "host": 45_000, "launch_latency": 5_000}


def test_devices_do_not_fill_each_others_gaps(make_trace: MakeTrace) -> None:
    """A kernel on another device leaves the gap as it is, and each device has its own causes."""
    tables = gap()
    tables["device_events"].append({"device": 1, "start_ns": 0, "end_ns": 300_000})
    timeline = build_timeline(make_trace(**tables), options=Options())
    found = compute_part_idle_causes(timeline, find_idle_spans(timeline))
    assert [each.idle_ns for each in found.values()] == [100_000, 0]


@pytest.mark.parametrize("cause", IDLE_CAUSES)
def test_a_device_that_never_idles_has_no_cause(make_trace: MakeTrace, cause: str) -> None:
    """Without a gap every cause is 0, whatever the host did."""
    trace = make_trace(
        device_events=[{"start_ns": 0, "end_ns": 100}, {"start_ns": 100, "end_ns": 200}], annotations=[loader(0, 200)]
    )
    assert cause not in causes(trace)
