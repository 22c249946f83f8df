"""What the repair of one straggler alone, or of one slow link alone, would save: the job played again without it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from scope.analysis.collective_tables import MatchedCalls
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


def replay_without_straggler(
    work: ExcessWork, rank: int, collectives: Iterable[int], since_ns: Mapping[tuple[int, int], int | None]
) -> Shifts:
    """Return what changes when a rank does its work as fast as the median of its peers; arguments of `removed_work`."""
    return work.replay.play(removed_ns=removed_work(work, rank, collectives, since_ns))


def removed_work(
    work: ExcessWork, rank: int, collectives: Iterable[int], since_ns: Mapping[tuple[int, int], int | None]
) -> dict[Place, int]:
    """Return what a rank would not do if it did its work as fast as the median of its peers.

    Args:
        work: The own work of the ranks of the job.
        rank: The rank.
        collectives: Those that it is charged for: before them it worked longer than its peers.
        since_ns: By collective and rank, the arrival after which work counts; None for the begin of the recordings.
    """
    replay = work.replay
    removed: dict[Place, int] = {}
    for collective in collectives:
        arrivals = {replay.calls[call].rank: call for call in replay.members[collective]}
        peers = [each for each in sorted(arrivals) if each != rank]
        chosen = {each: arrivals[each] for each in (rank, *peers[:: -(-len(peers) // _MOST_PEERS)])}
        since = {each: since_ns[collective, each] for each in chosen}
        # What nested groups feel of one delay is one delay.
        for place, excess in work.excess_ns(rank, chosen, since).items():
            removed[place] = max(excess, removed.get(place, 0))
    return removed


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
