"""What people read of one figure is one word in tables, figures and pages, and says what it is a sum of."""

from __future__ import annotations

from io import StringIO
from typing import TYPE_CHECKING, Any

from scope.report.build import compute_results
from scope.report.figures import StackedTimes, rank_breakdown
from scope.report.sections.breakdown import BREAKDOWN_COLUMNS, steps_table
from scope.report.summary import print_summary
from scope.report.text import make_console
from scope.testing.jobs import TrainingJob
from scope.testing.kineto import write_traces
from scope.testing.layout import Layout
from scope.trace import ReadOptions, load

if TYPE_CHECKING:
    from pathlib import Path

    from scope.trace.model import Job


def _load(folder: Path, num_ranks: int) -> Job:
    job = TrainingJob(layout=Layout(dp=num_ranks), num_steps=2)
    write_traces(job.run(), job.layout, folder)
    return load([str(folder)], options=ReadOptions(use_cache=False), processes=1)


def test_the_legend_of_exposed_copies_is_the_heading_of_tables() -> None:
    """A bar of the figure is named as its column is."""
    bars = StackedTimes(labels=["0"], parts={"exposed_memory": [5]})
    names: Any = [trace.name for trace in rank_breakdown(bars).data]  # pyright: ignore[reportAttributeAccessIssue]
    headings = {each.key: each.heading for each in BREAKDOWN_COLUMNS}
    assert names == [headings["exposed_memory_ns"]]


def test_steps_of_several_ranks_say_that_they_are_sums(tmp_path: Path) -> None:
    """The table of steps says over how many ranks its windows and parts are summed."""
    notes = steps_table(compute_results(_load(tmp_path, 4)).analysis).notes
    assert any("sums over 4 ranks" in note for note in notes)


def test_a_step_of_one_rank_is_no_sum(tmp_path: Path) -> None:
    """Of one rank nothing is said to be a sum."""
    job = _load(tmp_path, 2)
    notes = steps_table(compute_results(load([job.ranks[0].path], processes=1)).analysis).notes
    assert not any("sums over" in note for note in notes)


def test_the_summary_says_once_what_its_steps_are_sums_of(tmp_path: Path) -> None:
    """The title of the steps says it, so no note below repeats it."""
    out = StringIO()
    print_summary(compute_results(_load(tmp_path, 4)), (), make_console(out, width=120))
    text = out.getvalue()
    assert "By step: parts summed over ranks" in text
    assert "sums over 4 ranks" not in text
