"""Small pieces of pages that show figures which may be unknown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

import streamlit as st

from scope.report.inert import markdown_text
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
    if value is None:
        place.metric(label, "–", help=markdown_text(reason or "unknown"), width="content")
    else:
        place.metric(label, form(value), width="content")


def say_dead_exporters(server: Prometheus) -> None:
    """Say which node exporters do not answer the server, so that what the page shows of their nodes is old.

    Raises:
        InputError: The server does not answer.
    """
    dead = sorted(each.labels.get("instance", "?") for each in server.query(_DEAD_EXPORTERS))
    if dead:
        shown = ", ".join(markdown_text(each) for each in dead[:_SHOWN_EXPORTERS])
        more = f" and {len(dead) - _SHOWN_EXPORTERS} more" if len(dead) > _SHOWN_EXPORTERS else ""
        st.warning(
            f"{count(len(dead), 'exporter')} did not answer when Prometheus asked last: {shown}{more}. What is shown "
            "of there is from before; is `scope exporter` running there?",
            icon=":material/cloud_off:",
        )


def say_problems(run: LiveRun) -> None:
    """Say which files could not be read and which ranks are missing."""
    summary = run.summary()
    missing, num_missing = summary.missing_ranks, summary.num_missing_ranks
    if missing:
        first = ", ".join(map(str, missing[:20])) + (", …" if num_missing > 20 else "")
        have = "has" if num_missing == 1 else "have"
        st.warning(
            f"{count(num_missing, 'rank')} {have} recorded nothing: {first}. Figures over all ranks leave them out.",
            icon=":material/visibility_off:",
        )
    for problem in run.problems:
        st.error(markdown_text(problem), icon=":material/broken_image:")
