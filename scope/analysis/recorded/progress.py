"""How far each rank got in each process group: who did not arrive, from black boxes alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from scope.analysis.recorded.mismatches import find_mismatches
from scope.analysis.recorded.titles import title_of
from scope.trace.columns import Column, Table

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from scope.run.blackbox import BlackBoxState, GroupState
    from scope.run.schema import GroupInfo, RankInfo

_NUMBER: Final = "number_on_rank"
_SOME_CALL: Final = "call"


class GroupProgress(Table):
    """One rank in one process group a row, the groups with somebody behind first."""

    group = Column("group", pl.String, "torch's name of the group; its number where `rank.json` does not know it")
    group_title = Column("group_title", pl.String, "what people call it")
    group_ranks = Column("group_ranks", pl.List(pl.Int32), "global ranks", nullable=True)
    mesh_axis = Column("mesh_axis", pl.String, "axis of the device mesh", nullable=True)
    rank = Column("rank", pl.Int32, "global rank")
    enqueued = Column("enqueued", pl.Int64, "number of the last call issued; 0 none")
    completed = Column("completed", pl.Int64, "largest number whose completion was seen; 0 none")
    behind = Column("behind", pl.Int64, "calls that the farthest rank of the group has issued and this one has not")
    operation = Column("operation", pl.String, "operation of the last call")
    missed_operation = Column(
        "missed_operation",
        pl.String,
        "operation of the first call that it has not issued and another rank has, as the black box of the farthest "
        "rank of the group tells it",
        nullable=True,
    )
    is_mismatched = Column(
        "is_mismatched",
        pl.Boolean,
        "has come to a call under whose number ranks of the group issued different ones: from there on its numbers do "
        "not compare with theirs",
    )


def compute_group_progress(infos: Iterable[RankInfo], states: Mapping[int, BlackBoxState]) -> pl.DataFrame:
    """Return how far each rank got in each of its process groups (table `GroupProgress`).

    In a hang the rank that is behind did not arrive: its stack says why. When none is behind and the last calls are not
    complete, the network or a device is stuck. Ranks that issued different calls are a mismatch of the program, of
    which `find_mismatches` tells more.

    Args:
        infos: `rank.json` of one attempt; they tell which numbers of different ranks mean the same group.
        states: Black box of each rank, by rank; a rank without one has no row.
    """
    infos = tuple(infos)
    mismatches = {(each.group, each.group_ranks): each.number for each in find_mismatches(infos, states)}
    rows = [
        _row(info.rank, group, known.get(group.group), mismatches)
        for info in infos
        if info.rank in states
        for known in [{each.group: each for each in info.groups}]
        for group in states[info.rank].groups
    ]
    _add_missed_operations(rows, states)
    same_group = (GroupProgress.group, pl.col(GroupProgress.group_ranks))
    table = (
        pl.DataFrame(rows, schema={**GroupProgress.schema(), _NUMBER: pl.Int64}, orient="row")
        .with_columns(
            (pl.col(GroupProgress.enqueued).max().over(*same_group) - pl.col(GroupProgress.enqueued)).alias(
                GroupProgress.behind
            ),
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
        operation: Operation of that call; `call` where no black box tells it any more.
        number: Its number in the group, from 1: the first that the rank has not issued. Others may have issued more.
        group: Torch's name of the group.
        group_title: What people call it.
    """

    rank: int
    operation: str
    number: int
    group: str
    group_title: str


def find_missed_calls(progress: pl.DataFrame) -> list[MissedCall]:
    """Return the ranks that did not arrive, each with the first call that it missed, sorted by rank.

    A rank that is behind because it waits itself, in a call that another rank has not issued, is left out; when all
    that are behind wait for each other, all are named. So is a rank that has come to a call at which its group differs:
    it stands there, and is not late for what others issued since. Of a run that makes steps this says nothing: its
    ranks are never looked at in the same instant.

    Args:
        progress: Table `GroupProgress`.
    """
    missed: dict[int, MissedCall] = {}
    waiting: set[int] = set()
    for rows in _by_group(progress.iter_rows(named=True)):
        fewest = min(row[GroupProgress.enqueued] for row in rows)
        for row in rows:
            rank, issued = row[GroupProgress.rank], row[GroupProgress.enqueued]
            is_mismatched = row[GroupProgress.is_mismatched]
            if (issued > fewest or is_mismatched) and row[GroupProgress.completed] < issued:
                waiting.add(rank)
            if row[GroupProgress.behind] and not is_mismatched:
                call = MissedCall(
                    rank=rank,
                    operation=row[GroupProgress.missed_operation] or _SOME_CALL,
                    number=issued + 1,
                    group=row[GroupProgress.group],
                    group_title=row[GroupProgress.group_title],
                )
                missed.setdefault(rank, call)
    # Where a mismatch holds ranks up, those that merely wait for them are not to blame.
    may_be_circle = not progress[GroupProgress.is_mismatched].any()
    absent = missed.keys() - waiting or (missed.keys() if may_be_circle else set[int]())
    return [missed[rank] for rank in sorted(absent)]


def _add_missed_operations(rows: Iterable[dict[str, Any]], states: Mapping[int, BlackBoxState]) -> None:
    """Fill in the operation of the first call that each rank has not issued, from the farthest rank of its group.

    Peers may have issued many calls since, such as the other buckets of a backward pass: the last one is not it.
    """
    for of_group in _by_group(rows):
        farthest = max(of_group, key=lambda row: row[GroupProgress.enqueued])
        behind = [row for row in of_group if row[GroupProgress.enqueued] < farthest[GroupProgress.enqueued]]
        if not behind:
            continue
        calls = states[farthest[GroupProgress.rank]].calls
        operations = {call.sequence: call.operation for call in calls if call.group == farthest[_NUMBER]}
        operations[farthest[GroupProgress.enqueued]] = farthest[GroupProgress.operation]
        for row in behind:
            row[GroupProgress.missed_operation] = operations.get(row[GroupProgress.enqueued] + 1)


def _by_group(rows: Iterable[dict[str, Any]]) -> Iterable[list[dict[str, Any]]]:
    groups: dict[object, list[dict[str, Any]]] = {}
    for row in rows:
        members = row[GroupProgress.group_ranks]
        groups.setdefault((row[GroupProgress.group], None if members is None else tuple(members)), []).append(row)
    return groups.values()


def _row(
    rank: int,
    state: GroupState,
    info: GroupInfo | None,
    mismatches: Mapping[tuple[str, tuple[int, ...] | None], int],
) -> dict[str, Any]:
    group = info.name if info else f"#{state.group}"
    ranks = tuple(sorted(info.ranks)) if info else None
    mismatch = mismatches.get((group, ranks))
    return {
        "group": group,
        "group_title": title_of(info) if info else f"#{state.group}",
        "group_ranks": ranks,
        "mesh_axis": info.mesh_axis if info else None,
        "rank": rank,
        "enqueued": state.enqueued,
        "completed": state.completed,
        "operation": state.operation,
        "missed_operation": None,
        _NUMBER: state.group,
        "is_mismatched": mismatch is not None and state.enqueued >= mismatch,
        "behind": 0,
    }
