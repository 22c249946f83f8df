"""The ends of ranks that could not tell of them: a signal that ends a program leaves it no time to write.

The launcher knows which signal it passed on, and how its command ended; the publisher, which sees the ranks go, writes
both down for them. Of a run without ranks it writes down that its command ended before any began to record.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from scope.errors import RunError
from scope.run import paths
from scope.run.alive import is_living
from scope.run.blackbox import read_black_box
from scope.run.files import AppendFile, replace_document
from scope.run.goodbyes import EXIT_CODE, EXITED, FINISHED, SAID, say_exit, with_last_event
from scope.run.reader import read_rank_info, read_run_info
from scope.run.schema import EventRecord
from scope.units import NS_PER_S

if TYPE_CHECKING:
    from pathlib import Path

    from scope.run.schema import RankInfo


_MAX_TO_END_NS: Final = 3 * NS_PER_S
"""A signal that ends a rank does so at once: this is for a launcher of its own, such as torchrun, to pass it on."""


class CommandEnd(NamedTuple):
    """How the command of `scope run` ended.

    Attributes:
        returncode: As `subprocess.Popen.returncode`: below 0 for a signal.
        pid: Its process id; that of a rank where it trains itself. None where it could not be started.
    """

    returncode: int
    pid: int | None


def record_endings(
    spool: Path, signal_number: int, *, sent_ns: int | None = None, command: CommandEnd | None = None
) -> int:
    """Note of each rank of the last attempt that is gone without a word which signal ended it; return how many.

    Ranks that closed their recording, or live on, are left as they are, and so are those that the signal did not end:
    the process of the command itself that ended otherwise, and any that has worked on for more than 3 s, to save its
    state first, or because it handles that signal. The black box stays open: it tells that the rank did not end in
    order.

    Args:
        spool: Folder with the layout of a run directory, on this node.
        signal_number: The signal that the job was asked to end with.
        sent_ns: When it was sent, by the monotonic clock of this host; None where nobody knows.
        command: How the command ended; None where nobody saw it.
    """
    reason = f"terminated by signal {signal_number}"
    num_noted = 0
    for attempt in paths.list_attempts(spool)[-1:]:
        for rank in paths.list_ranks(spool, attempt):
            folder = paths.rank_folder(spool, attempt, rank)
            with contextlib.suppress(RunError, OSError):
                info = read_rank_info(folder)
                if info.ended_ns is not None or is_living(info):
                    continue
                if command is not None and info.pid == command.pid:
                    is_by_it = command.returncode == -signal_number
                else:
                    is_by_it = sent_ns is None or not _worked_on(folder, sent_ns)
                if is_by_it:
                    _end_recording(folder, info, reason)
                    num_noted += 1
    return num_noted


def _worked_on(folder: Path, sent_ns: int) -> bool:
    """Return whether phases of a rank changed long after a signal was sent, by its black box."""
    try:
        box = read_black_box(folder / paths.BLACK_BOX_FILE, with_ring=False)
    except (RunError, OSError):
        return False
    seen = [instant for instant in (box.phase_start_ns, box.step_start_ns) if instant is not None]
    return bool(seen) and max(seen) - box.identity.wall_offset_ns - sent_ns > _MAX_TO_END_NS


def record_exits(spool: Path, command: CommandEnd | None) -> None:
    """Note how the command ended in each rank of the last attempt that has too, and of all ranks what they ended with.

    A rank that left by `os._exit` has told it to its events alone. Of the process of the command itself the launcher
    knows the exit code for certain; where a signal ended it the recording stays open, as that of every rank that could
    not say goodbye.

    Args:
        spool: Folder with the layout of a run directory, on this node.
        command: How the command ended; None where nobody saw it.
    """
    attempts = paths.list_attempts(spool)
    for attempt in attempts:
        for rank in paths.list_ranks(spool, attempt):
            folder = paths.rank_folder(spool, attempt, rank)
            with contextlib.suppress(RunError, OSError):
                _record_exit(folder, command if attempt == attempts[-1] else None)


def _record_exit(folder: Path, command: CommandEnd | None) -> None:
    known = info = read_rank_info(folder)
    if info.ended_ns is None:
        if is_living(info):
            return
        info = with_last_event(folder, info)
    if command is not None:
        info = msgspec.structs.replace(info, command_returncode=command.returncode)
        if info.pid == command.pid and command.returncode >= 0:
            info = _with_exit_code(folder, info, command.returncode)
    if info != known:
        replace_document(folder / paths.RANK_FILE, msgspec.json.encode(info))


def _with_exit_code(folder: Path, info: RankInfo, code: int) -> RankInfo:
    """Return what is known of the process of the command, which cannot tell of every exit code by itself."""
    reason = say_exit(code)
    absent = {name: why for name, why in info.absent.items() if name != EXIT_CODE}
    info = msgspec.structs.replace(info, absent=absent)
    if info.ended_ns is not None:
        by_code = info.exit_reason == FINISHED or (info.exit_reason or "").startswith(EXITED)
        return msgspec.structs.replace(info, exit_reason=reason) if by_code else info
    now_ns = time.time_ns()
    _add_event(folder, EventRecord(time_ns=now_ns, kind="attempt_end", message=f"{SAID}{reason}"))
    return msgspec.structs.replace(info, ended_ns=now_ns, exit_reason=reason)


def record_left_alone(spool: Path, run: Path, *, silence_s: float) -> None:
    """Note that processes which outlive their launcher are waited for no more, and where they write from now on.

    It stands in the events of each rank of the last attempt that has not ended, and in a run directory without ranks.

    Args:
        spool: Folder with the layout of a run directory, on this node.
        run: The run directory.
        silence_s: How long none of them has given a sign of life, in seconds.
    """
    place = str(spool).encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    silence = f"the launcher is gone, and no rank gave a sign of life for {silence_s:g} s"
    message = f"publishing ended: {silence}; what this one writes from now on stays in {place}"
    event = EventRecord(time_ns=time.time_ns(), kind="warning", message=message)
    for attempt in paths.list_attempts(spool)[-1:]:
        for rank in paths.list_ranks(spool, attempt):
            folder = paths.rank_folder(spool, attempt, rank)
            with contextlib.suppress(RunError):
                if read_rank_info(folder).ended_ns is None:
                    _add_event(folder, event)
    if not has_ranks(spool) and not has_ranks(run):
        _note_unrecorded(run, f"{silence}; ranks that begin from now on are recorded in {place}")


def record_nothing(run: Path, returncode: int, *, host: str) -> bool:
    """Note in a run directory without ranks that a command has ended; return whether it was so.

    Args:
        run: The run directory.
        returncode: How the command ended, as `subprocess.Popen.returncode`.
        host: The node it ran on: on others there may be ranks to come.
    """
    how = f"with exit code {returncode}" if returncode >= 0 else f"by signal {-returncode}"
    reason = (
        f"the command on {host} ended {how} before any process of it had imported torch in an interpreter that can see "
        "scope"
    )
    return not has_ranks(run) and _note_unrecorded(run, reason)


def forget_nothing(run: Path) -> None:
    """Take back what `record_nothing` noted, since another command begins."""
    _note_unrecorded(run, None)


def has_ranks(run: Path) -> bool:
    """Return whether a run directory, or a spool, holds a rank in any attempt."""
    return any(paths.list_ranks(run, attempt) for attempt in paths.list_attempts(run))


def _note_unrecorded(run: Path, reason: str | None) -> bool:
    try:
        info = read_run_info(run)
        if info.unrecorded != reason:
            changed = msgspec.structs.replace(info, unrecorded=reason)
            replace_document(run / paths.RUN_FILE, msgspec.json.encode(changed))
    except (RunError, OSError):
        return False
    return True


def _end_recording(folder: Path, info: RankInfo, reason: str) -> None:
    now_ns = time.time_ns()
    ended = msgspec.structs.replace(info, ended_ns=now_ns, exit_reason=reason)
    replace_document(folder / paths.RANK_FILE, msgspec.json.encode(ended))
    _add_event(folder, EventRecord(time_ns=now_ns, kind="attempt_end", message=f"{SAID}{reason}"))


def _add_event(folder: Path, event: EventRecord) -> None:
    events = AppendFile(folder / paths.EVENTS_FILE)
    events.append(msgspec.json.encode(event) + b"\n")
    events.close()
