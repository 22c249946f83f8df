"""What the repair of one straggler alone, or of one slow link alone, would save: the job played again without it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from scope.analysis.collective_tables import MatchedCalls
from scope.analysis.own_time import PREVIOUS
from scope.trace.columns import Column, Table

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from scope.analysis.excess_work import ExcessWork
    from scope.analysis.replay import Place, Replay, Shifts

MOST_REPLAYED: Final = 8
"""Stragglers, and slow links, that the job is played again for: those that cost most."""

_MOST_PEERS: Final = 15
"""Peers of a large group that tell what is usual."""


class StragglerSavings(Table):
    """What each rank gains in each step by the repair of one straggler alone, sorted by straggler, rank and step."""

    straggler = Column("straggler", pl.Int32, "rank that works as fast as its peers' median")
    rank = Column("rank", pl.Int32, "rank that gains")
    step_number = Column("step_number", pl.Int64, "n of its `ProfilerStep#n`", nullable=True)
    saved_ns = Column("saved_ns", pl.Int64, "how much shorter the step is; negative where a gain before is lost again")


class Mending:
    """What ranks would not do if they did their work as fast as their peers; each excess is sought once."""

    def __init__(self, work: ExcessWork, since_ns: Mapping[tuple[int, int], int | None]) -> None:
        """Keep what tells the excess.

        Args:
            work: The own work of the ranks of the job.
            since_ns: By collective and rank, the arrival after which work counts; None for the begin of the recordings.
        """
        self.replay = work.replay
        self._work = work
        self._since_ns = since_ns
        self._excess: dict[tuple[int, int], dict[Place, int]] = {}

    def without(self, rank: int, collectives: Iterable[int]) -> Shifts:
        """Return what changes when a rank does its work as fast as its peers; arguments of `removed_work`."""
        return self.replay.play(removed_ns=self.removed_work(rank, collectives))

    def removed_work(self, rank: int, collectives: Iterable[int]) -> dict[Place, int]:
        """Return what a rank would not do if it did its work as fast as the median of its peers.

        Args:
            rank: The rank.
            collectives: Those that it is charged for: before them it worked longer than its peers.
        """
        removed: dict[Place, int] = {}
        for collective in collectives:
            # What nested groups feel of one delay is one delay.
            for place, excess in self._excess_before(collective, rank).items():
                removed[place] = max(excess, removed.get(place, 0))
        return removed

    def _excess_before(self, collective: int, rank: int) -> dict[Place, int]:
        if (collective, rank) not in self._excess:
            calls = self.replay.calls
            arrivals = {calls[call].rank: call for call in self.replay.members[collective]}
            peers = [each for each in sorted(arrivals) if each != rank]
            chosen = {each: arrivals[each] for each in (rank, *peers[:: -(-len(peers) // _MOST_PEERS)])}
            since = {each: self._since_ns[collective, each] for each in chosen}
            self._excess[collective, rank] = self._work.excess_ns(rank, chosen, since)
        return self._excess[collective, rank]


def work_counts_since(own: pl.DataFrame) -> dict[tuple[int, int], int | None]:
    """Return, by collective and rank, the arrival after which own time counts; None for the begin of recordings."""
    columns = (MatchedCalls.collective_id, MatchedCalls.rank, PREVIOUS)
    return {(collective, rank): instant for collective, rank, instant in own.select(columns).iter_rows()}


def exposed_excess_rows(replay: Replay, ratios: Mapping[int, float]) -> list[tuple[int, int | None, int]]:
    """Return rank, step and time of what collectives took beyond a share of their transfer while nothing hid it.

    Args:
        replay: The job.
        ratios: By collective, the share.
    """
    calls = {call: ratio for each, ratio in ratios.items() for call in replay.members[each]}
    found: list[tuple[int, int | None, int]] = []
    for rank in {replay.calls[call].rank for call in calls}:
        for event in replay.events[rank]:
            if event.is_end and event.call in calls:
                call = replay.calls[event.call]
                excess = call.tail_ns - round(call.tail_ns * calls[event.call])
                found.append((rank, call.step_number, min(excess, event.blocked_ns)))
    return found


def savings_rows(straggler: int, shifts: Shifts) -> list[tuple[int, int, int | None, int]]:
    """Return the rows of `StragglerSavings` of one straggler, without what does not change."""
    return [(straggler, rank, step, saved) for (rank, step), saved in shifts.by_step_ns.items() if saved]


def savings_table(rows: Iterable[tuple[int, int, int | None, int]]) -> pl.DataFrame:
    """Return the table `StragglerSavings`."""
    frame = pl.DataFrame(list(rows), schema=StragglerSavings.schema(), orient="row")
    return StragglerSavings.check(
        frame.sort(StragglerSavings.straggler, StragglerSavings.rank, MatchedCalls.step_number)
    )
