"""How far each rank got in each process group: who did not arrive, from black boxes alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import polars as pl

from scope.trace.columns import Column, Table

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from scope.run.blackbox import BlackBoxState, GroupState
    from scope.run.schema import GroupInfo, RankInfo


class GroupProgress(Table):
    """One rank in one process group a row, the groups with somebody behind first."""

    group = Column("group", pl.String, "name of the group; its number where `rank.json` does not know it")
    group_ranks = Column("group_ranks", pl.List(pl.Int32), "global ranks", nullable=True)
    mesh_axis = Column("mesh_axis", pl.String, "axis of the device mesh", nullable=True)
    rank = Column("rank", pl.Int32, "global rank")
    enqueued = Column("enqueued", pl.Int64, "number of the last call issued; 0 none")
    completed = Column("completed", pl.Int64, "largest number whose completion was seen; 0 none")
    behind = Column("behind", pl.Int64, "calls that the farthest rank of the group has issued and this one has not")
    operation = Column("operation", pl.String, "operation of the last call")
    is_mismatched = Column(
        "is_mismatched", pl.Boolean, "issued as many calls as another rank of the group, but not the same ones"
    )


def compute_group_progress(infos: Iterable[RankInfo], states: Mapping[int, BlackBoxState]) -> pl.DataFrame:
    """Return how far each rank got in each of its process groups (table `GroupProgress`).

    In a hang the rank that is behind did not arrive: its stack says why. When none is behind and the last calls are not
    complete, the network or a device is stuck. Ranks that issued different calls are a mismatch of the program.

    Args:
        infos: `rank.json` of one attempt; they tell which numbers of different ranks mean the same group.
        states: Black box of each rank, by rank; a rank without one has no row.
    """
    rows = [
        _row(info.rank, group, known.get(group.group))
        for info in infos
        if info.rank in states
        for known in [{each.group: each for each in info.groups}]
        for group in states[info.rank].groups
    ]
    same_group = (GroupProgress.group, pl.col(GroupProgress.group_ranks))
    hashes = pl.col("hash_low")
    table = (
        pl.DataFrame(rows, schema={**GroupProgress.schema(), "hash_low": pl.Int64}, orient="row")
        .with_columns(
            (pl.col(GroupProgress.enqueued).max().over(*same_group) - pl.col(GroupProgress.enqueued)).alias(
                GroupProgress.behind
            ),
            (hashes.n_unique().over(*same_group, GroupProgress.enqueued) > 1).alias(GroupProgress.is_mismatched),
        )
        .sort(
            pl.col(GroupProgress.behind).max().over(*same_group),
            GroupProgress.behind,
            GroupProgress.rank,
            descending=[True, True, False],
            maintain_order=True,
        )
    )
    return GroupProgress.check(table.select(*GroupProgress.columns()))


@dataclass(frozen=True, kw_only=True, slots=True)
class MissedCall:
    """A rank that has not arrived at a call which others of the group have issued.

    Attributes:
        rank: Global rank.
        operation: Operation of the newest call of the group.
        number: Its number in the group, from 1.
        group: Name of the group.
    """

    rank: int
    operation: str
    number: int
    group: str


def find_missed_calls(progress: pl.DataFrame) -> list[MissedCall]:
    """Return the ranks that did not arrive, each with the newest call that it missed, sorted by rank.

    A rank that is behind because it waits itself, in a call that another rank has not issued, is left out; when all
    that are behind wait for each other, all are named. Of a run that makes steps this says nothing: its ranks are
    never looked at in the same instant.

    Args:
        progress: Table `GroupProgress`.
    """
    groups: dict[object, list[dict[str, Any]]] = {}
    for row in progress.iter_rows(named=True):
        members = row[GroupProgress.group_ranks]
        groups.setdefault((row[GroupProgress.group], None if members is None else tuple(members)), []).append(row)
    missed: dict[int, MissedCall] = {}
    waiting: set[int] = set()
    for rows in groups.values():
        farthest = max(rows, key=lambda row: row[GroupProgress.enqueued])
        fewest = min(row[GroupProgress.enqueued] for row in rows)
        for row in rows:
            rank, issued = row[GroupProgress.rank], row[GroupProgress.enqueued]
            if issued > fewest and row[GroupProgress.completed] < issued:
                waiting.add(rank)
            if row[GroupProgress.behind]:
                call = farthest[GroupProgress.operation], farthest[GroupProgress.enqueued], row[GroupProgress.group]
                missed.setdefault(rank, MissedCall(rank=rank, operation=call[0], number=call[1], group=call[2]))
    absent = missed.keys() - waiting or missed.keys()
    return [missed[rank] for rank in sorted(absent)]


def _row(rank: int, state: GroupState, info: GroupInfo | None) -> dict[str, object]:
    return {
        "group": info.name if info else f"#{state.group}",
        "group_ranks": sorted(info.ranks) if info else None,
        "mesh_axis": info.mesh_axis if info else None,
        "rank": rank,
        "enqueued": state.enqueued,
        "completed": state.completed,
        "operation": state.operation,
        "hash_low": state.hash_low,
        "is_mismatched": False,
        "behind": 0,
    }
