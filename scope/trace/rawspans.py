"""What all tables of spans share: their order, their bounds, the step in which an instant lies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from scope.trace.eager import not_negative, taken
from scope.trace.raw import RawSpans
from scope.trace.schema import Steps

if TYPE_CHECKING:
    from scope.trace.columns import Column

NO_ROW: Final = pl.UInt32
_FEWEST_IN_ORDER: Final = 2
_EARLIEST: Final = -(2**63)


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
    ordered = steps if steps[Steps.start_ns].is_sorted() else steps.sort(Steps.start_ns)
    begun = ordered[Steps.start_ns].search_sorted(starts, side="right").cast(NO_ROW)
    # The first entry stands for no step, which ends before all instants.
    ends = pl.Series([_EARLIEST, *ordered[Steps.end_ns].to_list()], dtype=pl.Int64)
    step_ids = pl.Series([None, *ordered[Steps.step_id].to_list()], dtype=NO_ROW)
    return taken(step_ids, begun * (starts < taken(ends, begun)).cast(NO_ROW))
