"""What ran when: one lane a rank and stream, true bars near in, exact bins far out."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from scope.report.figures import style
from scope.trace.columns import Column, Table
from scope.units import format_duration, format_ratio

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from scope.report.figures.style import Figure


_BAR_WIDTH: Final = 0.85
_MAX_BARS: Final = 3_000
_MAX_BINS: Final = 1_000
_MAX_CELLS: Final = 8_000
"""Cells of all lanes together: each has a text of its own, which is what the browser waits for."""
_FEWEST_BINS: Final = 250
_TITLE: Final = "Timeline"


class TimelineSpans(Table):
    """Spans to draw; half-open, in any order."""

    lane = Column("lane", pl.Categorical(), "rank and stream; lanes are drawn in the order of their first row")
    category = Column("category", pl.Categorical(), "decides the colour")
    name = Column("name", pl.Categorical(), "what ran")
    start_ns = Column("start_ns", pl.Int64, "first nanosecond")
    end_ns = Column("end_ns", pl.Int64, "end, not part of it")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Frame:
    """What a timeline shows, and in which unit."""

    lanes: Sequence[str]
    categories: Sequence[str]
    start_ns: int
    end_ns: int
    scale: style.TimeScale


def timeline(spans: pl.DataFrame, *, start_ns: int, end_ns: int) -> Figure:
    """Return the lanes of a window [start_ns, end_ns).

    At most 3,000 spans are drawn as they are, cut at the window; more are binned: a cell has the colour of the
    category that took most of it, and says the busy time of each category exactly.

    Args:
        spans: The table `TimelineSpans`.
        start_ns: First nanosecond shown.
        end_ns: End of what is shown.
    """
    inside = spans.filter((pl.col(TimelineSpans.start_ns) < end_ns) & (pl.col(TimelineSpans.end_ns) > start_ns))
    if inside.is_empty() or end_ns <= start_ns:
        return style.empty(title=_TITLE, reason="nothing ran in this window")
    cut = inside.with_columns(
        pl.col(TimelineSpans.start_ns).clip(start_ns), pl.col(TimelineSpans.end_ns).clip(None, end_ns)
    )
    frame = _Frame(
        lanes=spans[TimelineSpans.lane].unique(maintain_order=True).to_list(),
        categories=cut[TimelineSpans.category].unique(maintain_order=True).to_list(),
        start_ns=start_ns,
        end_ns=end_ns,
        scale=style.time_scale(end_ns - start_ns),
    )
    return _bars(cut, frame) if cut.height <= _MAX_BARS else _bins(cut, frame)


def binned_busy_ns(spans: pl.DataFrame, edges_ns: Sequence[int]) -> list[int]:
    """Return how much time the spans cover in each bin, counted once for every span, exactly.

    Args:
        spans: Frame with the columns `start_ns` and `end_ns` of `TimelineSpans`.
        edges_ns: Ascending edges; bin k is [edges_ns[k], edges_ns[k + 1]).

    Returns:
        One sum a bin; two spans that run at once count twice.
    """
    origin = edges_ns[0]
    edges = pl.Series([edge - origin for edge in edges_ns], dtype=pl.Int64)
    # Covered time up to t is the sum of (t - start) over started spans less the sum of (t - end) over ended ones.
    covered = _ramp(spans[TimelineSpans.start_ns] - origin, edges) - _ramp(spans[TimelineSpans.end_ns] - origin, edges)
    return covered.diff().slice(1).to_list()


def _ramp(instants: pl.Series, edges: pl.Series) -> pl.Series:
    """Return the sum of (edge - instant) over the instants up to each edge."""
    ascending = instants.sort()
    sums = pl.concat([pl.Series([0], dtype=pl.Int64), ascending.cum_sum().alias("")])
    passed = ascending.search_sorted(edges, side="right").cast(pl.Int64)
    return edges * passed - sums.gather(passed.cast(pl.UInt32))


def _bars(spans: pl.DataFrame, frame: _Frame) -> Figure:
    traces = [
        _bar_trace(category, spans.filter(pl.col(TimelineSpans.category) == category), frame)
        for category in frame.categories
    ]
    return _drawn(traces, frame, title=_TITLE)


def _bar_trace(category: str, spans: pl.DataFrame, frame: _Frame) -> dict[str, Any]:
    places = {lane: index for index, lane in enumerate(frame.lanes)}
    columns = (TimelineSpans.lane, TimelineSpans.name, TimelineSpans.start_ns, TimelineSpans.end_ns)
    rows = list(spans.select(columns).iter_rows())
    return {
        "type": "bar",
        "orientation": "h",
        "name": style.words(category),
        "marker": {"color": style.color(category), "line": {"width": 0}},
        # Plotly's own choice is as wide as the distance of the lanes that happen to have such a bar.
        "width": _BAR_WIDTH,
        "y": [places[lane] for lane, _, _, _ in rows],
        "base": [frame.scale.of(start - frame.start_ns) for _, _, start, _ in rows],
        "x": [frame.scale.of(end - start) for _, _, start, end in rows],
        "customdata": [
            [style.label(name, length=120), format_duration(end - start), style.label(lane)]
            for lane, name, start, end in rows
        ],
        "hovertemplate": "%{customdata[0]}<br>%{customdata[1]} on %{customdata[2]}<extra></extra>",
    }


def _bins(spans: pl.DataFrame, frame: _Frame) -> Figure:
    length = frame.end_ns - frame.start_ns
    num_bins = min(max(_FEWEST_BINS, min(_MAX_BINS, _MAX_CELLS // len(frame.lanes))), length)
    edges = [frame.start_ns + length * index // num_bins for index in range(num_bins + 1)]
    parts = spans.partition_by(TimelineSpans.lane, TimelineSpans.category, as_dict=True)
    rows = [_lane_bins(parts, lane, edges, frame) for lane in frame.lanes]
    middles = [frame.scale.of((left + right) / 2 - frame.start_ns) for left, right in pairwise(edges)]
    num_categories = len(frame.categories)
    bands = [
        [place / num_categories, style.color(category, index=index)]
        for index, category in enumerate(frame.categories)
        for place in (index, index + 1)
    ]
    trace = {
        "type": "heatmap",
        "x": middles,
        "y": list(range(len(frame.lanes))),
        "z": [[index for index, _ in row] for row in rows],
        "text": [[text for _, text in row] for row in rows],
        "zmin": -0.5,
        "zmax": num_categories - 0.5,
        "colorscale": bands,
        "showscale": False,
        "hoverongaps": False,
        "hovertemplate": "%{text}<extra></extra>",
    }
    legend = [
        {
            "type": "scatter",
            "mode": "markers",
            "x": [None],
            "y": [None],
            "name": style.words(category),
            "marker": {"color": style.color(category, index=index), "symbol": "square", "size": 10},
        }
        for index, category in enumerate(frame.categories)
    ]
    width = format_duration(length // num_bins)
    return _drawn([trace, *legend], frame, title=f"{_TITLE} ({spans.height:,} spans in bins of {width})")


def _lane_bins(
    parts: Mapping[tuple[object, ...], pl.DataFrame], lane: str, edges: Sequence[int], frame: _Frame
) -> list[tuple[int | None, str]]:
    busy = {
        category: binned_busy_ns(parts[lane, category], edges)
        for category in frame.categories
        if (lane, category) in parts
    }
    return [
        _cell({category: sums[place] for category, sums in busy.items()}, edges, place, frame.categories)
        for place in range(len(edges) - 1)
    ]


def _cell(
    busy: Mapping[str, int], edges: Sequence[int], place: int, categories: Sequence[str]
) -> tuple[int | None, str]:
    """Return the index of the category with most time in a bin, and what ran there in words."""
    if not any(busy.values()):
        return None, ""
    width = edges[place + 1] - edges[place]
    parts = [
        f"{style.words(name)}: {format_duration(length)} ({format_ratio(length / width)})"
        for name, length in busy.items()
        if length
    ]
    return categories.index(max(busy, key=lambda name: busy[name])), "<br>".join(parts)


def _drawn(traces: Sequence[dict[str, Any]], frame: _Frame, *, title: str) -> Figure:
    return style.build(
        traces,
        title=title,
        x_title=f"Time since the start of the window ({frame.scale.unit})",
        y_title="Rank and stream",
        layout={
            "barmode": "overlay",
            "bargap": 0.15,
            "height": 160 + 26 * len(frame.lanes),
            "xaxis": {"range": [0, frame.scale.of(frame.end_ns - frame.start_ns)]},
            "yaxis": {
                "autorange": "reversed",
                "tickmode": "array",
                "tickvals": list(range(len(frame.lanes))),
                "ticktext": [style.label(lane, length=32) for lane in frame.lanes],
            },
        },
    )
