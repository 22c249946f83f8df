"""Requests that somebody leaves in the run directory, passed on to the ranks of one node.

Each node looks for the same file, so none may take it away before the others have seen it: it stays for a minute,
unless all ranks of the run are on the node that took it.

Ranks see a request at different moments. So that all of them profile the same steps, one for a window names the step at
which it begins, a little ahead of the rank that is furthest: as far as training gets while the request spreads. The
first node that sees it says which, in a file beside it. A number that the user writes into the request is that step.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import time
from typing import TYPE_CHECKING, Final

import msgspec

from scope.errors import RunError
from scope.run import paths
from scope.run.blackbox import read_black_box
from scope.run.files import read_span, replace_document
from scope.run.schema import StepRecord
from scope.units import NS_PER_S

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from scope.run.blackbox import BlackBoxState

LIFETIME_S: Final = 60.0
"""How long a request stays after a node of several has passed it on."""
AGREED: Final = ".capture-step-"
"""Begins the name of a file in the run directory that says at which step a window begins on all nodes."""
_SPREAD_NS: Final = 2 * NS_PER_S
"""How long a request takes to reach every rank of one node, which look for it once a second each, and a second more."""
_SPREAD_OF_NODES_NS: Final = 6 * NS_PER_S
"""The same of several nodes: publishers look once a second, and a shared file system may hide a file for three more."""
_RECENT_STEPS: Final = 20
_TAIL_BYTES: Final = 2**17
_MAX_BYTES: Final = 64
_MAX_DIGITS: Final = 18
_decoder: Final = msgspec.json.Decoder(StepRecord)
_NAMES: Final = (paths.REQUEST_FILE, paths.STACKS_REQUEST_FILE)


class Requests:
    """Passes each request on to the ranks of a spool once; touching the file again makes another request.

    What was passed on is noted in the spool: the publisher that follows one that died does not pass it on again.

    Args:
        spool: Spool of this node.
        run: The run directory.
        now: Monotonic clock in seconds.
    """

    def __init__(self, spool: Path, run: Path, *, now: Callable[[], float] = time.monotonic) -> None:
        self._spool = spool
        self._run = run
        self._now = now
        self._passed = {name: _read(self._note(name)) for name in _NAMES}
        self._seen_s: dict[str, float] = {}

    def poll(self) -> None:
        """Pass on what is new, and take away what every node has had the time to see."""
        for name in _NAMES:
            with contextlib.suppress(OSError):
                self._look_for(name)

    def close(self) -> None:
        """Take away the requests that were passed on: the job has ended, and they are not meant for the next one."""
        for name in _NAMES:
            with contextlib.suppress(OSError):
                if self._passed[name] == self._stamp(name):
                    self._take_away(name)

    def _look_for(self, name: str) -> None:
        stamp = self._stamp(name)
        if stamp != self._passed[name]:
            if folders := self._pass_on(name):
                self._passed[name] = stamp
                self._seen_s[name] = self._now()
                replace_document(self._note(name), stamp)
                if _are_all_ranks(folders):
                    self._take_away(name)
        elif self._now() - self._seen_s.setdefault(name, self._now()) > LIFETIME_S:
            self._take_away(name)

    def _stamp(self, name: str) -> bytes:
        status = os.lstat(self._run / name)
        return f"{status.st_ino} {status.st_mtime_ns}\n".encode()

    def _pass_on(self, name: str) -> list[Path]:
        """Return the folders of the ranks that it was passed on to; none where no rank has begun."""
        folders = [
            paths.rank_folder(self._spool, attempt, rank)
            for attempt in paths.list_attempts(self._spool)[-1:]
            for rank in paths.list_ranks(self._spool, attempt)
        ]
        begin = self._choose_step(folders) if name == paths.REQUEST_FILE and folders else None
        content = b"" if begin is None else f"{begin}\n".encode()
        for folder in folders:
            with contextlib.suppress(OSError):
                replace_document(folder / name, content)
        return folders

    def _take_away(self, name: str) -> None:
        (self._run / name).unlink()
        if name == paths.REQUEST_FILE:
            for agreed in self._run.glob(f"{AGREED}*"):
                agreed.unlink(missing_ok=True)

    def _choose_step(self, folders: Sequence[Path]) -> int | None:
        """Return the step at which a window begins on all ranks; None for the next of each, where no step has ended."""
        path = self._run / paths.REQUEST_FILE
        wanted = read_step(_read(path))
        if wanted is not None:
            return wanted
        is_whole = _are_all_ranks(folders)
        begin = find_step_ahead(folders, spread_ns=_SPREAD_NS if is_whole else _SPREAD_OF_NODES_NS)
        if begin is None or is_whole:
            return begin
        return self._agree(self._run / f"{AGREED}{path.lstat().st_mtime_ns}", begin)

    def _agree(self, path: Path, begin: int) -> int:
        """Return what the first node has said, which is `begin` where this is that node, or nobody can say anything."""
        own = path.with_name(f"{path.name}.{os.getpid()}.{id(self)}")
        with contextlib.suppress(OSError):
            replace_document(own, f"{begin}\n".encode())
            try:
                os.link(own, path)  # whole or not at all, and once
            finally:
                own.unlink()
        said = read_step(_read(path))
        return begin if said is None else said

    def _note(self, name: str) -> Path:
        return self._spool / paths.note_of_passed(name)


def read_step(content: bytes) -> int | None:
    """Return the step that a request names; None where it names none, or what it says is no number of a step."""
    text = content.strip()
    return int(text) if text.isdigit() and len(text) <= _MAX_DIGITS else None


def find_step_ahead(folders: Sequence[Path], *, spread_ns: int) -> int | None:
    """Return the step that no rank will have begun before so much time has passed; None before a step has ended.

    Steps are taken to be as long as the last ones usually were. One that begins on the foremost rank may end at once.

    Args:
        folders: Folders of ranks of one attempt.
        spread_ns: The time.
    """
    states = [(state, folder) for folder in folders if (state := _read_state(folder)) is not None]
    begun = [(state.step, state, folder) for state, folder in states if state.step is not None]
    if not begun:
        return None
    newest, state, folder = max(begun, key=lambda each: each[0])
    usual_ns = _usual_length_ns(folder, last_ns=state.last_step_duration_ns)
    return None if usual_ns is None else newest + 1 + -(-spread_ns // usual_ns)


def _usual_length_ns(folder: Path, *, last_ns: int | None) -> int | None:
    """Return the median length of a rank's last steps, the lower of two; None where none has ended.

    Records lag behind by a second: of a job that has just begun they may hold the first step alone, which is long.

    Args:
        folder: The folder of the rank.
        last_ns: Length of the last step, of which there may be no record yet.
    """
    path = folder / paths.STEPS_FILE
    lengths = [last_ns or 0]
    with contextlib.suppress(RunError, OSError):
        lines = read_span(path, offset=max(0, path.lstat().st_size - _TAIL_BYTES), max_bytes=_TAIL_BYTES).split(b"\n")
        for line in lines[-_RECENT_STEPS:]:
            with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError):
                step = _decoder.decode(line)
                lengths.append(step.end_ns - step.start_ns)
    known = [length for length in lengths if length > 0]
    return statistics.median_low(known) if known else None


def _read_state(folder: Path) -> BlackBoxState | None:
    try:
        return read_black_box(folder / paths.BLACK_BOX_FILE, with_ring=False)
    except RunError:
        return None


def _are_all_ranks(folders: Sequence[Path]) -> bool:
    """Return whether these are the ranks of the whole run, as far as the first of them knows how many there are."""
    state = _read_state(folders[0])
    return state is not None and state.identity.world_size == len(folders)


def _read(path: Path) -> bytes:
    try:
        return read_span(path, max_bytes=_MAX_BYTES)
    except RunError:
        return b""
