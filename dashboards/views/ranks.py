"""Ranks: who works longer than the others, when, and on what."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from dashboards import say
from dashboards.findings import draw_slow_ranks
from dashboards.plots import show_figure
from dashboards.shell import load_run, on_each_refresh, open_page, say_age, say_traces
from dashboards.sources.traces import load_traces
from dashboards.tables import fold, show_report_table, show_table
from dashboards.words import say_problems
from scope.analysis.medians import lower_median_ns
from scope.analysis.recorded import RankExcess, mesh_axes, summarize_excess_by_group
from scope.analysis.recorded.ranks import BUSY_NS
from scope.frames.schema import Ranks, RankSteps
from scope.report.figures import HeatAxes, HeatCells, StackedTimes, heat_map, phase_breakdown, rank_excess
from scope.report.page_figures import rank_steps_figure
from scope.report.sections.stragglers import stragglers_table
from scope.units import NS_PER_MS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dashboards.sources.catalogue import Source
    from dashboards.sources.runs import LiveRun

MAX_BARS = 64
LONGER_NS = "longer_ns"
OUTER_SHARES = (0.02, 0.98)


def beside_peers(heat: pl.DataFrame, peers: Mapping[int, int]) -> pl.DataFrame:
    """Return the busy time of each rank and step less the median of its peers in that step, as `longer_ns`.

    A step that is long for all, the first above all, singles out nobody.

    Args:
        heat: `rank`, `step` and `busy_ns`, of `bin_rank_steps`.
        peers: The set of peers of each rank; those in none are each other's.
    """
    of_rank = pl.col(RankSteps.rank)
    group = of_rank.replace_strict(dict(peers), default=-1, return_dtype=pl.Int64) if peers else pl.lit(-1)
    busy = pl.col(BUSY_NS)
    usual = lower_median_ns(busy)
    return heat.with_columns((busy - usual.over(RankSteps.step, group)).alias(LONGER_NS))


def reach_of(heat: pl.DataFrame) -> float | None:
    """Return the milliseconds that the colours reach up to: 96 % of the cells without the first step lie within.

    Args:
        heat: What `beside_peers` returns.
    """
    later = heat.filter(pl.col(RankSteps.step) > pl.col(RankSteps.step).min())[LONGER_NS]
    ends = [later.quantile(share) for share in OUTER_SHARES]
    return max((abs(end) for end in ends if end is not None), default=0.0) / NS_PER_MS or None


def cells_of(heat: pl.DataFrame) -> tuple[pl.DataFrame, list[str], list[str]]:
    """Return the cells of the heat map in milliseconds, and the names of its columns and rows."""
    steps = heat[RankSteps.step].unique().sort()
    ranks = heat[RankSteps.rank].unique().sort()
    cells = heat.select(
        pl.col(RankSteps.step).replace_strict(steps, range(len(steps)), return_dtype=pl.Int64).alias(HeatCells.x),
        pl.col(RankSteps.rank).replace_strict(ranks, range(len(ranks)), return_dtype=pl.Int64).alias(HeatCells.y),
        (pl.col(LONGER_NS) / NS_PER_MS).alias(HeatCells.value),
    )
    return cells, [str(step) for step in steps], [str(rank) for rank in ranks]


def draw_ranks(run: LiveRun) -> None:
    """Draw the excess of each rank, the heat map, groups by mesh axis, and the ranks themselves."""
    say_age(run)
    if run.heat().is_empty():
        say.info("No step has ended yet.", icon=":material/hourglass_empty:")
        return
    draw_excess(run)
    draw_heat(run)
    draw_groups(run)
    fold("The ranks", lambda: show_table(run.ranks.drop(Ranks.pid), key="ranks"), key="ranks")
    say_problems(run)


def draw_heat(run: LiveRun) -> None:
    """Draw when each rank works longer or shorter than its peers."""
    heat = run.heat()
    # Rows of several ranks are nobody's peers: they are compared with all.
    is_binned = heat[RankSteps.rank].n_unique() < len(run.rank_numbers)
    heat = beside_peers(heat, {} if is_binned else run.peers())
    cells, steps, ranks = cells_of(heat)
    axes = HeatAxes(
        title="Busy time of each step beside that of the median peer",
        x_title="Step",
        y_title="Rank",
        x_labels=steps,
        y_labels=ranks,
        value_title="longer (+), shorter (-), ms",
        scale="diverging",
        middle=0.0,
        reach=reach_of(heat),
    )
    show_figure(heat_map(cells, axes), heat, key="busy time by rank and step")
    say.caption(
        "Red: the rank works longer than its peers in that step; blue: shorter; waiting is not counted. "
        "The first step and the outer 2 % on either side do not stretch the scale."
    )


def draw_excess(run: LiveRun) -> None:
    """Draw by how much each rank exceeds the median of its peers, and in which phase."""
    excess = run.excess()
    draw_slow_ranks(run, stands_still=run.state().standing == "no step")
    if excess.is_empty():
        return
    worst = excess.head(MAX_BARS)
    usual = worst.select(pl.min_horizontal(RankExcess.busy_ns, RankExcess.peers_busy_ns)).to_series()
    bars = StackedTimes(
        labels=[str(rank) for rank in worst[RankExcess.rank]],
        parts={
            "as the median peer": usual.to_list(),
            "excess": worst[RankExcess.excess_ns].clip(lower_bound=0).to_list(),
        },
    )
    show_figure(rank_excess(bars), excess, key="excess over the median peer")
    if run.peers():
        say.caption("Peers of a rank: the ranks at its place of every axis of the device mesh but data parallel.")
    else:
        say.caption("All ranks are taken for peers: no rank names an axis of its device mesh.")
    if excess.height > MAX_BARS:
        say.caption(f"The {MAX_BARS} slowest of {excess.height:,} ranks; the table has all.")


def draw_groups(run: LiveRun) -> None:
    """Draw the work of each group of ranks along an axis of the device mesh."""
    infos = [info for info in run.run.rank_infos if info.attempt == run.attempt]
    axes = mesh_axes(infos)
    if not axes or run.excess().is_empty():
        return
    names = list(axes)
    place = say.selectbox("Groups along", range(len(names)), format_func=lambda each: names[each])
    groups = summarize_excess_by_group(run.excess(), axes[names[place or 0]])
    show_table(groups, key="work by group")


def draw_trace(source: Source) -> None:
    """Draw the stragglers of traces, with reasons."""
    report = load_traces(source)
    say_traces(report)
    results = report.results
    if results.stragglers is None:
        say.info(
            f"Nobody can be named: {results.absent.get('stragglers', 'unknown')}.",
            icon=":material/inbox:",
        )
    else:
        show = say.warning if results.stragglers.stragglers else say.success
        show(results.stragglers.verdict, icon=":material/person_alert:")
        slow = results.stragglers.stragglers[:MAX_BARS]
        if slow:
            bars = StackedTimes(
                labels=[str(each.rank) for each in slow], parts={"wait": [each.imposed_wait_ns for each in slow]}
            )
            title = "Wait that each rank imposes on its peers"
            show_figure(phase_breakdown(bars, title=title, axis="Rank"), None, key="imposed wait")
        show_report_table(stragglers_table(results.stragglers), key="stragglers")
    if results.analysis.steps and len(results.analysis.ranks) > 1:
        show_figure(rank_steps_figure(results.analysis), None, key="compute by rank and step")


def main() -> None:
    """Draw the page."""
    source, _ = open_page("Ranks", "Which rank works longer than its peers, when, and on what?", ("run", "trace"))
    if source.kind == "trace":
        draw_trace(source)
        return
    run = load_run(source)
    on_each_refresh(run, lambda: draw_ranks(run))


main()
