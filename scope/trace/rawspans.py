"""What all tables of spans share: their order, their bounds, the step in which an instant lies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from scope.trace.eager import is_true, not_negative, taken
from scope.trace.raw import RawSpans
from scope.trace.schema import Steps

if TYPE_CHECKING:
    from scope.trace.columns import Column

NO_ROW: Final = pl.UInt32
_FEWEST_IN_ORDER: Final = 2


def sorted_spans(frame: pl.DataFrame, tie: str) -> pl.DataFrame:
    """Sort by start, the longer first; spans that are equal keep the order in which the profiler numbered them."""
    if frame.height < _FEWEST_IN_ORDER:
        return frame
    return frame.sort(
        RawSpans.start_ns, RawSpans.duration_ns, tie, descending=[False, True, False], maintain_order=True
    )


def spans_of(frame: pl.DataFrame, base_ns: int, start: Column, end: Column) -> list[pl.Series]:
    """Return starts and ends with the base added; a negative length counts as 0."""
    return [(frame[RawSpans.start_ns] + base_ns).alias(start), (_ends(frame) + base_ns).alias(end)]


def _ends(frame: pl.DataFrame) -> pl.Series:
    return frame[RawSpans.start_ns] + not_negative(frame[RawSpans.duration_ns])


def row_numbers(frame: pl.DataFrame, column: Column) -> pl.Series:
    """Return 0, 1, 2 and so on as the column of ids."""
    return pl.int_range(frame.height, dtype=pl.UInt32, eager=True).alias(column)


def step_of(starts: pl.Series, steps: pl.DataFrame) -> pl.Series:
    """Return the step that holds each instant."""
    if steps.height == 0 or len(starts) == 0:
        return pl.Series([None] * len(starts), dtype=NO_ROW)
    ordered = steps.sort(Steps.start_ns)
    places = ordered[Steps.start_ns].search_sorted(starts, side="right").cast(pl.Int64) - 1
    places = pl.select(pl.when(places >= 0).then(places).otherwise(None)).to_series()
    inside = is_true(starts < taken(ordered[Steps.end_ns], places))
    return (
        pl.select(pl.when(inside).then(taken(ordered[Steps.step_id], places)).otherwise(None)).to_series().cast(NO_ROW)
    )
