"""Between what limits each clock must stand, whatever the ranks waited."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from scope.analysis.clock_estimates import (
    ARRIVAL,
    DRIFT,
    END,
    OFFSET,
    RESIDUAL,
    TIME,
    ClockEstimate,
    drifted,
    with_estimates,
)
from scope.analysis.collective_tables import MatchedCalls
from scope.structs import Record

if TYPE_CHECKING:
    from collections.abc import Mapping

_NEGATED: Final = "negated_instant_ns"
_BEST: Final = "best_ns"


class ClockBounds(Record, frozen=True, kw_only=True):
    """The bounds of all ranks whose clocks are bounded, by rank."""

    low_ns: Mapping[int, int]
    high_ns: Mapping[int, int]
    contradicted: frozenset[int]
    """Reference ranks of components in which no offsets satisfy all calls."""


def bound_offsets(usable: pl.DataFrame, estimates: Mapping[int, ClockEstimate], middle_ns: int) -> ClockBounds:
    """Return the tightest bounds that all calls together put on each offset.

    Each sweep carries bounds from ranks to collectives and back; it ends when nothing changes. A reference rank whose
    own offset would have to lie off 0 shows that no offsets satisfy all calls.
    """
    if usable.is_empty():  # as with the trace of one rank
        return ClockBounds(low_ns={}, high_ns={}, contradicted=frozenset())
    running = drifted(pl.col(TIME) - pl.col(OFFSET), middle_ns)
    # A drift is known only as well as the ends agree.
    slack = pl.when(pl.col(DRIFT) == 0.0).then(0).otherwise(2 * pl.col(RESIDUAL).fill_null(0) + 2)
    edges = with_estimates(usable, estimates).select(
        MatchedCalls.collective_id,
        MatchedCalls.rank,
        (pl.col(ARRIVAL) - running - slack).alias(ARRIVAL),
        (pl.col(END) - running + slack).alias(END),
    )
    # The lower bound of a clock is the upper bound of the clock that runs the other way.
    mirrored = edges.with_columns((-pl.col(END)).alias(ARRIVAL), (-pl.col(ARRIVAL)).alias(END))
    members: dict[int, list[int]] = {}
    for rank, each in estimates.items():
        members.setdefault(each.reference_rank, []).append(rank)
    low: dict[int, int] = {}
    high: dict[int, int] = {}
    contradicted: set[int] = set()
    for reference, ranks in members.items():
        inside = pl.col(MatchedCalls.rank).is_in(ranks)
        upper, lower = _tighten(edges.filter(inside), reference), _tighten(mirrored.filter(inside), reference)
        if upper is None or lower is None:
            contradicted.add(reference)
        else:
            high |= upper
            low |= {rank: -bound for rank, bound in lower.items()}
    return ClockBounds(low_ns=low, high_ns=high, contradicted=frozenset(contradicted))


def _tighten(edges: pl.DataFrame, reference: int) -> dict[int, int] | None:
    """Return upper bounds of the offsets from the reference's, which is 0, or None when they contradict each other."""
    bounds = pl.DataFrame(
        {MatchedCalls.rank: [reference], _BEST: [0]},
        schema={MatchedCalls.rank: MatchedCalls.rank.dtype, _BEST: pl.Int64},
    )
    entering, leaving = edges.drop_nulls(ARRIVAL), edges.drop_nulls(END)
    # A shortest path visits each rank once, so that it is found after as many sweeps as there are ranks.
    for _ in range(edges[MatchedCalls.rank].n_unique() + 1):
        instants = (
            entering.join(bounds, on=MatchedCalls.rank)
            .group_by(MatchedCalls.collective_id)
            .agg((pl.col(_BEST) - pl.col(ARRIVAL)).min().alias(_NEGATED))
        )
        reached = (
            leaving.join(instants, on=MatchedCalls.collective_id)
            .group_by(MatchedCalls.rank)
            .agg((pl.col(END) + pl.col(_NEGATED)).min().alias(_BEST))
        )
        tighter = pl.concat([bounds, reached]).group_by(MatchedCalls.rank).agg(pl.col(_BEST).min())
        tighter = tighter.sort(MatchedCalls.rank)
        own = tighter.filter(pl.col(MatchedCalls.rank) == reference)[_BEST].item()
        if own < 0:
            return None
        if tighter.equals(bounds):
            return dict(tighter.iter_rows())
        bounds = tighter
    return None
