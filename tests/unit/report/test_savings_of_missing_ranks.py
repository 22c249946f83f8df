"""Of a job whose traces are not all at hand no saving is told as nothing, nor as if all ranks had told it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import pytest

from scope.report.build import compute_results
from scope.report.document import to_document
from scope.report.findings import find_all
from scope.report.sections.stragglers import stragglers_table
from scope.testing.jobs import Plant, TrainingJob
from scope.testing.layout import Layout
from scope.testing.scenarios import Scenario
from scope.trace import ReadOptions, load
from scope.units import NS_PER_MS

if TYPE_CHECKING:
    from pathlib import Path

    from scope.report.results import Results


SEEN: Final = "as far as the ranks at hand tell"
DENSE: Final = Layout(dp=2, tp=4)
EXPERTS: Final = Layout(dp=8, ep=4)
STAGES: Final = Layout(dp=2, pp=4)


def _job(rank: int, layout: Layout = DENSE) -> TrainingJob:
    plant = Plant(rank=rank, kind="host", extra_ns=5 * NS_PER_MS, steps=range(99))
    return TrainingJob(layout=layout, plants=(plant,), num_steps=3)


def _results(job: TrainingJob, missing: tuple[int, ...], folder: Path) -> Results:
    Scenario(layout=job.layout, simulation=job.run(), missing_ranks=missing).write(folder)
    return compute_results(load([str(folder)], options=ReadOptions(use_cache=False), processes=1))


@pytest.mark.parametrize(
    ("layout", "rank", "missing"),
    [
        (DENSE, 1, (6,)),
        (DENSE, 4, (6,)),
        (DENSE, 5, (6,)),
        (DENSE, 0, (3, 7)),
        (DENSE, 4, ()),
        (EXPERTS, 1, (6,)),
        (EXPERTS, 5, (0, 2)),
        (STAGES, 3, (4,)),
        (STAGES, 1, (6,)),
    ],
)
def test_savings_where_ranks_are_missing(layout: Layout, rank: int, missing: tuple[int, ...], tmp_path: Path) -> None:
    """Of one late rank no more is told than is true, or nothing with the reason; that ranks are missing is said."""
    job = _job(rank, layout)
    truth_ns = job.run().end_ns - replace(job, plants=()).run().end_ns
    results = _results(job, missing, tmp_path)
    found = results.stragglers
    assert found is not None
    assert found.check().has_missing_ranks == bool(missing)
    (straggler,) = found.stragglers
    assert straggler.rank == rank
    if straggler.saving_ns is None:
        assert missing
        assert "ranks are missing" in straggler.absent["saving_ns"]
    else:
        assert 0 < straggler.saving_ns <= truth_ns
        assert missing or straggler.saving_ns == truth_ns
    assert any("Ranks are missing" in note for note in stragglers_table(found).notes) == bool(missing)
    findings = find_all(results)
    (title,) = (each.title for each in findings if each.kind == "straggler")
    assert "saves nothing" not in title
    assert (SEEN in title) == (bool(missing) and straggler.saving_ns is not None)
    assert to_document(results, findings)["stragglers"]["has_missing_ranks"] == bool(missing)


def test_a_late_rank_beside_a_missing_one_has_no_known_saving(tmp_path: Path) -> None:
    """Rank 6 is missing and waits for rank 4; rank 2 waits for rank 6, unseen: fixing rank 4 seems to save nothing."""
    found = _results(_job(4), (6,), tmp_path).stragglers
    assert found is not None
    (straggler,) = found.stragglers
    assert straggler.saving_ns is None


def test_a_missing_rank_may_hand_on_what_another_is_late_by(tmp_path: Path) -> None:
    """What rank 4 is late by reaches rank 3 by rank 7 alone: unseen, fixing rank 1 seems to save more than is true."""
    late = ((3, 2, range(99)), (4, 5, range(10, 12)), (1, 9, range(10, 12)))
    plants = tuple(
        Plant(rank=rank, kind="host", extra_ns=length_ms * NS_PER_MS, steps=steps) for rank, length_ms, steps in late
    )
    job = TrainingJob(layout=Layout(dp=2, tp=2, cp=2), plants=plants)
    results = _results(job, (7,), tmp_path)
    assert results.stragglers is not None
    (straggler,) = (each for each in results.stragglers.stragglers if each.rank == 1)
    assert straggler.saving_ns == 10 * NS_PER_MS > job.saving_ns(1) == 8 * NS_PER_MS
    titles = [each.title for each in find_all(results) if each.kind == "straggler" and each.where.ranks == (1,)]
    assert len(titles) == 1
    assert SEEN in titles[0]


@pytest.mark.parametrize(("slow", "missing"), [("mesh_tp:4", (1,)), ("mesh_tp:2", (6, 7)), ("mesh_tp:4", ())])
def test_what_a_slow_link_costs_is_told_as_far_as_it_is_seen(
    slow: str, missing: tuple[int, ...], tmp_path: Path
) -> None:
    """A link to which all ranks are at hand is named, with the saving of the job without it, and that ranks miss."""
    job = TrainingJob(layout=Layout(dp=4, tp=2), num_steps=3, slow_groups={slow: 0.02})
    truth_ns = job.run().end_ns - replace(job, slow_groups={}).run().end_ns
    (finding,) = (each for each in find_all(_results(job, missing, tmp_path)) if each.kind == "slow_collective")
    saving_ns = next((each.value for each in finding.evidence if each.column.key == "saving_ns"), None)
    assert saving_ns == pytest.approx(truth_ns, rel=0.001)
    assert (SEEN in finding.title) == bool(missing)
