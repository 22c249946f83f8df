"""Memory: peaks of every step against what the device has, and how much of it is fragmented."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import polars as pl
import streamlit as st

from dashboards import say
from dashboards.plots import show_figure
from dashboards.shell import load_run, on_each_refresh, open_page, remember, say_age, say_traces
from dashboards.sources.traces import load_traces
from dashboards.tables import show_report_table, show_table
from dashboards.words import metric
from scope.frames.schema import PhaseMemory, Ranks, RankSteps
from scope.report.figures import Samples, memory_over_time
from scope.report.page_figures import memory_capacities, memory_samples
from scope.report.sections.memory import holders_table, memory_table
from scope.units import format_bytes, format_ratio

if TYPE_CHECKING:
    from dashboards.sources.catalogue import Source
    from dashboards.sources.runs import LiveRun
    from dashboards.state import PageState

LINES = {
    RankSteps.allocated_peak_bytes: "allocated peak",
    RankSteps.reserved_peak_bytes: "reserved peak",
    RankSteps.resident_peak_bytes: "resident set of the process",
    RankSteps.other_memory_bytes: "not torch's",
}


def samples_of(steps: pl.DataFrame) -> pl.DataFrame:
    """Return the lines of one rank's memory, one point a step; a quantity that is never known has no line."""
    lines = [
        steps.select(
            pl.lit(name).alias(Samples.name),
            pl.col(RankSteps.end_ns).alias(Samples.time_ns),
            pl.col(column).cast(pl.Float64).alias(Samples.value),
        )
        for column, name in LINES.items()
        if steps[column].null_count() < steps.height
    ]
    return pl.concat([Samples.empty(), *lines])


def draw_memory(run: LiveRun, rank: int) -> None:
    """Draw the memory of one rank."""
    say_age(run)
    steps = run.steps_of(rank)
    samples = samples_of(steps)
    if samples.is_empty():
        say.info("This rank has recorded no memory.", icon=":material/memory:")
        return
    capacity = run.ranks.filter(pl.col(Ranks.rank) == rank)[Ranks.device_memory_bytes].last()
    draw_figures(steps, capacity if isinstance(capacity, int) else None)
    kind = run.ranks.filter(pl.col(Ranks.rank) == rank)[Ranks.device_kind].last()
    whose = "memory of the machine" if kind == "cpu" else "memory of the device"
    limits = {whose: float(capacity)} if isinstance(capacity, int) else {}
    columns = (RankSteps.step, *LINES, RankSteps.fragmentation_ratio, RankSteps.num_alloc_retries)
    show_figure(memory_over_time(samples, capacities=limits), steps.select(*columns), key="memory over time")
    phases = run.memory_by_phase(rank)
    if not phases.is_empty():
        say.subheader(f"Largest memory in each phase, rank {rank}")
        # So the recorder names the one part of a step whose loop tells no phases.
        named = phases.with_columns(pl.col(PhaseMemory.phase).cast(pl.String).replace("step", "step without phases"))
        show_table(named, key="memory by phase")
    peaks = run.memory_by_rank()
    say.subheader("Largest memory of each rank")
    show_table(peaks, key="memory by rank")


def draw_trace(source: Source) -> None:
    """Draw the memory that traces have recorded."""
    report = load_traces(source)
    say_traces(report)
    results = report.results
    samples = memory_samples(results)
    if samples.is_empty():
        say.info(
            say.words(
                "The traces hold no memory events: record with `profile_memory=True`, or look at the recorded run."
            ),
            icon=":material/memory:",
        )
        return
    show_figure(memory_over_time(samples, capacities=memory_capacities(results)), None, key="memory of the traces")
    show_report_table(memory_table(results.analysis), key="peaks")
    say.subheader("What held it at the peak")
    show_report_table(holders_table(results.analysis), key="holders")


def draw_figures(steps: pl.DataFrame, capacity: int | None) -> None:
    """Draw the row of figures: largest peak, headroom, fragmentation, retries."""
    row = st.container(horizontal=True, gap="medium")
    kind = RankSteps.reserved_peak_bytes
    if steps[kind].null_count() == steps.height:
        kind = RankSteps.resident_peak_bytes
    peak = steps[kind].max()
    peak_bytes = peak if isinstance(peak, int) else None
    metric(row, f"Largest {LINES[kind]}", peak_bytes, "not recorded", format_bytes)
    headroom = None if peak_bytes is None or capacity is None else capacity - peak_bytes
    metric(row, "Headroom", headroom, "the memory of the device is not known", format_bytes)
    unknown = "only a CUDA allocator has it"
    fragmentation: list[float] = steps[RankSteps.fragmentation_ratio].drop_nulls().tail(1).to_list()
    metric(row, "Fragmentation", fragmentation[0] if fragmentation else None, unknown, format_ratio)
    retries = steps[RankSteps.num_alloc_retries].drop_nulls()
    metric(row, "Allocator retries", retries.sum() if len(retries) else None, unknown, str)


def choose_rank(run: LiveRun, state: PageState) -> int | None:
    """Let the visitor choose a rank, and keep it in the address."""
    ranks = run.rank_numbers
    if not ranks:
        return None
    index = ranks.index(state.ranks[0]) if state.ranks and state.ranks[0] in ranks else 0
    with st.sidebar:
        rank = say.selectbox("Rank", ranks, index=index)
    remember(replace(state, ranks=(rank,)))
    return rank


def main() -> None:
    """Draw the page."""
    question = "How much memory does each step need, and how much is left?"
    source, state = open_page("Memory", question, ("run", "trace"))
    if source.kind == "trace":
        draw_trace(source)
        return
    run = load_run(source)
    rank = choose_rank(run, state)
    if rank is None:
        say.info("No rank has begun to record yet.", icon=":material/hourglass_empty:")
        return
    on_each_refresh(run, lambda: draw_memory(run, rank))


main()
