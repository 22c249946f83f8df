"""Compare: what changed between two runs, two ranges of steps of one run, or two traces."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import polars as pl
import streamlit as st

from dashboards import say
from dashboards.plots import show_figure
from dashboards.shell import (
    choose_other,
    load_run,
    open_page,
    remember,
    remembered_state,
    say_cut_off,
    say_synthetic,
    say_traces,
)
from dashboards.sources.traces import load_traces
from dashboards.tables import show_report_table, show_table
from scope.analysis.comparison import compare_jobs
from scope.analysis.recorded import PhaseChanges, compare_phases
from scope.frames.schema import RankSteps
from scope.report.figures import StackedTimes, phase_breakdown
from scope.report.sections.comparison import CHANGE_KINDS, changes_table, comparison_table
from scope.units import format_duration, format_ratio

if TYPE_CHECKING:
    from dashboards.sources.catalogue import Source
    from dashboards.sources.runs import LiveRun
    from dashboards.state import PageState

RUNS, RANGES = "Two runs", "Two ranges of steps"


def draw(before: pl.LazyFrame, after: pl.LazyFrame, names: tuple[str, str]) -> None:
    """Draw the mean step of both beside each other, and what changed."""
    table = compare_phases(before, after)
    if table.is_empty():
        say.info("One of the two has no undisturbed steps yet.", icon=":material/hourglass_empty:")
        return
    first, second = int(table[PhaseChanges.before_ns].sum()), int(table[PhaseChanges.after_ns].sum())
    change = second / first - 1 if first else 0.0
    row = st.container(horizontal=True, gap="medium")
    with row:
        say.metric(f"Mean step: {names[0]}", format_duration(first), width="content")
        label = f"Mean step: {names[1]}"
        say.metric(label, format_duration(second), format_ratio(change), delta_color="inverse", width="content")
    parts = {row[0]: [row[1], row[2]] for row in table.iter_rows()}
    figure = phase_breakdown(StackedTimes(labels=names, parts=parts), title="Mean host time a step, all ranks", axis="")
    show_figure(figure, None, key="comparison")
    show_table(table, key="changes by phase")


def draw_runs(run: LiveRun, source: Source, state: PageState) -> None:
    """Compare a run with another, the chosen one being what is judged."""
    other, _ = choose_other(source, state, "Compared with")
    if other is None:
        say.info("There is only one run here: start the dashboard on a folder of runs to compare two.")
        return
    remember(replace(remembered_state(), step=None))
    base = load_run(other)
    draw(base.of_attempt, run.of_attempt, (other.label, source.label))


def draw_ranges(run: LiveRun, state: PageState) -> None:
    """Compare the steps before a step with those from it on."""
    last = run.last_step
    if last < 1:
        say.info("A run of at least two steps can be cut in two.", icon=":material/hourglass_empty:")
        return
    cut = state.step if state.step is not None and 0 < state.step <= last else (last + 1) // 2
    step = say.slider("From step", 1, last, cut) if last > 1 else 1
    remember(replace(state, step=step, other_id=None))
    number = pl.col(RankSteps.step)
    names = (f"steps before {step}", f"steps from {step} on")
    draw(run.of_attempt.filter(number < step), run.of_attempt.filter(number >= step), names)


def draw_traces(source: Source, state: PageState) -> None:
    """Compare two traces by kernel, class, operator and phase."""
    after = load_traces(source)
    say_traces(after)
    other, _ = choose_other(source, state, "Compared with")
    if other is None:
        say.info("There is only one trace here: start the dashboard on a folder of several to compare two.")
        return
    before = load_traces(other)
    if before.synthetic and not after.synthetic:
        say_synthetic()
    say_cut_off(before, whose=f" in {other.label}")
    say.caption(f"Before: {other.label}. After: {source.label}.")
    comparison = compare_jobs(before.results.job, after.results.job)
    show_report_table(comparison_table(comparison), key="steps of both")
    tabs = say.tabs([kind.capitalize() for kind in CHANGE_KINDS])
    for tab, kind in zip(tabs, CHANGE_KINDS, strict=True):
        with tab:
            show_report_table(changes_table(comparison, kind), key=f"changes of {kind}")


def main() -> None:
    """Draw the page."""
    source, state = open_page("Compare", "What changed between two runs, or two ranges of steps?", ("run", "trace"))
    if source.kind == "trace":
        draw_traces(source, state)
        return
    run = load_run(source)
    if run.info.synthetic:
        say_synthetic()
    if run.steps.is_empty():
        say.info("No step has ended yet.", icon=":material/hourglass_empty:")
        return
    wish = RANGES if state.other_id is None else RUNS
    choice = say.radio("Compare", (RUNS, RANGES), index=(RUNS, RANGES).index(wish), horizontal=True)
    if choice == RUNS:
        draw_runs(run, source, state)
    else:
        draw_ranges(run, state)


main()
