"""Ranks that make no steps while others of the run do: loggers, evaluators, and those that only send data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from scope.analysis.doctor.diagnosis import describe_ranks
from scope.frames.schema import RankSteps

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_SETTLED: Final = 10
"""Steps of another rank after which one that has made none is taken to make none, and not to be about to begin."""


def find_stepless(steps: pl.LazyFrame, *, attempt: int, counted_none: Iterable[int]) -> tuple[int, ...]:
    """Return the ranks of an attempt that make no steps, sorted; empty before another rank has made ten.

    Args:
        steps: Table `RankSteps`.
        attempt: The attempt.
        counted_none: Ranks of it whose black box has counted no step, without those that failed before their first; of
            others nobody knows that they made none.
    """
    of_attempt = steps.filter(pl.col(RankSteps.attempt) == attempt)
    made = dict(of_attempt.group_by(RankSteps.rank).agg(pl.col(RankSteps.num_steps).sum()).collect().iter_rows())
    if max(made.values(), default=0) < _SETTLED:
        return ()
    return tuple(sorted(set(counted_none) - made.keys()))


def describe_stepless(ranks: Sequence[int]) -> str:
    """Return that ranks have ended no step and what ends one, without a full stop.

    Why is not known: they may have none to make, or still be in a long first one.

    Args:
        ranks: What `find_stepless` returns, at least one.
    """
    one = len(ranks) == 1
    return (
        f"{describe_ranks(list(ranks))} {'has' if one else 'have'} ended no step (of an optimizer of torch, or by "
        f"end_step()), and what {'it does' if one else 'they do'} is part of no figure of steps; to count it where no "
        f"optimizer steps, end each round of {'its' if one else 'their'} loop with recorder.end_step() of a "
        "scope.Recorder()"
    )
