"""Steps: how long each step took and in which parts, over all ranks or on one; a click looks into one step."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import polars as pl
import streamlit as st

from dashboards import say
from dashboards.plots import choose_points, is_new_choice, show_figure
from dashboards.shell import (
    keep_state,
    load_run,
    on_each_refresh,
    open_page,
    remember,
    remembered_state,
    say_age,
    say_traces,
)
from dashboards.sources.traces import load_traces
from dashboards.tables import fold, show_report_table, show_table
from scope.frames.schema import PHASE_COLUMNS, RankSteps
from scope.report.figures import StackedTimes, phase_breakdown, rank_breakdown, step_breakdown
from scope.report.page_figures import rank_step_bars, step_bars
from scope.report.sections.breakdown import rank_steps_table, steps_table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from dashboards.sources.catalogue import Source
    from dashboards.sources.runs import LiveRun
    from dashboards.state import PageState

SHOWN_STEPS = 200
ALL_RANKS = "slowest of all ranks"


def steps_shown(run: LiveRun, state: PageState) -> pl.DataFrame:
    """Return the steps of the chosen rank and range: number, length and phases, the last 200 by default."""
    steps = run.steps_of(state.ranks[0]) if state.ranks else run.by_step_of_attempt()
    number = pl.col(RankSteps.step)
    if state.first_step is None and state.last_step is None:
        return steps.tail(SHOWN_STEPS)
    first, last = state.first_step or 0, state.last_step
    return steps.filter(number >= first if last is None else number.is_between(first, last))


def bars_of(steps: pl.DataFrame, labels: Sequence[str]) -> StackedTimes:
    """Return one bar a row, made of the phases that occur; folded steps are shown by their mean."""
    present = [phase for phase in PHASE_COLUMNS if steps[phase].sum()]
    means = steps.select(pl.col(present) // pl.col(RankSteps.num_steps))
    return StackedTimes(labels=labels, parts={phase.removesuffix("_ns"): means[phase].to_list() for phase in present})


def draw_steps(run: LiveRun, state: PageState) -> None:
    """Draw the phases of the chosen steps, and look into the one that is clicked."""
    say_age(run)
    steps = steps_shown(run, state)
    if steps.is_empty():
        say.info("No step in this range has ended yet.", icon=":material/hourglass_empty:")
        return
    whose = f"rank {state.ranks[0]}" if state.ranks else "the rank of each that works longest"
    numbers = steps[RankSteps.step].to_list()
    bars = bars_of(steps, [str(step) for step in numbers])
    figure = phase_breakdown(bars, title=f"Phases of each step, {whose}")
    points = choose_points(
        figure,
        steps.drop(RankSteps.custom_phases, RankSteps.communication_wait_by_phase, strict=False),
        key="phases of steps",
    )
    folded = int((steps[RankSteps.num_steps] > 1).sum())
    if folded:
        say.caption(f"{folded} bars stand for older steps that were folded; each shows the mean of its steps.")
    step = clicked(points, numbers, bars.num_merged)
    new = step if is_new_choice("step of a run", step) else None
    step = choose_step(run.last_step, new)
    if step is not None:
        draw_one(run, step)


def choose_step(last: int, clicked_step: int | None) -> int | None:
    """Return the step that is looked at: the one that was clicked or typed last, kept in the address."""
    state = remembered_state()
    # No limit above: it moves with a live run, and a field with another limit is another field.
    field = f"look at step of {state.source_id}"
    if clicked_step is not None:
        st.session_state[field] = clicked_step
    elif field not in st.session_state:
        st.session_state[field] = _within(state.step, last)
    row = st.container(horizontal=True, vertical_alignment="bottom")
    with row:
        typed = say.number_input("Look at step", 0, value=None, key=field, placeholder="none", width=160)
    step = _within(typed, last)
    if step is None:
        with row:
            say.caption("Click a bar, or name a step, to see it on every rank.")
    keep_state(replace(state, step=step))
    return step


def clicked(points: Sequence[Mapping[str, Any]], numbers: Sequence[int], num_merged: int) -> int | None:
    """Return the step whose bar was clicked, the first one of a bar that stands for several; None without a click."""
    if not points or not isinstance(points[0].get("x"), int | float):
        return None
    place = int(points[0]["x"]) * num_merged
    return numbers[place] if 0 <= place < len(numbers) else None


def draw_one(run: LiveRun, step: int) -> None:
    """Draw one step on every rank."""
    of_step = run.ranks_in(step)
    say.subheader(f"Step {step} on every rank")
    if of_step.is_empty():
        say.info("No rank has recorded this step one by one.")
        return
    bars = bars_of(of_step, [str(rank) for rank in of_step[RankSteps.rank]])
    figure = phase_breakdown(bars, title=f"Phases of step {step} on every rank", axis="Rank")
    show_figure(figure, of_step.drop(RankSteps.custom_phases, RankSteps.communication_wait_by_phase), key="one step")
    overlays = (RankSteps.communication_wait_ns, RankSteps.gc_ns, RankSteps.disturbed)
    table = of_step.select(RankSteps.rank, RankSteps.duration_ns, *overlays)
    fold("What overlays the phases", lambda: show_table(table, key="overlays of the step"), key="overlays of the step")


def choose(run: LiveRun, state: PageState) -> PageState:
    """Let the visitor choose a rank and a range of steps, and keep the choice in the address."""
    ranks = run.rank_numbers
    chosen = state.ranks[0] if state.ranks and state.ranks[0] in ranks else None
    options = [None, *ranks]
    last = run.last_step
    with st.sidebar:
        rank = say.selectbox(
            "Rank",
            options,
            index=options.index(chosen),
            format_func=lambda each: ALL_RANKS if each is None else str(each),
        )
        first_step = say.number_input("From step", 0, last, _within(state.first_step, last), placeholder="the last 200")
        last_step = say.number_input("To step", 0, last, _within(state.last_step, last), placeholder="the last")
    state = replace(state, ranks=() if rank is None else (rank,), first_step=first_step, last_step=last_step)
    remember(state)
    return state


def _within(value: int | None, last: int) -> int | None:
    return None if value is None else min(value, last)


def draw_trace(source: Source, state: PageState) -> None:
    """Draw the steps of traces: the device's time over all ranks, and one step on every rank."""
    report = load_traces(source)
    say_traces(report)
    analysis = report.results.analysis
    if not analysis.steps:
        say.info(
            say.words(
                "The traces hold no steps: call `profiler.step()` in the loop, or capture with `scope run --capture`."
            ),
            icon=":material/inbox:",
        )
        return
    numbers = [step.number for step in analysis.steps]
    bars = step_bars(analysis)
    points = choose_points(step_breakdown(bars), None, key="device time of steps")
    show_report_table(steps_table(analysis), key="steps")
    step = clicked(points, numbers, bars.num_merged)
    if step is None:
        step = state.step if state.step in numbers else numbers[0]
    remember(replace(state, step=step))
    say.subheader(f"Step {step} on every rank")
    title = f"Where step {step} went on every rank"
    show_figure(rank_breakdown(rank_step_bars(analysis, step), title=title), None, key="one step of the traces")
    show_report_table(rank_steps_table(analysis, step), key="one step by rank")


def main() -> None:
    """Draw the page."""
    question = "How long did each step take, and where did it go?"
    source, state = open_page("Steps", question, ("run", "trace"))
    if source.kind == "trace":
        draw_trace(source, state)
        return
    run = load_run(source)
    chosen = choose(run, state)
    on_each_refresh(run, lambda: draw_steps(run, chosen))


main()
