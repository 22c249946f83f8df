"""Launch delays, queue depth and host-bound time, worked out by hand and by counting nanoseconds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from scope.analysis.launches import (
    QueueDepth,
    compute_launch_delays,
    compute_part_queues,
    sum_queues,
    summarize_launches,
)
from scope.analysis.options import Options
from scope.analysis.windows import build_timeline
from scope.trace.model import RankTrace

MakeTrace = Callable[..., RankTrace]


def queue_of(trace: RankTrace) -> QueueDepth:
    """Return the figures of the whole window of a trace with one device."""
    return sum_queues(compute_part_queues(build_timeline(trace, options=Options())).values()).check()


def test_queue_depth_is_weighted_by_time(make_trace: MakeTrace) -> None:
    """Two launches wait behind a long kernel; the depth is 1, then 2, then 1, then the queue is empty."""
    trace = make_trace(
        launches=[
            {"start_ns": 0, "end_ns": 2, "num_device_events": 1},
            {"start_ns": 20, "end_ns": 22, "num_device_events": 1},
            {"start_ns": 30, "end_ns": 32, "num_device_events": 1},
        ],
        device_events=[
            {"start_ns": 10, "end_ns": 50, "launch_id": 0},
            {"start_ns": 50, "end_ns": 60, "launch_id": 1},
            {"start_ns": 70, "end_ns": 110, "launch_id": 2},
        ],
    )
    found = queue_of(trace)
    assert (found.window_ns, found.num_launches, found.num_unseen_events) == (100, 3, 0)
    assert found.waited_ns == (50 - 20) + (70 - 30)
    assert found.max_depth == 2
    assert found.empty_ns == (20 - 10) + (110 - 70)
    assert found.mean_depth == 0.7
    # Between the kernel's start and the next call the host prepares it; after the last launch nobody is known to.
    assert found.host_bound_ns == 10
    assert found.host_bound_ratio == 0.1


def test_a_waiting_thread_is_not_host_bound(make_trace: MakeTrace) -> None:
    """Blocking calls and the data loader of the thread that launches next are taken out; another thread's are not."""
    tables: dict[str, Any] = {
        "launches": [
            {"start_ns": 0, "end_ns": 2, "num_device_events": 1},
            {"kind": "sync", "name": "cudaStreamSynchronize", "start_ns": 20, "end_ns": 50},
            {"start_ns": 100, "end_ns": 102, "num_device_events": 1},
        ],
        "annotations": [{"name": "enumerate(DataLoader)#x", "start_ns": 40, "end_ns": 65}],
        "device_events": [
            {"start_ns": 10, "end_ns": 45, "launch_id": 0},
            {"start_ns": 105, "end_ns": 110, "launch_id": 2},
        ],
    }
    found = queue_of(make_trace(**tables))
    assert (found.empty_ns, found.host_bound_ns) == (90 + 5, 90 - 45)
    for table in ("launches", "annotations"):
        tables[table] = [{"thread": 2, **row} if row.get("name") else row for row in tables[table]]
    assert queue_of(make_trace(**tables)).host_bound_ns == 90


def test_a_graph_is_one_launch(make_trace: MakeTrace) -> None:
    """A graph is in the queue until its first event starts, however many it has."""
    trace = make_trace(
        launches=[{"kind": "graph", "name": "cudaGraphLaunch", "start_ns": 0, "end_ns": 5, "num_device_events": 3}],
        device_events=[
            {"start_ns": start, "end_ns": start + 5, "launch_id": 0, "in_graph": True} for start in (10, 15, 30)
        ],
    )
    found = queue_of(trace)
    assert (found.num_launches, found.waited_ns, found.max_depth, found.empty_ns) == (1, 0, 0, 25)
    delays = compute_launch_delays([build_timeline(trace, options=Options())]).check()
    assert delays.delay is not None
    assert (delays.delay.num_values, delays.delay.total_ns) == (1, 10)


def test_events_without_a_launch_are_counted_beside(make_trace: MakeTrace) -> None:
    """The queue cannot see them, and says how many there are."""
    found = queue_of(make_trace(device_events=[{"start_ns": 0, "end_ns": 10}, {"start_ns": 20, "end_ns": 30}]))
    assert (found.num_launches, found.num_unseen_events, found.empty_ns, found.host_bound_ns) == (0, 2, 30, 0)


def test_launch_table_knows_the_family_of_each_call(make_trace: MakeTrace) -> None:
    """CUDA runtime and driver, HIP and graph launches are told apart; calls that launch nothing are not launches."""
    names = ["cudaLaunchKernel", "cuLaunchKernelEx", "hipModuleLaunchKernel", "cudaGraphLaunch", "cudaGraphLaunch"]
    kinds = ["kernel", "kernel", "kernel", "graph", "graph"]
    launches: list[dict[str, Any]] = [
        {"name": name, "kind": kind, "start_ns": 100 * index, "end_ns": 100 * index + 7, "num_device_events": 1}
        for index, (name, kind) in enumerate(zip(names, kinds, strict=True))
    ]
    launches[4]["num_device_events"] = 0
    launches.append({"name": "cudaMalloc", "kind": "allocation", "start_ns": 900, "end_ns": 950})
    events = [
        {"start_ns": 100 * index + delay, "end_ns": 500, "launch_id": index}
        for index, delay in enumerate([10, 20, -5, 40])
    ]
    table = summarize_launches([build_timeline(make_trace(launches=launches, device_events=events), options=Options())])
    rows = {row["name"]: row for row in table.iter_rows(named=True)}
    assert [row["api"] for row in rows.values()] == ["cuda_runtime", "cuda_driver", "cuda_runtime", "hip"]
    graph = rows["cudaGraphLaunch"]
    assert (graph["num_calls"], graph["num_device_events"], graph["call_ns"], graph["total_delay_ns"]) == (2, 1, 14, 40)
    hip = rows["hipModuleLaunchKernel"]
    assert (hip["num_negative_delays"], hip["min_delay_ns"], hip["median_delay_ns"]) == (1, -5, -5)


def test_the_wait_of_a_blocking_copy_stands_apart(make_trace: MakeTrace) -> None:
    """Two copies to pageable memory keep their calls until they end behind a kernel, two others return at once."""
    copy = {"name": "cudaMemcpyAsync", "kind": "memcpy", "num_device_events": 1}
    trace = make_trace(
        launches=[
            {"start_ns": 0, "end_ns": 4, "num_device_events": 1},
            {**copy, "start_ns": 10, "end_ns": 130},
            {**copy, "start_ns": 140, "end_ns": 150},
            {**copy, "start_ns": 200, "end_ns": 230},
            # An asynchronous copy within the device waits for nothing, however long its call is.
            {**copy, "start_ns": 300, "end_ns": 400},
        ],
        device_events=[
            {"start_ns": 20, "end_ns": 100, "launch_id": 0},
            *(
                {"copy_kind": kind, "launch_id": launch, "start_ns": start, "end_ns": end}
                for launch, kind, start, end in (
                    (1, "D2H", 101, 129),
                    (2, "H2D", 145, 160),
                    (3, "D2H", 210, 230),
                    (4, "D2D", 310, 320),
                )
            ),
        ],
    )
    timeline = build_timeline(trace, options=Options())
    rows = {row["name"]: row for row in summarize_launches([timeline]).iter_rows(named=True)}
    copies = rows.pop("cudaMemcpyAsync")
    assert (copies["call_ns"], copies["blocking_ns"]) == (120 + 10 + 30 + 100, 120 + 30)
    assert [row["blocking_ns"] for row in rows.values()] == [0]
    # From the start of each call, the wait for the kernel included.
    assert copies["total_delay_ns"] == 91 + 5 + 10 + 10


def test_no_launch_has_no_delay(make_trace: MakeTrace) -> None:
    """Delays are absent with the reason where no launch has an event."""
    delays = compute_launch_delays([build_timeline(make_trace(), options=Options())]).check()
    assert delays.delay is None


_launches = st.lists(
    st.tuples(st.integers(0, 60), st.integers(0, 20), st.integers(0, 10), st.booleans()), min_size=1, max_size=12
)


@given(_launches)
def test_queue_equals_a_count_of_nanoseconds(make_trace: MakeTrace, rows: list[tuple[int, int, int, bool]]) -> None:
    """Depth, empty and host-bound time equal a count over every nanosecond of the window, also part by part."""
    rows = sorted(rows)
    launches = [
        {"start_ns": call, "end_ns": call, "num_device_events": 1, "thread": 1 + other} for call, _, _, other in rows
    ]
    sync = {"kind": "sync", "name": "sync", "start_ns": 25, "end_ns": 45, "thread": 1}
    events = sorted((call + delay, call + delay + length, index) for index, (call, delay, length, _) in enumerate(rows))
    trace = make_trace(
        launches=[*launches, sync],
        device_events=[
            {"start_ns": start, "end_ns": end, "launch_id": index, "step_id": int(start >= 30)}
            for start, end, index in events
        ],
        steps=[{"start_ns": 0, "end_ns": 30}, {"start_ns": 30, "end_ns": 90}],
    )
    found = queue_of(trace)
    window = range(events[0][0], max(end for _, end, _ in events))
    depth = [sum(call <= now < call + delay for call, delay, _, _ in rows) for now in window]
    bound = 0
    for now, waiting in zip(window, depth, strict=True):
        following = [(call, other) for call, _, _, other in rows if call > now]
        if waiting or not following:
            continue
        first = min(call for call, _ in following)
        threads = {other for call, other in following if call == first}
        if len(threads) == 1:
            bound += threads == {True} or not 25 <= now < 45
        else:
            bound = -(10**6)  # two threads launch at one instant: either may be taken
    assert (found.window_ns, found.waited_ns, found.empty_ns) == (len(window), sum(depth), depth.count(0))
    assert found.max_depth == max(depth, default=0)
    assert bound < 0 or found.host_bound_ns == bound
