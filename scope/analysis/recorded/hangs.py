"""Who holds a live run up, by not arriving at a collective or by issuing another; and that a run has fallen silent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from scope.analysis.doctor.diagnosis import describe_ranks
from scope.analysis.recorded.mismatches import describe_mismatch
from scope.analysis.recorded.standing import SILENCE_CAUSES
from scope.analysis.recorded.watched import describe_places, find_last_step, judge
from scope.run.alive import find_signs
from scope.units import NS_PER_S

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from scope.analysis.recorded.mismatches import Mismatch
    from scope.analysis.recorded.watched import Watched
    from scope.run.schema import Verdict

_SILENT_NS: Final = 10 * NS_PER_S


def find_hangs(watched: Watched) -> list[Verdict]:
    """Return which ranks the others wait for while no step ends, or why there are none."""
    state = watched.state
    if state.standing != "no step":
        return []
    step = _find_step(watched)
    found: list[Verdict] = []
    calls: dict[tuple[str, str, str, int], list[int]] = {}
    for missed in state.missed:
        calls.setdefault((missed.group, missed.group_title, missed.operation, missed.number), []).append(missed.rank)
    for (group, title, operation, number), ranks in calls.items():
        have = "has" if len(ranks) == 1 else "have"
        found.append(
            judge(
                watched,
                "hang",
                f"{describe_ranks(ranks)} {have} not arrived at {operation} {number} of group {title}",
                ranks=tuple(ranks),
                group=group,
                step=step,
                action=_look_for_stop(watched, ranks),
                evidence={"operation": operation, "call": number},
            )
        )
    if not found and not state.mismatches:
        summary = "no step ends, and no rank is behind in any group"
        action = "A long checkpoint or evaluation, or a collective that all have begun: look at links and devices."
        found.append(judge(watched, "stall", summary, severity="warning", step=step, action=action))
    return found


def find_mismatched(watched: Watched) -> list[Verdict]:
    """Return which ranks issued other collectives than their peers, of a run that stands still or ended out of order.

    That is the cause: a rank that waits in another call than its peers seems late to them, and where the library takes
    note of it, it ends the rank.
    """
    return [
        judge(
            watched,
            "mismatch",
            describe_mismatch(mismatch),
            ranks=mismatch.odd_ranks,
            group=mismatch.group,
            step=_find_step(watched),
            action=_find_branch(watched, mismatch),
            evidence={"call": mismatch.number},
        )
        for mismatch in watched.state.mismatches
    ]


def find_silence(watched: Watched, *, dead: Collection[int] = ()) -> list[Verdict]:
    """Return that what is seen of a run, or of some of its ranks, is old: they may go on all the same.

    Where no step ends, a hang says of its ranks whether they are silent.

    Args:
        watched: What is seen of the run.
        dead: Ranks that are known to have died.
    """
    if watched.state.silent_ns is not None:
        summary = f"no rank gives a sign of life: {SILENCE_CAUSES}"
        action = "See whether scope run lives on its nodes, and whether they and the file system of the run answer."
        return [judge(watched, "silence", summary, severity="warning", action=action)]
    if watched.state.standing != "running":
        return []
    beating = [rank for rank in watched.state.open_ranks if rank in watched.boxes and rank not in dead]
    silent = _find_silent(watched, beating)
    if not silent:
        return []
    gives = "gives" if len(silent) == 1 else "give"
    summary = f"{describe_ranks(silent)} {gives} no sign of life while others do: {SILENCE_CAUSES}"
    action = f"See whether it is stopped, and whether its node answers ({describe_places(watched, silent)})."
    return [judge(watched, "silence", summary, severity="warning", ranks=tuple(silent), action=action)]


def _find_step(watched: Watched) -> int | None:
    """Return the step that does not end: the one after the last, or a later one that by a black box has begun."""
    last = find_last_step(watched)
    steps = [box.step for box in watched.boxes.values() if box.step is not None]
    return max([*steps, *([] if last is None else [last + 1])], default=None)


def _find_branch(watched: Watched, mismatch: Mismatch) -> str:
    action = "Find the branch that only some ranks took before that call"
    if not watched.state.is_live:
        return f"{action}."
    one_of_each = [call.ranks[0] for call in mismatch.calls]
    where = describe_places(watched, one_of_each)
    return f"{action}: py-spy dump --pid PID on the host of one rank of each kind tells where it waits ({where})."


def _look_for_stop(watched: Watched, ranks: Sequence[int]) -> str:
    silent = _find_silent(watched, ranks)
    action = f"See where it stands: py-spy dump --pid PID on its host ({describe_places(watched, ranks)})."
    if not silent:
        return action
    gives = "gives" if len(silent) == 1 else "give"
    return f"{action} {describe_ranks(silent).capitalize()} {gives} no sign of life: its node may be gone."


def _find_silent(watched: Watched, ranks: Sequence[int]) -> list[int]:
    """Return those of some ranks that have given no sign of life for long."""
    infos = {info.rank: info for info in watched.infos}
    signs = {rank: max(find_signs(infos[rank], watched.boxes.get(rank))) for rank in ranks}
    return [rank for rank, sign_ns in signs.items() if watched.now_ns - sign_ns > _SILENT_NS]
