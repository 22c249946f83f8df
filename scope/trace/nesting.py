"""Which operator contains which, and which operator each call was made in."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import polars as pl

_THREAD: Final = "thread"
_START: Final = "start"
_END: Final = "end"
_IS_POINT: Final = "is_point"
_ROW: Final = "row"


@dataclass
class Nesting:
    """Rows of containing operators; None where there is none."""

    parents: list[int | None]
    depths: list[int]
    points: list[int | None]
    """For each call or instant: the innermost operator that had begun and not ended on its thread."""
    overlaps: int = 0
    """Operators that end after the operator in which they began."""
    has_children: set[int] = field(default_factory=set[int])


def nest(spans: tuple[pl.Series, pl.Series, pl.Series], points: tuple[pl.Series, pl.Series]) -> Nesting:
    """Sweep the operators (thread, start, end) and the calls (thread, start), thread by thread.

    The operators are given outer before inner: sorted by start, the longer first. An operator that outlives the one
    it began in keeps its span; its parent is the innermost running operator that contains all of it.
    """
    threads, starts, ends = spans
    order = pl.concat(
        [
            pl.DataFrame({_THREAD: threads, _START: starts, _END: ends})
            .with_row_index(_ROW)
            .with_columns(pl.lit(value=False).alias(_IS_POINT)),
            pl.DataFrame({_THREAD: points[0], _START: points[1], _END: points[1]})
            .with_row_index(_ROW)
            .with_columns(pl.lit(value=True).alias(_IS_POINT)),
        ]
    ).sort(_THREAD, _START, _IS_POINT, maintain_order=True)
    result = Nesting([None] * len(threads), [0] * len(threads), [None] * len(points[0]))
    for _, group in order.group_by(_THREAD, maintain_order=True):
        _sweep(group, result)
    return result


def _sweep(group: pl.DataFrame, result: Nesting) -> None:
    parents, depths, points, has_children = result.parents, result.depths, result.points, result.has_children
    stack: list[int] = []
    stack_ends: list[int] = []
    rows = zip(
        group[_START].to_list(), group[_END].to_list(), group[_IS_POINT].to_list(), group[_ROW].to_list(), strict=True
    )
    for start, end, is_point, row in rows:
        while stack_ends and stack_ends[-1] <= start:
            stack_ends.pop()
            stack.pop()
        if is_point:
            if stack:
                points[row] = stack[-1]
            continue
        if stack:
            level = len(stack) - 1
            if stack_ends[level] < end:
                result.overlaps += 1
                while level >= 0 and stack_ends[level] < end:
                    level -= 1
            if level >= 0:
                parent = stack[level]
                parents[row] = parent
                depths[row] = depths[parent] + 1
                has_children.add(parent)
        stack.append(row)
        stack_ends.append(end)
