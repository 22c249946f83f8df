"""Goodput of a recorded run: the time in steps that were kept, of the time that the run took."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from scope.definitions import goodput_since
from scope.frames.schema import Ranks, RankSteps

if TYPE_CHECKING:
    from collections.abc import Mapping

IMPOSSIBLE: Final = "the steps on record last longer than the run did: a record, or a clock, is wrong"
"""Why a run that has steps has no goodput."""


def compute_kept(steps: pl.LazyFrame) -> dict[int, int]:
    """Return, by rank of the last attempt that has steps, nanoseconds in the steps of all attempts that were kept.

    A step is lost when a later attempt begins at it or before it; of a summary, all steps are lost when its last is.
    For a rank that an earlier attempt did not have, the rank of that attempt with the least counts.

    Args:
        steps: Table `RankSteps` of all attempts.
    """
    kept: dict[int, dict[int, int]] = {}
    for attempt, limit in _limits(steps).items():
        sums = (
            steps.filter(pl.col(RankSteps.attempt) == attempt)
            .group_by(RankSteps.rank)
            .agg(pl.col(RankSteps.duration_ns).cast(pl.Int128).filter(_is_kept(limit)).sum())
            .collect()
        )
        kept[attempt] = dict(sums.iter_rows())
    if not kept:
        return {}
    last, *earlier = kept.values()
    return {rank: own + sum(each.get(rank, min(each.values())) for each in earlier) for rank, own in last.items()}


def count_lost_steps(steps: pl.LazyFrame) -> int:
    """Return the steps of earlier attempts that later ones make again, by the rule of `compute_kept`.

    Of each attempt the steps of the rank with most count.

    Args:
        steps: Table `RankSteps` of all attempts.
    """
    num_lost = 0
    for attempt, limit in _limits(steps).items():
        if limit is None:
            continue
        by_rank = (
            steps.filter(pl.col(RankSteps.attempt) == attempt, ~_is_kept(limit))
            .group_by(RankSteps.rank)
            .agg(pl.col(RankSteps.num_steps).sum())
            .collect()
        )
        num_lost += max(by_rank[RankSteps.num_steps], default=0)
    return num_lost


def is_count_of_lost_at_least(steps: pl.LazyFrame, broken_off: Mapping[int, int]) -> bool:
    """Return whether more steps may be lost than `count_lost_steps` says, since one that broke off has no record.

    A step is recorded when the next begins. One that never ended may have had its update, which nothing tells.

    Args:
        steps: Table `RankSteps` of all attempts.
        broken_off: By attempt, the last step that a rank was in which did not end in order.
    """
    lasts = steps.group_by(RankSteps.attempt).agg(_last_step().max()).collect()
    recorded: dict[int, int] = dict(lasts.iter_rows())
    return any(
        limit is not None and broken_off.get(attempt, -1) >= max(limit, recorded[attempt] + 1)
        for attempt, limit in _limits(steps).items()
    )


def _limits(steps: pl.LazyFrame) -> dict[int, int | None]:
    """Return, of each attempt that has steps, the last one first, the step from which on its steps are lost."""
    firsts = steps.group_by(RankSteps.attempt).agg(pl.col(RankSteps.step).min().alias("first")).collect()
    limits: dict[int, int | None] = {}
    limit: int | None = None
    for attempt, first in firsts.sort(RankSteps.attempt, descending=True).iter_rows():
        limits[attempt] = limit
        limit = first if limit is None else min(limit, first)
    return limits


def _is_kept(limit: int | None) -> pl.Expr:
    return pl.lit(value=True) if limit is None else _last_step() < limit


def _last_step() -> pl.Expr:
    return pl.col(RankSteps.step) + pl.col(RankSteps.num_steps) - 1


def compute_goodput(
    kept_ns: Mapping[int, int], ranks: pl.DataFrame, *, now_ns: int, began_ns: int | None = None
) -> float | None:
    """Return the goodput of the rank with the least; None before the first step.

    It is the least of the series `scope_train_goodput_ratio` of a run's ranks. None too where the steps of a rank last
    longer than the run did: what its other ranks have is then not known to be the least.

    Args:
        kept_ns: What `compute_kept` returns.
        ranks: Table `Ranks` of all attempts.
        now_ns: End of the wall time of a rank that has not ended.
        began_ns: When the run began, as `run.json` says; None for the start of its first rank.
    """
    current = ranks.filter(pl.col(Ranks.attempt) == pl.col(Ranks.attempt).max())
    ended_ns: dict[int, int | None] = dict(current.select(Ranks.rank, Ranks.ended_ns).iter_rows())
    first_ns = ranks[Ranks.started_ns].min()
    began = began_ns if began_ns is not None else first_ns
    assert isinstance(began, int)
    ratios = [
        goodput_since(kept_ns=kept, began_ns=began, ended_ns=ended_ns.get(rank), now_ns=now_ns)
        for rank, kept in kept_ns.items()
    ]
    known = [ratio for ratio in ratios if ratio is not None]
    return min(known) if known and len(known) == len(ratios) else None
