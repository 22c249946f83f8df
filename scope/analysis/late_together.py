"""Ranks that are late together: mending one alone saves little, since the others are then waited for.

In each judged collective the late ranks are those above the widest gap between own times, as long as they are at least
two and fewer than half: of two halves neither shows what is usual. They count when their own times exceed all others'
by more than all noise, and when all of them arrived that much behind all others. Of several sets of ranks that one
counts that is late for longest. With it stand the ranks that are named alone, which may be late in other groups of the
same job. What mending all saves is played again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from scope.analysis.collective_tables import CollectiveRows, MatchedCalls
from scope.analysis.own_time import OWN
from scope.analysis.own_time_noise import STARK
from scope.analysis.result import Result
from scope.analysis.savings import MOST_REPLAYED, savings_rows, savings_table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from scope.analysis.replay import Place
    from scope.analysis.savings import Mending

_GAP: Final = "gap_ns"
_PLACE: Final = "place"
_COUNT: Final = "num_ranks"
_LATE: Final = "num_late"
_BEHIND: Final = "behind_ns"
_WHO: Final = "late_ranks"


class LateTogether(Result, frozen=True, kw_only=True):
    """Several ranks that are late, and what mending all of them saves."""

    ranks: tuple[int, ...]
    """Sorted."""
    saving_ns: int
    """How much sooner the recorded part of the job would have ended, had all of them worked as fast as their peers."""
    savings: pl.DataFrame
    """The table `StragglerSavings` of that, under the lowest of the ranks."""


def compute_late_together(
    own: pl.DataFrame, weighed: pl.DataFrame, charged: Mapping[int, Iterable[int]], mending: Callable[[], Mending]
) -> LateTogether | None:
    """Return what mending all ranks saves that are late, alone or with others; None where that is one at most.

    Args:
        own: The judged calls with own times.
        weighed: By collective, the error of the clocks and `STARK`.
        charged: By rank that is named alone, the collectives that it is charged for; those that cost most first.
        mending: Returns the job, to be played again.
    """
    floors = weighed.select(MatchedCalls.collective_id, CollectiveRows.clock_error_ns, STARK)
    sets = _costliest_set(_late_sets(own, floors))
    others = sets[MatchedCalls.rank].unique().sort().to_list()
    ranks = list(dict.fromkeys((*charged, *others)))[:MOST_REPLAYED]
    if len(ranks) < 2:
        return None
    job = mending()
    removed: dict[Place, int] = {}
    for rank in ranks:
        late_for = sets.filter(pl.col(MatchedCalls.rank) == rank)[MatchedCalls.collective_id].to_list()
        removed |= job.removed_work(rank, sorted({*charged.get(rank, ()), *late_for}))
    shifts = job.replay.play(removed_ns=removed)
    ranks.sort()
    return LateTogether(
        ranks=tuple(ranks), saving_ns=shifts.job_ns, savings=savings_table(savings_rows(ranks[0], shifts))
    )


def _late_sets(own: pl.DataFrame, floors: pl.DataFrame) -> pl.DataFrame:
    """Return collective, rank and how late, of the ranks that were late together in a collective.

    Args:
        own: The judged calls with own times.
        floors: By collective, the error of the clocks and `STARK`.
    """
    time, collective = pl.col(OWN), MatchedCalls.collective_id
    ordered = own.sort(collective, OWN, MatchedCalls.rank, descending=[False, True, False]).with_columns(
        pl.int_range(1, pl.len() + 1).over(collective).alias(_PLACE),
        pl.len().over(collective).alias(_COUNT),
        (time - time.shift(-1).over(collective)).alias(_GAP),
    )
    is_possible = (pl.col(_PLACE) >= 2) & (2 * pl.col(_PLACE) < pl.col(_COUNT))
    widest = (
        ordered.filter(is_possible)
        .sort(_GAP, descending=True, maintain_order=True)
        .unique(collective, keep="first", maintain_order=True)
        .select(collective, pl.col(_PLACE).alias(_LATE), _GAP)
    )
    noise = pl.col(CollectiveRows.clock_error_ns) + pl.col(STARK)
    wide = widest.join(floors, on=collective).filter(pl.col(_GAP) > noise)
    arrival = pl.col(MatchedCalls.arrival_ns)
    is_late = pl.col(_PLACE) <= pl.col(_LATE)
    behind = arrival.filter(is_late).min() - arrival.filter(~is_late).max()
    return (
        ordered.drop(_GAP)
        .join(wide, on=collective)
        .with_columns(behind.over(collective).alias(_BEHIND))
        .filter(is_late, pl.col(_BEHIND) > noise)
        .select(collective, MatchedCalls.rank, pl.min_horizontal(_BEHIND, _GAP).alias(_BEHIND))
    )


def _costliest_set(sets: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of the ranks that were late for longest with each other: at all collectives where just they were.

    Ranks that are late at one collective, and others at the next, are late one by one, not together.
    """
    collective = MatchedCalls.collective_id
    ranks = pl.col(MatchedCalls.rank).sort().cast(pl.String).str.join(",").alias(_WHO)
    whole = sets.group_by(collective).agg(ranks, pl.col(_BEHIND).first())
    totals = whole.group_by(_WHO).agg(pl.col(_BEHIND).sum()).sort(_BEHIND, _WHO, descending=[True, False])
    chosen = whole.join(totals.head(1).select(_WHO), on=_WHO).select(collective)
    return sets.join(chosen, on=collective, how="semi")
