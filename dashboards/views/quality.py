"""Data quality: what is missing, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl
import streamlit as st

from dashboards.shell import (
    load_run,
    on_each_refresh,
    open_page,
    say_age,
    say_error,
    say_traces,
    show_report_table,
    show_table,
)
from dashboards.sources.prometheus import Prometheus, labels_table
from dashboards.sources.traces import load_traces
from dashboards.words import say_problems
from scope.errors import ScopeError
from scope.frames.schema import Events, Ranks, RankSteps
from scope.report.inert import markdown_text
from scope.report.sections.collectives import clock_table
from scope.report.sections.quality import quality_table

if TYPE_CHECKING:
    from dashboards.sources.catalogue import Source
    from dashboards.sources.runs import LiveRun

QUESTIONS: Final = {
    "Exporters that answer (1) or not (0)": "up",
    "Seconds since the last sample": "scope_exporter_sample_age_seconds",
    "Collectors that work (1) or not (0)": "scope_collector_up",
    "Records that the recorder dropped": "sum by (run, rank) (scope_train_dropped_records_total)",
}


def draw_trace(source: Source) -> None:
    """Draw how far the traces can be trusted."""
    report = load_traces(source)
    say_traces(report)
    for warning in report.results.job.warnings:
        st.warning(markdown_text(warning), icon=":material/warning:")
    show_report_table(quality_table(report.results.analysis), key="quality")
    if report.results.collectives is not None:
        st.subheader("Clocks")
        show_report_table(clock_table(report.results.collectives), key="clocks")
    for name, reason in sorted(report.results.absent.items()):
        st.caption(f"No {markdown_text(name.replace('_', ' '))}: {markdown_text(reason)}.")


def draw_server(source: Source) -> None:
    """Draw which exporters answer, how old their samples are, and which collectors fail."""
    server = Prometheus(address=source.place)
    try:
        answers = {title: server.query(expression) for title, expression in QUESTIONS.items()}
    except ScopeError as error:
        say_error(error)
        return
    for title, series in answers.items():
        st.subheader(title)
        if series:
            show_table(labels_table(series), key=title)
        else:
            st.caption("The server has no such series.")


def draw_run(run: LiveRun) -> None:
    """Draw what a recorded run lacks: ranks, records, wait sites, coverage of collectives."""
    say_age(run)
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
    source, _ = open_page("Data quality", "What is missing, and why?", ("run", "trace", "prometheus"))
    if source.kind == "trace":
        draw_trace(source)
    elif source.kind == "prometheus":
        draw_server(source)
    else:
        run = load_run(source)
        on_each_refresh(run, lambda: draw_run(run))


main()
