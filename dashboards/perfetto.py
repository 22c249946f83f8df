"""A window of a timeline in the trace format that Perfetto and chrome://tracing read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import polars as pl

from scope.report.figures import TimelineSpans
from scope.units import NS_PER_US

if TYPE_CHECKING:
    from collections.abc import Iterator


def window_json(spans: pl.DataFrame) -> bytes:
    """Return the spans as Chrome trace JSON: one thread a lane, times in microseconds to the nanosecond.

    Args:
        spans: The table `TimelineSpans`.
    """
    lanes: list[str] = spans[TimelineSpans.lane].unique(maintain_order=True).to_list()
    return msgspec.json.encode({"traceEvents": list(_events(spans, lanes)), "displayTimeUnit": "ns"})


def _events(spans: pl.DataFrame, lanes: list[str]) -> Iterator[dict[str, Any]]:
    numbers = {lane: number for number, lane in enumerate(lanes, start=1)}
    for lane, number in numbers.items():
        yield {"ph": "M", "name": "thread_name", "pid": 1, "tid": number, "args": {"name": lane}}
        yield {"ph": "M", "name": "thread_sort_index", "pid": 1, "tid": number, "args": {"sort_index": number}}
    origin = spans[TimelineSpans.start_ns].min()
    assert origin is None or isinstance(origin, int)
    columns = (
        TimelineSpans.lane,
        TimelineSpans.category,
        TimelineSpans.name,
        TimelineSpans.start_ns,
        TimelineSpans.end_ns,
    )
    for lane, category, name, start, end in spans.select(pl.col(each) for each in columns).iter_rows():
        yield {
            "ph": "X",
            "name": name,
            "cat": category,
            "pid": 1,
            "tid": numbers[lane],
            "ts": (start - (origin or 0)) / NS_PER_US,
            "dur": (end - start) / NS_PER_US,
        }
