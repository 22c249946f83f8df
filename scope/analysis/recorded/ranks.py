"""Ranks beside each other: synchronous steps are equally long on all, so what counts is the time not waited."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from scope.analysis.medians import lower_median, lower_median_ns
from scope.frames.schema import PHASE_COLUMNS, RankSteps
from scope.run.schema import PHASES
from scope.trace.columns import Column, Table
from scope.units import format_duration, format_ratio

if TYPE_CHECKING:
    from collections.abc import Mapping

RANK_BIN: Final = "rank_bin"
STEP_BIN: Final = "step_bin"
BUSY_NS: Final = "busy_ns"
_PEERS: Final = "peers"
_NOTABLE_RATIO: Final = 0.03
"""Share of its peers' time below which a rank is not named."""
_EXPLAINS: Final = 0.5
"""A phase is named when its excess is at least this share of the rank's."""
_CAUSES: Final = {
    RankSteps.input_ns: "input",
    RankSteps.host_to_device_ns: "host_to_device",
    RankSteps.forward_ns: "forward",
    RankSteps.backward_ns: "backward",
    RankSteps.optimizer_ns: "optimizer",
    RankSteps.checkpoint_ns: "checkpoint",
    RankSteps.evaluation_ns: "evaluation",
    RankSteps.other_ns: "other",
    RankSteps.custom_ns: "custom",
}

_UNEXPLAINED: Final = "no phase exceeds its peers' by half of what it works longer, the wait taken off"
_NOT_SLOW: Final = "it works no longer than its peers"
_PLACES: Final = {"other": "outside of all phases", "custom": "in the program's own phases"}


class RankExcess(Table):
    """How much longer than its peers each rank works in a typical step, sorted by excess, the worst first."""

    rank = Column("rank", pl.Int32, "global rank")
    num_steps = Column("num_steps", pl.UInt32, "steps that it rests on")
    busy_ns = Column("busy_ns", pl.Int64, "median of the step's length less the wait in communication")
    peers_busy_ns = Column("peers_busy_ns", pl.Int64, "median of that over its peers, itself counted")
    excess_ns = Column("excess_ns", pl.Int64, "busy less peers' busy; negative for a fast rank")
    excess_ratio = Column("excess_ratio", pl.Float64, "excess / peers' busy")
    phase = Column(
        "phase", pl.String, "phase that exceeds the peers' most, wait not counted, where that is half", nullable=True
    )
    phase_excess_ns = Column("phase_excess_ns", pl.Int64, "by how much, at least", nullable=True)
    phase_absent_reason = Column("phase_absent_reason", pl.String, "why no phase is named", nullable=True)
    is_notable = Column(
        "is_notable", pl.Boolean, "its excess is above what varies by itself, and above 3 % of its peers' busy"
    )


def compute_rank_excess(steps: pl.LazyFrame, *, peers: Mapping[int, int] | None = None) -> pl.DataFrame:
    """Return how much longer than its peers each rank works (table `RankExcess`).

    The wait in communication is taken out of the step's length: a rank that waits is a victim. Each phase is compared
    without the wait that lies in it. Of a wait whose phase is not known any part may lie in any phase: it is
    taken off all phases of the rank and off none of its peers', so that no wait can be mistaken for work. The phase
    named is the one that exceeds the peers' median most by that, where it is at least half of the rank's excess.

    An excess is notable when it is above 3 % of the peers' time and its median over the steps, each against the peers'
    median of that step, is above its own spread (median absolute deviation): what varies by itself blames nobody.

    Args:
        steps: Table `RankSteps`; steps that were disturbed (captures, the FLOP count) and ones without a known wait are
            left out, so the table is empty when no wait is known.
        peers: By rank, the number of the set of peers that it is compared with, as `peer_sets` gives it; ranks that are
            not in it are each other's peers. None: all ranks are peers.
    """
    usable = steps.filter(
        pl.col(RankSteps.disturbed).is_null(),
        pl.col(RankSteps.communication_wait_ns).is_not_null(),
        pl.col(RankSteps.num_steps) == 1,
    )
    medians = (
        usable.with_columns(
            busy().alias(BUSY_NS),
            *(without_wait(column, name).alias(column) for column, name in _CAUSES.items()),
        )
        .with_columns(
            (pl.col(column) - _unplaced_wait()).clip(lower_bound=0).alias(_at_least(column)) for column in _CAUSES
        )
        .group_by(RankSteps.rank)
        .agg(
            pl.len().alias(RankExcess.num_steps),
            *(lower_median_ns(column) for column in (BUSY_NS, *_CAUSES, *map(_at_least, _CAUSES))),
        )
        .collect()
        .with_columns(set_of_rank(peers or {}).alias(_PEERS))
    )
    medians = medians.join(_compute_spread(usable, peers or {}), on=RankSteps.rank, how="left", maintain_order="left")
    usual = {column: lower_median_ns(column).over(_PEERS) for column in (BUSY_NS, *_CAUSES)}
    busy_excess = pl.col(BUSY_NS) - usual[BUSY_NS]
    excess = {column: pl.col(_at_least(column)) - usual[column] for column in _CAUSES}
    worst = pl.max_horizontal(*excess.values())
    cause = pl.coalesce(*(pl.when(excess[column] == worst).then(pl.lit(name)) for column, name in _CAUSES.items()))
    is_slow = busy_excess > 0
    is_explained = is_slow & (worst >= _EXPLAINS * busy_excess)
    table = medians.select(
        RankExcess.rank,
        RankExcess.num_steps,
        RankExcess.busy_ns,
        usual[BUSY_NS].alias(RankExcess.peers_busy_ns),
        busy_excess.alias(RankExcess.excess_ns),
        (busy_excess / pl.max_horizontal(usual[BUSY_NS], 1)).alias(RankExcess.excess_ratio),
        pl.when(is_explained).then(cause).alias(RankExcess.phase),
        pl.when(is_explained).then(worst).alias(RankExcess.phase_excess_ns),
        pl.when(~is_explained)
        .then(pl.when(is_slow).then(pl.lit(_UNEXPLAINED)).otherwise(pl.lit(_NOT_SLOW)))
        .alias(RankExcess.phase_absent_reason),
        (
            (pl.col("typical_ns") > pl.col("spread_ns"))
            & (busy_excess > _NOTABLE_RATIO * pl.max_horizontal(usual[BUSY_NS], 1))
        )
        .fill_null(value=False)
        .alias(RankExcess.is_notable),
    ).sort(RankExcess.excess_ns, RankExcess.rank, descending=[True, False])
    return RankExcess.check(table.cast(RankExcess.schema()))


def _at_least(column: str) -> str:
    return f"{column}_at_least"


def _wait_in(phase: str) -> pl.Expr:
    """Return the wait in a phase, as far as it is known."""
    return pl.col(RankSteps.communication_wait_by_phase).struct.field(phase).fill_null(0)


def without_wait(column: str, phase: str) -> pl.Expr:
    """Return the time in a phase less the wait in communication that is known to lie in it."""
    return (pl.col(column) - _wait_in(phase)).clip(lower_bound=0)


def _unplaced_wait() -> pl.Expr:
    """Return the wait of which it is not known in which phase it was: all of it in older recordings."""
    placed = pl.sum_horizontal(*(_wait_in(phase) for phase in (*PHASES, "custom")))
    return (pl.col(RankSteps.communication_wait_ns) - placed).clip(lower_bound=0)


def _compute_spread(usable: pl.LazyFrame, peers: Mapping[int, int]) -> pl.DataFrame:
    """Return, by rank, the median over the steps of its excess in each step, and its median absolute deviation."""
    own = pl.col("own_ns")
    return (
        usable.select(RankSteps.rank, RankSteps.step, busy().alias(BUSY_NS))
        .with_columns(set_of_rank(peers).alias(_PEERS))
        .with_columns((pl.col(BUSY_NS) - lower_median_ns(BUSY_NS).over(_PEERS, RankSteps.step)).alias("own_ns"))
        .group_by(RankSteps.rank)
        .agg(lower_median(own).alias("typical_ns"), (own - own.median()).abs().median().alias("spread_ns"))
        .collect()
    )


def describe_slowest(excess: pl.DataFrame) -> str | None:
    """Return which rank works notably longer than its peers, without a full stop; None when none does.

    Args:
        excess: Table `RankExcess`.
    """
    notable = excess.filter(pl.col(RankExcess.is_notable))
    if notable.is_empty():
        return None
    row = notable.row(0, named=True)
    longer = f"{format_duration(row[RankExcess.excess_ns])} ({format_ratio(row[RankExcess.excess_ratio])})"
    where = say_where(row[RankExcess.phase], most="most of it")
    return f"rank {row[RankExcess.rank]} works {longer} a step longer than its peers, {where}"


def say_where(phase: str | None, *, most: str) -> str:
    """Return where in its steps a rank works longer than its peers, in words.

    Args:
        phase: Phase of `RankExcess`; None where none explains it.
        most: What stands before the place, such as `most of it`.

    Examples:
        >>> say_where("forward", most="most of it")
        'most of it in forward'
        >>> say_where(None, most="most of it")
        'its phases do not tell where'
    """
    return "its phases do not tell where" if phase is None else f"{most} {phase_place(phase)}"


def phase_place(phase: str) -> str:
    """Return where in a step a phase of `RankExcess` lies, in words.

    Examples:
        >>> phase_place("forward")
        'in forward'
        >>> phase_place("other")
        'outside of all phases'
    """
    return _PLACES.get(phase, f"in {phase}")


def set_of_rank(peers: Mapping[int, int]) -> pl.Expr:
    """Return the number of each rank's set of peers, -1 for ranks without one."""
    ranks = pl.col(RankSteps.rank)
    return ranks.replace_strict(dict(peers), default=-1, return_dtype=pl.Int64) if peers else pl.lit(-1, pl.Int64)


def bin_rank_steps(steps: pl.LazyFrame, *, max_ranks: int, max_steps: int) -> pl.DataFrame:
    """Return the time not waited by rank and step, binned so that at most `max_ranks` x `max_steps` cells remain.

    Args:
        steps: Table `RankSteps` of one attempt.
        max_ranks: Most rows.
        max_steps: Most columns.

    Returns:
        `rank` and `step` (first of the bin), `busy_ns`: mean over the ranks and steps of the bin, rounded down, of the
        step's length less the wait in communication (the whole length where the wait is unknown).
    """
    bounds = steps.select(
        pl.col(RankSteps.rank).max().alias("last_rank"),
        pl.col(RankSteps.step).min().alias("first_step"),
        pl.col(RankSteps.step).max().alias("last_step"),
    ).collect()
    last_rank, first_step, last_step = bounds.row(0)
    if last_rank is None:
        return pl.DataFrame(schema={RankSteps.rank: pl.Int32, RankSteps.step: pl.Int64, BUSY_NS: pl.Int64})
    rank_width = -(-(last_rank + 1) // max_ranks)
    step_width = -(-(last_step - first_step + 1) // max_steps)
    return (
        steps.group_by(
            (pl.col(RankSteps.rank) // rank_width).alias(RANK_BIN),
            ((pl.col(RankSteps.step) - first_step) // step_width).alias(STEP_BIN),
        )
        .agg((busy().sum() // pl.col(RankSteps.num_steps).sum()).alias(BUSY_NS))
        .select(
            (pl.col(RANK_BIN) * rank_width).cast(pl.Int32).alias(RankSteps.rank),
            (pl.col(STEP_BIN) * step_width + first_step).alias(RankSteps.step),
            BUSY_NS,
        )
        .sort(RankSteps.rank, RankSteps.step)
        .collect()
    )


def busy() -> pl.Expr:
    """Return the step's length less the wait in communication; the whole length where the wait is unknown."""
    return pl.col(RankSteps.duration_ns) - pl.col(RankSteps.communication_wait_ns).fill_null(0)


assert set(_CAUSES) <= set(PHASE_COLUMNS)
