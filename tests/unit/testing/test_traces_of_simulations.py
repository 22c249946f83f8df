"""What the simulation did is what the traces say, by way of the reader."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from scope.analysis import analyze
from scope.testing import scenarios
from scope.testing.jobs import START_NS, TrainingJob
from scope.testing.kineto import Clock, Recording
from scope.testing.layout import Layout
from scope.testing.scenarios import Scenario
from scope.testing.truth import true_breakdown
from scope.trace import ReadOptions, load

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from scope.trace.model import Job

EVERY: list[Callable[[], Scenario]] = [
    scenarios.prefetched_copies,
    scenarios.overlapped_communication,
    scenarios.overrunning_kernels,
    scenarios.rooted_operations,
    scenarios.pipeline_cascade,
    scenarios.deep_ep,
    scenarios.without_metadata,
]


def _load(scenario: Scenario, folder: Path) -> Job:
    scenario.write(folder)
    return load([str(folder)], options=ReadOptions(use_cache=False), processes=1)


@pytest.mark.parametrize("make", EVERY, ids=lambda make: make.__name__)
def test_breakdown_is_true(make: Callable[[], Scenario], tmp_path: Path) -> None:
    """Window, compute, exposed communication, exposed copies, idle and overlap equal the truth on every rank."""
    scenario = make()
    for rank in analyze(_load(scenario, tmp_path)).check().ranks:
        assert rank.rank is not None
        true, found = true_breakdown(scenario.simulation.issued[rank.rank]), rank.breakdown
        assert found is not None
        assert found.window_ns == true.window_ns
        assert found.compute_ns == true.compute_ns
        assert found.exposed_communication_ns == true.exposed_communication_ns
        assert found.exposed_memory_ns == true.exposed_memory_ns
        assert found.idle_ns == true.idle_ns
        assert found.communication_ns == true.communication_ns
        assert found.overlap_ns == true.overlap_ns


def test_every_event_is_read_and_linked(tmp_path: Path) -> None:
    """A written trace is read without loss, every device event has its launch, and steps have their numbers."""
    scenario = scenarios.pipeline_cascade()
    job = _load(scenario, tmp_path)
    assert job.world_size == 8
    for trace in job.ranks:
        assert trace.rank is not None
        issued = scenario.simulation.issued[trace.rank]
        assert trace.quality.events_lost == trace.quality.device_events_without_launch == 0
        assert trace.device_events.height == sum(len(each.events) for each in issued)
        assert trace.steps["number"].to_list() == [10, 11, 12, 13]
        true = sorted((event.start_ns, event.recorded_end_ns) for each in issued for event in each.events)
        assert sorted(trace.device_events.select("start_ns", "end_ns").iter_rows()) == true


def test_prefetch_runs_in_the_step_before(tmp_path: Path) -> None:
    """A copy that was launched in step 1 runs while step 0's compute does."""
    (trace, _) = _load(scenarios.prefetched_copies(), tmp_path).ranks
    events = trace.device_events
    copies = events.filter(events["kind"] == "memcpy")
    compute = events.filter(events["category"] == "compute")
    assert copies["step_id"].to_list() == [0, 1, 2]
    first_of_step_1 = compute.filter(compute["step_id"] == 1)["start_ns"].min()
    assert copies["end_ns"][1] < first_of_step_1


def test_clock_of_a_rank_is_what_its_trace_shows(tmp_path: Path) -> None:
    """Every instant of a rank with a wrong clock is the clock's reading of the true instant."""
    job = TrainingJob(layout=Layout(dp=2), num_steps=2)
    clock = Clock(offset_ns=-123_456_789, drift_ppb=31_000, origin_ns=START_NS)
    simulation = job.run()
    scenario = Scenario(layout=job.layout, simulation=simulation, recordings={1: Recording(clock=clock)})
    trace = _load(scenario, tmp_path).ranks[1]
    true = sorted(
        (clock.local_ns(event.start_ns), clock.local_ns(event.recorded_end_ns))
        for each in simulation.issued[1]
        for event in each.events
    )
    assert sorted(trace.device_events.select("start_ns", "end_ns").iter_rows()) == true
    assert clock.local_ns(START_NS + 1_000_000_000) == START_NS + 1_000_000_000 - 123_456_789 + 31_000
