"""How a run stands, in words."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from scope.analysis.recorded import SILENCE_CAUSES, describe_command_end, describe_mismatch
from scope.report.inert import readable
from scope.units import NS_PER_S

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scope.analysis.recorded import MissedCall, RunState

_SHOWN_RANKS: Final = 8


def standing_words(state: RunState, *, now_ns: int) -> str:
    """Return one sentence without its full stop: the state and the age of the last step; a hang says who is missing.

    Args:
        state: How the run stands.
        now_ns: Now, since the epoch.
    """
    last = _last_step_words(state, now_ns=now_ns)
    if state.standing == "not begun":
        return "no rank has begun to record yet"
    if state.standing == "finished" or (not state.is_live and state.outcome in ("killed", "interrupted")):
        reasons = [reason for reason in state.exit_reasons[:_SHOWN_RANKS] if reason != state.outcome]
        # Ranks tell more than the exit code of their launcher, but not what ended it.
        codes = [code for code in state.command_returncodes if code < 0 or not state.exit_reasons]
        reasons += [describe_command_end(code) for code in codes[:_SHOWN_RANKS]]
        how = f"{state.outcome} ({readable(', '.join(reasons))})" if reasons else state.outcome
        return f"{how} at {clock(state.last_sign_ns)}{_stood_words(state)}; {last}"
    if state.standing == "ended without a goodbye":
        how = f"{state.outcome}, and some ranks " if state.outcome in ("crashed", "failed") else ""
        ended = "".join(f"; {describe_command_end(code)}" for code in state.command_returncodes[:_SHOWN_RANKS])
        at = f"{clock(state.last_sign_ns)} (last sign of life)"
        return f"{how}ended without a goodbye at {at}{_stood_words(state)}{ended}; {last}"
    gone = _gone_words(state.gone_ranks)
    silent = _silent_words(state)
    if state.standing == "running" or state.last_step_ns is None:
        return f"{silent}{gone}; {last}, as far as is known" if silent else f"running{gone}; {last}"
    silent = f"; {silent}" if silent else ""
    return f"NO STEP for {age(now_ns - state.last_step_ns)}{gone}: {held_up_words(state)}{silent}"


def _stood_words(state: RunState) -> str:
    """Return that a run which has ended hung by then, and who had not arrived, to stand behind its end."""
    if state.still_ns is None:
        return ""
    return f", when no step had ended for {age(state.still_ns)}: {held_up_words(state, ended=True)}"


def _silent_words(state: RunState) -> str:
    """Return since when nothing has come from any rank, and what that may be; empty where signs of life come."""
    if state.silent_ns is None:
        return ""
    since = f"{clock(state.last_sign_ns)} ({age(state.silent_ns)})"
    return f"no sign of life of any rank since {since}: {SILENCE_CAUSES}"


def _gone_words(ranks: Sequence[int]) -> str:
    """Return which processes are gone while others of the run live, to stand behind how it stands."""
    if not ranks:
        return ""
    shown = ", ".join(map(str, ranks[:_SHOWN_RANKS]))
    more = f" and {len(ranks) - _SHOWN_RANKS} more" if len(ranks) > _SHOWN_RANKS else ""
    if len(ranks) == 1:
        return f", the process of rank {shown} is gone"
    return f", the processes of ranks {shown}{more} are gone"


def _last_step_words(state: RunState, *, now_ns: int) -> str:
    if state.last_step_ns is not None:
        return f"the last step ended {age(now_ns - state.last_step_ns)} ago"
    if not state.attempt:
        return "no step has ended yet"
    before = ""
    if state.earlier_step_ns is not None:
        before = f"; the last of the attempts before ended {age(now_ns - state.earlier_step_ns)} ago"
    return f"no step of attempt {state.attempt} has ended yet{before}"


def held_up_words(state: RunState, *, ended: bool = False) -> str:
    """Return what holds a run up, or did by its end: who called what others did not, who has not arrived at a call.

    Args:
        state: How the run stands.
        ended: It has ended.
    """
    words = [readable(describe_mismatch(mismatch)) for mismatch in state.mismatches]
    words += [missed_words(state.missed, ended=ended)] if state.missed or not words else []
    return "; ".join(words)


def missed_words(missed: Sequence[MissedCall], *, ended: bool = False) -> str:
    """Return who has not arrived at which call, or had not by the end, or that the black boxes do not tell."""
    if not missed:
        return f"by the black boxes no rank {'was' if ended else 'is'} behind its peers in any collective"
    calls: dict[tuple[str, int, str, str], list[int]] = {}
    for each in missed:
        calls.setdefault((each.operation, each.number, each.group, each.group_title), []).append(each.rank)
    return "; ".join(
        f"{_ranks(ranks, ended=ended)} not arrived at {readable(operation)} {number} of group {readable(title)}"
        for (operation, number, _, title), ranks in calls.items()
    )


def _ranks(ranks: Sequence[int], *, ended: bool) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]} {'had' if ended else 'has'}"
    more = f" and {len(ranks) - _SHOWN_RANKS} more" if len(ranks) > _SHOWN_RANKS else ""
    return f"ranks {', '.join(map(str, ranks[:_SHOWN_RANKS]))}{more} {'had' if ended else 'have'}"


def age(length_ns: int) -> str:
    """Return how long ago something was, in whole seconds, minutes, hours or days, rounded down.

    Examples:
        >>> age(51_900_000_000)
        '51 s'
        >>> age(119 * 60_000_000_000)
        '119 min'
        >>> age(-1)
        '0 s'
    """
    seconds = max(0, length_ns) // NS_PER_S
    for size, unit in ((86_400, "days"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds // size:,} {unit}"
    return f"{seconds} s"


def count(number: int, noun: str) -> str:
    """Return a number with its noun: `1 rank`, `2 ranks`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def clock(instant_ns: int | None) -> str:
    """Return an instant for people, to the second; `an unknown time` for None."""
    if instant_ns is None:
        return "an unknown time"
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(instant_ns / 1e9))
