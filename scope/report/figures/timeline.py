"""What ran when: one lane a rank and stream, true bars near in, exact bins far out."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import nan
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from scope.report.figures import style
from scope.trace.columns import Column, Table
from scope.units import NS_PER_S, format_duration

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from scope.report.figures.style import Figure


_BAR_WIDTH: Final = 0.85
_MAX_BARS: Final = 3_000
_MAX_BINS: Final = 1_000
_MAX_CELLS: Final = 8_000
"""Cells of all lanes together: what the browser waits for."""
_FEWEST_BINS: Final = 250
_TITLE: Final = "Timeline"
_LANE_LENGTH: Final = 32
_NAMES_MARGIN: Final = 16
_ABOVE: Final = 95
"""Pixels for the title, and title and numbers of the axis."""
_BELOW: Final = 40
"""Pixels for a line of the legend; plotly makes room for more."""
_CHARACTER_WIDTH: Final = 6.5
_FIXED: Final = {"automargin": False, "ticklabeloverflow": "allow"}
"""Margins that plotly finds by itself, and names that it tries for room, would each cost it another drawing: together
two thirds of the time that the browser needs for a window."""


class TimelineSpans(Table):
    """Spans to draw; half-open, in any order."""

    lane = Column("lane", pl.Categorical(), "rank and stream; lanes are drawn in the order of their first row")
    category = Column("category", pl.Categorical(), "decides the colour")
    name = Column("name", pl.Categorical(), "what ran")
    start_ns = Column("start_ns", pl.Int64, "first nanosecond")
    end_ns = Column("end_ns", pl.Int64, "end, not part of it")


class BinnedTime(Table):
    """What covers each bin of a lane."""

    lane = Column("lane", pl.Categorical(), "rank and stream")
    category = Column("category", pl.Categorical(), "what ran")
    bin = Column("bin", pl.Int64, "number of the bin, from 0")
    busy_ns = Column("busy_ns", pl.Int64, "time that spans of the category cover in the bin")


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


def busy_by_bin(spans: pl.DataFrame, edges_ns: Sequence[int]) -> pl.DataFrame:
    """Return how much time the spans of each lane and category cover in each bin, counted once for every span, exactly.

    Args:
        spans: The table `TimelineSpans`.
        edges_ns: Ascending edges; bin k is [edges_ns[k], edges_ns[k + 1]).

    Returns:
        The table `BinnedTime`, every bin of every lane and category that occur together, bins ascending; two spans
        that run at once count twice.
    """
    origin = edges_ns[0]
    edges = pl.Series("edge_ns", [edge - origin for edge in edges_ns], dtype=pl.Int64)
    groups = (TimelineSpans.lane, TimelineSpans.category)
    instants = pl.concat(
        spans.lazy().select(*groups, (pl.col(instant) - origin).alias("at_ns"), pl.lit(sign, pl.Int64).alias("sign"))
        for instant, sign in ((TimelineSpans.start_ns, 1), (TimelineSpans.end_ns, -1))
    )
    # Covered time up to t is the sum of (t - start) over started spans less the sum of (t - end) over ended ones.
    passed = (
        instants.select(
            *groups,
            pl.lit(edges).search_sorted(pl.col("at_ns"), side="left").cast(pl.Int64).alias(BinnedTime.bin),
            pl.col("sign"),
            (pl.col("at_ns") * pl.col("sign")).alias("signed_ns"),
        )
        .group_by(*groups, BinnedTime.bin)
        .agg(pl.col("sign", "signed_ns").sum())
    )
    grid = spans.lazy().select(groups).unique(maintain_order=True).join(_bins_of(edges), how="cross")
    summed = grid.join(passed, on=(*groups, BinnedTime.bin), how="left", maintain_order="left").with_columns(
        pl.col("sign", "signed_ns").fill_null(0).cum_sum().over(groups, order_by=BinnedTime.bin)
    )
    covered_ns = pl.col("edge_ns") * pl.col("sign") - pl.col("signed_ns")
    ahead_ns = covered_ns.shift(-1).over(groups, order_by=BinnedTime.bin)
    # The last edge begins no bin.
    binned = summed.select(*groups, BinnedTime.bin, (ahead_ns - covered_ns).alias(BinnedTime.busy_ns)).drop_nulls()
    return binned.sort(BinnedTime.bin, maintain_order=True).collect()


def _bins_of(edges: pl.Series) -> pl.LazyFrame:
    return pl.LazyFrame([edges]).with_row_index(BinnedTime.bin).cast({BinnedTime.bin: pl.Int64})


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
    unit = style.time_scale(length / num_bins)
    width = f"{unit.of(length / num_bins):.3g} {unit.unit}"
    parts = busy_by_bin(spans, edges).partition_by(BinnedTime.lane, BinnedTime.category, as_dict=True)
    busy: dict[str, dict[str, list[int]]] = {}
    for lane, category in sorted(parts, key=lambda part: frame.categories.index(str(part[1]))):
        busy.setdefault(str(lane), {})[str(category)] = parts[lane, category][BinnedTime.busy_ns].to_list()
    traces = [
        {
            "type": "heatmap",
            "x": [frame.scale.of((left + right) / 2 - frame.start_ns) for left, right in pairwise(edges)],
            "y": list(range(len(frame.lanes))),
            "zmin": -0.5,
            "zmax": len(frame.categories) - 0.5,
            "colorscale": _bands(frame.categories),
            "showscale": False,
            "hoverongaps": False,
            **_cells(kinds, busy, frame, num_bins=num_bins),
            "hovertemplate": "<br>".join(
                f"{style.words(name)}: %{{customdata[{place}]:.3~s}}s of {width}" for place, name in enumerate(kinds)
            )
            + "<extra></extra>",
        }
        for kinds in dict.fromkeys(tuple(of_lane) for of_lane in busy.values())
    ]
    title = f"{_TITLE} ({spans.height:,} spans in bins of {width})"
    return _drawn([*traces, *_legend(frame.categories)], frame, title=title)


def _bands(categories: Sequence[str]) -> list[list[object]]:
    """Return a colour scale with one flat band a category."""
    return [
        [place / len(categories), style.color(category, index=index)]
        for index, category in enumerate(categories)
        for place in (index, index + 1)
    ]


def _legend(categories: Sequence[str]) -> list[dict[str, Any]]:
    return [
        {
            "type": "scatter",
            "mode": "markers",
            "x": [None],
            "y": [None],
            "name": style.words(category),
            "marker": {"color": style.color(category, index=index), "symbol": "square", "size": 10},
        }
        for index, category in enumerate(categories)
    ]


def _cells(
    kinds: tuple[str, ...], busy: Mapping[str, Mapping[str, Sequence[int]]], frame: _Frame, *, num_bins: int
) -> dict[str, Any]:
    """Return the cells of the lanes on which just these categories run; the rows of all others are blank.

    Lanes with the same categories share a trace, so that its text under the mouse names no category that never runs
    there. `z` is the index of the category that took most of a bin, `customdata` the seconds of each.
    """
    indices = [frame.categories.index(kind) for kind in kinds]
    winners: list[float] = []
    seconds: list[float] = []
    for lane in frame.lanes:
        if tuple(busy.get(lane, ())) != kinds:
            winners += [nan] * num_bins
            seconds += [0.0] * (num_bins * len(kinds))
            continue
        for lengths in zip(*busy[lane].values(), strict=True):
            most = max(lengths)
            winners.append(indices[lengths.index(most)] if most else nan)
            seconds += [length / NS_PER_S for length in lengths]
    shape = (len(frame.lanes), num_bins)
    return {"z": style.typed(winners, shape), "customdata": style.typed(seconds, (*shape, len(kinds)))}


def _drawn(traces: Sequence[dict[str, Any]], frame: _Frame, *, title: str) -> Figure:
    names = [style.label(lane, length=_LANE_LENGTH) for lane in frame.lanes]
    height = _ABOVE + _BELOW + 26 * len(frame.lanes)
    left = _NAMES_MARGIN + round(_CHARACTER_WIDTH * max(len(lane[:_LANE_LENGTH]) for lane in frame.lanes))
    return style.build(
        traces,
        title=title,
        x_title=f"Time ({frame.scale.unit})",
        y_title="",
        layout={
            "barmode": "overlay",
            "bargap": 0.15,
            "height": height,
            # At the very top: the title of the axis stands below it.
            "title": {"y": 1, "yanchor": "top", "pad": {"t": 14}},
            "margin": {**style.margin(left=left), "t": _ABOVE, "b": _BELOW},
            # Directly below the last lane, so that it grows over nothing, however many lines a narrow screen breaks it
            # into; numbers and title of the axis stand above the first lane.
            "legend": {"orientation": "h", "x": 0, "y": 0, "yanchor": "top"},
            "xaxis": {"side": "top", "range": [0, frame.scale.of(frame.end_ns - frame.start_ns)], **_FIXED},
            "yaxis": {
                **_FIXED,
                # The first lane on top, and no room beside the first and the last.
                "range": [len(frame.lanes) - 0.5, -0.5],
                "tickmode": "array",
                "tickvals": list(range(len(frame.lanes))),
                "ticktext": names,
            },
        },
    )
