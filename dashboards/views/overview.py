"""Overview: is it running, how fast against what it could be, what is wasted on what, and who is to blame."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import polars as pl
import streamlit as st
from msgspec import to_builtins
from msgspec.structs import replace

from dashboards import say
from dashboards.findings import (
    draw_alerts,
    draw_ends,
    draw_findings,
    draw_missed_at_end,
    draw_slow_ranks,
    draw_verdicts,
)
from dashboards.plots import show_figure
from dashboards.server_overview import draw_server
from dashboards.shell import load_run, on_each_refresh, open_page, say_age, say_traces, sources
from dashboards.sources.traces import load_traces
from dashboards.tables import fold, show_report_table, show_table
from dashboards.words import metric, say_problems
from scope.analysis.doctor.diagnosis import describe_ranks
from scope.analysis.recorded import INPUT_BOUND_RATIO, MIN_COST_STEPS, RunSummary, compute_waste, find_unwritten_reason
from scope.report.figures import parts_by_time, rank_breakdown
from scope.report.page_figures import rank_bars
from scope.report.run_state_peaks import describe_mfu, find_peaks
from scope.report.sections.breakdown import breakdown_table
from scope.report.standing import held_up_words
from scope.units import format_duration, format_ratio

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dashboards.sources.catalogue import Source
    from dashboards.sources.runs import LiveRun

SLOWEST_S = 5.0


def draw_run(run: LiveRun, source: Source) -> None:
    """Draw the overview of a recorded run: its figures at each refresh, its plots and findings less often."""
    on_each_refresh(run, lambda: draw_head(run))
    left, right = st.columns([3, 2])
    with left:
        on_each_refresh(run, lambda: draw_time(run), slowest_s=SLOWEST_S)
    with right:
        on_each_refresh(run, lambda: draw_who(run, source), slowest_s=SLOWEST_S)


def draw_head(run: LiveRun) -> None:
    """Draw how old the data is and the row of figures."""
    say_age(run)
    if run.ranks.is_empty():
        why = run.run.info().unrecorded
        words = "No rank has begun to record yet." if why is None else f"Nothing was recorded: {why}."
        say.info(words, icon=":material/hourglass_empty:")
        return
    # The number of the step is at hand at each refresh; the rest is computed again when it has rested.
    last_step = None if run.last_ns is None else run.last_step
    summary = replace(run.summary(), last_step=last_step)
    draw_speed(summary, at_least=find_unwritten_reason(summary, is_live=run.state().standing == "running"))
    ranks = run.ranks
    words = run.kept("MFU in words", lambda: describe_speed_against(run.summary(), ranks))
    say.caption(f"{words} {describe_goodput(run)}")


def describe_goodput(run: LiveRun) -> str:
    """Return what goodput is, and how much of the time went by before the first step, which a short run feels most."""
    what = "Goodput: time in steps that were kept / time from the start, start-up included, until now or the end"
    why = find_unwritten_reason(run.summary(), is_live=run.state().standing == "running")
    what += "" if why is None else f"; at least, since {why}"
    first_ns, last_ns, state = run.first_ns, run.last_ns, run.state()
    if first_ns is None or last_ns is None:
        return f"{what}."
    until_ns = time.time_ns() if state.is_live else max(last_ns, state.last_sign_ns or 0)
    startup_ns = max(0, first_ns - run.info.started_ns)
    share = startup_ns / max(1, until_ns - run.info.started_ns)
    return f"{what}; start-up took {format_duration(startup_ns)} ({format_ratio(share)})."


def draw_who(run: LiveRun, source: Source) -> None:
    """Draw who is to blame, which alerts fire, captured windows, and what could not be read."""
    if run.ranks.is_empty():
        return
    draw_blame(run)
    draw_alerts(run)
    draw_windows(source)
    say_problems(run)


def draw_speed(summary: RunSummary, *, at_least: str | None) -> None:
    """Draw the row of figures at the top.

    Args:
        summary: The run at a glance.
        at_least: Why its goodput is a lower bound; None where it is not.
    """
    speed = summary.speed
    row = st.container(horizontal=True, gap="medium")
    of_all = f" of {summary.world_size}" if summary.world_size else ""
    with row:
        say.metric("Ranks recorded", f"{summary.num_ranks}{of_all}", width="content")
    metric(row, "Last step", summary.last_step, summary.absent.get("last_step"), str)
    step_time = speed.step_time and speed.step_time.median_ns
    metric(row, "Step time (median)", step_time, speed.absent.get("step_time"), format_duration)
    metric(row, "Tokens/s", speed.tokens_per_s, speed.absent.get("tokens_per_s"), "{:,.0f}".format)
    metric(row, "MFU", speed.mfu_ratio, speed.absent.get("mfu_ratio"), format_ratio)
    goodput = "Goodput" if at_least is None else "Goodput, at least"
    metric(row, goodput, summary.goodput_ratio, summary.absent.get("goodput_ratio"), format_ratio)
    if summary.num_lost_steps:
        why = (
            "Steps of earlier attempts that a later one makes again. Their time is not in the goodput. One that an "
            "attempt broke off in has no record and is not counted."
        )
        with row:
            say.metric("Steps lost to restarts", f"{summary.num_lost_steps:,}", help=why, width="content")


def describe_speed_against(summary: RunSummary, ranks: pl.DataFrame) -> str:
    """Return what MFU is counted against, or why there is none."""
    words = describe_mfu(to_builtins(summary.speed), find_peaks(ranks, attempt=summary.attempt))
    return f"No MFU: {summary.speed.absent.get('mfu_ratio', 'unknown')}." if words is None else f"{words}."


def table_of(parts: Mapping[str, int], whole_ns: int) -> pl.DataFrame:
    """Return parts, lengths and shares as a table."""
    return pl.DataFrame(
        {
            "part": list(parts),
            "host_ns": list(parts.values()),
            "share_ratio": [length / whole_ns for length in parts.values()],
        },
        schema={"part": pl.String, "host_ns": pl.Int64, "share_ratio": pl.Float64},
    )


def draw_time(run: LiveRun) -> None:
    """Draw what trained nothing, by cause, and where all the host time went."""
    if run.ranks.is_empty():
        return
    summary = run.summary()
    whole = sum(summary.phases_ns.values())
    if not whole:
        say.info("No step has ended yet.", icon=":material/hourglass_empty:")
        return
    waste = compute_waste(summary)
    title = "Waste by cause, of the host time of all ranks"
    show_figure(parts_by_time(waste, title=title, whole_ns=whole), table_of(waste, whole), key="waste by cause")
    if summary.communication_wait_ns is None:
        say.caption(f"Communication wait: unknown ({summary.absent['communication_wait_ns']}).")
    phases = {name: length for name, length in run.phases_ns().items() if length}
    whole = sum(phases.values())
    title = "Phases of all steps, host time of all ranks"
    show_figure(parts_by_time(phases, title=title, whole_ns=whole), table_of(phases, whole), key="phases of all steps")


def draw_input(run: LiveRun) -> None:
    """Say when the run waits for its data, and on which ranks."""
    cost = run.input_cost()
    if cost is None or cost.num_steps < MIN_COST_STEPS or cost.share_ratio < INPUT_BOUND_RATIO:
        return
    say.warning(
        say.words(
            "**Input-bound**: each of the last steps waits {} for its data ({} of the step), on {}. More loader "
            "workers or faster storage there would gain up to that.",
            format_duration(cost.mean_ns),
            format_ratio(cost.share_ratio),
            describe_ranks(list(cost.ranks)),
        ),
        icon=":material/hourglass_top:",
    )


def draw_blame(run: LiveRun) -> None:
    """Say who holds the run up: a rank that does not arrive, else those slower than their peers, and in which phase."""
    say.subheader("Who is to blame")
    draw_verdicts(run.verdicts(), said=draw_ends(run))
    stands_still = run.state().standing == "no step"
    if stands_still:
        # The red sentence stands on top of the page.
        say.markdown(say.words(":material/person_off: {}; see Post-mortem.", held_up_words(run.state())))
    has_missed = draw_missed_at_end(run)
    draw_input(run)
    draw_slow_ranks(run, stands_still=stands_still or has_missed)
    excess = run.excess()
    if not excess.is_empty():
        fold("All ranks", lambda: show_table(excess, key="excess of ranks"), key="excess of ranks")


def draw_windows(source: Source) -> None:
    """Link to the windows that the profiler captured in this run."""
    windows = [each for each in sources() if each.run_id == source.source_id]
    if not windows:
        say.caption(
            say.words(
                "No profiler window was captured. `scope run` takes one now and then, as `--capture` says; "
                "`touch RUN/capture.request` asks a running one for a window, a few seconds later."
            )
        )
        return
    say.subheader("Captured windows")
    for window in windows[-5:]:
        say.page_link(
            "views/timeline.py",
            label=window.label.removeprefix(f"{source.label}: "),
            icon=":material/view_timeline:",
            query_params={"source": window.source_id},
        )


def draw_trace(source: Source) -> None:
    """Draw what the traces of a job show: where the time went, and the findings, the costliest first."""
    report = load_traces(source)
    say_traces(report)
    analysis = report.results.analysis
    if any(rank.breakdown is not None for rank in analysis.ranks):
        show_figure(rank_breakdown(rank_bars(analysis)), None, key="where each rank's time went")
        # Folded, so that what was found stands on the first screen.
        fold("Table", lambda: show_report_table(breakdown_table(analysis), key="breakdown"), key="breakdown")
    else:
        say.info("The traces hold neither device events nor a host timeline.", icon=":material/inbox:")
    draw_findings(report.findings)


def main() -> None:
    """Draw the page."""
    question = "Is it running, how fast, what is wasted, and who is to blame?"
    source, _ = open_page("Overview", question, ("run", "trace", "prometheus"))
    if source.kind == "trace":
        draw_trace(source)
    elif source.kind == "prometheus":
        draw_server(source)
    else:
        run = load_run(source)
        draw_run(run, source)


main()
