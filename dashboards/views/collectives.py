"""Collectives: how large, how fast, and how much of their time is waiting for the last rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

import streamlit as st

from dashboards.shell import open_page, say_age, settings, show_figure, show_report_table
from dashboards.sources.runs import LiveRun, load_run
from dashboards.sources.traces import load_traces
from scope.analysis.recorded import CollectiveSummary
from scope.report.figures import CollectiveBubble, collective_bandwidth
from scope.report.inert import markdown_text
from scope.report.sections.collectives import collectives_table, exposed_table, rank_waits_table

if TYPE_CHECKING:
    import polars as pl


def bubbles_of(collectives: pl.DataFrame) -> list[CollectiveBubble]:
    """Return one bubble a row of the table `CollectiveSummary` whose size and bandwidth are known."""
    known = collectives.drop_nulls(
        [CollectiveSummary.message_bytes, CollectiveSummary.busbw_at_least_bytes_per_s, CollectiveSummary.duration_ns]
    )
    return [
        CollectiveBubble(
            operation=row[CollectiveSummary.operation],
            detail=f"{row[CollectiveSummary.mesh_axis] or 'group'} of {row[CollectiveSummary.group_size]}",
            message_bytes=round(row[CollectiveSummary.message_bytes]),
            busbw_bytes_per_s=row[CollectiveSummary.busbw_at_least_bytes_per_s],
            total_ns=row[CollectiveSummary.duration_ns],
            count=row[CollectiveSummary.num_calls],
        )
        for row in known.iter_rows(named=True)
    ]


def draw_run(run: LiveRun) -> None:
    """Draw the collectives of a recorded run."""
    run.refresh()
    say_age(run.last_ns, live=run.is_live, synthetic=run.info.synthetic)
    collectives = run.collectives()
    if collectives.is_empty():
        st.info("No collective was recorded: one rank alone, or the recorder saw none (see Data quality).")
        return
    show_figure(collective_bandwidth(bubbles_of(collectives), []), collectives, key="size against bandwidth")
    st.caption(
        "Bandwidth is at least this: it counts from issue to completion, the wait for late ranks included. Captured "
        "traces tell wait and transfer apart."
    )


def draw_trace(place: str) -> None:
    """Draw the collectives of traces."""
    results = load_traces(place).results
    if results.collectives is None:
        st.info(markdown_text(f"No collectives: {results.absent['collectives']}."), icon=":material/inbox:")
        return
    show_report_table(collectives_table(results.collectives), key="collectives")
    st.subheader("Communication that nothing hid")
    show_report_table(exposed_table(results.exposed), key="exposed")
    st.subheader("Waits by rank")
    show_report_table(rank_waits_table(results.collectives), key="waits")


def main() -> None:
    """Draw the page."""
    question = "How fast is communication, and how much of it is waiting for the last rank?"
    source, _ = open_page("Collectives", question, ("run", "trace"))
    if source.kind == "trace":
        draw_trace(source.place)
        return
    refresh_s = settings().refresh_s
    run = load_run(source.place, refresh_s=refresh_s)
    st.fragment(draw_run, run_every=refresh_s if run.is_live else None)(run)


main()
