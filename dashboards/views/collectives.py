"""Collectives: how large, how fast, and how much of their time is waiting for the last rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dashboards import say
from dashboards.plots import show_figure
from dashboards.shell import load_run, on_each_refresh, open_page, say_age, say_traces
from dashboards.sources.traces import load_traces
from dashboards.tables import fold, show_report_table
from scope.analysis.recorded import CollectiveSummary
from scope.report.figures import CollectiveBubble, collective_bandwidth, parts_by_time, wait_and_transfer
from scope.report.page_figures import bandwidth_figure, lateness_figure, wait_bars
from scope.report.run_state import name_groups
from scope.report.sections.collectives import (
    collective_roofline_table,
    collectives_table,
    exposed_table,
    rank_waits_table,
)

if TYPE_CHECKING:
    import polars as pl

    from dashboards.sources.catalogue import Source
    from dashboards.sources.runs import LiveRun


def bubbles_of(collectives: pl.DataFrame) -> list[CollectiveBubble]:
    """Return one bubble a row of the table `CollectiveSummary` whose size and bandwidth are known."""
    known = collectives.drop_nulls(
        [CollectiveSummary.message_bytes, CollectiveSummary.busbw_at_least_bytes_per_s, CollectiveSummary.duration_ns]
    )
    return [
        CollectiveBubble(
            operation=row[CollectiveSummary.operation],
            detail=f"{name_groups(row)} of {row[CollectiveSummary.group_size]}",
            message_bytes=round(row[CollectiveSummary.large_message_bytes] or row[CollectiveSummary.message_bytes]),
            busbw_bytes_per_s=row[CollectiveSummary.busbw_at_least_bytes_per_s],
            total_ns=row[CollectiveSummary.duration_ns],
            count=row[CollectiveSummary.num_calls],
        )
        for row in known.iter_rows(named=True)
    ]


def draw_run(run: LiveRun) -> None:
    """Draw the collectives of a recorded run."""
    say_age(run)
    collectives = run.collectives()
    if collectives.is_empty():
        say.info("No collective was recorded: one rank alone, or the recorder saw none (see Data quality).")
        return
    draw_time(collectives)
    show_figure(collective_bandwidth(bubbles_of(collectives), []), collectives, key="size against bandwidth")
    say.caption(
        "Bandwidth is at least this: it counts from issue to completion, the wait for late ranks included. Captured "
        "traces tell wait and transfer apart, and know the ceilings of the links."
    )


def draw_time(collectives: pl.DataFrame) -> None:
    """Draw how long calls took by operation and axis, over all ranks."""
    known = collectives.drop_nulls(CollectiveSummary.duration_ns)
    parts: dict[str, int] = {}
    for row in known.iter_rows(named=True):
        name = f"{row[CollectiveSummary.operation]} over {name_groups(row)}"
        parts[name] = parts.get(name, 0) + row[CollectiveSummary.duration_ns]
    if parts:
        title = "Issue to completion, added over all calls of all ranks"
        figure = parts_by_time(parts, title=title, whole_ns=sum(parts.values()))
        show_figure(figure, None, key="time of collectives")


def draw_trace(source: Source) -> None:
    """Draw the collectives of traces."""
    report = load_traces(source)
    say_traces(report)
    results = report.results
    if results.collectives is None:
        say.info(f"No collectives: {results.absent['collectives']}.", icon=":material/inbox:")
        return
    if results.collective_roofline is not None:
        show_figure(bandwidth_figure(results.collective_roofline), None, key="size against bandwidth")
        table = collective_roofline_table(results.collective_roofline)
        fold("Table and ceilings", lambda: show_report_table(table, key="size and bandwidth"), key="size and bandwidth")
    if results.stragglers is not None:
        show_figure(wait_and_transfer(wait_bars(results)), None, key="wait against transfer")
        show_figure(lateness_figure(results.collectives), None, key="arrival skew")
    say.subheader("Collectives")
    show_report_table(collectives_table(results.collectives), key="collectives")
    say.subheader("Communication that nothing hid")
    show_report_table(exposed_table(results.exposed), key="exposed")
    say.subheader("Waits by rank")
    show_report_table(rank_waits_table(results.collectives), key="waits")


def main() -> None:
    """Draw the page."""
    question = "How fast is communication, and how much of it is waiting for the last rank?"
    source, _ = open_page("Collectives", question, ("run", "trace"))
    if source.kind == "trace":
        draw_trace(source)
        return
    run = load_run(source)
    on_each_refresh(run, lambda: draw_run(run))


main()
