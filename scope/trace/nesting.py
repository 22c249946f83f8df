"""Which operator contains which, and which operator each call was made in."""

from __future__ import annotations

from typing import Final

import polars as pl

from scope.structs import Record
from scope.trace.eager import is_true, taken

_THREAD: Final = "thread"
_TIME: Final = "time"
_OP: Final = "op"
_ROW: Final = "row"
_END: Final = "end"
_MOST_TURNS: Final = 64


class Nesting(Record, frozen=True):
    """Rows of containing operators, null where there is none, and what follows from them."""

    parents: pl.Series
    depths: pl.Series
    is_leaf: pl.Series
    overlaps: int
    """Operators that end after the operator in which they began."""


def nest(threads: pl.Series, starts: pl.Series, ends: pl.Series) -> Nesting:
    """Find the operator that contains each operator of its thread.

    They are given outer before inner: sorted by start, the longer first. An operator that outlives the one it began in
    keeps its span; its parent is the innermost running operator that contains all of it.
    """
    frame = pl.DataFrame([threads.alias(_THREAD), starts.alias(_TIME), ends.alias(_END)]).with_row_index(_ROW)
    is_one_after_another = threads.is_sorted()
    if not is_one_after_another:
        frame = frame.sort(_THREAD, maintain_order=True)
    rows, begins, finishes = frame[_ROW], frame[_TIME], frame[_END]
    is_same_thread = pl.col(_THREAD) == pl.col(_THREAD).shift(1)
    before = pl.when(is_same_thread).then(pl.int_range(pl.len(), dtype=pl.Int64) - 1).otherwise(None)
    running = _climb(frame.select(before.cast(pl.UInt32)).to_series(), finishes, begins)
    is_overlap = is_true(finishes[running] < finishes)
    places = _climb(running, finishes, finishes - 1) if is_overlap.any() else running
    parents = taken(rows, places).alias(_OP)
    in_order = parents if is_one_after_another else pl.DataFrame([rows, parents]).sort(_ROW)[_OP]
    is_leaf = pl.Series([True], dtype=pl.Boolean).new_from_index(0, len(rows))
    is_leaf = is_leaf.scatter(in_order.drop_nulls(), values=False)
    return Nesting(in_order, _depths(in_order), is_leaf, int(is_overlap.sum()))


def _climb(places: pl.Series, ends: pl.Series, limits: pl.Series) -> pl.Series:
    """Return for each row the nearest row before it that ends later than the row's limit; null where none does.

    Args:
        places: The row before each, null for the first of a thread; or what an earlier climb returned.
        ends: Ends of the rows.
        limits: Limit of each row; never less than those of the rows that it passes over.
    """
    places = places.clone()
    rows = pl.int_range(len(places), dtype=pl.UInt32, eager=True)
    for _ in range(_MOST_TURNS):
        rows = rows.filter(is_true(ends[places[rows]] <= limits[rows]))
        if rows.is_empty():
            return places
        # Whom a row passes over, those behind it pass over too, so that each turn shortens the way of all.
        places = places.scatter(rows, places[places[rows]])
    return _climbed_one_by_one(places, rows, ends, limits)


def _climbed_one_by_one(places: pl.Series, rows: pl.Series, ends: pl.Series, limits: pl.Series) -> pl.Series:
    """Finish a climb where operators are nested so deeply that turns of all rows would be many."""
    known: list[int | None] = places.to_list()
    finishes: list[int] = ends.to_list()
    waiting: list[int] = rows.to_list()
    bounds: list[int] = limits[rows].to_list()
    for row, limit in zip(waiting, bounds, strict=True):
        place = known[row]
        while place is not None and finishes[place] <= limit:
            place = known[place]
        known[row] = place
    return pl.Series(known, dtype=pl.UInt32)


def _depths(parents: pl.Series) -> pl.Series:
    """Return how many operators are around each; every turn doubles how far each row has looked."""
    further = parents
    depths = parents.is_not_null().cast(pl.UInt32)
    while further.null_count() < len(further):
        depths = depths + taken(depths, further).fill_null(0)
        further = taken(further, further)
    return depths


def innermost(points: pl.DataFrame, ops: pl.DataFrame) -> pl.Series:
    """Return for each point the operator of its thread that began last among those that have not ended.

    Args:
        points: Thread and instant, in that order.
        ops: Thread, start, end and parent, in that order, sorted by start, the longer first.
    """
    if points.height == 0 or ops.height == 0:
        return pl.Series([None] * points.height, dtype=pl.UInt32)
    thread, start, end, parent = ops.get_columns()
    begun = pl.DataFrame([thread.alias(_THREAD), start.alias(_TIME)]).with_row_index(_OP)
    asked = pl.DataFrame([points.to_series(0).alias(_THREAD), points.to_series(1).alias(_TIME)])
    order = asked.with_row_index(_ROW).sort(_TIME)
    found = order.join_asof(begun, on=_TIME, by=_THREAD, strategy="backward", check_sortedness=False).sort(_ROW)
    places, times = found[_OP], found[_TIME]
    # From the operator that began last, climb to one that still runs; each turn settles all points of one more level.
    has_ended = is_true(taken(end, places) <= times)
    while has_ended.any():
        places = places.zip_with(~has_ended, taken(parent, places))
        has_ended = is_true(taken(end, places) <= times)
    return places


def covered(points: pl.DataFrame, spans: pl.DataFrame) -> pl.Series:
    """Return which points lie in any span of their thread.

    Args:
        points: Thread and instant, in that order.
        spans: Thread, start and end, in that order.
    """
    thread, start, end = spans.get_columns()
    begun = pl.DataFrame([thread.alias(_THREAD), start.alias(_TIME), end.alias(_END)]).sort(_TIME)
    reaches = begun.with_columns(pl.col(_END).cum_max().over(_THREAD))
    asked = pl.DataFrame([points.to_series(0).alias(_THREAD), points.to_series(1).alias(_TIME)])
    order = asked.with_row_index(_ROW).sort(_TIME)
    found = order.join_asof(reaches, on=_TIME, by=_THREAD, strategy="backward", check_sortedness=False).sort(_ROW)
    return is_true(found[_END] > found[_TIME])
