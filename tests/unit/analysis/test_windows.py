"""Device windows of steps: prefetch, overlap on one stream, cut steps, no steps, the last step; and their breakdown."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scope.analysis.breakdown import (
    compute_clipped_breakdowns,
    compute_launched_breakdowns,
    compute_part_breakdowns,
    sum_breakdowns,
)
from scope.analysis.idle import compute_part_idle_causes, find_idle_spans
from scope.analysis.options import Options
from scope.analysis.windows import DeviceWindows, Timeline, build_timeline
from scope.trace.model import RankTrace

MakeTrace = Callable[..., RankTrace]

TWO_STEPS: list[dict[str, Any]] = [
    {"start_ns": 0, "end_ns": 100, "number": 5},
    {"start_ns": 100, "end_ns": 200, "number": 6},
]


def kernel(start: int, end: int, step: int | None, **more: Any) -> dict[str, Any]:
    """Return a compute kernel launched in a step."""
    return {"start_ns": start, "end_ns": end, "step_id": step, **more}


def timeline_of(trace: RankTrace, **options: bool) -> Timeline:
    """Return the timeline of a trace under some options."""
    return build_timeline(trace, options=Options(**options))


def spans_of(windows: DeviceWindows) -> list[tuple[int, int] | None]:
    """Return before, every step, and after as pairs."""
    windows.check()
    parts = [windows.before, *(step.window for step in windows.steps), windows.after]
    return [None if part is None else (part.start_ns, part.end_ns) for part in parts]


def test_a_prefetch_copy_belongs_to_the_step_in_which_it_runs(make_trace: MakeTrace) -> None:
    """Steps begin at their first compute kernel, so a copy for the next step leaves the boundary where it is."""
    trace = make_trace(
        steps=TWO_STEPS,
        device_events=[
            kernel(10, 20, None),
            kernel(50, 90, 0),
            kernel(60, 80, 1, copy_kind="H2D", stream=9),
            kernel(90, 120, 0),
            kernel(130, 160, 1),
            kernel(170, 175, None),
        ],
    )
    timeline = timeline_of(trace)
    assert spans_of(timeline.devices[0]) == [(10, 50), (50, 130), (130, 160), (160, 175)]
    before, first, second, after = compute_part_breakdowns(timeline).values()
    assert (before.compute_ns, before.idle_ns) == (10, 30)
    assert (first.compute_ns, first.exposed_memory_ns, first.memory_ns, first.idle_ns) == (70, 0, 20, 10)
    assert (second.compute_ns, second.memory_ns) == (30, 0)
    assert (after.window_ns, after.compute_ns) == (15, 5)
    launched = compute_launched_breakdowns(timeline)
    assert launched[0, 0].window_ns == 70
    assert (launched[0, 1].window_ns, launched[0, 1].exposed_memory_ns, launched[0, 1].idle_ns) == (100, 20, 50)


def test_a_step_begins_on_the_stream_with_most_compute(make_trace: MakeTrace) -> None:
    """A kernel on a side stream begins no step, and the main stream is chosen by time covered, not by events."""
    trace = make_trace(
        steps=TWO_STEPS,
        device_events=[
            kernel(0, 5, 0, stream=3),
            *(kernel(5, 30, 0, stream=3) for _ in range(4)),
            kernel(10, 60, 0, stream=7),
            kernel(62, 70, 1, stream=3),
            kernel(65, 90, 1, stream=7),
        ],
    )
    (windows,) = timeline_of(trace).devices
    assert windows.main_stream == 7
    assert spans_of(windows) == [(0, 10), (10, 65), (65, 90), (90, 90)]


def test_steps_that_overlap_on_one_stream_split_at_the_later_ones_start(make_trace: MakeTrace) -> None:
    """A kernel of the first step that overruns into the second counts for each side of the boundary."""
    trace = make_trace(steps=TWO_STEPS, device_events=[kernel(0, 80, 0, clipped_end_ns=50), kernel(50, 100, 1)])
    timeline = timeline_of(trace)
    assert spans_of(timeline.devices[0]) == [(0, 0), (0, 50), (50, 100), (100, 100)]
    assert [each.compute_ns for each in compute_part_breakdowns(timeline).values()] == [0, 50, 50, 0]
    (clipped,) = compute_clipped_breakdowns(timeline).values()
    assert (clipped.window_ns, clipped.compute_ns) == (100, 100)


def test_a_step_without_compute_has_no_window_and_says_why(make_trace: MakeTrace) -> None:
    """The step before it then lasts until the next step that has a window."""
    steps = [*TWO_STEPS, {"start_ns": 200, "end_ns": 300, "number": 7, "is_cut": True}]
    trace = make_trace(
        steps=steps,
        device_events=[kernel(10, 20, 0), kernel(25, 28, 1, category="communication"), kernel(40, 50, 2)],
    )
    (windows,) = timeline_of(trace).devices
    assert spans_of(windows) == [(10, 10), (10, 40), None, (40, 50), (50, 50)]
    assert "no compute kernel" in windows.steps[1].absent["window"]
    assert [step.ends_with for step in windows.steps] == ["next step", None, "last event"]
    assert [step.is_cut for step in windows.steps] == [False, False, True]
    assert [step.number for step in windows.steps] == [5, 6, 7]


def test_no_steps_leave_one_part_and_a_reason(make_trace: MakeTrace) -> None:
    """Without steps the window is one part, and before and after are absent with the reason."""
    timeline = timeline_of(make_trace(device_events=[kernel(10, 20, None), kernel(30, 50, None)]))
    (windows,) = timeline.devices
    windows.check()
    assert (windows.before, windows.after) == (None, None)
    assert set(windows.absent) == {"before", "after"}
    (whole,) = compute_part_breakdowns(timeline).values()
    assert (whole.window_ns, whole.compute_ns, whole.idle_ns) == (40, 30, 10)


def test_the_last_step_ends_with_its_last_event(make_trace: MakeTrace) -> None:
    """Communication launched in the last step still belongs to it; what was launched later is after."""
    trace = make_trace(
        steps=TWO_STEPS,
        device_events=[
            kernel(10, 20, 0),
            kernel(40, 50, 1),
            kernel(45, 70, 1, category="communication", stream=9),
            kernel(90, 95, None),
        ],
    )
    assert spans_of(timeline_of(trace).devices[0]) == [(10, 10), (10, 40), (40, 70), (70, 95)]


def test_devices_have_windows_of_their_own(make_trace: MakeTrace) -> None:
    """Two devices in one file are two timelines, never merged."""
    trace = make_trace(
        steps=TWO_STEPS,
        device_events=[kernel(10, 20, 0), kernel(12, 30, 0, device=1), kernel(40, 50, 1), kernel(60, 61, 1, device=1)],
    )
    timeline = timeline_of(trace)
    assert [each.device for each in timeline.devices] == [0, 1]
    assert spans_of(timeline.devices[1]) == [(12, 12), (12, 60), (60, 61), (61, 61)]
    assert sum(each.window_ns for each in compute_part_breakdowns(timeline).values()) == 40 + 49


def test_options_state_the_figures_of_other_tools(make_trace: MakeTrace) -> None:
    """Copies or sets may count as compute, and events without a launch may be left out."""
    trace = make_trace(
        launches=[{"start_ns": 0, "end_ns": 1, "num_device_events": 1}],
        device_events=[
            kernel(0, 10, None, launch_id=0),
            kernel(10, 30, None, copy_kind="H2D"),
            kernel(40, 45, None, copy_kind="set"),
        ],
    )

    def figures(**options: bool) -> tuple[int, int, int]:
        (found,) = compute_part_breakdowns(timeline_of(trace, **options)).values()
        found.check()
        return found.compute_ns, found.exposed_memory_ns, found.window_ns

    assert figures() == (10, 25, 45)
    assert figures(memory_as_compute=True) == (35, 0, 45)
    assert figures(sets_as_compute=True) == (15, 20, 45)
    assert figures(linked_only=True) == (10, 0, 10)


def test_peer_copies_are_memory_and_shown_beside(make_trace: MakeTrace) -> None:
    """A copy between devices counts as memory and has a figure of its own."""
    trace = make_trace(
        device_events=[kernel(0, 10, None), kernel(5, 20, None, copy_kind="P2P", stream=9), kernel(30, 40, None)]
    )
    (found,) = compute_part_breakdowns(timeline_of(trace)).values()
    assert (found.memory_ns, found.exposed_memory_ns, found.peer_copy_ns) == (15, 10, 15)


def test_no_communication_has_no_overlap_ratio(make_trace: MakeTrace) -> None:
    """The ratio is absent with the reason, not 0 and not NaN."""
    (found,) = compute_part_breakdowns(timeline_of(make_trace(device_events=[kernel(0, 10, None)]))).values()
    assert found.overlap_ratio is None
    assert found.absent == {"overlap_ratio": "no communication in this window"}
    found.check()


_events = st.lists(
    st.tuples(
        st.integers(0, 1),
        st.integers(0, 3),
        st.integers(0, 60),
        st.integers(0, 15),
        st.sampled_from(["compute", "communication", "memory"]),
        st.one_of(st.none(), st.integers(0, 2)),
    ),
    min_size=1,
    max_size=25,
)


@given(_events)
def test_parts_sum_to_a_count_of_nanoseconds(make_trace: MakeTrace, rows: list[tuple[Any, ...]]) -> None:
    """Whatever the events, each part's figures and idle causes sum to what a count of its every nanosecond finds."""
    events = [
        kernel(start, start + length, step, device=device, stream=stream, category=category)
        for device, stream, start, length, category, step in sorted(rows, key=lambda row: row[2])
    ]
    steps = [{"start_ns": 20 * index, "end_ns": 20 * index + 20} for index in range(3)]
    timeline = timeline_of(make_trace(device_events=events, steps=steps))
    breakdowns = compute_part_breakdowns(timeline)
    causes = compute_part_idle_causes(timeline, find_idle_spans(timeline))
    for windows in timeline.devices:
        windows.check()
        mine = [event for event in events if event["device"] == windows.device]
        at = {
            instant: {event["category"] for event in mine if event["start_ns"] <= instant < event["end_ns"]}
            for instant in range(windows.whole.start_ns, windows.whole.end_ns)
        }
        parts = timeline.parts.filter(timeline.parts["device"] == windows.device)
        for part, start, end in parts.select("part_id", "start_ns", "end_ns").iter_rows():
            inside = [at[instant] for instant in range(start, end)]
            found = breakdowns[part].check()
            assert found.window_ns == len(inside)
            assert found.idle_ns == causes[part].check().idle_ns == inside.count(set())
            assert found.compute_ns == sum("compute" in each for each in inside)
            assert found.exposed_communication_ns == sum(each - {"memory"} == {"communication"} for each in inside)
            assert found.exposed_memory_ns == sum(each == {"memory"} for each in inside)
            assert found.overlap_ns == sum({"compute", "communication"} <= each for each in inside)
        total = sum_breakdowns(breakdowns[part] for part in parts["part_id"])
        assert total.check().window_ns == len(at)


def test_a_host_timeline_has_compute_and_communication(make_trace: MakeTrace) -> None:
    """Operators of the step's thread compute; gloo's ranges communicate; steps last as long as they do on the host."""
    trace = make_trace(
        is_host_timeline=True,
        steps=[{"start_ns": 0, "end_ns": 100, "number": 3}, {"start_ns": 105, "end_ns": 200, "number": 4}],
        ops=[
            {"name": "aten::linear", "start_ns": 10, "end_ns": 50, "is_leaf": False},
            {"name": "aten::addmm", "start_ns": 20, "end_ns": 40, "parent_id": 0, "depth": 1},
            {"name": "c10d::allreduce_", "start_ns": 60, "end_ns": 65},
            {"name": "aten::add", "start_ns": 70, "end_ns": 80},
            {"name": "aten::copy_", "start_ns": 70, "end_ns": 90, "thread": 5},
            {"name": "aten::mul", "start_ns": 110, "end_ns": 130},
        ],
        collective_calls=[{"start_ns": 62, "end_ns": 75}],
    )
    timeline = timeline_of(trace)
    (windows,) = timeline.devices
    assert windows.device == -1
    assert spans_of(windows) == [(0, 0), (0, 105), (105, 200), (200, 200)]
    _, first, second, _ = compute_part_breakdowns(timeline).values()
    assert (first.compute_ns, first.communication_ns, first.overlap_ns) == (50, 13, 5)
    assert (first.exposed_communication_ns, first.idle_ns) == (8, 47)
    assert (second.compute_ns, second.idle_ns) == (20, 75)


@pytest.mark.parametrize("field", ["compute_ns", "idle_ns"])
def test_check_finds_a_broken_sum(make_trace: MakeTrace, field: str) -> None:
    """A breakdown whose parts do not sum to its window fails its check."""
    (found,) = compute_part_breakdowns(timeline_of(make_trace(device_events=[kernel(0, 10, None)]))).values()
    broken = msgspec.structs.replace(found, **{field: getattr(found, field) + 1})
    with pytest.raises(AssertionError, match="parts sum to"):
        broken.check()
