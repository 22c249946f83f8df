"""Critical paths worked out by hand, and against a longest path through the explicit graph of random steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scope.analysis.critical_path import PATH_KINDS, CriticalPath, compute_critical_path
from scope.analysis.options import Options
from scope.analysis.windows import build_timeline
from scope.errors import UsageError
from scope.trace.model import RankTrace

MakeTrace = Callable[..., RankTrace]
Rows = list[dict[str, Any]]

STEP: Rows = [{"start_ns": 0, "end_ns": 1_000_000, "number": 8}]


def launch(start: int, end: int, **more: Any) -> dict[str, Any]:
    """Return a call in the step that launches one event."""
    return {"start_ns": start, "end_ns": end, "step_id": 0, "num_device_events": 1, **more}


def event(start: int, end: int, launch_id: int | None, **more: Any) -> dict[str, Any]:
    """Return a device event of the step."""
    return {"start_ns": start, "end_ns": end, "launch_id": launch_id, "step_id": 0, **more}


def path_of(trace: RankTrace, step_id: int = 0) -> CriticalPath:
    """Return the checked critical path of a step on device 0."""
    found = compute_critical_path(build_timeline(trace, options=Options()), device=0, step_id=step_id)
    assert found is not None
    return found.check()


def pieces_of(path: CriticalPath) -> list[tuple[str, int, int]]:
    """Return kind, start and end of every piece."""
    return path.pieces.select("kind", "start_ns", "end_ns").rows()


def test_a_late_launch_puts_the_host_on_the_path(make_trace: MakeTrace) -> None:
    """The second kernel waited for its launch, so the path is the host up to there; the first kernel is off it."""
    trace = make_trace(
        steps=STEP,
        ops=[{"name": "aten::a", "start_ns": 10, "end_ns": 40}, {"name": "aten::b", "start_ns": 60, "end_ns": 90}],
        launches=[launch(20, 30, op_id=0), launch(70, 80, op_id=1)],
        device_events=[event(35, 50, 0), event(75, 100, 1, name="last")],
    )
    path = path_of(trace)
    assert path.step_number == 8
    assert path.pieces.select("kind", "name", "start_ns", "end_ns", "thread", "stream", "event_id").rows() == [
        ("host_gap", None, 0, 10, 1, None, None),
        ("operator", "aten::a", 10, 20, 1, None, None),
        ("runtime_call", "cudaLaunchKernel", 20, 30, 1, None, None),
        ("operator", "aten::a", 30, 40, 1, None, None),
        ("host_gap", None, 40, 60, 1, None, None),
        ("operator", "aten::b", 60, 70, 1, None, None),
        ("launch_latency", "last", 70, 75, None, 7, 1),
        ("compute", "last", 75, 100, None, 7, 1),
    ]
    assert path.length_ns == 100
    assert path.ns_by_kind == {
        **dict.fromkeys(PATH_KINDS, 0),
        "host_gap": 30,
        "operator": 30,
        "runtime_call": 10,
        "launch_latency": 5,
        "compute": 25,
    }


def test_a_full_queue_keeps_the_path_on_the_stream(make_trace: MakeTrace) -> None:
    """Kernels launched ahead wait for the one before on their stream; only the first waits for its launch."""
    trace = make_trace(
        steps=STEP,
        launches=[launch(0, 2), launch(3, 5), launch(6, 8)],
        device_events=[event(4, 50, 0), event(53, 80, 1, category="communication"), event(80, 95, 2)],
    )
    assert pieces_of(path_of(trace)) == [
        ("launch_latency", 0, 4),
        ("compute", 4, 50),
        ("device_gap", 50, 53),
        ("communication", 53, 80),
        ("compute", 80, 95),
    ]


def test_fetching_data_is_told_from_other_host_time(make_trace: MakeTrace) -> None:
    """While the data loader runs the path says `input`, whatever operators it uses; beside it time stays as it was."""
    trace = make_trace(
        steps=STEP,
        annotations=[{"name": "enumerate(DataLoader)#x", "start_ns": 5, "end_ns": 45}],
        ops=[{"name": "aten::stack", "start_ns": 10, "end_ns": 20}, {"name": "aten::a", "start_ns": 40, "end_ns": 60}],
        launches=[launch(60, 61)],
        device_events=[event(65, 70, 0)],
    )
    assert pieces_of(path_of(trace))[:3] == [("host_gap", 0, 5), ("input", 5, 45), ("operator", 45, 60)]


def test_an_innermost_operator_stands_for_its_stretch(make_trace: MakeTrace) -> None:
    """Nested operators share a stretch without counting it twice, also where they begin or end together."""
    trace = make_trace(
        steps=STEP,
        ops=[
            {"name": "outer", "start_ns": 0, "end_ns": 60, "is_leaf": False},
            {"name": "inner", "start_ns": 0, "end_ns": 20, "parent_id": 0, "depth": 1},
            {"name": "twin", "start_ns": 30, "end_ns": 60, "parent_id": 0, "depth": 1},
        ],
        launches=[launch(60, 61)],
        device_events=[event(65, 70, 0)],
    )
    assert path_of(trace).pieces.select("name", "start_ns", "end_ns").rows()[:3] == [
        ("inner", 0, 20),
        ("outer", 20, 30),
        ("twin", 30, 60),
    ]


def test_items_of_equal_span_leave_nothing_behind(make_trace: MakeTrace) -> None:
    """An operator, its only child and its call that begin and end together are one piece, and then a gap."""
    trace = make_trace(
        steps=STEP,
        ops=[
            {"name": "outer", "start_ns": 10, "end_ns": 20, "is_leaf": False},
            {"name": "inner", "start_ns": 10, "end_ns": 20, "parent_id": 0, "depth": 1},
        ],
        launches=[
            {"start_ns": 10, "end_ns": 20, "op_id": 1, "name": "cudaMalloc", "kind": "allocation"},
            launch(30, 31),
        ],
        device_events=[event(35, 40, 1)],
    )
    assert path_of(trace).pieces.select("kind", "name", "start_ns", "end_ns").rows()[:3] == [
        ("host_gap", None, 0, 10),
        ("runtime_call", "cudaMalloc", 10, 20),
        ("host_gap", None, 20, 30),
    ]


def test_a_recorded_stream_wait_leads_to_the_other_stream(make_trace: MakeTrace) -> None:
    """Stream 7 waits for an event that stream 9 recorded after its communication; the path goes there."""
    trace = make_trace(
        steps=STEP,
        launches=[
            launch(0, 1),
            launch(2, 3),
            {"kind": "event", "name": "cudaEventRecord", "start_ns": 4, "end_ns": 5, "correlation": 50},
            {"kind": "event", "name": "cudaStreamWaitEvent", "start_ns": 6, "end_ns": 7, "correlation": 51},
            launch(8, 9),
            launch(10, 11),
        ],
        device_events=[
            event(5, 30, 0),
            event(12, 70, 1, stream=9, category="communication"),
            event(72, 90, 4),
            event(71, 74, 5, stream=9),
        ],
        syncs=[
            {
                "stream": 7,
                "waited_stream": 9,
                "correlation": 51,
                "waited_event_correlation": 50,
                "start_ns": 6,
                "end_ns": 7,
            }
        ],
    )
    path = path_of(trace)
    assert pieces_of(path) == [
        ("runtime_call", 0, 1),
        ("host_gap", 1, 2),
        ("launch_latency", 2, 12),
        ("communication", 12, 70),
        ("device_gap", 70, 72),
        ("compute", 72, 90),
    ]
    assert path.num_inferred == 0


def test_without_wait_records_a_long_wait_is_inferred_and_counted(make_trace: MakeTrace) -> None:
    """A kernel launched in time that starts 10 us late waited for what ended last elsewhere; a shorter gap is none."""
    events = [
        event(0, 1_000, 0),
        event(500, 20_000, 1, stream=9, category="communication"),
        event(20_100, 30_000, 2),
    ]
    launches = [launch(0, 10), launch(20, 30), launch(40, 50)]
    path = path_of(make_trace(steps=STEP, launches=launches, device_events=events))
    assert path.num_inferred == 1
    assert pieces_of(path)[-3:] == [
        ("communication", 500, 20_000),
        ("device_gap", 20_000, 20_100),
        ("compute", 20_100, 30_000),
    ]
    events[1]["end_ns"], events[2]["start_ns"] = 9_000, 10_999
    near = path_of(make_trace(steps=STEP, launches=launches, device_events=events))
    assert near.num_inferred == 0
    assert pieces_of(near)[-2:] == [("device_gap", 1_000, 10_999), ("compute", 10_999, 30_000)]


def test_a_blocking_call_leads_back_to_the_device(make_trace: MakeTrace) -> None:
    """The host waited in a synchronise for the first kernel, so that kernel is on the path and the wait is not."""
    trace = make_trace(
        steps=STEP,
        launches=[
            launch(0, 2),
            {"kind": "sync", "name": "cudaStreamSynchronize", "start_ns": 10, "end_ns": 90, "step_id": 0},
            launch(95, 97),
        ],
        device_events=[event(5, 80, 0), event(100, 120, 2)],
    )
    path = path_of(trace)
    assert pieces_of(path) == [
        ("launch_latency", 0, 5),
        ("compute", 5, 80),
        ("sync_return", 80, 90),
        ("host_gap", 90, 95),
        ("launch_latency", 95, 100),
        ("compute", 100, 120),
    ]
    assert path.pieces["name"][2] == "cudaStreamSynchronize"


def test_a_blocking_call_that_waits_for_nothing_is_host_time(make_trace: MakeTrace) -> None:
    """When the device had run dry before the call, the call itself is on the path."""
    trace = make_trace(
        steps=STEP,
        launches=[
            launch(0, 2),
            {"kind": "sync", "name": "cudaStreamSynchronize", "start_ns": 85, "end_ns": 90, "step_id": 0},
            launch(95, 97),
        ],
        device_events=[event(5, 80, 0), event(100, 120, 2)],
    )
    assert pieces_of(path_of(trace))[2:4] == [("runtime_call", 85, 90), ("host_gap", 90, 95)]


def test_a_copy_to_the_host_that_blocks_is_waited_for_itself(make_trace: MakeTrace) -> None:
    """`item()` copies and waits for its own copy, which waited for the kernel before it."""
    trace = make_trace(
        steps=STEP,
        launches=[
            launch(0, 2),
            launch(10, 70, kind="memcpy", name="cudaMemcpyAsync"),
            launch(80, 81),
        ],
        device_events=[event(5, 50, 0), event(52, 60, 1, copy_kind="D2H"), event(85, 90, 2)],
    )
    assert pieces_of(path_of(trace)) == [
        ("launch_latency", 0, 5),
        ("compute", 5, 50),
        ("device_gap", 50, 52),
        ("memory", 52, 60),
        ("sync_return", 60, 70),
        ("host_gap", 70, 80),
        ("launch_latency", 80, 85),
        ("compute", 85, 90),
    ]


def test_control_passes_from_forward_to_the_backward_thread(make_trace: MakeTrace) -> None:
    """The autograd thread was silent until the main thread handed over, so the path crosses to the main thread."""
    trace = make_trace(
        steps=STEP,
        ops=[
            {"name": "forward", "start_ns": 0, "end_ns": 40},
            {"name": "backward", "start_ns": 50, "end_ns": 90, "thread": 2},
        ],
        launches=[launch(30, 32, op_id=0), launch(70, 72, thread=2, op_id=1)],
        device_events=[event(35, 37, 0), event(75, 80, 1)],
    )
    assert path_of(trace).pieces.select("kind", "start_ns", "end_ns", "thread").rows() == [
        ("operator", 0, 30, 1),
        ("runtime_call", 30, 32, 1),
        ("operator", 32, 40, 1),
        ("host_gap", 40, 50, 2),
        ("operator", 50, 70, 2),
        ("launch_latency", 70, 75, None),
        ("compute", 75, 80, None),
    ]


def test_the_path_begins_where_an_earlier_step_held_it_up(make_trace: MakeTrace) -> None:
    """When the first kernel of a step queues behind the step before, the path begins with that kernel."""
    trace = make_trace(
        steps=[{"start_ns": 0, "end_ns": 20}, {"start_ns": 20, "end_ns": 40}],
        launches=[launch(0, 2), launch(25, 27, step_id=1), launch(28, 30, step_id=1)],
        device_events=[event(5, 100, 0), event(100, 150, 1, step_id=1), event(150, 170, 2, step_id=1)],
    )
    path = path_of(trace, step_id=1)
    assert pieces_of(path) == [("compute", 100, 150), ("compute", 150, 170)]
    assert (path.start_ns, path.length_ns) == (100, 70)


def test_ties_go_to_the_stream_then_the_wait_then_the_launch(make_trace: MakeTrace) -> None:
    """A kernel whose launch and stream were ready at one instant follows the stream."""
    trace = make_trace(
        steps=STEP,
        launches=[launch(0, 1), launch(50, 51)],
        device_events=[event(2, 50, 0), event(55, 60, 1)],
    )
    assert pieces_of(path_of(trace)) == [
        ("launch_latency", 0, 2),
        ("compute", 2, 50),
        ("device_gap", 50, 55),
        ("compute", 55, 60),
    ]


def test_a_step_that_launched_nothing_has_no_path(make_trace: MakeTrace) -> None:
    """There is nothing to walk back from."""
    trace = make_trace(steps=STEP, device_events=[{"start_ns": 0, "end_ns": 5}])
    assert compute_critical_path(build_timeline(trace, options=Options()), device=0, step_id=0) is None


def test_items_of_no_length_do_not_pass_control_to_and_fro(make_trace: MakeTrace) -> None:
    """Two operators of length 0 at one instant on two threads are no hand-over, and the walk ends."""
    trace = make_trace(
        steps=STEP,
        ops=[{"name": "a", "start_ns": 30, "end_ns": 30}, {"name": "b", "start_ns": 30, "end_ns": 30, "thread": 2}],
        launches=[launch(10, 11), launch(40, 41, thread=2)],
        device_events=[event(12, 14, 0), event(45, 50, 1)],
    )
    assert path_of(trace).start_ns == 0


def test_an_unknown_step_is_a_usage_error(make_trace: MakeTrace) -> None:
    """A step or device that the trace does not hold is said to be missing."""
    timeline = build_timeline(make_trace(steps=STEP, device_events=[event(0, 5, None)]), options=Options())
    with pytest.raises(UsageError, match="no step 9 on device 0"):
        compute_critical_path(timeline, device=0, step_id=9)


_programs = st.lists(
    st.tuples(
        st.integers(1, 20),  # host time before the call
        st.integers(0, 3),  # least delay of the launch
        st.integers(0, 30),  # length of the kernel
        st.integers(0, 1),  # stream
        st.booleans(),  # the host synchronises with everything afterwards
    ),
    min_size=1,
    max_size=12,
)


def simulate(program: list[tuple[int, int, int, int, bool]]) -> tuple[Rows, Rows, list[tuple[str, str, int]]]:
    """Run a program; return calls, events, and the weighted edges of its graph as the module describes them.

    A node is an instant of the host (`h3`) or the start or end of a kernel (`s3`, `e3`).
    """
    calls: Rows = []
    events: Rows = []
    edges: list[tuple[str, str, int]] = []
    now, host = 0, "h"
    last: dict[int, int] = {}
    for index, (work, delay, length, stream, sync) in enumerate(program):
        call, latest = now + work, f"h{len(calls)}"
        edges.append((host, latest, work))
        host, launch_id = latest, len(calls)
        calls.append(launch(call, call + 1))
        free = events[last[stream]]["end_ns"] if stream in last else -1
        start = max(call + delay, free)
        edges.append((latest, f"s{index}", start - call if call > free else 0))
        if stream in last:
            edges.append((f"e{last[stream]}", f"s{index}", start - free if free >= call else 0))
        edges.append((f"s{index}", f"e{index}", length))
        events.append(event(start, start + length, launch_id, stream=stream))
        last[stream] = index
        now = call + 1
        edges.append((host, f"{host}'", 1))
        host += "'"
        if sync:
            begin, done = now, max(now, *(each["end_ns"] for each in events)) + 2
            slowest = max(range(len(events)), key=lambda each: events[each]["end_ns"])
            latest = f"h{len(calls)}"
            waited = events[slowest]["end_ns"] > begin
            edges.append((host, latest, 0 if waited else done - begin))
            edges.append((f"e{slowest}", latest, done - events[slowest]["end_ns"] if waited else 0))
            calls.append({"kind": "sync", "name": "sync", "start_ns": begin, "end_ns": done, "step_id": 0})
            host, now = latest, done
    return calls, events, edges


@given(_programs)
def test_length_is_that_of_the_longest_path(
    make_trace: MakeTrace, program: list[tuple[int, int, int, int, bool]]
) -> None:
    """The path is as long as the longest path through the explicit graph to the end of the last kernel."""
    calls, events, edges = simulate(program)
    longest = {"h": 0}
    for _ in range(len(edges)):  # edges are few: relax them all as often as there are edges
        for source, target, weight in edges:
            if source in longest:
                longest[target] = max(longest.get(target, 0), longest[source] + weight)
    order = sorted(range(len(events)), key=lambda each: events[each]["start_ns"])
    trace = make_trace(steps=STEP, launches=calls, device_events=[events[each] for each in order])
    path = path_of(trace)
    end = max(each["end_ns"] for each in events)
    ends = [longest[f"e{index}"] for index, each in enumerate(events) if each["end_ns"] == end]
    assert path.end_ns == end
    assert path.length_ns == max(ends)
