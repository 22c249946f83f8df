"""Of a job whose traces are not all at hand no saving is told as nothing, nor as more than is true."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

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


def _job(rank: int) -> TrainingJob:
    plant = Plant(rank=rank, kind="host", extra_ns=5 * NS_PER_MS, steps=range(99))
    return TrainingJob(layout=Layout(dp=2, tp=4), plants=(plant,), num_steps=3)


def _results(job: TrainingJob, missing: tuple[int, ...], folder: Path) -> Results:
    Scenario(layout=job.layout, simulation=job.run(), missing_ranks=missing).write(folder)
    return compute_results(load([str(folder)], options=ReadOptions(use_cache=False), processes=1))


@pytest.mark.parametrize(("rank", "missing"), [(1, (6,)), (4, (6,)), (5, (6,)), (0, (3, 7)), (4, ())])
def test_savings_where_ranks_are_missing(rank: int, missing: tuple[int, ...], tmp_path: Path) -> None:
    """Behind a missing rank others wait unseen: fixing saves at least what is told, or that is absent with a reason."""
    job = _job(rank)
    truth_ns = job.run().end_ns - replace(job, plants=()).run().end_ns
    results = _results(job, missing, tmp_path)
    found = results.stragglers
    assert found is not None
    assert found.check().is_saving_least == bool(missing)
    (straggler,) = found.stragglers
    assert straggler.rank == rank
    if straggler.saving_ns is None:
        assert missing
        assert "ranks are missing" in straggler.absent["saving_ns"]
    else:
        assert 0 < straggler.saving_ns <= truth_ns
        assert missing or straggler.saving_ns == truth_ns
    assert any("at least" in note for note in stragglers_table(found).notes) == bool(missing)
    findings = find_all(results)
    (title,) = (each.title for each in findings if each.kind == "straggler")
    assert "saves nothing" not in title
    assert ("at least" in title) == (bool(missing) and straggler.saving_ns is not None)
    assert to_document(results, findings)["stragglers"]["is_saving_least"] == bool(missing)


def test_a_late_rank_beside_a_missing_one_has_no_known_saving(tmp_path: Path) -> None:
    """Rank 6 is missing and waits for rank 4; rank 2 waits for rank 6, unseen: fixing rank 4 seems to save nothing."""
    found = _results(_job(4), (6,), tmp_path).stragglers
    assert found is not None
    (straggler,) = found.stragglers
    assert straggler.saving_ns is None
