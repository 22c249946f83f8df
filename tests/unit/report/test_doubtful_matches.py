"""What makes it doubtful which calls are one collective stands among the warnings, and nothing where there is none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl
from msgspec.structs import replace

from scope.report.build import compute_results
from scope.testing.jobs import TrainingJob
from scope.testing.kineto import Recording, write_traces
from scope.testing.layout import Layout
from scope.trace import ReadOptions, load
from scope.units import NS_PER_MS

if TYPE_CHECKING:
    from pathlib import Path

    from scope.trace.model import Job

JOB = TrainingJob(layout=Layout(dp=2))


def _load(folder: Path, recording: Recording) -> Job:
    write_traces(JOB.run(), JOB.layout, folder, recordings=dict.fromkeys(range(2), recording))
    return load([str(folder)], options=ReadOptions(use_cache=False), processes=1)


def test_matches_by_clocks_of_which_nothing_is_known_are_a_warning(tmp_path: Path) -> None:
    """Of four calls of two ranks without steps, `Seq` and hosts one rank's four rest on the clocks; else none do."""
    doubtful = _load(tmp_path / "a", Recording(has_sequence=False, has_steps=False))
    (warning,) = compute_results(doubtful).analysis.warnings
    assert warning.startswith("4 of 8 collective calls are matched as if the ranks' clocks agreed")
    for name, recording in (("b", Recording(has_steps=False)), ("c", Recording(has_sequence=False))):
        assert compute_results(_load(tmp_path / name, recording)).analysis.warnings == ()


def test_calls_that_fit_no_offset_are_a_warning(tmp_path: Path) -> None:
    """Where one rank's clock jumps by 50 ms between the second and the third call, no offset explains all four."""
    job = _load(tmp_path, Recording())
    first, second = job.ranks
    jump = pl.when(pl.int_range(pl.len()) >= 2).then(50 * NS_PER_MS).otherwise(0)
    calls = second.collective_calls.with_columns(pl.col("start_ns", "end_ns") + jump)
    jumped = replace(job, ranks=(first, replace(second, collective_calls=calls)))
    (warning,) = compute_results(jumped).analysis.warnings
    assert warning.startswith("the calls of 2 ranks fit no offset of the clocks: a clock jumped")
