"""Which ranks of a run ended out of order: which died first, which raised, and how their command ended."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from scope.analysis.doctor.diagnosis import describe_ranks
from scope.analysis.recorded.failures import describe_failures
from scope.analysis.recorded.first_end import find_first_end
from scope.analysis.recorded.host_clocks import HostClock, are_comparable, relate_clocks
from scope.analysis.recorded.standing import describe_command_end
from scope.analysis.recorded.watched import describe_places, judge
from scope.run.alive import find_fate, find_signs, has_ended
from scope.run.goodbyes import EXIT_CODE, EXITED
from scope.run.paths import EVENTS_FILE, rank_folder
from scope.units import NS_PER_S, signal_name

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from scope.analysis.recorded.watched import Watched
    from scope.run.blackbox import BlackBoxState
    from scope.run.schema import RankInfo, Verdict

_GONE_NS: Final = 5 * NS_PER_S
_NO_COMMON_CLOCK: Final = "nothing relates the clocks of their hosts"


class Ends(NamedTuple):
    """How ranks ended out of order, in sentences without a full stop, in the order in which to tell them.

    A rank that is killed makes its peers raise: they are its victims, and stand behind it.

    Attributes:
        crash: Which ranks ended without a goodbye; None for none.
        failure: Which rank raised, or exited with another code than 0, first, and who followed; None when none did.
    """

    crash: str | None
    failure: str | None


def describe_ends(watched: Watched, *, fate: Callable[[RankInfo], bool | None] = find_fate) -> Ends:
    """Return how ranks ended out of order.

    Args:
        watched: What is seen of the run.
        fate: As for `find_verdicts`.
    """
    found = find_crashes(watched, fate) if watched.infos else []
    failure = _describe_failures(watched)
    crashes = [verdict.summary for verdict in found if verdict.kind == "crash" and verdict.summary != failure]
    return Ends(crash="; ".join(crashes) or None, failure=failure)


def find_crashes(watched: Watched, fate: Callable[[RankInfo], bool | None]) -> list[Verdict]:
    """Return which ranks ended out of order, while others live or after the end of the run.

    Args:
        watched: What is seen of the run, of which a rank is known.
        fate: As for `find_verdicts`.
    """
    if watched.failures and not watched.state.is_live:
        return [*_find_silent_before_failures(watched), _judge_exception(watched, ())]
    if watched.state.standing == "ended without a goodbye":
        if watched.now_ns - (watched.state.last_sign_ns or 0) <= _GONE_NS:
            return []  # a job that was asked to end is yet to be told of by what publishes it
        return [_judge_ends_without_goodbye(watched)]
    if not watched.state.is_live:
        return _find_failed_commands(watched)
    gone = tuple(info.rank for info in watched.infos if _is_gone(watched, info, fate))
    if watched.now_ns - (watched.state.last_sign_ns or 0) > _GONE_NS:
        # Nothing has come from the others either: what was published is old, and may lack an end that was in order.
        gone = tuple(rank for rank in gone if rank in watched.state.gone_ranks)
    raised = tuple(info.rank for info in watched.infos if _has_raised(info, watched.boxes.get(info.rank)))
    found: list[Verdict] = []
    if gone:
        summary = f"{describe_ranks(list(gone))} died without a goodbye while others of the run live"
        found.append(judge(watched, "crash", summary, ranks=gone, action=_look_for_end(watched, gone)))
    if raised:
        found.append(_judge_exception(watched, raised))
    return found


def is_explained(watched: Watched, verdict: Verdict) -> bool:
    """Return whether a crash is no riddle any more: each of its ranks has since said that it ended in order, or why.

    A rank that a signal to the job ended leaves no end of its own: whoever publishes it writes that down a little
    later. An exception, or another exit code than 0, is a crash itself.

    Args:
        watched: What is seen of the run.
        verdict: A finding, of which only crashes are explained so.
    """
    if verdict.kind != "crash" or not verdict.ranks:
        return False
    ended = {info.rank for info in watched.infos if has_ended(info, watched.boxes.get(info.rank))}
    if watched.state.ended_by_signal is not None:
        ended.update(watched.state.open_ranks)  # what is told of their peers is true of them
    raised = {info.rank for info in watched.infos if _has_raised(info, watched.boxes.get(info.rank))}
    return ended.difference(raised).issuperset(verdict.ranks)


def _find_failed_commands(watched: Watched) -> list[Verdict]:
    """Return that a command failed though none of its ranks is known to; what they say of themselves tells more."""
    codes = watched.state.unasked_returncodes
    if not codes or watched.state.exit_reasons:
        return []
    ranks = _find_unknown_exits(watched)
    but = _describe_unknown_exits(ranks) if ranks else ", though its ranks ended in order"
    summary = f"{' and '.join(map(describe_command_end, codes))}{but}"
    action = "Read its last output; of a launcher that was killed look in the node's kernel log (out of memory)."
    return [judge(watched, "crash", summary, ranks=ranks, action=action)]


def _find_unknown_exits(watched: Watched) -> tuple[int, ...]:
    """Return the ranks that may have ended with an exit code of their own."""
    return tuple(info.rank for info in watched.infos if EXIT_CODE in info.absent)


def _describe_unknown_exits(ranks: Sequence[int]) -> str:
    if not ranks:
        return ""
    who = "it" if len(ranks) == 1 else "they"
    return f"; the exit code of {describe_ranks(list(ranks))} is not known: {who} raised SystemExit"


def _judge_ends_without_goodbye(watched: Watched) -> Verdict:
    """Return that ranks ended without a goodbye, and which may have died first: it is to blame, others are victims."""
    ranks = watched.state.open_ranks
    infos = [info for info in watched.infos if info.rank in ranks]
    if watched.state.ended_by_signal is not None:
        return _judge_end_from_outside(watched)
    first = find_first_end(infos, watched.boxes)
    # A node that is lost leaves no end of its command: then others were ended because of it.
    are_known = all(info.command_returncode is not None for info in watched.infos)
    from_outside = are_known and watched.state.was_ended_from_outside and len(infos) == len(watched.infos)
    if from_outside and not (first is not None and first.is_silent):
        return _judge_end_from_outside(watched)
    summary = f"{describe_ranks(list(ranks))} ended without a goodbye"
    if len(ranks) > 1:
        if first is None:
            summary += "; which died first their black boxes do not tell"
            summary += "" if are_comparable(relate_clocks(infos, watched.boxes)) else f" ({_NO_COMMON_CLOCK})"
        else:
            summary += f"; {describe_ranks(list(first.ranks))} may have died first: {first.evidence}"
            ranks = first.ranks
    summary += _describe_unknown_exits(_find_unknown_exits(watched))
    return judge(watched, "crash", summary, ranks=ranks, action=_look_for_end(watched, ranks))


def _judge_end_from_outside(watched: Watched) -> Verdict:
    """Return that all ranks ended as their command was asked to: no rank died that brought the others down."""
    ranks = watched.state.open_ranks
    number = watched.state.ended_by_signal
    how = " and ".join(map(describe_command_end, watched.state.command_returncodes))
    if number is not None:
        how = f"the job was asked to end by signal {number} ({signal_name(number) or 'unknown'})"
    summary = f"{describe_ranks(list(ranks))} {'was' if len(ranks) == 1 else 'were'} ended from outside: {how}"
    action = "Look who ended it: Ctrl-C, a time limit (timeout, the scheduler), the end of a shell, or a person."
    return judge(watched, "crash", summary, severity="warning", action=action)


def _look_for_end(watched: Watched, ranks: Sequence[int]) -> str:
    where = "in the node's kernel log (out of memory, XID) and in the launcher's output"
    return f"Look for its end {where} ({describe_places(watched, ranks)})."


def _find_silent_before_failures(watched: Watched) -> list[Verdict]:
    """Return the ranks that fell silent before the first exception: others raise when one of them is killed."""
    clocks = relate_clocks(watched.infos, watched.boxes)
    first = watched.failures[0]
    reference = clocks.get(first.rank, HostClock(-1, 0))
    raised = {failure.rank for failure in watched.failures}
    silent: list[int] = []
    unknown: list[int] = []
    for info in watched.infos:
        if info.rank not in watched.state.open_ranks or info.rank in raised:
            continue
        sign = max(find_signs(info, watched.boxes.get(info.rank))) + clocks[info.rank].shift_ns
        if clocks[info.rank].component != reference.component:
            unknown.append(info.rank)
        elif sign < first.time_ns + reference.shift_ns:
            silent.append(info.rank)
    found: list[Verdict] = []
    for ranks, when in (
        (silent, "before others raised an exception"),
        (unknown, f"before or after others raised an exception ({_NO_COMMON_CLOCK})"),
    ):
        if ranks:
            found.append(_judge_silent(watched, ranks, when))
    return found


def _judge_silent(watched: Watched, ranks: list[int], when: str) -> Verdict:
    """Return that ranks ended without a goodbye, and which may have died first where that can be told.

    A heart beats once a second: the last sign of a rank that a launcher ended is older than its end, and so it may be
    older than an exception that came before.
    """
    infos = [info for info in watched.infos if info.rank in ranks]
    first = find_first_end(infos, watched.boxes)
    if first is None:
        summary, to_blame = f"{_say_cut_off(ranks)} {when}", tuple(ranks)
    else:
        to_blame = first.ranks
        others = describe_ranks(sorted(set(ranks).difference(to_blame)))
        summary = (
            f"{_say_cut_off(to_blame)} {when}, {others} too or later; "
            f"{describe_ranks(list(to_blame))} may have died first: {first.evidence}"
        )
    return judge(watched, "crash", summary, ranks=to_blame, action=_look_for_end(watched, to_blame))


def _say_cut_off(ranks: Sequence[int]) -> str:
    was = "was" if len(ranks) == 1 else "were"
    return f"{describe_ranks(list(ranks))} {was} killed or aborted"


def _describe_failures(watched: Watched) -> str | None:
    return describe_failures(watched.failures, infos=watched.infos, boxes=watched.boxes)


def _judge_exception(watched: Watched, raised: tuple[int, ...]) -> Verdict:
    """Return who raised or exited first and what; who raised, where no event tells more."""
    summary = _describe_failures(watched)
    ranks = raised if summary is None else (watched.failures[0].rank,)
    summary = summary or f"{describe_ranks(list(raised))} ended by an exception while others of the run live"
    kind = "crash" if watched.failures and watched.failures[0].is_exit else "exception"
    events = rank_folder(Path(), watched.infos[0].attempt, ranks[0]) / EVENTS_FILE
    action = f"Read its last output, and {events} in the run directory."
    return judge(watched, kind, summary, ranks=ranks, action=action)


def _is_gone(watched: Watched, info: RankInfo, fate: Callable[[RankInfo], bool | None]) -> bool:
    box = watched.boxes.get(info.rank)
    if box is None or has_ended(info, box) or watched.now_ns - max(find_signs(info, box)) <= _GONE_NS:
        return False
    return fate(info) is False


def _has_raised(info: RankInfo, box: BlackBoxState | None) -> bool:
    reason = info.exit_reason or ""
    return reason == "exception" or reason.startswith(EXITED) or (box is not None and box.closed and box.exception)
