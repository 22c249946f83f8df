"""Steps over all ranks: how long, whose was the slowest, and where its time went."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from scope.analysis.medians import lower_median_ns
from scope.analysis.recorded.ranks import busy
from scope.frames.schema import PHASE_COLUMNS, RankSteps
from scope.trace.columns import Column, Table

if TYPE_CHECKING:
    from collections.abc import Sequence


class StepSummary(Table):
    """One step of the job a row, sorted by attempt and step.

    Where ranks folded old steps, a row is the shortest range of steps that none of their summaries reaches across: the
    rows never overlap, and `num_steps` adds up to the steps of the job. Lengths are then those of the whole range.

    The slowest rank is the one that works longest, its wait in communication taken off: ranks that wait for each other
    are equally long. The phases are its, so that they sum to `slowest_ns` exactly.
    """

    attempt = Column("attempt", pl.Int32, "restart count")
    step = Column("step", pl.Int64, "number of the step, the first one of a range of folded steps")
    num_steps = Column("num_steps", pl.Int64, "1, or the steps of such a range, whichever ranks recorded them")
    num_ranks = Column("num_ranks", pl.UInt32, "ranks that have recorded it")
    slowest_rank = Column("slowest_rank", pl.Int32, "rank that works longest; the lowest of equals")
    start_ns = Column("start_ns", pl.Int64, "earliest start of a rank")
    end_ns = Column("end_ns", pl.Int64, "latest end of a rank")
    duration_ns = Column("duration_ns", pl.Int64, "length on the rank on which it is longest")
    slowest_ns = Column("slowest_ns", pl.Int64, "length on the slowest rank")
    median_ns = Column("median_ns", pl.Int64, "median length over the ranks, the lower of two")
    model_flop = Column("model_flop", pl.Float64, "FLOPs of all ranks; null unless every rank knows", nullable=True)
    hardware_flop = Column("hardware_flop", pl.Float64, "with recompute, likewise", nullable=True)
    tokens = Column("tokens", pl.Int64, "tokens of all ranks; null unless every rank knows", nullable=True)
    communication_wait_ns = Column(
        "communication_wait_ns", pl.Int64, "overlay: host of the slowest rank blocked in communication", nullable=True
    )
    gc_ns = Column("gc_ns", pl.Int64, "overlay: garbage collection of the slowest rank")
    startup_ns = Column("startup_ns", pl.Int64, "phase of the slowest rank")
    init_ns = Column("init_ns", pl.Int64, "phase of the slowest rank")
    input_ns = Column("input_ns", pl.Int64, "phase of the slowest rank")
    host_to_device_ns = Column("host_to_device_ns", pl.Int64, "phase of the slowest rank")
    forward_ns = Column("forward_ns", pl.Int64, "phase of the slowest rank")
    backward_ns = Column("backward_ns", pl.Int64, "phase of the slowest rank")
    optimizer_ns = Column("optimizer_ns", pl.Int64, "phase of the slowest rank")
    evaluation_ns = Column("evaluation_ns", pl.Int64, "phase of the slowest rank")
    checkpoint_ns = Column("checkpoint_ns", pl.Int64, "phase of the slowest rank")
    other_ns = Column("other_ns", pl.Int64, "none of the phases, on the slowest rank")
    custom_ns = Column("custom_ns", pl.Int64, "the user's own phases on the slowest rank")


_OF_SLOWEST = (RankSteps.communication_wait_ns, RankSteps.gc_ns, *PHASE_COLUMNS)
_KEYS = (RankSteps.attempt, RankSteps.rank, RankSteps.step)
_FIRST = "first_of_range"
_END = "end_of_range"
_OF_ALL = (RankSteps.model_flop, RankSteps.hardware_flop, RankSteps.tokens)


def summarize_steps(steps: pl.LazyFrame) -> pl.DataFrame:
    """Return each step of the job with its slowest rank (table `StepSummary`).

    Args:
        steps: Table `RankSteps`, in any order.
    """
    steps = _join_folded(steps)
    slowest = pl.when(busy() == busy().max()).then(pl.col(RankSteps.rank)).arg_min()
    summary = (
        steps.group_by(RankSteps.attempt, RankSteps.step)
        .agg(
            pl.col(RankSteps.num_steps).max(),
            pl.len().alias(StepSummary.num_ranks),
            pl.col(RankSteps.start_ns).min(),
            pl.col(RankSteps.end_ns).max(),
            pl.col(RankSteps.duration_ns).max(),
            pl.col(RankSteps.duration_ns).get(slowest).alias(StepSummary.slowest_ns),
            pl.col(RankSteps.rank).get(slowest).alias(StepSummary.slowest_rank),
            lower_median_ns(RankSteps.duration_ns).alias(StepSummary.median_ns),
            *(_sum_if_all_known(column) for column in _OF_ALL),
            *(pl.col(column).get(slowest) for column in _OF_SLOWEST),
        )
        .sort(StepSummary.attempt, StepSummary.step)
        .select(*StepSummary.columns())
        .collect()
    )
    return StepSummary.check(summary)


def _join_folded(steps: pl.LazyFrame) -> pl.LazyFrame:
    """Return one row a rank and range of steps, where ranks folded steps, with the columns that a summary needs.

    Each rank folds when its own file is full, so that the summaries of two ranks may overlap: what overlaps, directly
    or through others, is one range. A summary is taken to hold as many steps from its first on as it says it has.
    """
    if not steps.select((pl.col(RankSteps.num_steps) > 1).any()).collect().item():
        return steps
    first, end = pl.col(RankSteps.step), pl.col(RankSteps.step) + pl.col(RankSteps.num_steps)
    reached = end.cum_max().shift(1)
    in_order = steps.select(
        *_KEYS, RankSteps.num_steps, RankSteps.start_ns, RankSteps.end_ns, RankSteps.duration_ns, *_OF_SLOWEST, *_OF_ALL
    ).sort(RankSteps.attempt, RankSteps.step)
    ranges = in_order.with_columns(
        pl.when((first >= reached).fill_null(value=True))
        .then(first)
        .forward_fill()
        .over(RankSteps.attempt)
        .alias(_FIRST),
        end.alias(_END),
    )
    by_rank = ranges.group_by(RankSteps.attempt, _FIRST, RankSteps.rank).agg(
        pl.col(_END).max(),
        pl.col(RankSteps.start_ns).min(),
        pl.col(RankSteps.end_ns).max(),
        pl.col(RankSteps.duration_ns, RankSteps.gc_ns, *PHASE_COLUMNS).sum(),
        pl.when(pl.col(RankSteps.communication_wait_ns).is_not_null().any())
        .then(pl.col(RankSteps.communication_wait_ns).sum())
        .alias(RankSteps.communication_wait_ns),
        *(_sum_if_all_known(column) for column in _OF_ALL),
    )
    return by_rank.with_columns(
        (pl.col(_END).max().over(RankSteps.attempt, _FIRST) - pl.col(_FIRST)).alias(RankSteps.num_steps)
    ).rename({_FIRST: RankSteps.step})


def compute_phase_totals(steps: pl.LazyFrame, *, phases: Sequence[str] = PHASE_COLUMNS) -> dict[str, int]:
    """Return host nanoseconds by phase, added over all ranks and steps; they sum to the length of all steps.

    Args:
        steps: Table `RankSteps`.
        phases: Columns to add.
    """
    sums = steps.select(pl.col(list(phases)).sum()).collect()
    return {phase.removesuffix("_ns"): int(sums[phase][0]) for phase in phases}


def _sum_if_all_known(column: str) -> pl.Expr:
    return pl.when(pl.col(column).null_count() == 0).then(pl.col(column).sum()).alias(column)
