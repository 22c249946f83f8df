"""Where each clock probably stands: the median difference of the ends of common collectives, and its drift."""

from __future__ import annotations

from statistics import median_low
from typing import TYPE_CHECKING, Final

import polars as pl

from scope.analysis.collective_tables import GroupRows, MatchedCalls
from scope.analysis.operations import FROM_ROOT, IS_SYMMETRIC, PAIRS, TO_ROOT
from scope.structs import Record
from scope.trace.schema import CollectiveCalls

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_MIN_CALLS_FOR_DRIFT: Final = 9
_DRIFT_SIGNIFICANCE: Final = 6
_MAX_DRIFT: Final = 1e-3
_TRUNCATION_NS: Final = 1_000
"""Old traces cut instants and lengths to whole microseconds."""

ARRIVAL: Final = "bounding_arrival_ns"
"""Arrival of a call that holds others up, else null."""
END: Final = "bounding_end_ns"
"""End of a call that shows that others had arrived, else null."""
TIME: Final = "local_end_ns"
OFFSET: Final = "offset_ns"
DRIFT: Final = "drift"
RESIDUAL: Final = "residual_ns"
_KNOWN: Final = "known_end_ns"
_GAP: Final = "gap_ns"
_FIRST: Final = "first_ns"
_LAST: Final = "last_ns"


class ClockEstimate(Record, frozen=True, kw_only=True):
    """One rank's clock while it is being worked out."""

    reference_rank: int
    offset_ns: int
    drift: float
    residual_ns: int | None
    num_collectives: int


def drifted(instant: pl.Expr, middle_ns: int) -> pl.Expr:
    """Return by how much a clock with the column `DRIFT` has run ahead since the middle, in whole nanoseconds."""
    return ((instant - middle_ns) * pl.col(DRIFT).fill_null(0.0)).round().cast(pl.Int64)


def find_bounding_calls(calls: pl.DataFrame) -> pl.DataFrame:
    """Return the calls that bound clocks: whose arrival holds others up, and whose end shows that others arrived."""
    operation, is_root = pl.col(CollectiveCalls.operation), pl.col(MatchedCalls.is_root)
    # A rank that exchanges nothing with some other of an uneven all_to_all does not wait for it.
    has_zero = pl.any_horizontal(
        pl.col(split).list.contains(0).fill_null(value=False)
        for split in (CollectiveCalls.in_split, CollectiveCalls.out_split)
    )
    is_whole = pl.col(IS_SYMMETRIC) & ~has_zero.any().over(MatchedCalls.collective_id)
    # On a host timeline the range of a send or recv may cover the wait alone: the data can be gone before it begins.
    is_timed_pair = (operation == PAIRS[0]) & pl.col(CollectiveCalls.device).is_not_null()
    from_root, to_root = operation.is_in(FROM_ROOT) | is_timed_pair, operation.is_in(TO_ROOT)
    holds_up = is_whole | (from_root & is_root) | (to_root & ~is_root)
    shows = is_whole | (from_root & ~is_root) | (to_root & is_root)
    start, end = pl.col(CollectiveCalls.start_ns), pl.col(CollectiveCalls.end_ns)
    in_us = ((start % _TRUNCATION_NS == 0) & (end % _TRUNCATION_NS == 0)).all().over(MatchedCalls.rank)
    # Start and length were both cut, so the true end may lie two units later.
    slack = pl.when(in_us).then(2 * _TRUNCATION_NS).otherwise(0)
    return (
        calls.filter(pl.col(MatchedCalls.state) == "matched")
        .filter(pl.col(MatchedCalls.rank).n_unique().over(MatchedCalls.collective_id) > 1)
        .select(
            MatchedCalls.collective_id,
            MatchedCalls.rank,
            end.alias(TIME),
            (pl.col(IS_SYMMETRIC) & ~has_zero).alias(IS_SYMMETRIC),
            GroupRows.is_pair,
            pl.when(holds_up).then(start).alias(ARRIVAL),
            pl.when(shows).then(end + slack).alias(END),
        )
    )


def middle_of(usable: pl.DataFrame) -> int:
    """Return the middle between the first and the last end, for which offsets are stated; 0 without calls."""
    bounds = usable.select(pl.col(TIME).min().alias(_FIRST), pl.col(TIME).max().alias(_LAST)).row(0)
    return 0 if bounds[0] is None else (bounds[0] + bounds[1]) // 2


def estimate_clocks(usable: pl.DataFrame, ranks: Sequence[int], middle_ns: int) -> dict[int, ClockEstimate]:
    """Spread from the lowest rank of each component over the collectives in common, the symmetric ones first.

    Ranks leave rooted operations when they please, so that those bound clocks but say nothing of where between.
    """
    estimates: dict[int, ClockEstimate] = {}
    symmetric, pairs = usable.filter(pl.col(IS_SYMMETRIC)), usable.filter(pl.col(GroupRows.is_pair))
    for rank in ranks:
        if rank in estimates:
            continue
        estimates[rank] = ClockEstimate(
            reference_rank=rank, offset_ns=0, drift=0.0, residual_ns=None, num_collectives=0
        )
        while len(estimates) < len(ranks):
            found = (
                _neighbours(symmetric, estimates, rank, middle_ns)
                or _neighbours(pairs, estimates, rank, middle_ns)
                or _joined(usable, estimates, rank)
            )
            if not found:
                break
            estimates |= found
    return estimates


def _neighbours(
    usable: pl.DataFrame, estimates: Mapping[int, ClockEstimate], reference: int, middle_ns: int
) -> dict[int, ClockEstimate]:
    """Return the clocks of ranks that share a collective with a rank of the component whose clock is known."""
    known = [rank for rank, each in estimates.items() if each.reference_rank == reference]
    inside = usable.filter(pl.col(MatchedCalls.rank).is_in(known))
    ends = (
        with_estimates(inside, estimates)
        .with_columns((pl.col(TIME) - pl.col(OFFSET)).alias(TIME))
        .group_by(MatchedCalls.collective_id)
        # An instant doesn't fit into a float, so the median (the lower of two) is picked by its place.
        .agg((pl.col(TIME) - drifted(pl.col(TIME), middle_ns)).sort().get((pl.len() - 1) // 2).alias(_KNOWN))
    )
    gaps = usable.filter(~pl.col(MatchedCalls.rank).is_in(list(estimates))).join(ends, on=MatchedCalls.collective_id)
    gaps = gaps.with_columns((pl.col(TIME) - pl.col(_KNOWN)).alias(_GAP))
    found: dict[int, ClockEstimate] = {}
    for (rank,), group in gaps.partition_by(MatchedCalls.rank, as_dict=True).items():
        found[int(rank)] = _fit(group.sort(_KNOWN), reference, middle_ns)
    return found


def _joined(usable: pl.DataFrame, estimates: Mapping[int, ClockEstimate], reference: int) -> dict[int, ClockEstimate]:
    """Return the clocks of ranks that only rooted operations join to the component: taken as the reference's."""
    known = [rank for rank, each in estimates.items() if each.reference_rank == reference]
    shared = usable.filter(pl.col(MatchedCalls.rank).is_in(known))[MatchedCalls.collective_id].unique()
    joined = usable.filter(
        pl.col(MatchedCalls.collective_id).is_in(shared.implode()), ~pl.col(MatchedCalls.rank).is_in(list(estimates))
    )
    return {
        int(rank): ClockEstimate(
            reference_rank=reference, offset_ns=0, drift=0.0, residual_ns=None, num_collectives=int(count)
        )
        for rank, count in joined.group_by(MatchedCalls.rank).len().sort(MatchedCalls.rank).iter_rows()
    }


def _fit(gaps: pl.DataFrame, reference: int, middle_ns: int) -> ClockEstimate:
    """Return the median gap, and the drift where it stands out from the scatter of the gaps."""
    times, values = gaps[_KNOWN].to_list(), gaps[_GAP].to_list()
    drift = _drift(times, values)
    level = [value - round(drift * (time - middle_ns)) for time, value in zip(times, values, strict=True)]
    offset = median_low(level)
    return ClockEstimate(
        reference_rank=reference,
        offset_ns=offset,
        drift=drift,
        residual_ns=median_low([abs(value - offset) for value in level]),
        num_collectives=len(values),
    )


def _drift(times_ns: Sequence[int], gaps_ns: Sequence[int]) -> float:
    """Return the slope between the medians of the first and the last third, or 0 where scatter explains it."""
    third = len(times_ns) // 3
    if len(times_ns) < _MIN_CALLS_FOR_DRIFT:
        return 0.0
    first, last = slice(0, third), slice(-third, None)
    span = median_low(times_ns[last]) - median_low(times_ns[first])
    rise = median_low(gaps_ns[last]) - median_low(gaps_ns[first])
    if span <= 0:
        return 0.0
    slope = rise / span
    centre = median_low(times_ns)
    level = [gap - slope * (time - centre) for time, gap in zip(times_ns, gaps_ns, strict=True)]
    middle = median_low(level)
    scatter = median_low([abs(value - middle) for value in level])
    error = max(scatter / third**0.5, 1.0)
    return slope if abs(rise) > _DRIFT_SIGNIFICANCE * error and abs(slope) <= _MAX_DRIFT else 0.0


def with_estimates(frame: pl.DataFrame, estimates: Mapping[int, ClockEstimate]) -> pl.DataFrame:
    """Return `frame` with `OFFSET`, `DRIFT` and `RESIDUAL` of each row's rank."""
    clocks = pl.DataFrame(
        [(rank, each.offset_ns, each.drift, each.residual_ns) for rank, each in estimates.items()],
        schema={
            MatchedCalls.rank: MatchedCalls.rank.dtype,
            OFFSET: pl.Int64,
            DRIFT: pl.Float64,
            RESIDUAL: pl.Int64,
        },
        orient="row",
    )
    return frame.join(clocks, on=MatchedCalls.rank, how="left", maintain_order="left")
