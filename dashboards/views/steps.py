"""Steps: how long each step took and in which phases, over all ranks or on one."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import polars as pl
import streamlit as st

from dashboards.shell import keep_state, open_page, say_age, settings, show_figure, show_table
from dashboards.sources.runs import LiveRun, load_run
from scope.analysis.recorded import StepSummary
from scope.frames.schema import PHASE_COLUMNS, RankSteps
from scope.report.figures import StackedTimes, phase_breakdown

if TYPE_CHECKING:
    from dashboards.state import PageState

SHOWN_STEPS = 200
ALL_RANKS = "slowest of all ranks"


def steps_shown(run: LiveRun, state: PageState) -> pl.DataFrame:
    """Return the steps of the chosen rank and range: number, length and phases, the last 200 by default."""
    if state.ranks:
        steps = run.of_attempt.filter(pl.col(RankSteps.rank) == state.ranks[0]).collect()
    else:
        steps = run.by_step().filter(pl.col(StepSummary.attempt) == run.attempt)
    number = pl.col(RankSteps.step)
    if state.first_step is None and state.last_step is None:
        return steps.tail(SHOWN_STEPS)
    first, last = state.first_step or 0, state.last_step
    return steps.filter(number >= first if last is None else number.is_between(first, last))


def bars_of(steps: pl.DataFrame) -> StackedTimes:
    """Return one bar a step, made of the phases that occur."""
    present = [phase for phase in PHASE_COLUMNS if steps[phase].sum()]
    return StackedTimes(
        labels=[str(step) for step in steps[RankSteps.step]],
        parts={phase.removesuffix("_ns"): steps[phase].to_list() for phase in present},
    )


def draw_steps(run: LiveRun, state: PageState) -> None:
    """Draw the phases of the chosen steps."""
    run.refresh()
    say_age(run.last_ns, live=run.is_live, synthetic=run.info.synthetic)
    steps = steps_shown(run, state)
    if steps.is_empty():
        st.info("No step in this range has ended yet.", icon=":material/hourglass_empty:")
        return
    show_figure(phase_breakdown(bars_of(steps)), steps, key="phases of steps")
    if state.step is not None:
        draw_one(run, state.step)


def draw_one(run: LiveRun, step: int) -> None:
    """Draw one step on every rank."""
    of_step = run.of_attempt.filter(pl.col(RankSteps.step) == step).sort(RankSteps.rank).collect()
    st.subheader(f"Step {step} on every rank")
    if of_step.is_empty():
        st.info("No rank has recorded this step.")
        return
    present = [phase for phase in PHASE_COLUMNS if of_step[phase].sum()]
    bars = StackedTimes(
        labels=[f"rank {rank}" for rank in of_step[RankSteps.rank]],
        parts={phase.removesuffix("_ns"): of_step[phase].to_list() for phase in present},
    )
    show_figure(phase_breakdown(bars), of_step.drop(RankSteps.custom_phases), key="one step")
    wait = pl.col(RankSteps.communication_wait_ns)
    show_table(of_step.select(RankSteps.rank, RankSteps.duration_ns, wait, RankSteps.gc_ns), key="overlays of the step")


def choose(run: LiveRun, state: PageState) -> PageState:
    """Let the visitor choose a rank, a range and a step, and keep the choice in the address."""
    ranks = run.steps[RankSteps.rank].unique().sort().to_list()
    chosen = state.ranks[0] if state.ranks and state.ranks[0] in ranks else None
    options = [None, *ranks]
    with st.sidebar:
        rank = st.selectbox(
            "Rank",
            options,
            index=options.index(chosen),
            format_func=lambda each: ALL_RANKS if each is None else str(each),
        )
        last = run.last_step
        first_step = st.number_input("From step", 0, last, state.first_step, placeholder="the last 200")
        last_step = st.number_input("To step", 0, last, state.last_step, placeholder="the last")
        step = st.number_input("Look at step", 0, last, state.step, placeholder="none")
    state = replace(state, ranks=() if rank is None else (rank,), first_step=first_step, last_step=last_step, step=step)
    keep_state(state)
    return state


def main() -> None:
    """Draw the page."""
    source, state = open_page("Steps", "How long did each step take, and in which phases?", ("run",))
    refresh_s = settings().refresh_s
    run = load_run(source.place, refresh_s=refresh_s)
    state = choose(run, state)
    st.fragment(draw_steps, run_every=refresh_s if run.is_live else None)(run, state)


main()
