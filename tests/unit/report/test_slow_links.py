"""Whom slow links blame: simulated jobs with slow links, late ranks, both, or neither."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from scope.report.build import compute_results
from scope.report.findings import find_all
from scope.report.page_figures import bandwidth_figure
from scope.testing.jobs import Plant, TrainingJob
from scope.testing.kineto import Recording, write_traces
from scope.testing.layout import Layout
from scope.testing.program import Compute
from scope.trace import load
from scope.units import NS_PER_MS

if TYPE_CHECKING:
    from pathlib import Path

    from scope.report.findings import Finding

TP_FIRST = Layout(dp=2, tp=4)
BLAMING = ("slow_collective", "straggler")


def _findings(job: TrainingJob, folder: Path) -> tuple[Finding, ...]:
    recordings = dict.fromkeys(range(job.layout.world_size), Recording(has_host=True))
    files = write_traces(job.run(), job.layout, folder, recordings=recordings)
    return find_all(compute_results(load([str(file) for file in files])))


def _blamed(found: tuple[Finding, ...]) -> list[tuple[str, tuple[int, ...]]]:
    return sorted((each.kind, each.where.ranks) for each in found if each.kind in BLAMING)


def _whole_steps_ns(job: TrainingJob) -> int:
    """Return how long all steps but the last take on all devices: from first compute to first compute."""
    total = 0
    for issued in job.run().issued.values():
        begins = {
            each.step: each.events[0].start_ns for each in reversed(issued) if isinstance(each.instruction, Compute)
        }
        total += begins[job.steps[-1]] - begins[job.first_step]
    return total


def _values(finding: Finding) -> dict[str, object]:
    return {each.column.key: each.value for each in finding.evidence}


@pytest.mark.parametrize(
    ("layout", "slow", "ranks", "busbw", "sisters"),
    [
        (TP_FIRST, {"mesh_tp:4": 0.02}, (4, 5, 6, 7), 8e9, 400e9),
        (TP_FIRST, {"mesh_dp:1": 0.05}, (1, 5), 20e9, 400e9),
        (Layout(dp=2, tp=4, ranks_per_node=4), {"mesh_dp:2": 0.1}, (2, 6), 4e9, 40e9),
        (Layout(dp=2, pp=4), {"mesh_pp:1": 0.02}, (1, 3, 5, 7), 8e9, 400e9),
        (Layout(dp=8, ep=4), {"mesh_ep:4": 0.02}, (4, 5, 6, 7), 8e9, 400e9),
    ],
)
def test_one_slow_link_is_named_and_nobody_else(
    tmp_path: Path, layout: Layout, slow: dict[str, float], ranks: tuple[int, ...], busbw: float, sisters: float
) -> None:
    """The group of the slow link is named with its ranks and what its sisters reach, and no rank is a straggler."""
    job = TrainingJob(layout=layout, num_steps=5, slow_groups=slow)
    found = _findings(job, tmp_path)
    assert _blamed(found) == [("slow_collective", ranks)]
    (finding,) = (each for each in found if each.kind == "slow_collective")
    values = _values(finding)
    assert values["busbw_bytes_per_s"] == pytest.approx(busbw, rel=0.001)
    assert values["sister_busbw_bytes_per_s"] == pytest.approx(sisters, rel=0.001)
    saving = job.run().end_ns - replace(job, slow_groups={}).run().end_ns
    assert values["saving_ns"] == pytest.approx(saving, rel=0.001)
    gain = _whole_steps_ns(job) - _whole_steps_ns(replace(job, slow_groups={}))
    # A step's calls are those it launched; a first stage waits for some of the next step's before that begins.
    assert finding.cost_ns == pytest.approx(gain, rel=0.04 if layout.pp > 1 else 0.001)


def test_links_of_all_groups_are_one_finding(tmp_path: Path) -> None:
    """Where all groups of an axis are as slow, sisters tell nothing, and the ceiling of the link does."""
    slow = {f"mesh_dp:{rank}": 0.05 for rank in range(4)}
    found = _findings(TrainingJob(layout=TP_FIRST, num_steps=5, slow_groups=slow), tmp_path)
    assert _blamed(found) == [("slow_collective", ())]
    (finding,) = (each for each in found if each.kind == "slow_collective")
    assert finding.where.groups == ("dp [0, 4]", "dp [1, 5]", "dp [2, 6]", "dp [3, 7]")
    assert _values(finding)["attained_ratio"] == pytest.approx(20 / 450, rel=0.001)


def test_two_slow_links_are_both_named(tmp_path: Path) -> None:
    """Of two slow links that hide each other both are named, with the truth that mending one alone saves nothing."""
    job = TrainingJob(layout=TP_FIRST, num_steps=5, slow_groups={"mesh_dp:0": 0.05, "mesh_dp:1": 0.05})
    found = _findings(job, tmp_path)
    assert _blamed(found) == [("slow_collective", (0, 4)), ("slow_collective", (1, 5))]
    transfer_ns = 2**27 / 20e9 * 1e9
    for finding in found:
        if finding.kind == "slow_collective":
            assert _values(finding)["saving_ns"] == 0
            assert "mending it alone saves nothing, since others are as late" in finding.title
            # What its two ranks stand still for in four whole steps.
            assert finding.cost_ns == pytest.approx(2 * 4 * transfer_ns * 0.95, rel=0.001)


def test_a_slow_link_and_a_late_rank_are_told_apart(tmp_path: Path) -> None:
    """The rank is blamed for its own delay alone, and its saving is that of the job without the delay."""
    plant = Plant(rank=1, kind="host", extra_ns=4 * NS_PER_MS, steps=range(99))
    job = TrainingJob(layout=Layout(dp=8, ep=4), num_steps=4, slow_groups={"mesh_ep:4": 0.2}, plants=(plant,))
    found = _findings(job, tmp_path)
    assert _blamed(found) == [("slow_collective", (4, 5, 6, 7)), ("straggler", (1,))]
    (late,) = (each for each in found if each.kind == "straggler")
    values = _values(late)
    assert values["imposed_wait_ns"] == 16 * NS_PER_MS
    assert values["saving_ns"] == job.saving_ns(1) < 16 * NS_PER_MS
    assert "by host; fixing it alone ends the recording 13.99 ms sooner" in late.title


def test_costs_do_not_sum_beyond_what_was_lost(tmp_path: Path) -> None:
    """Two late ranks of two groups: what each alone saves is said, and both together cost no more than was lost."""
    plants = (
        Plant(rank=1, kind="compute", extra_ns=5 * NS_PER_MS, steps=range(99)),
        Plant(rank=6, kind="memory", extra_ns=3 * NS_PER_MS, steps=range(99)),
    )
    job = TrainingJob(layout=TP_FIRST, num_steps=5, plants=plants)
    found = _findings(job, tmp_path)
    late = {each.where.ranks[0]: each for each in found if each.kind == "straggler"}
    assert {rank: _values(each)["saving_ns"] for rank, each in late.items()} == {1: 10 * NS_PER_MS, 6: 0}
    assert "fixing it alone ends the recording 10 ms sooner, since others are late too" in late[1].title
    assert "fixing it alone saves nothing, since others are late too" in late[6].title
    # In each of four whole steps the three peers of rank 6 stand 3 ms, and nobody else waits for it.
    assert late[6].cost_ns == 4 * 3 * 3 * NS_PER_MS
    lost = (job.run().end_ns - replace(job, plants=()).run().end_ns) * 8 * 4 // 5
    assert sum(each.cost_ns or 0 for each in late.values()) <= lost
    # The whole of the time is shared out: waiting, links and other communication are no more than all exposed.
    (rest,) = (each for each in found if each.kind == "exposed_communication")
    exposed = _values(rest)["exposed_communication_ns"]
    assert sum(int(_values(each)["exposed_wait_ns"]) for each in late.values()) + (rest.cost_ns or 0) == exposed  # type: ignore[call-overload]


def test_shares_of_a_slow_link_are_counted_once(tmp_path: Path) -> None:
    """What a slow link costs is taken out of exposed communication, which says so."""
    job = TrainingJob(layout=TP_FIRST, num_steps=5, slow_groups={"mesh_dp:1": 0.05})
    found = _findings(job, tmp_path)
    (slow,) = (each for each in found if each.kind == "slow_collective")
    (rest,) = (each for each in found if each.kind == "exposed_communication")
    assert (rest.cost_ns or 0) + (slow.cost_ns or 0) == _values(rest)["exposed_communication_ns"]
    assert "besides what the slow link dp [1, 5] costs" in rest.title
    assert "Mend the slow link dp [1, 5] first" in rest.action


@pytest.mark.parametrize("layout", [TP_FIRST, Layout(dp=2, pp=4), Layout(dp=2, tp=2, cp=2), Layout(dp=8, ep=4)])
def test_without_a_fault_nobody_is_blamed(tmp_path: Path, layout: Layout) -> None:
    """Ranks and links that are alike, but for jitter, are no findings."""
    assert _blamed(_findings(TrainingJob(layout=layout, num_steps=3, jitter_ns=5_000), tmp_path)) == []


def test_what_was_late_before_the_recording_is_nobodys_fault(tmp_path: Path) -> None:
    """Ranks that a link held up before their peers' recordings began are not late by their own work after that."""
    job = TrainingJob(layout=TP_FIRST, num_steps=3, slow_groups={"mesh_dp:1": 0.1})
    recordings = {
        rank: Recording(has_host=True, steps=None if rank in (1, 5) else range(11, 13))
        for rank in range(job.layout.world_size)
    }
    files = write_traces(job.run(), job.layout, tmp_path, recordings=recordings)
    found = find_all(compute_results(load([str(file) for file in files])))
    assert _blamed(found) == [("slow_collective", (1, 5))]


def test_the_figure_tells_groups_apart(tmp_path: Path) -> None:
    """Each bubble says of which group it is, so that the slow one among its sisters can be read off."""
    job = TrainingJob(layout=TP_FIRST, num_steps=2, slow_groups={"mesh_dp:1": 0.1})
    results = compute_results(load([str(file) for file in write_traces(job.run(), job.layout, tmp_path)]))
    assert results.collective_roofline is not None
    drawn = bandwidth_figure(results.collective_roofline).to_json() or ""
    assert all(group in drawn for group in ("dp [1, 5]", "dp [0, 4]", "tp [4-7]"))
