"""Whether a signal went to the whole process group: a command in it then has it already.

Nothing about a signal tells whether `kill` named one process or its group. A process of our own in the group, which
does nothing but hold its signals back, tells: what pends there was sent to the group.
"""

from __future__ import annotations

import contextlib
import subprocess
from pathlib import Path
from typing import Final

_PENDING: Final = "ShdPnd:"


class GroupWitness:
    """A process in our process group in which signals pend that were sent to the group; it ends with this process.

    Start it while the signals it is asked for are blocked. Linux hands a signal to the youngest process of a group
    first, so that the witness has it before this process has. Where it cannot be started or looked at, it saw nothing.

    Args:
        proc: The table of processes.
    """

    def __init__(self, *, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._process = _start()
        self._kept = 0  # what pended in earlier processes beside what they were asked for
        self._stale = 0

    def saw(self, number: int) -> bool:
        """Return whether a signal that has just come was sent to the group; the next one is asked for anew.

        Args:
            number: The signal.
        """
        bit = _bit(number)
        pending = self._pending_in(self._process)
        seen = (pending | self._kept) & bit
        if pending & bit:
            self._renew()
        self._forget(bit)
        return bool(seen)

    def forget_old(self) -> None:
        """Forget what came to the witness alone: what pends there since the last call, while nothing came to us."""
        pending = self._pending_in(self._process)
        old = (pending | self._kept) & self._stale
        if pending & old:
            self._renew()
        self._stale = pending | self._kept
        self._forget(old)

    def close(self) -> None:
        """End the process."""
        _end(self._process)
        self._process = None

    def _renew(self) -> None:
        """Put a new process in the place of ours, and keep what pends in ours: more may have come to the group."""
        old, self._process = self._process, _start()
        self._kept |= self._pending_in(old)
        _end(old)

    def _forget(self, signals: int) -> None:
        self._kept &= ~signals
        self._stale &= ~signals

    def _pending_in(self, process: subprocess.Popen[bytes] | None) -> int:
        """Return the signals that pend in a process of ours, a bit each; none where that cannot be known."""
        if process is None:
            return 0
        with contextlib.suppress(OSError, ValueError):
            text = (self._proc / str(process.pid) / "status").read_text(encoding="utf-8", errors="replace")
            for line in text.splitlines():
                if line.startswith(_PENDING):
                    return int(line.removeprefix(_PENDING), 16)
        return 0


def _bit(number: int) -> int:
    return 1 << (number - 1)


def _start() -> subprocess.Popen[bytes] | None:
    try:
        # It reads until we are gone, and nobody ever writes.
        return subprocess.Popen(
            ["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={}
        )
    except OSError:
        return None


def _end(process: subprocess.Popen[bytes] | None) -> None:
    if process is not None:
        with process:
            process.kill()
