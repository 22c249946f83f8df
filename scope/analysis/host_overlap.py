"""Which host spans run while a device does not: each stretch of a device is that of the thread that launches next.

The cost is that of sorting both and of the pairs found, of which there are few: stretches of one device are disjoint,
and so are the spans of a thread and activity.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import polars as pl

from scope.analysis.host_activity import HostSpans
from scope.analysis.spans import Spans
from scope.trace.schema import DeviceEvents

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_ROW: Final = "stretch_row"
_FIRST: Final = "first_row"
_PAST: Final = "past_row"
_SPAN: Final = "span_row"
_SPAN_START: Final = "span_start_ns"
_SPAN_END: Final = "span_end_ns"


def overlap_with_host(stretches: pl.DataFrame, host: pl.DataFrame) -> pl.DataFrame:
    """Return each pair of a stretch and a span of its own thread, or of every thread, that overlap.

    Args:
        stretches: Columns `device`, `thread`, `start_ns`, `end_ns`; the stretches of one device must be disjoint and
            sorted by device and start.
        host: Columns of `HostSpans`; those of one thread and activity must be disjoint.

    Returns:
        The columns of `stretches`, and `activity`, `began_ns` and `launch_id` of the span, with `start_ns` and `end_ns`
        cut to what stretch and span share.
    """
    return _pair(stretches, host, until=HostSpans.end_ns)


def begun_within(stretches: pl.DataFrame, host: pl.DataFrame) -> pl.DataFrame:
    """Return each pair of a stretch and a span of its own thread that begins after it and before its end.

    Args:
        stretches: As for `overlap_with_host`.
        host: Columns of `HostSpans`; those of one thread and activity may overlap.

    Returns:
        As `overlap_with_host`.
    """
    return _pair(stretches, host, until=HostSpans.start_ns)


def _pair(stretches: pl.DataFrame, host: pl.DataFrame, *, until: str) -> pl.DataFrame:
    """Return the pairs of stretches with the spans that start before their end and whose `until` is after their start.

    Both start and `until` grow along the spans of a thread and activity, so those of a stretch are a run of rows.
    """
    host = host.sort(HostSpans.thread, HostSpans.activity, HostSpans.start_ns)
    runs = [pl.DataFrame(schema={_ROW: pl.UInt32, _FIRST: pl.UInt32, _PAST: pl.UInt32})]
    for lane, spans in _lanes(stretches, host):
        begin = spans[_SPAN][0]
        first = spans[until].search_sorted(lane[Spans.start_ns], side="right") + begin
        past = spans[Spans.start_ns].search_sorted(lane[Spans.end_ns], side="left") + begin
        runs.append(pl.DataFrame([lane[_ROW], first.cast(pl.UInt32).alias(_FIRST), past.cast(pl.UInt32).alias(_PAST)]))
    pairs = (
        pl.concat(runs)
        .filter(pl.col(_FIRST) < pl.col(_PAST))
        .select(_ROW, pl.int_ranges(_FIRST, _PAST, dtype=pl.UInt32).alias(_SPAN))
        .explode(_SPAN)
    )
    spans = host[pairs[_SPAN]].select(
        HostSpans.activity,
        HostSpans.launch_id,
        HostSpans.began_ns,
        pl.col(HostSpans.start_ns).alias(_SPAN_START),
        pl.col(HostSpans.end_ns).alias(_SPAN_END),
    )
    return (
        stretches[pairs[_ROW]]
        .hstack(spans)
        .with_columns(
            pl.max_horizontal(Spans.start_ns, _SPAN_START).alias(Spans.start_ns),
            pl.min_horizontal(Spans.end_ns, _SPAN_END).alias(Spans.end_ns),
        )
        .drop(_SPAN_START, _SPAN_END)
    )


def _lanes(stretches: pl.DataFrame, host: pl.DataFrame) -> Iterator[tuple[pl.DataFrame, pl.DataFrame]]:
    """Return the stretches of each device and thread beside the spans of each activity there, and on every thread."""
    if stretches.is_empty() or host.is_empty():
        return
    spans: dict[Any, list[pl.DataFrame]] = {}
    for (thread, _), of_activity in _parts(host.with_row_index(_SPAN), HostSpans.thread, HostSpans.activity).items():
        spans.setdefault(thread, []).append(of_activity)
    placed = stretches.with_row_index(_ROW)
    for (_, thread), lane in _parts(placed, DeviceEvents.device, HostSpans.thread).items():
        for of_activity in spans.get(thread, ()):
            yield lane, of_activity
    for of_activity in spans.get(None, ()):
        for lane in _parts(placed, DeviceEvents.device).values():
            yield lane, of_activity


def _parts(frame: pl.DataFrame, *keys: str) -> Mapping[tuple[Any, ...], pl.DataFrame]:
    return frame.partition_by(keys, as_dict=True)
