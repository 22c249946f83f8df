"""Of ranks that are late at once the saving of mending all of them is that of the same job without their lateness."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import pytest

from scope.analysis.collectives import compute_collectives
from scope.analysis.excess_work import ExcessWork
from scope.analysis.stragglers import compute_stragglers
from scope.report.build import compute_results
from scope.report.document import to_document
from scope.report.findings import find_all
from scope.report.sections.stragglers import stragglers_table
from scope.testing.jobs import Plant, PlantKind, TrainingJob
from scope.testing.kineto import write_traces
from scope.testing.layout import Layout
from scope.trace import ReadOptions, load
from scope.units import NS_PER_MS, NS_PER_US

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from scope.analysis.excess_work import Part
    from scope.analysis.stragglers import Stragglers
    from scope.trace.model import Job

ALWAYS: Final = range(99)


def _plant(rank: int, kind: PlantKind, length_ns: int, steps: range = ALWAYS) -> Plant:
    return Plant(rank=rank, kind=kind, extra_ns=length_ns, steps=steps)


def _load(job: TrainingJob, folder: Path) -> Job:
    write_traces(job.run(), job.layout, folder)
    return load([str(folder)], options=ReadOptions(use_cache=False), processes=1)


def _found(job: TrainingJob, folder: Path) -> Stragglers:
    loaded = _load(job, folder)
    return compute_stragglers(loaded, compute_collectives(loaded)).check()


def _truth_ns(job: TrainingJob) -> int:
    """Return how much sooner the job ends without any lateness: simulated again, and nothing of the analysis."""
    return job.run().end_ns - replace(job, plants=()).run().end_ns


MS = NS_PER_MS
LATE: dict[str, tuple[Layout, tuple[Plant, ...], tuple[int, ...]]] = {
    "equally late": (Layout(dp=8), (_plant(1, "host", 5 * MS), _plant(6, "host", 5 * MS)), ()),
    "for different reasons": (Layout(dp=8), (_plant(1, "compute", 5 * MS), _plant(6, "input", 5 * MS)), ()),
    "almost equally late": (
        Layout(dp=8),
        (_plant(1, "host", 5 * MS - 8 * NS_PER_US), _plant(6, "host", 5 * MS)),
        (),
    ),
    "one later than the other": (Layout(dp=8), (_plant(1, "host", 3 * MS), _plant(6, "host", 5 * MS)), (6,)),
    "three of eight": (Layout(dp=8), tuple(_plant(rank, "memory", 4 * MS) for rank in (0, 3, 7)), ()),
    "in two groups": (Layout(dp=2, tp=4), (_plant(1, "host", 5 * MS), _plant(6, "host", 5 * MS)), (1, 6)),
    "two in one group of several": (Layout(dp=8, tp=2), tuple(_plant(rank, "host", 4 * MS) for rank in (2, 6)), (2, 6)),
}


@pytest.mark.parametrize("name", LATE)
def test_mending_all_saves_what_the_job_without_them_saves(name: str, tmp_path: Path) -> None:
    """The planted ranks are late together, those that stand out alone are named, and the saving is the simulated."""
    layout, plants, alone = LATE[name]
    job = TrainingJob(layout=layout, plants=plants, num_steps=3)
    found = _found(job, tmp_path)
    together = found.together
    assert together is not None
    assert set(together.ranks) == {plant.rank for plant in plants}
    assert sorted(each.rank for each in found.stragglers) == sorted(alone)
    assert together.saving_ns == _truth_ns(job)
    # What one alone saves may be much, where ranks are late one behind the other.
    assert alone or found.verdict.endswith("more than one of them alone")
    for each in found.stragglers:
        assert each.saving_ns == job.saving_ns(each.rank) < together.saving_ns


QUIET: dict[str, TrainingJob] = {
    "nobody is late": TrainingJob(layout=Layout(dp=8), jitter_ns=3_000),
    "one is late": TrainingJob(layout=Layout(dp=8), plants=(_plant(3, "host", 5 * MS),)),
    "half are late": TrainingJob(layout=Layout(dp=4), plants=(_plant(1, "host", 5 * MS), _plant(2, "host", 5 * MS))),
    "a link is slow": TrainingJob(layout=Layout(dp=2, tp=4), slow_groups={"mesh_tp:4": 0.05}),
    "a slow link makes a group late": TrainingJob(layout=Layout(dp=8, ep=4), slow_groups={"mesh_ep:4": 0.1}),
    "they are late by less than the noise": TrainingJob(
        layout=Layout(dp=8), plants=(_plant(1, "host", 4_000), _plant(6, "host", 4_000))
    ),
}


@pytest.mark.parametrize("name", QUIET)
def test_nobody_is_late_together_without_reason(name: str, tmp_path: Path) -> None:
    """One late rank, noise, slow links and two halves of which neither is usual name no ranks together."""
    found = _found(QUIET[name], tmp_path)
    assert found.together is None
    assert "together" in found.absent


def test_ranks_that_are_late_together_are_a_finding(tmp_path: Path) -> None:
    """Where nobody stands out alone, the finding names both ranks, and table, verdict and JSON say the same."""
    layout, plants, _ = LATE["equally late"]
    job = TrainingJob(layout=layout, plants=plants, num_steps=3)
    results = compute_results(_load(job, tmp_path))
    findings = find_all(results)
    (finding,) = (each for each in findings if each.kind == "straggler")
    assert finding.where.ranks == (1, 6)
    values = {each.column.key: each.value for each in finding.evidence}
    assert values["together_saving_ns"] == 15 * MS
    assert results.stragglers is not None
    assert "ranks 1, 6 are late together" in stragglers_table(results.stragglers).notes[0]
    assert to_document(results, findings)["stragglers"]["together"] == {"ranks": [1, 6], "saving_ns": 15 * MS}


def test_late_ranks_of_different_groups_say_what_both_save(tmp_path: Path) -> None:
    """Each of two ranks that others wait for alike saves nothing alone, and its finding says what both save."""
    layout, plants, _ = LATE["in two groups"]
    results = compute_results(_load(TrainingJob(layout=layout, plants=plants, num_steps=3), tmp_path))
    findings = [each for each in find_all(results) if each.kind == "straggler"]
    assert sorted(each.where.ranks for each in findings) == [(1,), (6,)]
    for finding in findings:
        values = {each.column.key: each.value for each in finding.evidence}
        assert (values["saving_ns"], values["together_saving_ns"]) == (0, 15 * MS)


def test_a_rank_that_is_late_beside_one_that_stands_out_is_told(tmp_path: Path) -> None:
    """Rank 6 stands out by 2 ms, behind it rank 1 is waited for: both are findings, and one says what both save."""
    layout, plants, _ = LATE["one later than the other"]
    results = compute_results(_load(TrainingJob(layout=layout, plants=plants, num_steps=3), tmp_path))
    titles = {each.where.ranks: each.title for each in find_all(results) if each.kind == "straggler"}
    assert set(titles) == {(6,), (1, 6)}
    assert titles[1, 6].startswith(
        "Besides rank 6, rank 1 is late too: mending all of them ends the recording 15 ms sooner"
    )


def test_each_excess_is_sought_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a rank did beyond its peers before a collective serves what it saves alone and what all save together."""
    asked: list[tuple[int, tuple[int, ...]]] = []
    last_part = ExcessWork.last_part

    def counted(work: ExcessWork, rank: int, arrivals: Mapping[int, int], *args: Any) -> Part | None:
        asked.append((rank, tuple(arrivals.values())))
        return last_part(work, rank, arrivals, *args)

    monkeypatch.setattr(ExcessWork, "last_part", counted)
    layout, plants, alone = LATE["in two groups"]
    found = _found(TrainingJob(layout=layout, plants=plants, num_steps=3), tmp_path)
    assert found.together is not None
    assert {rank for rank, _ in asked} == set(alone)
    assert len(asked) == len(set(asked))
