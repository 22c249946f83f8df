"""Timeline: what ran when on every rank and stream, binned far out and bar by bar near in."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import TYPE_CHECKING

import polars as pl
import streamlit as st

from dashboards import say
from dashboards.perfetto import window_json
from dashboards.plots import choose_span
from dashboards.shell import keep_state, open_page, remember, remembered_state, say_traces
from dashboards.sources.traces import TraceJob, load_job
from dashboards.spans import spans_of
from dashboards.tables import fold, show_table
from scope.report.figures import TimelineSpans, timeline
from scope.report.figures.style import time_scale
from scope.units import NS_PER_US, format_duration

if TYPE_CHECKING:
    from collections.abc import Callable

    from dashboards.state import PageState
    from scope.report.figures.style import Figure
    from scope.trace.model import Job, RankTrace

SHOWN_RANKS = 8
TABLE_ROWS = 1_000
MAX_WINDOW_SPANS = 200_000
MIN_WINDOW_US = 10


def choose_ranks(job: Job, state: PageState) -> list[RankTrace]:
    """Let the visitor choose ranks, the first eight by default."""
    places = range(len(job.ranks))
    known = [place for place in places if job.ranks[place].rank in state.ranks]
    default = known or list(places)[:SHOWN_RANKS]
    with st.sidebar:
        chosen = say.multiselect("Ranks", places, default=default, format_func=lambda place: job.ranks[place].label)
    ranks = [job.ranks[place] for place in chosen]
    remember(replace(state, ranks=tuple(rank.rank for rank in ranks if rank.rank is not None)))
    return ranks


@st.cache_resource(max_entries=4, show_spinner="Laying out the lanes …")
def _lanes(modified_ns: int, source_id: str, labels: tuple[str, ...], _read: TraceJob) -> pl.DataFrame:
    """Return the spans of the chosen ranks, laid out once for all visitors."""
    del modified_ns, source_id
    ranks = [rank for rank in _read.job.ranks if rank.label in labels]
    return pl.concat([TimelineSpans.empty(), *(spans_of(rank) for rank in ranks)])


def bounds(spans: pl.DataFrame) -> tuple[int, int]:
    """Return the first instant of any span, and the end of the last."""
    first, last = spans[TimelineSpans.start_ns].min(), spans[TimelineSpans.end_ns].max()
    assert isinstance(first, int)
    assert isinstance(last, int)
    return first, last


def window_of(state: PageState, first_ns: int, last_ns: int) -> tuple[int, int]:
    """Return the window [start, end) that the address asks for, cut to what there is; the whole by default."""
    start = first_ns + (state.start_us or 0) * NS_PER_US
    end = last_ns if state.end_us is None else first_ns + state.end_us * NS_PER_US
    start = max(first_ns, min(start, last_ns - 1))
    return start, max(min(end, last_ns), start + 1)


def step_back(state: PageState) -> None:
    """Show the whole again."""
    keep_state(replace(state, start_us=None, end_us=None))


@st.cache_resource(max_entries=4, show_spinner=False)
def _whole(modified_ns: int, source_id: str, labels: tuple[str, ...], _spans: pl.DataFrame) -> Figure:
    """Return the figure of all spans, which each visitor sees first."""
    del modified_ns, source_id, labels
    start_ns, end_ns = bounds(_spans)
    return timeline(_spans, start_ns=start_ns, end_ns=end_ns)


@st.fragment
def draw(spans: pl.DataFrame, whole: Callable[[], Figure]) -> None:
    """Draw the window; a box drawn in it is the next window, for which nothing else of the page is drawn again."""
    state = remembered_state()
    first_ns, last_ns = bounds(spans)
    start_ns, end_ns = window_of(state, first_ns, last_ns)
    is_whole = (start_ns, end_ns) == (first_ns, last_ns)
    inside = spans if is_whole else spans.filter(_overlaps(start_ns, end_ns))
    row = st.container(horizontal=True, vertical_alignment="center")
    with row:
        say.caption(
            f"{inside.height:,} of {spans.height:,} spans, {format_duration(start_ns - first_ns)} to "
            f"{format_duration(end_ns - first_ns)} after the first. Draw a box over a time to look into it."
        )
        say.button("Whole", icon=":material/zoom_out_map:", disabled=is_whole, on_click=step_back, args=(state,))
    # A box means a place in the window that it was drawn in, so each window has a chart of its own.
    key = f"timeline {start_ns - first_ns} {end_ns - first_ns}"
    figure = deepcopy(whole()) if is_whole else timeline(inside, start_ns=start_ns, end_ns=end_ns)

    def look_into(left: float, right: float) -> None:
        unit = time_scale(end_ns - start_ns).divisor
        offset_us = (start_ns - first_ns) // NS_PER_US
        start_us = max(0, offset_us + int(left * unit) // NS_PER_US)
        end_us = max(start_us + MIN_WINDOW_US, offset_us + int(right * unit) // NS_PER_US)
        keep_state(replace(state, start_us=start_us, end_us=end_us))

    choose_span(figure, key=key, on_box=look_into)
    offer(inside)


def _overlaps(start_ns: int, end_ns: int) -> pl.Expr:
    return (pl.col(TimelineSpans.start_ns) < end_ns) & (pl.col(TimelineSpans.end_ns) > start_ns)


def offer(inside: pl.DataFrame) -> None:
    """Offer the window as a table and as a trace for Perfetto; it leaves this machine only by the visitor's hand."""
    fold(
        "Table",
        lambda: show_table(inside.sort(TimelineSpans.start_ns).head(TABLE_ROWS), key="timeline table"),
        key="timeline table",
    )
    if inside.height > MAX_WINDOW_SPANS:
        say.caption(f"Choose a window of at most {MAX_WINDOW_SPANS:,} spans to hand it to Perfetto.")
        return
    row = st.container(horizontal=True, vertical_alignment="center")
    with row:
        say.download_button(
            "Download this window for Perfetto",
            lambda: window_json(inside),
            file_name="scope-window.json",
            mime="application/json",
            icon=":material/download:",
        )
        say.link_button("Open ui.perfetto.dev", "https://ui.perfetto.dev", icon=":material/open_in_new:")
    say.caption("Perfetto reads the downloaded file in your browser: Open trace file.")


def main() -> None:
    """Draw the page."""
    source, state = open_page("Timeline", "What ran when, on every rank and stream?", ("trace",))
    read = load_job(source)
    say_traces(read)
    ranks = choose_ranks(read.job, state)
    what = (read.modified_ns, source.source_id, tuple(rank.label for rank in ranks))
    spans = _lanes(*what, read)
    if spans.is_empty():
        say.info("The chosen ranks hold no device events and no host timeline.", icon=":material/inbox:")
        return
    draw(spans, lambda: _whole(*what, spans))


main()
