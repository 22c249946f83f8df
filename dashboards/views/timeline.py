"""Timeline: what ran when on every rank and stream, binned far out and bar by bar near in."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import polars as pl
import streamlit as st

from dashboards.shell import keep_state, open_page, show_figure
from dashboards.sources.traces import load_traces
from scope.report.figures import TimelineSpans, timeline
from scope.trace.schema import CollectiveCalls, DeviceEvents, Ops
from scope.units import NS_PER_MS, format_duration

if TYPE_CHECKING:
    from dashboards.state import PageState
    from scope.trace.model import Job, RankTrace

SHOWN_RANKS = 8
TABLE_ROWS = 1_000


def spans_of(trace: RankTrace) -> pl.DataFrame:
    """Return the spans of one rank: a lane a stream, or a lane a thread on a host timeline."""
    if trace.is_host_timeline:
        ops = trace.ops.filter(pl.col(Ops.depth) == 0)
        return pl.concat(
            [
                _spans(ops, pl.format("{} thread {}", pl.lit(trace.label), Ops.thread), pl.lit("host"), Ops.name),
                _spans(
                    trace.collective_calls,
                    pl.lit(f"{trace.label} communication"),
                    pl.lit("communication"),
                    CollectiveCalls.operation,
                ),
            ]
        )
    lane = pl.format("{} GPU {} stream {}", pl.lit(trace.label), DeviceEvents.device, DeviceEvents.stream)
    return _spans(trace.device_events, lane, pl.col(DeviceEvents.category), DeviceEvents.name)


def _spans(frame: pl.DataFrame, lane: pl.Expr, category: pl.Expr, name: str) -> pl.DataFrame:
    return frame.select(
        lane.alias(TimelineSpans.lane),
        category.cast(pl.String).alias(TimelineSpans.category),
        pl.col(name).cast(pl.String).alias(TimelineSpans.name),
        pl.col(DeviceEvents.start_ns).alias(TimelineSpans.start_ns),
        pl.col(DeviceEvents.end_ns).alias(TimelineSpans.end_ns),
    )


def choose_ranks(job: Job, state: PageState) -> tuple[list[RankTrace], PageState]:
    """Let the visitor choose ranks, the first eight by default."""
    places = range(len(job.ranks))
    known = [place for place in places if job.ranks[place].rank in state.ranks]
    chosen = st.sidebar.multiselect(
        "Ranks", places, default=known or list(places)[:SHOWN_RANKS], format_func=lambda place: job.ranks[place].label
    )
    ranks = [job.ranks[place] for place in chosen]
    state = replace(state, ranks=tuple(rank.rank for rank in ranks if rank.rank is not None))
    keep_state(state)
    return ranks, state


def choose_window(spans: pl.DataFrame, state: PageState) -> tuple[int, int]:
    """Let the visitor choose a window in milliseconds from the first span, and keep it in the address."""
    origin, end = _bounds(spans)
    length_ms = max(1, -(-(end - origin) // NS_PER_MS))
    first = min(state.first_step or 0, length_ms - 1)
    last = min(max(first + 1, state.last_step if state.last_step is not None else length_ms), length_ms)
    chosen = st.slider("Window (ms)", 0, length_ms, (first, last))
    keep_state(replace(state, first_step=chosen[0], last_step=chosen[1]))
    return origin + chosen[0] * NS_PER_MS, min(end, origin + max(chosen[1], chosen[0] + 1) * NS_PER_MS)


def _bounds(spans: pl.DataFrame) -> tuple[int, int]:
    first, last = spans[TimelineSpans.start_ns].min(), spans[TimelineSpans.end_ns].max()
    assert isinstance(first, int)
    assert isinstance(last, int)
    return first, last


def main() -> None:
    """Draw the page."""
    source, state = open_page("Timeline", "What ran when, on every rank and stream?", ("trace",))
    job = load_traces(source.place).results.job
    ranks, state = choose_ranks(job, state)
    spans = pl.concat([TimelineSpans.empty(), *(spans_of(rank) for rank in ranks)])
    if spans.is_empty():
        st.info("The chosen ranks hold no device events and no host timeline.", icon=":material/inbox:")
        return
    start_ns, end_ns = choose_window(spans, state)
    inside = spans.filter((pl.col(TimelineSpans.start_ns) < end_ns) & (pl.col(TimelineSpans.end_ns) > start_ns)).sort(
        TimelineSpans.start_ns
    )
    st.caption(f"{inside.height:,} spans in {format_duration(end_ns - start_ns)}")
    show_figure(timeline(inside, start_ns=start_ns, end_ns=end_ns), inside.head(TABLE_ROWS), key="timeline")


main()
