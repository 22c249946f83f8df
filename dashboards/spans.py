"""The lanes of a timeline: steps, streams of each device or threads of the host, and communication."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from scope.report.figures import TimelineSpans
from scope.trace.schema import CollectiveCalls, DeviceEvents, Ops, Steps

if TYPE_CHECKING:
    from collections.abc import Iterator

    from scope.trace.model import RankTrace


def spans_of(trace: RankTrace) -> pl.DataFrame:
    """Return the spans of one rank (table `TimelineSpans`).

    Its steps come first, then a lane a stream; on a host timeline a lane a thread with the outermost operators, and
    one for communication.
    """
    return pl.concat([TimelineSpans.empty(), *_lanes(trace)])


def _lanes(trace: RankTrace) -> Iterator[pl.DataFrame]:
    label = pl.lit(trace.label)
    yield trace.steps.select(
        _categorical(pl.format("{} steps", label)).alias(TimelineSpans.lane),
        _categorical(pl.lit("step")).alias(TimelineSpans.category),
        _categorical(pl.format("step {}", Steps.number)).alias(TimelineSpans.name),
        pl.col(Steps.start_ns).alias(TimelineSpans.start_ns),
        pl.col(Steps.end_ns).alias(TimelineSpans.end_ns),
    )
    if not trace.is_host_timeline:
        events = trace.device_events.sort(DeviceEvents.device, DeviceEvents.stream, DeviceEvents.start_ns)
        several = events[DeviceEvents.device].n_unique() > 1
        stream = pl.format("stream {}", DeviceEvents.stream)
        where = pl.format("GPU {} {}", DeviceEvents.device, stream) if several else stream
        yield _spans(events, pl.format("{} {}", label, where), pl.col(DeviceEvents.category), DeviceEvents.name)
        return
    outermost = trace.ops.filter(pl.col(Ops.depth) == 0).sort(Ops.thread, Ops.start_ns)
    yield _spans(outermost, pl.format("{} thread {}", label, Ops.thread), pl.lit("host"), Ops.name)
    calls = trace.collective_calls
    lane = pl.format("{} communication", label)
    yield _spans(calls, lane, pl.lit("communication"), CollectiveCalls.operation)


def _spans(frame: pl.DataFrame, lane: pl.Expr, category: pl.Expr, name: str) -> pl.DataFrame:
    return frame.select(
        _categorical(lane).alias(TimelineSpans.lane),
        _categorical(category.cast(pl.String)).alias(TimelineSpans.category),
        _categorical(pl.col(name)).alias(TimelineSpans.name),
        pl.col(DeviceEvents.start_ns).alias(TimelineSpans.start_ns),
        pl.col(DeviceEvents.end_ns).alias(TimelineSpans.end_ns),
    )


def _categorical(text: pl.Expr) -> pl.Expr:
    return text.cast(pl.Categorical())
