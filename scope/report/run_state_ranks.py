"""Where each rank stands of a run that hangs or ended out of order: step, phase, last collective, sign of life."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import polars as pl

from scope.analysis.recorded import GroupProgress, compute_group_progress, title_of
from scope.analysis.recorded.host_clocks import are_comparable, relate_clocks
from scope.report.standing import age, clock
from scope.run.alive import find_signs, has_ended
from scope.units import NS_PER_S

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from scope.analysis.recorded import RunState, Watched
    from scope.run.blackbox import BlackBoxState
    from scope.run.schema import RankInfo

_NUM_SHOWN: Final = 8
_SILENT_NS: Final = 10 * NS_PER_S
_LAST_STEP: Final = 2**63


def describe_stops(watched: Watched) -> list[dict[str, Any]]:
    """Return where each rank stands, those that tell most first; nothing of a run that is well.

    First come processes that are gone while others live, then ranks that are behind their peers in a group, by how many
    calls; among equals those in the earliest step, and those that fell silent first, where all their hosts' clocks are
    related. `clock` numbers the clocks: instants of ranks with another number are not to be compared.

    Args:
        watched: What is seen of the run.
    """
    if not _is_ill(watched.state):
        return []
    progress = compute_group_progress(watched.infos, watched.boxes)
    # What is seen of a run that fell silent while it ran is of no one instant: nobody is behind by it.
    is_stale = watched.state.standing == "running" and watched.state.silent_ns is not None
    behind = (
        {}
        if is_stale
        else {
            (row[GroupProgress.rank], row[GroupProgress.group]): row[GroupProgress.behind]
            for row in progress.filter(pl.col(GroupProgress.behind) > 0).iter_rows(named=True)
        }
    )
    rows = [_stop(info, watched.boxes.get(info.rank), behind) for info in watched.infos]
    clocks = relate_clocks(watched.infos, watched.boxes)
    is_ordered = are_comparable(clocks)
    known_gone = set(watched.state.gone_ranks)
    for row in rows:
        row["gone"] = row["rank"] in known_gone
        row["clock"] = clocks[row["rank"]].component
    gone = known_gone if watched.state.is_live else set[int]()
    return sorted(
        rows,
        key=lambda row: (
            row["rank"] not in gone,
            -(row["behind"] or 0),
            _LAST_STEP if row["step"] is None else row["step"],
            row["last_sign_ns"] + clocks[row["rank"]].shift_ns if is_ordered else 0,
            row["rank"],
        ),
    )


def _is_ill(state: RunState) -> bool:
    if state.standing in ("no step", "ended without a goodbye"):
        return True
    return bool(state.exit_reasons) or (state.is_live and (bool(state.gone_ranks) or state.silent_ns is not None))


def _stop(info: RankInfo, box: BlackBoxState | None, behind: Mapping[tuple[int, str], int]) -> dict[str, Any]:
    """Return where a rank stands, with the group in which it is farthest behind, else the one that it called last."""
    row: dict[str, Any] = {
        "rank": info.rank, "host": info.host, "pid": info.pid, "step": None, "phase": None, "group": None,
        "group_title": None, "operation": None, "issued": None, "completed": None, "behind": None,
        "last_sign_ns": max(find_signs(info, box)), "ended": has_ended(info, box), "exit_reason": info.exit_reason,
    }  # fmt: skip
    if box is None:
        return row
    row |= {"step": box.step, "phase": box.phase}
    known = {group.group: group for group in info.groups}
    calls = [
        (behind.get((info.rank, known[group.group].name if group.group in known else f"#{group.group}"), 0), group)
        for group in box.groups
        if group.enqueued
    ]
    if not calls:
        return row
    num_behind, last = max(calls, key=lambda each: (each[0], each[1].enqueued_ns or 0, -each[1].group))
    facts = known.get(last.group)
    return row | {
        "group": facts.name if facts else f"#{last.group}",
        "group_title": title_of(facts) if facts else f"#{last.group}",
        "operation": last.operation,
        "issued": last.enqueued,
        "completed": last.completed,
        "behind": num_behind,
    }


def stop_lines(rows: Sequence[Mapping[str, Any]], *, now_ns: int) -> Iterator[str]:
    """Return a line for each of the most telling ranks, under a title, for people.

    Args:
        rows: What `describe_stops` returns.
        now_ns: Now, since the epoch.
    """
    if not rows:
        return
    title = "where its ranks stand" if len(rows) <= _NUM_SHOWN else f"where {_NUM_SHOWN} of its ranks stand"
    is_ordered = len({row["clock"] for row in rows}) == 1
    yield title if is_ordered else f"{title} (nothing relates the clocks of their hosts)"
    for row in rows[:_NUM_SHOWN]:
        step = "no step" if row["step"] is None else f"step {row['step']}"
        phase = row["phase"] or "no phase known"
        yield f"  rank {row['rank']}: {step}, {phase}, {_call(row)}, {_sign(row, now_ns)}"
    if len(rows) > _NUM_SHOWN:
        yield f"  and {len(rows) - _NUM_SHOWN:,} more ranks (--json has all)"


def _call(row: Mapping[str, Any]) -> str:
    if row["issued"] is None:
        return "no collective seen"
    words = f"last call {row['operation']} {row['issued']} of {row['group_title']}"
    if row["behind"]:
        return f"{words} ({row['behind']} behind)"
    return words if row["completed"] >= row["issued"] else f"{words} (completed {row['completed']})"


def _sign(row: Mapping[str, Any], now_ns: int) -> str:
    if row["ended"]:
        return f"ended at {clock(row['last_sign_ns'])}" + (f" ({row['exit_reason']})" if row["exit_reason"] else "")
    silent_ns = now_ns - row["last_sign_ns"]
    if row["gone"]:
        return f"gone, last sign of life at {clock(row['last_sign_ns'])} ({age(silent_ns)} ago)"
    if silent_ns < _SILENT_NS:
        return "gives signs of life"
    return f"silent since {clock(row['last_sign_ns'])} ({age(silent_ns)})"
