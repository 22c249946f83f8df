"""Data quality: what is missing, and why."""

from __future__ import annotations

import polars as pl
import streamlit as st

from dashboards.shell import open_page, say_age, settings, show_report_table, show_table
from dashboards.sources.runs import LiveRun, load_run
from dashboards.sources.traces import load_traces
from dashboards.words import say_problems
from scope.frames.schema import Events, Ranks, RankSteps
from scope.report.inert import markdown_text
from scope.report.sections.quality import quality_table


def draw_trace(place: str) -> None:
    """Draw how far the traces can be trusted."""
    report = load_traces(place)
    for warning in report.results.job.warnings:
        st.warning(markdown_text(warning), icon=":material/warning:")
    show_report_table(quality_table(report.results.analysis), key="quality")
    for name, reason in sorted(report.results.absent.items()):
        st.caption(f"No {markdown_text(name.replace('_', ' '))}: {markdown_text(reason)}.")


def draw_run(run: LiveRun) -> None:
    """Draw what a recorded run lacks: ranks, records, wait sites, coverage of collectives."""
    say_age(run.last_ns, live=run.is_live, synthetic=run.info.synthetic)
    if run.ranks.is_empty():
        st.info("No rank has begun to record yet.", icon=":material/hourglass_empty:")
        return
    say_problems(run)
    by_rank = run.of_attempt.group_by(RankSteps.rank).agg(
        pl.len().alias("steps"),
        pl.col(RankSteps.num_dropped).sum(),
        (pl.col(RankSteps.recorder_ns).sum() / pl.col(RankSteps.duration_ns).sum()).alias("recorder_ratio"),
        pl.col(RankSteps.communication_wait_coverage_ratio).min().alias("wait_coverage_ratio"),
        pl.col(RankSteps.communication_wait_ns).is_not_null().sum().alias("steps_with_known_wait"),
        pl.col(RankSteps.disturbed).is_not_null().sum().alias("disturbed_steps"),
    )
    routes = run.ranks.filter(pl.col(Ranks.attempt) == run.attempt).select(Ranks.rank, Ranks.collectives_route)
    show_table(by_rank.collect().join(routes, on=RankSteps.rank, how="full", coalesce=True).sort("rank"), key="by rank")
    coverage = run.events().filter(pl.col(Events.kind).is_in(["coverage", "hook_disabled", "warning"]))
    if not coverage.is_empty():
        st.subheader("What recording has to say")
        show_table(coverage, key="remarks")


def main() -> None:
    """Draw the page."""
    source, _ = open_page("Data quality", "What is missing, and why?", ("run", "trace"))
    if source.kind == "trace":
        draw_trace(source.place)
    else:
        draw_run(load_run(source.place, refresh_s=settings().refresh_s))


main()
