"""The algebra of half-open spans: union, intersection, difference and length, in integer nanoseconds.

A set of spans is a frame with the columns of `Spans`. It is *normalised* when its spans are sorted, disjoint, not
adjacent, and none is empty; every function here takes any frame and returns a normalised one. A span that is empty or
ends before it starts covers nothing. Cost: one sort of the boundaries each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from scope.trace.columns import Column, Table

if TYPE_CHECKING:
    from collections.abc import Mapping


class Spans(Table):
    """A set of half-open spans [start_ns, end_ns)."""

    start_ns = Column("start_ns", pl.Int64, "first nanosecond")
    end_ns = Column("end_ns", pl.Int64, "end, not part of it")


SPAN_NS: Final = pl.col(Spans.end_ns) - pl.col(Spans.start_ns)
"""Length of each row's own span."""

_BOUNDARY: Final = "boundary_ns"
_OPENS: Final = "opens"
_DONE: Final = "covered_ns"
_ROW: Final = "row"
_LEFT: Final = "left"
_RIGHT: Final = "right"
_EDGE: Final = pl.Series([True])
"""The first row begins something, and the last ends something."""


def in_order(frame: pl.DataFrame, *columns: str) -> pl.DataFrame:
    """Return the rows sorted by several columns, nulls last.

    A stable sort for each column, the last column first, takes a fraction of the time of one sort by all of them.
    """
    for column in reversed(columns):
        values = frame[column]
        # Often a table is in order already, or of one device.
        if not (is_constant(values) or (column == columns[-1] and values.is_sorted(nulls_last=True))):
            frame = frame.sort(column, nulls_last=True, maintain_order=True)
    return frame


def is_constant(numbers: pl.Series) -> bool:
    """Return whether all rows hold one number, as the device does in most traces: to ask costs next to nothing."""
    return numbers.null_count() == 0 and numbers.min() == numbers.max()


def sweep(spans: pl.DataFrame, *, layers: Mapping[str, pl.Expr], by: str | None = None) -> pl.DataFrame:
    """Cut the line of time wherever a span begins or ends, and count the spans of each layer over each piece.

    Args:
        spans: Any spans. A row that belongs to no layer still cuts.
        layers: By the name of a layer, a Boolean expression: which rows of `spans` belong to it (null: not). Layers
            may overlap.
        by: A column whose every value has a line of time of its own.

    Returns:
        `by` when given, the columns of `Spans`, and one Int32 column per layer; one row per piece between two
        neighbouring boundaries, sorted, disjoint and adjacent, none empty. Pieces that no layer covers lie inside the
        outermost boundaries.
    """
    keys = [] if by is None else [by]
    counts = [belongs.fill_null(value=False).cast(pl.Int32).alias(name) for name, belongs in layers.items()]
    solid = spans.lazy().filter(SPAN_NS > 0).select(*keys, Spans.start_ns, Spans.end_ns, *counts).collect()
    # Arithmetic on columns costs a tenth of what a query of the same does.
    boundaries = pl.DataFrame(
        [
            *(pl.concat([solid[key], solid[key]]) for key in keys),
            pl.concat([solid[Spans.start_ns], solid[Spans.end_ns]]).alias(_BOUNDARY),
            *(pl.concat([solid[name], -solid[name]]) for name in layers),
        ]
    )
    lines = [key for key in keys if not is_constant(boundaries[key])]
    piece = in_order(boundaries, *lines, _BOUNDARY)
    # Each span adds and takes away its count on its own line of time, so one running sum serves all lines.
    piece = piece.with_columns(pl.col(name).cum_sum() for name in layers)
    # Of several boundaries at one instant the last has the count that holds from there on.
    piece = piece.filter(_changes(piece, *lines, _BOUNDARY))
    pieces = piece.with_columns(next_row(piece[_BOUNDARY]).alias(Spans.end_ns))
    # The last boundary of a line opens no piece.
    inside = pieces.filter(~_changes(piece, *lines)) if lines else pieces.head(-1)
    return inside.select(*keys, pl.col(_BOUNDARY).alias(Spans.start_ns), Spans.end_ns, *layers)


def next_row(values: pl.Series) -> pl.Series:
    """Return the values moved up by one row, null at the end; `shift` does the same at many times the cost."""
    return values if values.is_empty() else pl.concat([values[1:], pl.Series([None], dtype=values.dtype)])


def _changes(frame: pl.DataFrame, *columns: str) -> pl.Series:
    """Return for each row whether the next one differs from it in some column; the last one does."""
    if frame.is_empty():
        return pl.Series([], dtype=pl.Boolean)
    first, *others = (frame[column][1:] != frame[column][:-1] for column in columns)
    for differs in others:
        first |= differs
    return pl.concat([first, _EDGE])


def union(spans: pl.DataFrame, *, by: str | None = None) -> pl.DataFrame:
    """Return the normalised spans that cover what at least one span of `spans` covers.

    Args:
        spans: Any spans.
        by: A column whose every value has a line of time of its own; it stands first in the result, which is sorted
            by it and then by time.

    Examples:
        >>> union(pl.DataFrame({"start_ns": [5, 0, 7], "end_ns": [9, 5, 8]})).rows()
        [(0, 9)]
    """
    keys = [] if by is None else [by]
    solid = spans.select(*keys, Spans.start_ns, Spans.end_ns).filter(SPAN_NS > 0)
    lines = [key for key in keys if not is_constant(solid[key])]
    ordered = in_order(solid, *lines, Spans.start_ns)
    if ordered.is_empty():
        return ordered
    furthest = pl.col(Spans.end_ns).cum_max()
    reach = ordered.select(furthest.over(lines) if lines else furthest).to_series()
    # A span begins where a row starts after all before it on its line have ended, and ends where the last of these do.
    parted = ordered[Spans.start_ns][1:] > reach[:-1]
    if lines:
        parted |= _changes(ordered, *lines)[:-1]
    opens, closes = pl.concat([_EDGE, parted]), pl.concat([parted, _EDGE])
    return pl.DataFrame(
        [
            *(ordered[key].filter(opens) for key in keys),
            ordered[Spans.start_ns].filter(opens),
            reach.filter(closes).alias(Spans.end_ns),
        ]
    )


def intersect(left: pl.DataFrame, right: pl.DataFrame) -> pl.DataFrame:
    """Return the normalised spans that cover what both sets cover.

    Examples:
        >>> left = pl.DataFrame({"start_ns": [0], "end_ns": [9]})
        >>> intersect(left, pl.DataFrame({"start_ns": [3, 8], "end_ns": [5, 20]})).rows()
        [(3, 5), (8, 9)]
    """
    return union(_overlay(left, right).filter(pl.col(_LEFT) > 0, pl.col(_RIGHT) > 0))


def subtract(left: pl.DataFrame, right: pl.DataFrame) -> pl.DataFrame:
    """Return the normalised spans that cover what `left` covers and `right` does not.

    Examples:
        >>> left = pl.DataFrame({"start_ns": [0], "end_ns": [9]})
        >>> subtract(left, pl.DataFrame({"start_ns": [3, 8], "end_ns": [5, 20]})).rows()
        [(0, 3), (5, 8)]
    """
    return union(_overlay(left, right).filter(pl.col(_LEFT) > 0, pl.col(_RIGHT) == 0))


def clip(spans: pl.DataFrame, *, start_ns: int, end_ns: int) -> pl.DataFrame:
    """Return the normalised part of `spans` that lies in [start_ns, end_ns)."""
    return union(spans.select(pl.col(Spans.start_ns).clip(start_ns), pl.col(Spans.end_ns).clip(None, end_ns)))


def length(spans: pl.DataFrame) -> int:
    """Return how many nanoseconds at least one span of `spans` covers."""
    return int(union(spans).select(SPAN_NS.sum()).item())


def covered_before(normal: pl.DataFrame, moments: pl.DataFrame, *, column: str, by: str) -> pl.Series:
    """Return for every moment how many nanoseconds before it are covered, in the order of `moments`.

    Args:
        normal: Normalised spans per value of `by`, as `union` returns them.
        moments: Frame with `by` and instants in `column`.
        column: The column of the instants.
        by: A column whose every value has a line of time of its own.
    """
    done = (SPAN_NS.cum_sum() - SPAN_NS).over(by).alias(_DONE)
    known = normal.sort(Spans.start_ns).select(by, Spans.start_ns, Spans.end_ns, done)
    return (
        moments.select(by, pl.col(column).alias(Spans.start_ns))
        .with_row_index(_ROW)
        .sort(Spans.start_ns)
        .with_columns(pl.col(Spans.start_ns).alias(_BOUNDARY))
        .join_asof(
            known.with_columns(pl.col(Spans.start_ns).alias(_LEFT)),
            on=Spans.start_ns,
            by=by,
            suffix="_normal",
            check_sortedness=False,
        )
        .sort(_ROW)
        .select((pl.col(_DONE) + pl.min_horizontal(_BOUNDARY, Spans.end_ns) - pl.col(_LEFT)).fill_null(0).alias(_DONE))
        .to_series()
    )


def _overlay(left: pl.DataFrame, right: pl.DataFrame) -> pl.DataFrame:
    """Return the sweep of two sets of spans."""
    both = pl.concat(
        spans.select(Spans.start_ns, Spans.end_ns, pl.lit(is_left).alias(_LEFT))
        for spans, is_left in ((left, True), (right, False))
    )
    return sweep(both, layers={_LEFT: pl.col(_LEFT), _RIGHT: ~pl.col(_LEFT)})
