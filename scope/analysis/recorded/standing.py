"""How a run stands: it runs, it hangs, it has finished, or it fell silent without a goodbye."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

from scope.analysis.recorded.mismatches import find_mismatches
from scope.analysis.recorded.progress import compute_group_progress, find_missed_calls
from scope.run.alive import find_fate, find_signs, has_ended, is_gone, left_an_end
from scope.run.goodbyes import EXITED, FINISHED
from scope.units import NS_PER_S, signal_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from scope.analysis.recorded.mismatches import Mismatch
    from scope.analysis.recorded.progress import MissedCall
    from scope.run.blackbox import BlackBoxState
    from scope.run.schema import RankInfo

RunStanding: TypeAlias = Literal["not begun", "running", "no step", "finished", "ended without a goodbye"]
RunOutcome: TypeAlias = RunStanding | Literal["crashed", "killed", "interrupted", "failed", "no sign of life"]

SILENCE_CAUSES: Final = "its publisher, file system or processes stand still, or its node is gone"
"""What it may be when no rank gives a sign of life."""
_SILENT_NS: Final = 60 * NS_PER_S
_GONE_NS: Final = 5 * NS_PER_S
"""Silence after which the word of the table of processes is taken: a heart beats once a second."""
_STILL_NS: Final = 10 * NS_PER_S
_STILL_STEPS: Final = 10
_ASKED_TO_END: Final = frozenset((signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT))
_TIMED_OUT: Final = 124
"""Exit code of `timeout` (GNU coreutils) where its limit was reached."""
_SHELL_SIGNAL: Final = 128
"""What shells add to the number of the signal that ended a command, for an exit code."""
_BY_SIGNAL: Final = "terminated by signal "
"""How `RankInfo.exit_reason` begins where a signal ended the job."""


class ProcessTable(NamedTuple):
    """What a host knows of the processes of ranks.

    Attributes:
        fate: Returns whether a rank's process lives, None where nobody can tell.
        is_gone: Returns whether it is gone for certain, without an end on record.
        has_left_end: Returns whether it left an end where it wrote itself, which is yet to be published.
    """

    fate: Callable[[RankInfo], bool | None] = find_fate
    is_gone: Callable[[RankInfo], bool] = is_gone
    has_left_end: Callable[[RankInfo], bool] = left_an_end

    @classmethod
    def of_run(cls, run: Path) -> ProcessTable:
        """Return what this host knows, where a run directory holds what its ranks wrote."""
        return cls(is_gone=partial(is_gone, run=run))


THIS_HOST: Final = ProcessTable()


@dataclass(frozen=True, kw_only=True, slots=True)
class RunState:
    """How a run stands.

    Attributes:
        standing: In a word. `no step`: its ranks gave signs of life, and none had finished a step for long.
        last_step_ns: End of the last step of any rank; None before the first.
        last_sign_ns: Last sign of life of the ranks that have not ended, of all when all have.
        missed: Ranks that the others wait for while no step ends, or waited for when the run ended; empty when the
            black boxes show none.
        mismatches: Groups whose ranks issued different calls, of a run in which no step ends; of one that ended out of
            order those whose call was pending then.
        open_ranks: Ranks of the last attempt without an end on record.
        exit_reasons: Why ranks ended before they had finished, each once.
        attempt: The last attempt, which all of this is about.
        earlier_step_ns: End of the last step of the attempts before, where the caller adds it; None for none.
        gone_ranks: Those of `open_ranks` whose process is known for certain to be gone.
        still_ns: Of a run that ended out of order, how long no step had ended by then, where that makes it a hang; else
            None.
        command_returncodes: How the commands under `scope run` ended, one a host, each once and without 0: an exit
            code, or below 0 the signal that ended one. Empty of a run that goes on.
        silent_ns: Of a run that goes on as far as is known, how long no rank has given a sign of life, where that is
            more than 10 s: what is known of it is as old. None where signs come, or no rank has a heart to give them.
        ended_by_signal: The signal that the job was asked to end with, by what ranks say that it ended, where the
            others gave signs of life until then; None where none says so, or one had died before.
    """

    standing: RunStanding
    last_step_ns: int | None
    last_sign_ns: int | None
    missed: tuple[MissedCall, ...] = ()
    mismatches: tuple[Mismatch, ...] = ()
    open_ranks: tuple[int, ...] = ()
    exit_reasons: tuple[str, ...] = ()
    attempt: int = 0
    earlier_step_ns: int | None = None
    gone_ranks: tuple[int, ...] = ()
    still_ns: int | None = None
    command_returncodes: tuple[int, ...] = ()
    silent_ns: int | None = None
    ended_by_signal: int | None = None

    @property
    def outcome(self) -> RunOutcome:
        """How it stands, and of a run that has ended also how, in a word.

        `crashed`: an exception ended a rank, whatever became of the others. `failed`: so did a rank, or the command
        under `scope run`, with another exit code than 0. `killed`: a signal to the job, or to that command, ended it;
        `interrupted`: that of Ctrl-C did.
        `no sign of life`: it made steps when something of it was last seen, `silent_ns` ago.
        """
        if self.standing == "running" and self.silent_ns is not None:
            return "no sign of life"
        if self.is_live or self.standing == "not begun":
            return self.standing
        if "exception" in self.exit_reasons:
            return "crashed"
        if any(reason.startswith(EXITED) for reason in self.exit_reasons):
            return "failed"
        if self.ended_by_signal is not None:
            return "interrupted" if self.ended_by_signal == signal.SIGINT else "killed"
        if self.standing == "ended without a goodbye":
            return self.standing
        if "interrupted" in self.exit_reasons:
            return "interrupted"
        if not self.command_returncodes:
            return FINISHED
        return "killed" if min(self.command_returncodes) < 0 else "failed"

    @property
    def unasked_returncodes(self) -> tuple[int, ...]:
        """Those of `command_returncodes` that nobody asked for: they tell of no signal to end, and of no `timeout`."""
        return tuple(code for code in self.command_returncodes if not _tells_of_end_from_outside(code))

    @property
    def was_ended_from_outside(self) -> bool:
        """Whether every command known to have ended out of order tells that it was asked to, by a signal or `timeout`.

        Of a command whose end is not on record it tells nothing.
        """
        return bool(self.command_returncodes) and all(map(_tells_of_end_from_outside, self.command_returncodes))

    @property
    def is_live(self) -> bool:
        """Whether its processes live, whether they make steps or not."""
        return self.standing in ("running", "no step")


def assess_run(
    infos: Sequence[RankInfo],
    states: Mapping[int, BlackBoxState],
    *,
    last_step_ns: int | None,
    usual_ns: int | None,
    now_ns: int,
    processes: ProcessTable = THIS_HOST,
) -> RunState:
    """Return how a run stands.

    A run ended without a goodbye when its ranks that have not ended gave no sign of life for 60 s (ten usual steps,
    where they have no black box to give one) and none of their processes is known to live; when all their processes are
    known to be gone, 5 s suffice, unless one left an end that is yet to be published; when they are for certain,
    nothing is waited for. No step: none had ended for ten usual steps and 10 s when a rank last gave a sign of life (by
    now, where none has a black box): while none comes, it is not known whether steps end. A run that was ended while
    that held hung, which its ends alone do not tell.

    Args:
        infos: `rank.json` of the ranks of the last attempt.
        states: Their black boxes, by rank.
        last_step_ns: End of the last step of any rank in this attempt.
        usual_ns: Usual length of a step; None before it is known.
        now_ns: Now, since the epoch.
        processes: What is known of the ranks' processes; by default this host is asked.
    """
    if not infos:
        return RunState(standing="not begun", last_step_ns=last_step_ns, last_sign_ns=last_step_ns)
    attempt = infos[0].attempt
    still_open = [info for info in infos if not has_ended(info, states.get(info.rank))]
    signs = [sign for info in still_open or infos for sign in find_signs(info, states.get(info.rank))]
    # The last step may be one of a rank that has ended: it is no sign of the others.
    if last_step_ns is not None and len(still_open) in (0, len(infos)):
        signs.append(last_step_ns)
    last_sign_ns = max(signs)
    ranks = tuple(info.rank for info in still_open)
    ended = [info for info in infos if has_ended(info, states.get(info.rank))]
    reasons = {_exit_reason(info, states.get(info.rank)) for info in ended} - {FINISHED}
    codes = {info.command_returncode for info in infos} - {None, 0}
    returncodes = tuple(sorted(code for code in codes if code is not None))
    usual = _STILL_STEPS * (usual_ns or 0)
    stood_ns = None if last_step_ns is None else last_sign_ns - last_step_ns
    still_ns = stood_ns if stood_ns is not None and stood_ns > max(_STILL_NS, usual) else None
    if not still_open:
        still_ns = still_ns if reasons or returncodes else None
        return RunState(
            standing="finished",
            last_step_ns=last_step_ns,
            last_sign_ns=last_sign_ns,
            missed=() if still_ns is None else _find_missed(infos, states),
            mismatches=_find_pending_mismatches(infos, states) if reasons or returncodes else (),
            exit_reasons=tuple(sorted(reasons)),
            attempt=attempt,
            still_ns=still_ns,
            command_returncodes=returncodes,
            ended_by_signal=_find_ending_signal(infos, states),
        )
    standing: RunStanding = "running"
    with_heart = [rank for rank in ranks if rank in states]
    gone_ranks = tuple(info.rank for info in still_open if processes.is_gone(info))
    silent_ns = now_ns - last_sign_ns
    if gone_ranks == ranks or _have_fallen_silent(
        still_open, processes, num_with_heart=len(with_heart), silent_ns=silent_ns, usual_ns=usual
    ):
        standing = "ended without a goodbye"
    elif last_step_ns is not None and (last_sign_ns if with_heart else now_ns) - last_step_ns > max(_STILL_NS, usual):
        standing = "no step"
    is_silence_told = bool(with_heart) and standing != "ended without a goodbye"
    mismatches: tuple[Mismatch, ...] = ()
    if standing == "no step":
        mismatches = find_mismatches(infos, states)
    elif standing == "ended without a goodbye":
        mismatches = _find_pending_mismatches(infos, states)
    has_ended_still = standing == "ended without a goodbye" and still_ns is not None
    return RunState(
        standing=standing,
        last_step_ns=last_step_ns,
        last_sign_ns=last_sign_ns,
        missed=_find_missed(infos, states) if standing == "no step" or has_ended_still else (),
        mismatches=mismatches,
        open_ranks=ranks,
        exit_reasons=tuple(sorted(reasons)) if standing == "ended without a goodbye" else (),
        attempt=attempt,
        gone_ranks=gone_ranks,
        still_ns=still_ns if has_ended_still else None,
        command_returncodes=returncodes if standing == "ended without a goodbye" else (),
        silent_ns=silent_ns if is_silence_told and silent_ns > _STILL_NS else None,
        ended_by_signal=_find_ending_signal(infos, states) if standing == "ended without a goodbye" else None,
    )


def _have_fallen_silent(
    still_open: Sequence[RankInfo], processes: ProcessTable, *, num_with_heart: int, silent_ns: int, usual_ns: int
) -> bool:
    """Return whether ranks that have not ended have given no sign for so long that they are taken to have."""
    fates = {processes.fate(info) for info in still_open} if silent_ns > _GONE_NS else {True}
    limit_ns = _SILENT_NS if num_with_heart else max(_SILENT_NS, usual_ns)
    is_known = fates == {False} and num_with_heart == len(still_open)
    if is_known and not any(processes.has_left_end(info) for info in still_open):
        limit_ns = _GONE_NS
    return True not in fates and silent_ns > limit_ns


def describe_command_end(returncode: int) -> str:
    """Return how the command under `scope run` ended.

    Args:
        returncode: As `subprocess.Popen.returncode`.

    Examples:
        >>> describe_command_end(3)
        'the command exited with code 3'
        >>> describe_command_end(-9)
        'the command was ended by signal 9 (SIGKILL)'
        >>> describe_command_end(124)
        'the command exited with code 124, as timeout does'
        >>> describe_command_end(143)
        'the command exited with code 143, as after SIGTERM'
    """
    if returncode >= 0:
        return f"the command exited with code {returncode}{_explain_code(returncode)}"
    name = signal_name(-returncode)
    return f"the command was ended by signal {-returncode}{f' ({name})' if name else ''}"


def _tells_of_end_from_outside(returncode: int) -> bool:
    return returncode == _TIMED_OUT or bool({-returncode, returncode - _SHELL_SIGNAL} & _ASKED_TO_END)


def _explain_code(returncode: int) -> str:
    """Return what ended a command that exited with a code which a convention gives a meaning, to stand behind it."""
    if not _tells_of_end_from_outside(returncode):
        return ""
    if returncode == _TIMED_OUT:
        return ", as timeout does"
    return f", as after {signal.Signals(returncode - _SHELL_SIGNAL).name}"


def _find_missed(infos: Sequence[RankInfo], states: Mapping[int, BlackBoxState]) -> tuple[MissedCall, ...]:
    return tuple(find_missed_calls(compute_group_progress(infos, states)))


def _find_ending_signal(infos: Sequence[RankInfo], states: Mapping[int, BlackBoxState]) -> int | None:
    """Return the signal that ended the job by what ranks say; None where one without an end died before they did."""
    told = {
        info.ended_ns: int(info.exit_reason.removeprefix(_BY_SIGNAL))
        for info in infos
        if info.ended_ns is not None and info.exit_reason is not None
        if info.exit_reason.startswith(_BY_SIGNAL) and info.exit_reason.removeprefix(_BY_SIGNAL).isdecimal()
    }
    still_open = [info for info in infos if not has_ended(info, states.get(info.rank))]
    signs = (max(find_signs(info, states.get(info.rank))) for info in still_open)
    if not told or min(signs, default=min(told)) < min(told) - _GONE_NS:
        return None
    return told[min(told)]


def _find_pending_mismatches(infos: Sequence[RankInfo], states: Mapping[int, BlackBoxState]) -> tuple[Mismatch, ...]:
    return tuple(each for each in find_mismatches(infos, states) if each.is_pending)


def _exit_reason(info: RankInfo, state: BlackBoxState | None) -> str:
    if info.exit_reason is not None:
        return info.exit_reason
    return "exception" if state is not None and state.exception else FINISHED
