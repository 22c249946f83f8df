"""Collective calls of a recorded run that belong to no step that has ended."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from scope.frames.schema import Calls, RankSteps
from scope.report.standing import count
from scope.run import paths
from scope.run.layout import CALL_BYTES
from scope.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from scope.frames import Run

_MOST_CALLS: Final = 2**16
"""Calls on record that are read for this; more would take seconds at each look."""


def find_outside(run: Run) -> dict[str, Any]:
    """Return calls and bytes that are on record and in none of the figures by step, or the reason why it is not known.

    Such are calls before the first step (parameters are broadcast), after the last, and of ranks that make no steps.
    """
    if _has_many_calls(run.path):
        reason = f"more than {_MOST_CALLS:,} calls are on record; scope.open_run(RUN).collectives() reads them"
        unknown = dict.fromkeys(("num_calls", "in_bytes", "out_bytes"))
        return {**unknown, "absent": dict.fromkeys(unknown, reason)}
    found = select_outside(run.collectives(), run.steps().lazy())
    totals = found.select(pl.len(), pl.col(Calls.in_bytes).sum(), pl.col(Calls.out_bytes).sum()).row(0)
    return {**dict(zip(("num_calls", "in_bytes", "out_bytes"), totals, strict=True)), "absent": {}}


def _has_many_calls(run: Path) -> bool:
    """Return whether more calls are on record than are read; no more files are looked at than tell it."""
    segments = run.glob(f"attempt-*/ranks/*/{paths.CALLS_FOLDER}/*{paths.SEGMENT_SUFFIX}")
    return any(num_calls > _MOST_CALLS for num_calls in accumulate(map(_count_calls, segments)))


def _count_calls(segment: Path) -> int:
    """Return how many calls a segment holds; 0 of one that its writer has deleted since it was listed."""
    try:
        return segment.stat().st_size // CALL_BYTES
    except OSError:
        return 0


def select_outside(calls: pl.DataFrame, steps: pl.LazyFrame) -> pl.DataFrame:
    """Return the rows of calls that no step which has ended holds.

    Args:
        calls: Table `Calls`.
        steps: Table `RankSteps`.
    """
    last = "last_step"
    key = (Calls.attempt, Calls.rank)
    ended = (
        steps.group_by(RankSteps.attempt, RankSteps.rank)
        .agg((pl.col(RankSteps.step) + pl.col(RankSteps.num_steps) - 1).max().alias(last))
        .collect()
    )
    of_no_step = pl.col(Calls.step).is_null() | pl.col(last).is_null() | (pl.col(Calls.step) > pl.col(last))
    return calls.join(ended, on=key, how="left").filter(of_no_step).drop(last)


def outside_lines(outside: Mapping[str, Any]) -> Iterator[str]:
    """Return a line on calls outside of ended steps, or on why they are not known; none where there are none.

    Args:
        outside: What `find_outside` returns.
    """
    if outside["num_calls"] is None:
        yield f"  calls outside of ended steps are not known: {outside['absent']['num_calls']}"
    elif outside["num_calls"]:
        given, got = format_bytes(outside["in_bytes"]), format_bytes(outside["out_bytes"])
        yield (
            f"  not among these: {count(outside['num_calls'], 'call')} on record outside of ended steps (before the "
            f"first, after the last, of ranks without steps), in which ranks gave {given} and got {got}"
        )
