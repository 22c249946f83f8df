"""A profiler window of few steps may name nobody: what the run's records of all steps know stands beside it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from scope.report.build import compute_results
from scope.report.loading import load
from scope.report.recorded_slowest import say_slowest
from scope.trace import ReadOptions

if TYPE_CHECKING:
    from scope.report.results import Results

SAMPLES = Path(__file__).parents[3] / "sample_traces"
"""Of 60 recorded steps each; in those of `gloo-4-ranks-straggler` rank 2 slept 30 ms in every forward."""


def results_of(*paths: Path) -> Results:
    """Return what `scope analyze` says of traces."""
    return compute_results(load([str(path) for path in paths], options=ReadOptions(use_cache=False)))


def said_of(results: Results) -> list[str]:
    """Return the warnings that rest on the records of a run."""
    return [each for each in results.analysis.warnings if "by the records of all steps" in each]


def test_the_rank_that_the_records_name_is_told_where_the_window_names_nobody() -> None:
    """Two steps name nobody, the records of 60 name the rank that slept, in the phase that it slept in."""
    results = results_of(SAMPLES / "gloo-4-ranks-straggler")
    assert results.stragglers is not None
    assert results.stragglers.stragglers == ()
    (said,) = said_of(results)
    assert "by the records of all steps rank 2 works " in said
    assert "most of it in forward: look at that first" in said


def test_records_that_name_nobody_are_silent() -> None:
    """Nothing was planted in the healthy run: a window and records that name nobody give no sentence."""
    assert said_of(results_of(SAMPLES / "gloo-4-ranks-healthy")) == []


def test_a_window_that_names_somebody_speaks_for_itself() -> None:
    """Where the traces themselves name a straggler, the records are not quoted beside it."""
    named = results_of(SAMPLES / "gloo-2-ranks-straggler").stragglers
    assert named is not None
    assert [each.rank for each in named.stragglers] == [1]
    job = load(str(SAMPLES / "gloo-4-ranks-straggler"), options=ReadOptions(use_cache=False))
    assert list(say_slowest(job, named)) == []


def test_traces_beside_no_run_have_no_records(tmp_path: Path) -> None:
    """Copies of the same traces in a plain folder name nobody, and nothing is looked for."""
    for path in SAMPLES.glob("gloo-4-ranks-straggler/attempt-000/ranks/*/traces/*.json.gz"):
        shutil.copy(path, tmp_path)
    assert said_of(results_of(tmp_path)) == []


def test_a_window_that_lacks_ranks_is_told_once() -> None:
    """Of traces of three of four ranks the records are quoted where the window is chosen, and not again."""
    paths = sorted(SAMPLES.glob("gloo-4-ranks-straggler/attempt-000/ranks/*/traces/*.json.gz"))
    assert said_of(results_of(*paths[:3])) == []
