"""Ranks: who works longer than the others, when, and on what."""

from __future__ import annotations

import polars as pl
import streamlit as st

from dashboards.shell import open_page, say_age, settings, show_figure, show_table
from dashboards.sources.runs import LiveRun, load_run
from dashboards.words import say_problems
from scope.analysis.recorded import RankExcess
from scope.analysis.recorded.ranks import BUSY_NS
from scope.frames.schema import Ranks, RankSteps
from scope.report.figures import HeatAxes, HeatCells, StackedTimes, heat_map, rank_breakdown
from scope.units import NS_PER_MS

MAX_BARS = 64


def cells_of(heat: pl.DataFrame) -> tuple[pl.DataFrame, list[str], list[str]]:
    """Return the cells of the heat map in milliseconds, and the names of its columns and rows."""
    steps = heat[RankSteps.step].unique().sort()
    ranks = heat[RankSteps.rank].unique().sort()
    cells = heat.select(
        pl.col(RankSteps.step).replace_strict(steps, range(len(steps)), return_dtype=pl.Int64).alias(HeatCells.x),
        pl.col(RankSteps.rank).replace_strict(ranks, range(len(ranks)), return_dtype=pl.Int64).alias(HeatCells.y),
        (pl.col(BUSY_NS) / NS_PER_MS).alias(HeatCells.value),
    )
    return cells, [str(step) for step in steps], [str(rank) for rank in ranks]


def draw_ranks(run: LiveRun) -> None:
    """Draw the heat map, the excess of each rank and the ranks themselves."""
    run.refresh()
    say_age(run.last_ns, live=run.is_live, synthetic=run.info.synthetic)
    heat = run.heat()
    if heat.is_empty():
        st.info("No step has ended yet.", icon=":material/hourglass_empty:")
        return
    cells, steps, ranks = cells_of(heat)
    middle = cells[HeatCells.value].median()
    axes = HeatAxes(
        title="Time not spent waiting for others",
        x_title="Step",
        y_title="Rank",
        x_labels=steps,
        y_labels=ranks,
        value_title="busy (ms)",
        scale="diverging",
        middle=middle if isinstance(middle, float) else None,
    )
    show_figure(heat_map(cells, axes), heat, key="busy time by rank and step")
    draw_excess(run)
    with st.expander("The ranks"):
        show_table(run.ranks.drop(Ranks.pid), key="ranks")
    say_problems(run)


def draw_excess(run: LiveRun) -> None:
    """Draw by how much each rank exceeds the median rank, and in which phase."""
    excess = run.excess()
    if excess.is_empty():
        st.info("No wait in communication was seen, so a slow rank cannot be told from its victims.")
        return
    worst = excess.head(MAX_BARS)
    bars = StackedTimes(
        labels=[f"rank {rank}" for rank in worst[RankExcess.rank]],
        parts={
            "median rank": worst.select(pl.min_horizontal(RankExcess.busy_ns, RankExcess.peers_busy_ns))
            .to_series()
            .to_list(),
            "excess": worst[RankExcess.excess_ns].clip(lower_bound=0).to_list(),
        },
    )
    show_figure(rank_breakdown(bars), excess, key="excess over the median rank")


def main() -> None:
    """Draw the page."""
    source, _ = open_page("Ranks", "Which rank works longer than its peers, when, and on what?", ("run",))
    refresh_s = settings().refresh_s
    run = load_run(source.place, refresh_s=refresh_s)
    st.fragment(draw_ranks, run_every=refresh_s if run.is_live else None)(run)


main()
