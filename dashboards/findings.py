"""How findings, verdicts and alerts look on a page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl
import streamlit as st

from dashboards import say
from dashboards.shell import sources
from dashboards.sources.alerts import AlertWatch, alerts_of_run
from scope.analysis.recorded import (
    RankExcess,
    compute_group_progress,
    describe_ends,
    describe_mismatch,
    find_missed_calls,
    is_nobody_compared,
    say_where,
)
from scope.frames.schema import Ranks
from scope.report.standing import count, missed_words
from scope.run.naming import label_run
from scope.units import format_duration, format_ratio

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dashboards.sources.alerts import Alert
    from dashboards.sources.runs import LiveRun
    from scope.report.findings import Finding
    from scope.run.schema import Verdict

_SHOWN_ALERTS: Final = 5
_WORST_RANKS: Final = 3


def draw_findings(findings: Sequence[Finding]) -> None:
    """Draw the findings of traces, the costliest first and open."""
    say.subheader("Findings")
    for number, finding in enumerate(findings, start=1):
        _draw_finding(finding, number=number)
    if not findings:
        say.success("Nothing stands out.", icon=":material/check_circle:")


def _draw_finding(finding: Finding, *, number: int) -> None:
    share = "" if finding.share_ratio is None else f"{format_ratio(finding.share_ratio)} · "
    # Findings refer to each other by number.
    with say.expander(f"{number}. {share}{finding.title}", expanded=number == 1):
        where = finding.where.text()
        if where:
            say.markdown(say.words("**Where:** {}", where))
        say.markdown(say.lines(each.text() for each in finding.evidence))
        say.markdown(say.words("**What to do:** {}", finding.action))


def draw_verdicts(verdicts: Sequence[Verdict], *, said: Sequence[str] = ()) -> None:
    """Draw what diagnosis found and still holds.

    Args:
        verdicts: What it found.
        said: Sentences that stand on the page already.
    """
    for verdict in verdicts:
        if verdict.resolved_ns is None and verdict.summary not in said:
            show = say.error if verdict.severity == "critical" else say.warning
            action = f" {verdict.action}" if verdict.action else ""
            show(f"{verdict.kind}: {verdict.summary.rstrip('.')}.{action}", icon=":material/gavel:")


def draw_ends(run: LiveRun) -> list[str]:
    """Say which ranks issued different collectives, ended without a goodbye, and raised first and what.

    The order is that of `scope show`: a cause stands before what it led to.

    A run that fell silent as a whole, and of which no rank raised, is told calmly, at the head of the page.

    Returns:
        The sentences, without their full stops.
    """
    watched = run.watched()
    ends = describe_ends(watched)
    fell_silent = not watched.state.is_live and len(watched.state.open_ranks) == len(watched.infos)
    # Of a run that lives the head of the page tells what holds it up.
    said = [] if watched.state.is_live else [describe_mismatch(each) for each in watched.state.mismatches]
    said += [words for words in ends if words is not None and not (fell_silent and ends.failure is None)]
    for words in said:
        say.error(f"{words}.", icon=":material/error:")
    return said


def draw_missed_at_end(run: LiveRun) -> bool:
    """Say which rank had not arrived where its peers waited when a run ended without a goodbye.

    Returns:
        Whether there was such a rank.
    """
    if run.state().standing != "ended without a goodbye":
        return False
    infos = [info for info in run.run.rank_infos if info.attempt == run.attempt]
    missed = find_missed_calls(compute_group_progress(infos, run.black_boxes()))
    if missed:
        say.warning(f"At its end: {missed_words(missed)}; see Post-mortem.", icon=":material/person_off:")
    return bool(missed)


def draw_slow_ranks(run: LiveRun, *, stands_still: bool) -> None:
    """Name the ranks that work longer than their peers, and in which phase.

    Args:
        run: The run.
        stands_still: A rank that does not arrive is to blame, so nobody is said to be fine.
    """
    excess = run.excess()
    if excess.is_empty():
        say.info("Unknown: no wait in communication was seen, so a slow rank cannot be told from its victims.")
        return
    slow = excess.filter(pl.col(RankExcess.is_notable) & (not stands_still)).head(_WORST_RANKS)
    if is_nobody_compared(run.peers()):
        say.info(
            "Ranks are not compared: each is alone at its place of the device mesh, like a pipeline stage without "
            "replicas."
        )
    elif slow.is_empty() and not stands_still:
        say.success("No rank works notably longer than its peers.", icon=":material/check_circle:")
    others = "of its peers" if run.peers() else "rank"
    for row in slow.iter_rows(named=True):
        say.warning(
            say.words(
                "**Rank {}** works {} a step longer than the median {} ({}), {}.",
                row[RankExcess.rank],
                format_duration(row[RankExcess.excess_ns]),
                others,
                format_ratio(row[RankExcess.excess_ratio]),
                say_where(row[RankExcess.phase], most="most of it"),
            ),
            icon=":material/person_alert:",
        )


def draw_alerts(run: LiveRun | None = None, *, names: Mapping[str, str] | None = None) -> None:
    """Draw the alerts that fire now, or soon; without a Prometheus server say that they are not known.

    Args:
        run: Show the alerts of this run and of its nodes, and count the others; None shows all.
        names: What people call the runs, by the label that alerts bear.
    """
    firing = _firing().now(sources())
    if not firing.num_servers:
        say.caption(
            say.words("Alerts: not known. Name a Prometheus server to see them: `scope dashboard RUN http://HOST:9090`")
        )
        return
    for problem in firing.problems:
        say.caption(say.words(":material/cloud_off: {}", problem))
    alerts, pending, num_others = list(firing.alerts), list(firing.pending), 0
    if run is not None:
        label, hosts = label_run(run.info), set(run.ranks[Ranks.host].cast(pl.String))
        names = {label: run.run.path.name}
        alerts, num_others = alerts_of_run(alerts, label=label, hosts=hosts)
        pending, _ = alerts_of_run(pending, label=label, hosts=hosts)
    for alert in alerts[:_SHOWN_ALERTS]:
        show = say.error if alert.severity == "critical" else say.warning
        show(_alert_words(alert, names or {}), icon=":material/notifications_active:")
    for alert in pending[:_SHOWN_ALERTS]:
        say.info(_alert_words(alert, names or {}, soon=True), icon=":material/notifications:")
    if len(alerts) > _SHOWN_ALERTS:
        say.caption(f"{count(len(alerts) - _SHOWN_ALERTS, 'more alert')} of it.")
    if not alerts and len(firing.problems) < firing.num_servers:
        say.caption(
            say.words(":material/notifications_off: No alert fires{}.", " for this run" if run is not None else "")
        )
    if num_others:
        say.caption(f"{count(num_others, 'alert')} of other runs and nodes.")


def _alert_words(alert: Alert, names: Mapping[str, str], *, soon: bool = False) -> say.Words:
    text = alert.summary or alert.where
    if alert.run is not None and alert.run in names:
        # A rule knows the label of a run alone, which no page shows.
        name = names[alert.run]
        text = text.replace(alert.run, name) if alert.run in alert.summary else f"{name}: {text}"
    sentence = "Fires soon: **{}** {}" if soon else "**{}** {}"
    return say.words(sentence, alert.name, text)


@st.cache_resource
def _firing() -> AlertWatch:
    """Return the watch that all visitors share."""
    return AlertWatch()
