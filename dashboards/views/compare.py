"""Compare: what changed between two runs, or between two ranges of steps."""

from __future__ import annotations

import polars as pl
import streamlit as st

from dashboards.shell import choose_other, open_page, settings, show_figure, show_table
from dashboards.sources.runs import LiveRun, load_run
from scope.frames.schema import PHASE_COLUMNS, RankSteps
from scope.report.figures import StackedTimes, phase_breakdown
from scope.report.inert import markdown_text
from scope.units import format_duration, format_ratio

BEFORE = "before_ns"
AFTER = "after_ns"


def phases_per_step(run: LiveRun) -> pl.DataFrame:
    """Return the mean host time a step of each phase over all ranks of the last attempt, disturbed steps left out."""
    steps = run.of_attempt.filter(pl.col(RankSteps.disturbed).is_null())
    means = steps.select((pl.col(list(PHASE_COLUMNS)).sum() / pl.col(RankSteps.num_steps).sum()).round().cast(pl.Int64))
    return means.collect().unpivot(variable_name="phase", value_name="mean_ns")


def compare(first: LiveRun, second: LiveRun) -> pl.DataFrame:
    """Return each phase's mean time a step in both runs and the difference, the largest change first."""
    both = phases_per_step(first).rename({"mean_ns": BEFORE})
    both = both.join(phases_per_step(second).rename({"mean_ns": AFTER}), on="phase")
    return (
        both.filter((pl.col(BEFORE) > 0) | (pl.col(AFTER) > 0))
        .with_columns(pl.col("phase").str.strip_suffix("_ns"), (pl.col(AFTER) - pl.col(BEFORE)).alias("difference_ns"))
        .sort(pl.col("difference_ns").abs(), descending=True)
    )


def draw(first: LiveRun, second: LiveRun, names: tuple[str, str]) -> None:
    """Draw both runs beside each other."""
    if first.steps.is_empty() or second.steps.is_empty():
        st.info("One of the two has no steps yet.", icon=":material/hourglass_empty:")
        return
    table = compare(first, second)
    before, after = int(table[BEFORE].sum()), int(table[AFTER].sum())
    change = after / before - 1 if before else 0.0
    st.metric(
        "Mean step", format_duration(after), f"{format_ratio(change)} against {markdown_text(names[0])}", "inverse"
    )
    parts = {row["phase"]: [row[BEFORE], row[AFTER]] for row in table.iter_rows(named=True)}
    show_figure(phase_breakdown(StackedTimes(labels=names, parts=parts)), None, key="comparison")
    show_table(table, key="changes by phase")


def main() -> None:
    """Draw the page."""
    source, state = open_page("Compare", "What changed between two runs?", ("run",))
    other, _ = choose_other(source, state, "Compared with")
    if other is None:
        st.info("There is only one run here: start the dashboard on a folder of runs to compare two.")
        return
    refresh_s = settings().refresh_s
    runs = load_run(other.place, refresh_s=refresh_s), load_run(source.place, refresh_s=refresh_s)
    draw(*runs, (other.label, source.label))


main()
