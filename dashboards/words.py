"""Small pieces of pages that show figures which may be unknown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

from dashboards import say
from scope.report.standing import count

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamlit.delta_generator import DeltaGenerator

    from dashboards.sources.prometheus import Prometheus
    from dashboards.sources.runs import LiveRun

_Value = TypeVar("_Value")
_SHOWN_EXPORTERS: Final = 8
_DEAD_EXPORTERS: Final = "up == 0 and on (instance, job) last_over_time(scope_exporter_sample_age_seconds[1d])"
"""Whoever was a node exporter of ours within a day and did not answer the last scrape."""


def metric(
    place: DeltaGenerator, label: str, value: _Value | None, reason: str | None, form: Callable[[_Value], str]
) -> None:
    """Show a figure, or a dash whose help says why it is unknown.

    Args:
        place: Where to show it.
        label: What it is.
        value: The figure; None when it is unknown.
        reason: Why it is unknown.
        form: Makes it readable.
    """
    with place:
        if value is None:
            say.metric(label, "–", help=reason or "unknown", width="content")
        else:
            say.metric(label, form(value), width="content")


def say_dead_exporters(server: Prometheus) -> None:
    """Say which node exporters do not answer the server, so that what the page shows of their nodes is old.

    Raises:
        InputError: The server does not answer.
    """
    dead = sorted(each.labels.get("instance", "?") for each in server.query(_DEAD_EXPORTERS))
    if dead:
        shown = ", ".join(dead[:_SHOWN_EXPORTERS])
        more = f" and {len(dead) - _SHOWN_EXPORTERS} more" if len(dead) > _SHOWN_EXPORTERS else ""
        say.warning(
            say.words(
                "{} did not answer when Prometheus asked last: {}{}. What is shown of there is from before; is "
                "`scope exporter` running there?",
                count(len(dead), "exporter"),
                shown,
                more,
            ),
            icon=":material/cloud_off:",
        )


def say_problems(run: LiveRun) -> None:
    """Say which files could not be read and which ranks are missing."""
    # The summary is of ranks that have begun; where no rank.json can be read, what is wrong with each stands below.
    summary = None if run.ranks.is_empty() else run.summary()
    missing, num_missing = ((), 0) if summary is None else (summary.missing_ranks, summary.num_missing_ranks)
    if missing:
        first = ", ".join(map(str, missing[:20])) + (", …" if num_missing > 20 else "")
        have = "has" if num_missing == 1 else "have"
        say.warning(
            f"{count(num_missing, 'rank')} {have} recorded nothing: {first}. Figures over all ranks leave them out.",
            icon=":material/visibility_off:",
        )
    for problem in run.problems:
        say.error(problem, icon=":material/broken_image:")
