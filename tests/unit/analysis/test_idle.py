"""Idle causes on hand-made timelines: each cause shown and not shown, first match, parts that sum to the gap."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scope.analysis.idle import IDLE_CAUSES, compute_part_idle_causes, find_idle_spans
from scope.analysis.options import Options
from scope.analysis.windows import build_timeline
from scope.trace import ReadOptions, load_rank
from scope.trace.model import RankTrace

if TYPE_CHECKING:
    from pathlib import Path

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


def collection(start: int, end: int, thread: int = 1) -> dict[str, Any]:
    """Return a run of Python's garbage collector."""
    name = {"category": "python_function", "name": "Python GC"}
    return {**name, "start_ns": start, "end_ns": end, "thread": thread}


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
                collection(160_000, 163_000),
            ],
        )
    )
    assert causes(trace) == {
        "allocation": 10_000,
        "profiler": 7_000,
        "gc": 3_000,
        "host": 75_000,
        "launch_latency": 5_000,
    }


@pytest.mark.parametrize(
    ("name", "is_own"),
    [
        ("Buffer Flush", True),
        ("Instrumentation", True),
        ("Resource", True),
        ("Activity Buffer Request", True),
        ("UVM Activity Init", True),
        ("Driver Compiler", False),
        ("Runtime Triggered Module Loading", False),
        ("Lazy Function Loading", False),
        ("Command Buffer Full", False),
        ("Unknown", False),
    ],
)
def test_only_what_the_profiler_does_for_itself_is_its_own(make_trace: MakeTrace, name: str, *, is_own: bool) -> None:
    """Of the overheads that CUPTI tells, those of the driver happen without a profiler too: they are the host's."""
    record = {"category": "overhead", "name": name, "thread": 0, "start_ns": 130_000, "end_ns": 150_000}
    own = {"profiler": 20_000, "host": 75_000} if is_own else {"host": 95_000}
    assert causes(make_trace(**gap(annotations=[record]))) == {**own, "launch_latency": 5_000}


@pytest.mark.parametrize("python_calls", [False, True])
def test_runs_of_the_collector_are_read_as_torch_writes_them(tmp_path: Path, *, python_calls: bool) -> None:
    """They stand among Python frames and have no number; they count whether or not the frames are read."""
    span = {"ph": "X", "pid": 1, "tid": 1}
    path = tmp_path / "rank0.json"
    events = [
        {**span, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 0, "dur": 5, "args": {"correlation": 1}},
        {"cat": "kernel", "name": "k", "ts": 10, "dur": 90, "tid": 7, "args": {"device": 0, "correlation": 1}},
        {**span, "cat": "python_function", "name": "train.py(3): step", "ts": 0, "dur": 300, "args": {"Python id": 1}},
        {**span, "cat": "python_function", "name": "Python GC", "ts": 150, "dur": 12.5, "args": {"Ev Idx": 164}},
        {**span, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 195, "dur": 5, "args": {"correlation": 2}},
        {"cat": "kernel", "name": "k", "ts": 200, "dur": 90, "tid": 7, "args": {"device": 0, "correlation": 2}},
    ]
    path.write_text(json.dumps({"traceEvents": [{"ph": "X", "pid": 0, **event} for event in events]}))
    trace = load_rank(path, options=ReadOptions(python_calls=python_calls))
    assert causes(trace) == {"gc": 12_500, "host": 82_500, "launch_latency": 5_000}
    assert trace.python_calls["name"].to_list() == ["train.py(3): step"] * python_calls
    assert trace.quality.events_read == len(events)


def test_the_first_match_wins_at_each_instant(make_trace: MakeTrace) -> None:
    """Where activities overlap, input comes before sync, sync before allocation, and so on."""
    trace = make_trace(
        **gap(
            annotations=[
                loader(100_000, 110_000),
                {"category": "overhead", "name": "Buffer Flush", "thread": 0, "start_ns": 100_000, "end_ns": 140_000},
                collection(100_000, 150_000),
            ],
            launches=[call("sync", 90_000, 120_000), call("allocation", 100_000, 130_000)],
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


_KINDS = ("sync", "allocation", "input", "profiler", "gc")
_host = st.lists(
    st.tuples(st.sampled_from(_KINDS), st.integers(0, 90), st.integers(1, 40), st.integers(1, 2)), max_size=8
)
_kernels = st.lists(
    st.tuples(
        st.integers(0, 1),
        st.integers(0, 90),
        st.integers(0, 12),
        st.one_of(st.none(), st.integers(0, 30)),
        st.integers(1, 2),
    ),
    min_size=1,
    max_size=10,
)


@given(_host, _kernels)
def test_causes_equal_a_look_at_every_instant(
    make_trace: MakeTrace, host: list[tuple[str, int, int, int]], kernels: list[tuple[int, int, int, int | None, int]]
) -> None:
    """Whatever runs where, every idle nanosecond has the cause that the definition gives when read literally."""
    unit = 1_000  # spans of whole microseconds, so that gaps lie on both sides of the 10 us that tell two causes apart
    tables: dict[str, list[dict[str, Any]]] = {"launches": [], "annotations": []}
    for kind, start, length, thread in host:
        span = {"start_ns": start * unit, "end_ns": (start + length) * unit, "thread": thread}
        if kind in ("sync", "allocation"):
            tables["launches"].append({"kind": kind, "name": kind, **span})
        elif kind == "gc":
            tables["annotations"].append(collection(span["start_ns"], span["end_ns"], thread))
        else:
            name = "DataLoader" if kind == "input" else "Buffer Flush"
            category = "user_annotation" if kind == "input" else "overhead"
            tables["annotations"].append({"name": name, "category": category, **span})
    events: list[dict[str, Any]] = []
    calls: dict[int, tuple[int, int]] = {}
    for device, start, length, ahead, thread in sorted(kernels, key=lambda each: each[1]):
        event = {"device": device, "start_ns": start * unit, "end_ns": (start + length) * unit}
        if ahead is not None:
            event["launch_id"] = len(tables["launches"])
            calls[event["launch_id"]] = ((start - ahead) * unit, thread)
            begin = (start - ahead) * unit
            tables["launches"].append({"start_ns": begin, "end_ns": begin, "thread": thread, "num_device_events": 1})
        events.append(event)
    launching = {row["thread"] for row in tables["launches"]}
    expected: dict[str, int] = {}
    for device in {event["device"] for event in events}:
        mine = [event for event in events if event["device"] == device]
        edges = sorted({edge for event in mine for edge in (event["start_ns"], event["end_ns"])})
        for gap_start, gap_end in itertools.pairwise(edges):
            if any(event["start_ns"] <= gap_start < event["end_ns"] for event in mine):
                continue
            enders = [event.get("launch_id") for event in mine if event["start_ns"] == gap_end]
            known = sorted(calls[each] for each in enders if each is not None)
            if len({thread for start, thread in known if start == known[0][0]}) > 1:
                return  # two threads launched at one instant: either may be taken
            for now in range(gap_start, gap_end, unit):
                cause = _literal_cause(now, (gap_start, gap_end), known[0] if known else None, host, launching)
                expected[cause] = expected.get(cause, 0) + unit
    trace = make_trace(device_events=events, **tables)
    timeline = build_timeline(trace, options=Options())
    found = compute_part_idle_causes(timeline, find_idle_spans(timeline)).values()
    totals = {cause: sum(getattr(each.check(), f"{cause}_ns") for each in found) for cause in IDLE_CAUSES}
    assert {cause: ns for cause, ns in totals.items() if ns} == expected


def _literal_cause(
    now: int,
    gap: tuple[int, int],
    call: tuple[int, int] | None,
    host: list[tuple[str, int, int, int]],
    launching: set[int],
) -> str:
    """Return the cause of one idle microsecond as the definition says."""
    if call is None:
        return "unknown"
    if call[0] <= gap[0]:
        return "back_to_back" if gap[1] - gap[0] < 10_000 else "blocked"
    if now >= call[0]:
        return "launch_latency"
    active = set()
    for kind, start, length, thread in host:
        begin, end = start * 1_000, (start + length) * 1_000
        shared = kind == "profiler" and thread not in launching
        if begin <= now < end and (thread == call[1] or shared) and (kind != "sync" or begin < gap[0]):
            active.add(kind)
    return next((kind for kind in ("input", "sync", "allocation", "profiler", "gc") if kind in active), "host")
