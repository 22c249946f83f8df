"""Which operator contains which, and which operator each call was made in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import polars as pl

from scope.trace.eager import is_true, taken

_THREAD: Final = "thread"
_TIME: Final = "time"
_OP: Final = "op"
_ROW: Final = "row"
_END: Final = "end"


@dataclass(frozen=True)
class Nesting:
    """Rows of containing operators; None where there is none."""

    parents: list[int | None]
    depths: list[int]
    is_leaf: list[bool]
    overlaps: int
    """Operators that end after the operator in which they began."""


def nest(threads: pl.Series, starts: pl.Series, ends: pl.Series) -> Nesting:
    """Sweep the operators, thread by thread.

    They are given outer before inner: sorted by start, the longer first. An operator that outlives the one it began in
    keeps its span; its parent is the innermost running operator that contains all of it.
    """
    size = len(threads)
    parents: list[int | None] = [None] * size
    depths = [0] * size
    is_leaf = [True] * size
    overlaps = 0
    stacks: dict[int, list[tuple[int, int]]] = {}
    rows = zip(range(size), threads.to_list(), starts.to_list(), ends.to_list(), strict=True)
    for row, thread, start, end in rows:
        stack = stacks.get(thread)
        if stack is None:
            stack = stacks[thread] = []
        while stack and stack[-1][0] <= start:
            stack.pop()
        if stack:
            around_end, parent = stack[-1]
            if around_end < end:
                overlaps += 1
                parent = next((outer for outer_end, outer in reversed(stack) if outer_end >= end), -1)
            if parent >= 0:
                parents[row] = parent
                depths[row] = depths[parent] + 1
                is_leaf[parent] = False
        stack.append((end, row))
    return Nesting(parents, depths, is_leaf, overlaps)


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
