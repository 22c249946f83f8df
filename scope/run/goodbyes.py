"""Ends of recordings of which the events alone tell: a full disk has no room for a new `rank.json`.

A line more may fit there where a document, which is written anew and whole, does not; a black box, whose room is taken
at the start, tells of an end by itself.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

import msgspec

from scope.errors import RunError
from scope.run import paths
from scope.run.files import open_regular
from scope.run.schema import EventRecord, RankInfo

if TYPE_CHECKING:
    from pathlib import Path

SAID: Final = "recording ended: "
"""How the message of an `attempt_end` begins; the rest of it is `RankInfo.exit_reason`."""
FINISHED: Final = "finished"
EXITED: Final = "exited with code "
"""How `RankInfo.exit_reason` begins where a process ended with another exit code than 0; the code follows."""
EXIT_CODE: Final = "exit_code"
"""Name in `RankInfo.absent` where a process may have ended with any exit code."""
RAISED_EXIT: Final = "it raised SystemExit, of which nothing tells the code"
AFTER_UPDATE: Final = "after_update"
"""Detail of the event of an exception or exit: it came after an update of its step and outside of all phases, where
the next step may have begun for the program."""
OTHER_THREAD: Final = "other_thread"
"""Detail of the warning that an optimizer has stepped in a thread which nothing is measured of."""
_TAIL_BYTES: Final = 2**16
_decoder: Final = msgspec.json.Decoder(EventRecord)


def say_exit(code: int) -> str:
    """Return the `RankInfo.exit_reason` of a process that ended with an exit code, by itself and by no exception."""
    return f"{EXITED}{code}" if code else FINISHED


def is_told_by_events(folder: Path, info: RankInfo) -> bool:
    """Return whether the events alone may tell of a rank's end: no end stands in `rank.json`, and no black box is."""
    if info.ended_ns is not None:
        return False
    try:
        (folder / paths.BLACK_BOX_FILE).lstat()
    except FileNotFoundError:
        return True
    except OSError:
        pass
    return False


def with_told_end(folder: Path, info: RankInfo) -> RankInfo:
    """Return what is known of a rank, with the end of which its last events tell where nothing else can.

    Args:
        folder: The folder of the rank.
        info: Its `rank.json`.
    """
    return with_last_event(folder, info) if is_told_by_events(folder, info) else info


def with_last_event(folder: Path, info: RankInfo) -> RankInfo:
    """Return what is known of a rank, with the end of its recording by its last events; as it is where they tell none.

    Args:
        folder: The folder of the rank.
        info: Its `rank.json`, in which no end stands.
    """
    event = _find_end(folder / paths.EVENTS_FILE)
    if event is None:
        return info
    return msgspec.structs.replace(info, ended_ns=event.time_ns, exit_reason=event.message.removeprefix(SAID))


def _find_end(path: Path) -> EventRecord | None:
    """Return the event of the end of a recording, None where it has none or began anew; bad lines are passed over."""
    for line in reversed(_read_tail(path).split(b"\n")):
        try:
            event = _decoder.decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            continue
        if event.kind == "attempt_start":
            return None
        if event.kind == "attempt_end" and event.message.startswith(SAID):
            return event
    return None


def _read_tail(path: Path) -> bytes:
    try:
        with open(open_regular(path), "rb") as file:  # noqa: PTH123 - takes a descriptor
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _TAIL_BYTES))
            return file.read(_TAIL_BYTES)
    except (OSError, RunError):
        return b""
