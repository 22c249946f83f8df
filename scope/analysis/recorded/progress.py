"""How far each rank got in each process group: who did not arrive, from black boxes alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from scope.analysis.doctor.diagnosis import describe_ranks
from scope.analysis.group_names import name_group
from scope.trace.columns import Column, Table

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from scope.run.blackbox import BlackBoxState, GroupState
    from scope.run.schema import GroupInfo, RankInfo

_HASH: Final = "hash_low"
_NUMBER: Final = "number_on_rank"
_HELPERS: Final = (_HASH, _NUMBER)
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
    _add_missed_operations(rows, states)
    same_group = (GroupProgress.group, pl.col(GroupProgress.group_ranks))
    hashes = pl.col(_HASH)
    table = (
        pl.DataFrame(rows, schema={**GroupProgress.schema(), **dict.fromkeys(_HELPERS, pl.Int64)}, orient="row")
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
    that are behind wait for each other, all are named. Of a run that makes steps this says nothing: its ranks are
    never looked at in the same instant.

    Args:
        progress: Table `GroupProgress`.
    """
    missed: dict[int, MissedCall] = {}
    waiting: set[int] = set()
    for rows in _by_group(progress.iter_rows(named=True)):
        fewest = min(row[GroupProgress.enqueued] for row in rows)
        for row in rows:
            rank, issued = row[GroupProgress.rank], row[GroupProgress.enqueued]
            if issued > fewest and row[GroupProgress.completed] < issued:
                waiting.add(rank)
            if row[GroupProgress.behind]:
                call = MissedCall(
                    rank=rank,
                    operation=row[GroupProgress.missed_operation] or _SOME_CALL,
                    number=issued + 1,
                    group=row[GroupProgress.group],
                    group_title=row[GroupProgress.group_title],
                )
                missed.setdefault(rank, call)
    absent = missed.keys() - waiting or missed.keys()
    return [missed[rank] for rank in sorted(absent)]


def title_of(group: GroupInfo) -> str:
    """Return what people call a group of `rank.json`; its ranks beside a title that is a number, which says nothing."""
    title = name_group(group.name, description=group.description, mesh_axis=group.mesh_axis)
    return title_with_ranks(title, group.ranks)


def title_with_ranks(title: str, ranks: Sequence[int] | None) -> str:
    """Return the title of a group, its ranks beside one that is no more than a number.

    Examples:
        >>> title_with_ranks("5", [0, 1, 4]), title_with_ranks("tp", [0, 1]), title_with_ranks("5", None)
        ('5 (ranks 0-1, 4)', 'tp', '5')
    """
    return f"{title} ({describe_ranks(list(ranks))})" if ranks and title.isdecimal() else title


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


def _row(rank: int, state: GroupState, info: GroupInfo | None) -> dict[str, Any]:
    return {
        "group": info.name if info else f"#{state.group}",
        "group_title": title_of(info) if info else f"#{state.group}",
        "group_ranks": sorted(info.ranks) if info else None,
        "mesh_axis": info.mesh_axis if info else None,
        "rank": rank,
        "enqueued": state.enqueued,
        "completed": state.completed,
        "operation": state.operation,
        "missed_operation": None,
        _HASH: state.hash_low,
        _NUMBER: state.group,
        "is_mismatched": False,
        "behind": 0,
    }
