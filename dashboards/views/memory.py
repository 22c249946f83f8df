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
    peaks = run.memory_by_rank()
    ranks = run.ranks.filter(pl.col(Ranks.attempt) == run.attempt)
    draw_figures(steps, peaks, ranks, rank)
    capacity, kind = memory_of(ranks, rank)
    whose = "memory of the machine" if kind == "cpu" else "memory of the device"
    limits = {whose: float(capacity)} if capacity is not None else {}
    columns = (RankSteps.step, *LINES, RankSteps.fragmentation_ratio, RankSteps.num_alloc_retries)
    figure = memory_over_time(samples, capacities=limits, whose=f", rank {rank}")
    show_figure(figure, steps.select(*columns), key="memory over time")
    phases = run.memory_by_phase(rank)
    if not phases.is_empty():
        say.subheader(f"Largest memory in each phase, rank {rank}")
        # So the recorder names the one part of a step whose loop tells no phases.
        named = phases.with_columns(pl.col(PhaseMemory.phase).cast(pl.String).replace("step", "step without phases"))
        show_table(named, key="memory by phase")
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


def memory_of(ranks: pl.DataFrame, rank: int) -> tuple[int | None, str | None]:
    """Return the memory of what a rank runs on, and its kind, as far as they are known.

    Args:
        ranks: The table `Ranks` of one attempt.
        rank: Its number.
    """
    own = ranks.filter(pl.col(Ranks.rank) == rank)
    capacity = own[Ranks.device_memory_bytes].last() if own.height else None
    kind = own[Ranks.device_kind].last() if own.height else None
    return capacity if isinstance(capacity, int) else None, kind if isinstance(kind, str) else None


def headroom_of(peaks: pl.DataFrame, ranks: pl.DataFrame, rank: int, kind: str) -> tuple[str, int | None]:
    """Return what is left of a rank's memory at its largest, and which memory that is.

    A device is its rank's alone; the memory of a machine is shared, so the largest of all its ranks is taken off.

    Args:
        peaks: Largest memory of each rank.
        ranks: The table `Ranks` of the same attempt.
        rank: Its number.
        kind: The column of `peaks` that counts.
    """
    capacity, device = memory_of(ranks, rank)
    sharing, label = [rank], f"Headroom, rank {rank}"
    if device == "cpu":
        host = ranks.filter(pl.col(Ranks.rank) == rank)[Ranks.host].last()
        sharing = ranks.filter(pl.col(Ranks.host) == host)[Ranks.rank].unique().to_list()
        label = "Memory of the machine less its ranks' largest"
    taken = peaks.filter(pl.col(RankSteps.rank).is_in(sharing))[kind]
    if capacity is None or len(taken) < len(sharing) or taken.null_count():
        return label, None
    return label, capacity - int(taken.sum())


def draw_figures(steps: pl.DataFrame, peaks: pl.DataFrame, ranks: pl.DataFrame, rank: int) -> None:
    """Draw the row of figures: largest peak of all ranks, headroom, fragmentation and retries of one.

    Args:
        steps: The steps of the rank.
        peaks: Largest memory of each rank.
        ranks: The table `Ranks` of the same attempt.
        rank: Its number.
    """
    row = st.container(horizontal=True, gap="medium")
    kind = RankSteps.reserved_peak_bytes
    if steps[kind].null_count() == steps.height:
        kind = RankSteps.resident_peak_bytes
    known = peaks.drop_nulls(kind).sort(kind, RankSteps.rank, descending=[True, False])
    of_rank, peak = known.select(RankSteps.rank, kind).row(0) if known.height else (None, None)
    whose = f", rank {of_rank}" if of_rank is not None else ""
    metric(row, f"Largest {LINES[kind]}{whose}", peak, "not recorded", format_bytes)
    label, headroom = headroom_of(peaks, ranks, rank, kind)
    metric(row, label, headroom, "the memory of the device, or of a rank on it, is not known", format_bytes)
    unknown = "only a CUDA allocator has it"
    fragmentation: list[float] = steps[RankSteps.fragmentation_ratio].drop_nulls().tail(1).to_list()
    metric(row, f"Fragmentation, rank {rank}", fragmentation[0] if fragmentation else None, unknown, format_ratio)
    retries = steps[RankSteps.num_alloc_retries].drop_nulls()
    metric(row, f"Allocator retries, rank {rank}", retries.sum() if len(retries) else None, unknown, str)


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
