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


def in_order(frame: pl.DataFrame, *columns: str) -> pl.DataFrame:
    """Return the rows sorted by several columns, nulls last.

    A stable sort for each column, the last column first, takes a fraction of the time of one sort by all of them.
    """
    for column in reversed(columns):
        frame = frame.sort(column, nulls_last=True, maintain_order=True)
    return frame


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
    solid = spans.lazy().filter(SPAN_NS > 0).select(*keys, Spans.start_ns, Spans.end_ns, *counts)
    boundaries = [
        solid.select(*keys, pl.col(Spans.start_ns).alias(_BOUNDARY), *layers),
        solid.select(*keys, pl.col(Spans.end_ns).alias(_BOUNDARY), *(-pl.col(name) for name in layers)),
    ]
    is_last = pl.any_horizontal(pl.col(key) != pl.col(key).shift(-1) for key in (*keys, _BOUNDARY)).fill_null(
        value=True
    )
    piece = in_order(pl.concat(boundaries).collect(), *keys, _BOUNDARY).lazy()
    # Each span adds and takes away its count on its own line of time, so one running sum serves all lines.
    piece = piece.with_columns(pl.col(name).cum_sum() for name in layers)
    # Of several boundaries at one instant the last has the count that holds from there on.
    piece = piece.filter(is_last)
    piece = piece.select(
        *keys,
        pl.col(_BOUNDARY).alias(Spans.start_ns),
        pl.col(_BOUNDARY).shift(-1).alias(Spans.end_ns),
        (pl.col(by) == pl.col(by).shift(-1)).alias(_OPENS) if by else pl.lit(value=True).alias(_OPENS),
        *layers,
    )
    return piece.filter(pl.col(Spans.end_ns).is_not_null() & pl.col(_OPENS)).drop(_OPENS).collect()


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
    reach = pl.col(Spans.end_ns).cum_max()
    reach = reach if by is None else reach.over(by)
    past = reach.shift(1) if by is None else reach.shift(1).over(by)
    solid = spans.select(*keys, Spans.start_ns, Spans.end_ns).filter(SPAN_NS > 0)
    return (
        in_order(solid, *keys, Spans.start_ns)
        .lazy()
        .with_columns(reach, (pl.col(Spans.start_ns) > past).fill_null(value=True).alias(_OPENS))
        .select(
            *(pl.col(key).filter(pl.col(_OPENS)) for key in keys),
            pl.col(Spans.start_ns).filter(pl.col(_OPENS)),
            # The span ends where the row before the next one's first row reaches.
            pl.col(Spans.end_ns).filter(pl.col(_OPENS).shift(-1).fill_null(value=True)),
        )
        .collect()
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
