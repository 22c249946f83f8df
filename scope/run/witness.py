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
        self._stale = 0

    def saw(self, number: int) -> bool:
        """Return whether a signal that has just come was sent to the group; the next one is asked for anew.

        Args:
            number: The signal.
        """
        pending = self._read_pending()
        if not pending & _bit(number):
            return False
        self._renew()
        return True

    def forget_old(self) -> None:
        """Forget what came to the witness alone: what pends there since the last call, while nothing came to us."""
        pending = self._read_pending()
        if pending & self._stale:
            self._renew()
            pending = 0
        self._stale = pending

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            with self._process:
                self._process.kill()
            self._process = None

    def _renew(self) -> None:
        self.close()
        self._process = _start()
        self._stale = 0

    def _read_pending(self) -> int:
        """Return the signals that pend, a bit each; none where that cannot be known."""
        if self._process is None:
            return 0
        with contextlib.suppress(OSError, ValueError):
            text = (self._proc / str(self._process.pid) / "status").read_text(encoding="utf-8", errors="replace")
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
