"""Who is to blame for the last arrival at a collective, and how much of the wait for it that rank is charged with."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import polars as pl

from scope.analysis.collective_tables import CollectiveRows, GroupRows, MatchedCalls
from scope.analysis.operations import SYMMETRIC
from scope.analysis.own_time_noise import FLOOR, IS_STEADY, MARGIN, STARK

if TYPE_CHECKING:
    from scope.analysis.collectives import Collectives

CHARGE: Final = "charge_ns"
"""What the rank to blame is charged with."""

_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
"""Words of labels in snake case or camel case: of `FastRing` and `mesh_cp` these are `Fast`, `Ring`, `mesh`, `cp`."""
_CONTEXT: Final = frozenset({"context", "contextparallel", "cp", "ring", "ringattention", "ringattn"})
"""Words, in small letters, for groups in which a ring of context parallelism exchanges."""
_RING: Final = "ring"
_IN_LAST_RING: Final = "is_in_ring_of_last"
_BEHIND: Final = "behind_other_rings_ns"
_ALL_WAIT: Final = "all_wait_for_all"


def weigh(own: pl.DataFrame, collectives: Collectives) -> pl.DataFrame:
    """Return one row per judged collective: who may be charged for the last arrival, how much, and what noise is.

    That is the last rank. Of a ring, whose ranks wait for each other before they meet those of other rings, all arrive
    late: then it is the one of them whose own time is longest, and what the ring is behind all others counts.

    Args:
        own: What `own_time_noise.with_floors` returned.
        collectives: What `compute_collectives` returned.
    """
    rows = collectives.collectives.select(
        CollectiveRows.collective_id,
        CollectiveRows.last_rank,
        CollectiveRows.imposed_wait_ns,
        CollectiveRows.clock_error_ns,
        pl.col(CollectiveRows.operation).is_in(SYMMETRIC).alias(_ALL_WAIT),
    )
    rings = joined_by_pairs(collectives.groups, of_context=True)
    collective, arrival, ring = MatchedCalls.collective_id, pl.col(MatchedCalls.arrival_ns), pl.col(_RING)
    is_last = pl.col(MatchedCalls.rank) == pl.col(CollectiveRows.last_rank)
    others = arrival.filter(~pl.col(_IN_LAST_RING)).max().over(collective)
    return (
        own.join(rows, on=collective)
        .with_columns(pl.col(MatchedCalls.rank).replace(rings).alias(_RING))
        .with_columns((ring == ring.filter(is_last).first().over(collective)).alias(_IN_LAST_RING))
        .with_columns(pl.when(_ALL_WAIT).then(arrival.max().over(collective) - others).alias(_BEHIND))
        .filter(pl.when(pl.col(_BEHIND).is_null()).then(is_last).otherwise(_IN_LAST_RING))
        .sort(collective, MARGIN, MatchedCalls.rank, descending=[False, True, False])
        .unique(collective, keep="first", maintain_order=True)
        .with_columns(
            pl.col(MatchedCalls.rank).alias(CollectiveRows.last_rank),
            pl.coalesce(_BEHIND, CollectiveRows.imposed_wait_ns).alias(CollectiveRows.imposed_wait_ns),
        )
        .select(
            collective,
            CollectiveRows.group_id,
            MatchedCalls.step_number,
            CollectiveRows.last_rank,
            CollectiveRows.clock_error_ns,
            CollectiveRows.imposed_wait_ns,
            pl.min_horizontal(MARGIN, CollectiveRows.imposed_wait_ns).alias(CHARGE),
            FLOOR,
            STARK,
            IS_STEADY,
        )
    )


def charge(weighed: pl.DataFrame) -> pl.DataFrame:
    """Return the collectives whose last rank is to blame: late beyond noise, and steadily or once beyond all noise.

    Own times are differences on the clock of one rank each; arrivals of different ranks are as far off as the clocks.
    """
    clocks = pl.col(CollectiveRows.clock_error_ns)
    late = weighed.filter(
        pl.col(CollectiveRows.imposed_wait_ns) > clocks + pl.col(FLOOR), pl.col(CHARGE) > pl.col(FLOOR)
    )
    stands_out = pl.col(IS_STEADY) | (
        (pl.col(CHARGE) > pl.col(STARK)) & (pl.col(CollectiveRows.imposed_wait_ns) > clocks + pl.col(STARK))
    )
    return late.filter(stands_out.any().over(CollectiveRows.last_rank, CollectiveRows.group_id))


def joined_by_pairs(groups: pl.DataFrame, *, of_context: bool) -> dict[int, int]:
    """Return, by rank that exchanges with another, the lowest rank that it is joined with by exchanges.

    Args:
        groups: The table `GroupRows`.
        of_context: Whether exchanges in rings of context parallelism join ranks, or all others: those of pipelines.
    """
    joined: dict[int, int] = {}

    def root(rank: int) -> int:
        while joined.setdefault(rank, rank) != rank:
            rank = joined[rank]
        return rank

    pairs = groups.filter(GroupRows.is_pair).select(GroupRows.ranks, GroupRows.description, GroupRows.name)
    for ranks, *labels in pairs.iter_rows():
        is_context = any(
            word.lower() in _CONTEXT for label in labels if label is not None for word in _WORD.findall(label)
        )
        if ranks is None or is_context != of_context:
            continue
        first, second = root(ranks[0]), root(ranks[-1])
        joined[max(first, second)] = min(first, second)
    return {rank: root(rank) for rank in list(joined)}
