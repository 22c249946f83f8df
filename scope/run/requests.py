"""Requests that somebody leaves in the run directory, passed on to the ranks of one node.

Each node looks for the same file, so none may take it away before the others have seen it: it stays for a minute,
unless all ranks of the run are on the node that took it.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING, Final

from scope.errors import RunError
from scope.run import paths
from scope.run.blackbox import read_black_box
from scope.run.files import read_span, replace_document

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

LIFETIME_S: Final = 60.0
"""How long a request stays after a node of several has passed it on."""
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
                    (self._run / name).unlink()

    def _look_for(self, name: str) -> None:
        stamp = self._stamp(name)
        if stamp != self._passed[name]:
            if folders := self._pass_on(name):
                self._passed[name] = stamp
                self._seen_s[name] = self._now()
                replace_document(self._note(name), stamp)
                if _are_all_ranks(folders):
                    (self._run / name).unlink()
        elif self._now() - self._seen_s.setdefault(name, self._now()) > LIFETIME_S:
            (self._run / name).unlink()

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
        for folder in folders:
            with contextlib.suppress(OSError):
                (folder / name).touch()
        return folders

    def _note(self, name: str) -> Path:
        return self._spool / paths.note_of_passed(name)


def _are_all_ranks(folders: list[Path]) -> bool:
    """Return whether these are the ranks of the whole run, as far as the first of them knows how many there are."""
    try:
        state = read_black_box(folders[0] / paths.BLACK_BOX_FILE, with_ring=False)
    except RunError:
        return False
    return state.identity.world_size == len(folders)


def _read(path: Path) -> bytes:
    try:
        return read_span(path, max_bytes=64)
    except RunError:
        return b""
