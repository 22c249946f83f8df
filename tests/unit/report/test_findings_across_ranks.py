"""Findings across ranks: simulated jobs in which they are planted, and the same jobs without the plant."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from scope.report.build import Choices, compute_results
from scope.report.findings import find_all
from scope.testing.jobs import Plant, TrainingJob, straggling_job
from scope.testing.layout import Layout
from scope.testing.scenarios import Scenario
from scope.trace import load

if TYPE_CHECKING:
    from pathlib import Path

    from scope.report.findings import Finding
    from scope.report.results import Results


def _results(job: TrainingJob, folder: Path) -> Results:
    files = Scenario(layout=job.layout, simulation=job.run()).write(folder)
    nodes = dict.fromkeys(range(job.layout.world_size), "node 0")
    return compute_results(load([str(file) for file in files]), Choices(nodes=nodes))


def _of(results: Results, kind: str) -> list[Finding]:
    return [finding for finding in find_all(results) if finding.kind == kind]


@pytest.mark.parametrize("kind", ["compute", "input", "memory", "host"])
def test_a_planted_straggler_is_named_with_its_reason(tmp_path: Path, kind: str) -> None:
    """A rank that is late in every step for one reason is found, and the imposed wait is what its repair saves."""
    job = straggling_job(Layout(dp=4), rank=2, kind=kind)  # pyright: ignore[reportArgumentType]
    results = _results(job, tmp_path)
    (finding,) = _of(results, "straggler")
    assert finding.where.ranks == (2,)
    assert f"by {kind}" in finding.title
    assert finding.evidence[0].value == job.saving_ns(2)
    # The recording ends with the last of four steps, so three count; each costs 5 ms on four devices.
    assert finding.cost_ns == 3 * 5_000_000 * 4
    assert "summed over steps and devices" in finding.title
    saved = {each.column.key: each.value for each in finding.evidence}
    assert (saved["saving_ns"], saved["saved_ns"]) == (job.saving_ns(2), 3 * 5_000_000 * 4)


def test_waiting_for_a_straggler_is_no_matter_of_buckets(tmp_path: Path) -> None:
    """Where exposed communication is the wait for one rank, that rank is the finding, and buckets are no advice."""
    results = _results(straggling_job(Layout(dp=4), rank=2, kind="host"), tmp_path)
    assert find_all(results)[0].kind == "straggler"
    (finding,) = _of(results, "straggler")
    # Three peers stand 5 ms a step; the last of four steps is cut.
    assert {each.column.key: each.value for each in finding.evidence}["exposed_wait_ns"] == 3 * 3 * 5_000_000
    assert _of(results, "exposed_communication") == []


def test_exposed_communication_leaves_out_the_wait_for_a_straggler(tmp_path: Path) -> None:
    """A slow link beside a late rank: what the link costs and what the rank costs are two findings, told apart."""
    job = replace(straggling_job(Layout(dp=4), rank=2, kind="host"), slow_groups={"mesh_dp:0": 0.05})
    results = _results(job, tmp_path)
    (finding,) = _of(results, "exposed_communication")
    values = {each.column.key: each.value for each in finding.evidence}
    assert values["straggler_wait_ns"] == 3 * 3 * 5_000_000
    assert (finding.cost_ns or 0) + 3 * 3 * 5_000_000 == values["exposed_communication_ns"]
    assert "besides the waiting for rank 2" in finding.title
    assert "Fix rank 2 first: the waiting for it is not counted here" in finding.action
    place = [each.kind for each in find_all(results)].index("straggler")
    assert finding.action.endswith(f"Rank 2 is told in finding {place + 1}.")
    alone = _of(_results(replace(job, plants=()), tmp_path / "alone"), "exposed_communication")[0]
    assert "straggler_wait_ns" not in {each.column.key for each in alone.evidence}
    assert "told in finding" not in alone.action
    assert alone.cost_ns == pytest.approx(finding.cost_ns, rel=0.01)


def test_exposed_communication_leaves_out_the_wait_for_ranks_that_are_late_together(tmp_path: Path) -> None:
    """Of two ranks that are late alike neither stands out alone: the wait for both is theirs, not communication's."""
    plants = tuple(Plant(rank=rank, kind="host", extra_ns=5_000_000, steps=range(99)) for rank in (1, 6))
    job = TrainingJob(layout=Layout(dp=8), plants=plants, slow_groups={"mesh_dp:0": 0.05})
    results = _results(job, tmp_path)
    (late,) = _of(results, "straggler")
    assert late.where.ranks == (1, 6)
    (finding,) = _of(results, "exposed_communication")
    values = {each.column.key: each.value for each in finding.evidence}
    # Six peers stand 5 ms in each of three whole steps.
    assert values["straggler_wait_ns"] == 6 * 3 * 5_000_000
    assert (finding.cost_ns or 0) + 6 * 3 * 5_000_000 == values["exposed_communication_ns"]
    assert "besides the waiting for ranks 1, 6" in finding.title
    place = [each.kind for each in find_all(results)].index("straggler")
    assert finding.action.endswith(f"Ranks 1, 6 are told in finding {place + 1}.")


def test_who_waits_for_a_link_does_not_wait_for_the_rank_behind_it(tmp_path: Path) -> None:
    """A rank that a slow link holds up, and that is a little late itself, is waited for by what it is late itself."""
    plants = (Plant(rank=2, kind="compute", extra_ns=200_000, steps=range(99)),)
    job = TrainingJob(layout=Layout(dp=4, tp=2), plants=plants, slow_groups={"mesh_tp:2": 0.02})
    stragglers = _results(job, tmp_path).stragglers
    assert stragglers is not None
    assert [each.rank for each in stragglers.stragglers] == [2]
    waits = stragglers.waits["exposed_wait_ns"]
    assert 0 < max(waits) <= 200_000


def test_a_job_without_a_straggler_names_nobody(tmp_path: Path) -> None:
    """Ranks that do the same work are no stragglers."""
    assert _of(_results(TrainingJob(layout=Layout(dp=4)), tmp_path), "straggler") == []


def test_a_slow_link_is_found_with_its_bandwidth(tmp_path: Path) -> None:
    """A group that keeps 30 % of 400 GB/s reaches 120 of the 450 GB/s that NVLink of an H100 allows one way."""
    results = _results(TrainingJob(layout=Layout(dp=4), slow_groups={"mesh_dp:0": 0.3}), tmp_path)
    (finding,) = _of(results, "slow_collective")
    values = {each.column.key: each.value for each in finding.evidence}
    assert values["busbw_bytes_per_s"] == pytest.approx(120e9, rel=0.001)
    assert values["ceiling_bytes_per_s"] == 450e9
    assert values["attained_ratio"] == pytest.approx(120 / 450, rel=0.001)
    assert "all_reduce of 134.2 MB among 4 ranks inside a node" in finding.title
    # One a step; the last of four steps is cut. 2^27 bytes at 120 / 1.5 GB/s take 1.678 ms, on four ranks.
    transfer_ns = 2**27 / (120e9 / 1.5) * 1e9
    assert finding.cost_ns == pytest.approx(3 * 4 * transfer_ns * (1 - 120 / 450), rel=0.001)


def test_a_healthy_link_is_no_finding(tmp_path: Path) -> None:
    """Collectives at 400 of 450 GB/s are as they should be."""
    assert _of(_results(TrainingJob(layout=Layout(dp=4)), tmp_path), "slow_collective") == []
