"""Overview: is it running, how fast against what it could be, what is wasted on what, and who is to blame."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl
import streamlit as st

from dashboards.shell import open_page, say_age, settings, show_figure, show_report_table, show_table
from dashboards.sources.runs import LiveRun, load_run
from dashboards.sources.traces import load_traces
from dashboards.words import metric, say_problems
from scope.analysis.recorded import RankExcess, RunSummary
from scope.report.figures import StackedTimes, rank_breakdown
from scope.report.inert import markdown_text
from scope.report.sections.breakdown import breakdown_table
from scope.units import format_duration, format_ratio

if TYPE_CHECKING:
    from scope.report.findings import Finding

WORST_RANKS = 3
BREAKDOWN_PARTS = ("compute", "exposed_communication", "exposed_memory", "idle")
NOTABLE_EXCESS = 0.05


def draw_run(run: LiveRun) -> None:
    """Draw the overview of a recorded run."""
    run.refresh()
    say_age(run.last_ns, live=run.is_live, synthetic=run.info.synthetic)
    if run.ranks.is_empty():
        st.info("No rank has begun to record yet.", icon=":material/hourglass_empty:")
        return
    summary = run.summary()
    draw_speed(summary)
    left, right = st.columns([2, 1])
    with left:
        draw_phases(summary)
    with right:
        draw_blame(run)
    say_problems(run)


def draw_speed(summary: RunSummary) -> None:
    """Draw the row of figures at the top."""
    speed = summary.speed
    columns = st.columns(6)
    of_all = f" of {summary.world_size}" if summary.world_size else ""
    columns[0].metric("Ranks recorded", f"{summary.num_ranks}{of_all}")
    metric(columns[1], "Last step", summary.last_step, summary.absent.get("last_step"), str)
    step_time = speed.step_time and speed.step_time.median_ns
    metric(columns[2], "Step time (median)", step_time, speed.absent.get("step_time"), format_duration)
    metric(columns[3], "Tokens/s", speed.tokens_per_s, speed.absent.get("tokens_per_s"), "{:,.0f}".format)
    metric(columns[4], "MFU", speed.mfu_ratio, speed.absent.get("mfu_ratio"), format_ratio)
    metric(columns[5], "Goodput", summary.goodput_ratio, summary.absent.get("goodput_ratio"), format_ratio)


def draw_phases(summary: RunSummary) -> None:
    """Draw where the host time of all ranks went."""
    phases = {name: length for name, length in summary.phases_ns.items() if length}
    bars = StackedTimes(labels=["all ranks"], parts={name: [length] for name, length in phases.items()})
    total = max(1, sum(phases.values()))
    table = pl.DataFrame(
        {
            "phase": list(phases),
            "host_ns": list(phases.values()),
            "share_ratio": [length / total for length in phases.values()],
        }
    )
    show_figure(rank_breakdown(bars), table, key="where the time went")
    if summary.communication_wait_ns is None:
        st.caption(f"Communication wait: unknown ({markdown_text(summary.absent['communication_wait_ns'])}).")
    else:
        share = format_ratio(summary.communication_wait_ns / total)
        st.caption(f"Of this, {share} is time that the host was blocked in communication (part of the phases above).")


def draw_blame(run: LiveRun) -> None:
    """Say which ranks are slower than their peers, and in which phase."""
    st.subheader("Who is to blame")
    for verdict in run.verdicts():
        if verdict.resolved_ns is None:
            st.error(markdown_text(verdict.summary), icon=":material/gavel:")
    excess = run.excess()
    if excess.is_empty():
        st.info("Unknown: no wait in communication was seen, so a slow rank cannot be told from its victims.")
        return
    slow = excess.filter(pl.col(RankExcess.excess_ratio) > NOTABLE_EXCESS).head(WORST_RANKS)
    if slow.is_empty():
        st.success("No rank works notably longer than the others.", icon=":material/check_circle:")
    for row in slow.iter_rows(named=True):
        st.warning(
            f"**Rank {row[RankExcess.rank]}** works {format_duration(row[RankExcess.excess_ns])} a step longer than "
            f"the median rank ({format_ratio(row[RankExcess.excess_ratio])}), most of it in "
            f"{markdown_text(row[RankExcess.phase])}.",
            icon=":material/person_alert:",
        )
    with st.expander("All ranks"):
        show_table(excess, key="excess of ranks")


def draw_trace(place: str) -> None:
    """Draw what the traces of a job show: where the time went, and the findings, the costliest first."""
    report = load_traces(place)
    say_age(report.modified_ns, live=False, synthetic=False)
    analysis = report.results.analysis
    whole = [rank for rank in analysis.ranks if rank.breakdown is not None]
    if whole:
        bars = StackedTimes(
            labels=[rank.label for rank in whole],
            parts={part: [getattr(rank.breakdown, f"{part}_ns") for rank in whole] for part in BREAKDOWN_PARTS},
        )
        show_figure(rank_breakdown(bars), None, key="where each rank's time went")
        show_report_table(breakdown_table(analysis), key="breakdown")
    else:
        st.info("The traces hold neither device events nor a host timeline.", icon=":material/inbox:")
    st.subheader("Findings")
    for number, finding in enumerate(report.findings):
        draw_finding(finding, is_open=number == 0)
    if not report.findings:
        st.success("Nothing stands out.", icon=":material/check_circle:")


def draw_finding(finding: Finding, *, is_open: bool) -> None:
    """Draw one finding: what, where, how one can tell, and what to do."""
    share = "" if finding.share_ratio is None else f"{format_ratio(finding.share_ratio)} · "
    with st.expander(f"{share}{markdown_text(finding.title)}", expanded=is_open):
        where = finding.where.text()
        if where:
            st.markdown(f"**Where:** {markdown_text(where)}")
        st.markdown("\n".join(f"- {markdown_text(each.text())}" for each in finding.evidence))
        st.markdown(f"**What to do:** {markdown_text(finding.action)}")


def main() -> None:
    """Draw the page."""
    question = "Is it running, how fast, what is wasted, and who is to blame?"
    source, _ = open_page("Overview", question, ("run", "trace"))
    if source.kind == "trace":
        draw_trace(source.place)
        return
    refresh_s = settings().refresh_s
    run = load_run(source.place, refresh_s=refresh_s)
    st.fragment(draw_run, run_every=refresh_s if run.is_live else None)(run)


main()
