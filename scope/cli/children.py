"""Processes that a command starts and that end when it ends, whatever happens to it or to them."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from scope.errors import ScopeError
from scope.units import signal_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_STOP_TIMEOUT_S: Final = 10.0
_QUOTED_LINES: Final = 5
# From linux/prctl.h.
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36
_libc: Final = ctypes.CDLL(None)


class Children:
    """Processes that end when this one ends; what they print lands in files.

    This process adopts what its children leave behind (`PR_SET_CHILD_SUBREAPER`), so that the ranks of a launcher that
    was killed can be found and ended too; and when this process is killed its children get a signal.

    Args:
        logs: Folder of the files that hold what they print.
        variables: Their environment besides this process's own.
    """

    def __init__(self, logs: Path, *, variables: Mapping[str, str] | None = None) -> None:
        self._logs = logs
        self._variables = dict(variables or {})
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    def start(
        self, name: str, command: Sequence[str], *, orphan_signal: signal.Signals = signal.SIGTERM
    ) -> subprocess.Popen[bytes]:
        """Start a process; its output goes to `NAME.log`.

        It leads a process group of its own: Ctrl-C reaches the parent alone, which then ends its children in order.

        Args:
            name: What it is.
            command: The program and its arguments.
            orphan_signal: What it gets when this process is killed: SIGTERM, so that it can end children of its own.
        """
        with self.log(name).open("wb") as log:
            process = subprocess.Popen(
                command,
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                env={**os.environ, **self._variables},
                preexec_fn=partial(_end_with_the_parent, orphan_signal, os.getpid()),
            )
        self._running[name] = process
        return process

    def log(self, name: str) -> Path:
        """Return the file that holds what the process prints."""
        return self._logs / f"{name}.log"

    def ended(self) -> set[str]:
        """Return the names of the processes that have ended."""
        return {name for name in self._running if self.has_ended(name)}

    def has_ended(self, name: str) -> bool:
        """Return whether a process has ended."""
        return self._running[name].poll() is not None

    def end_of(self, name: str) -> str:
        """Return in words how a process has ended."""
        code = self._running[name].poll()
        if code is None:
            return "did not become ready"
        if code < 0:
            return f"was ended by {signal_name(-code) or f'signal {-code}'}"
        return "has ended" if code == 0 else f"has ended with code {code}, see {self.log(name)}"

    def error_of(self, name: str) -> ScopeError:
        """Return an error that quotes the end of what the process printed."""
        tail = self.log(name).read_text(errors="replace").strip().splitlines()[-_QUOTED_LINES:]
        quote = [f"the end of {self.log(name)}:", *tail] if tail else []
        return ScopeError("\n  ".join([f"the {name} {self.end_of(name)}" + (";" if quote else ""), *quote]))

    def check(self, *, but: str) -> None:
        """Raise an error when a process that should go on has ended.

        Args:
            but: The process that may end.
        """
        for name in self._running:
            if name != but and self.has_ended(name):
                raise self.error_of(name)

    def stop(self) -> None:
        """End all of them, the youngest first; whoever does not listen is killed, and what they left behind too."""
        # A second Ctrl-C must not leave half of them behind.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        for process in reversed(self._running.values()):
            if process.poll() is None:
                process.terminate()
        deadline = time.monotonic() + _STOP_TIMEOUT_S
        for process in self._running.values():
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.1, deadline - time.monotonic()))
        # What is killed may leave orphans, which are adopted and found in the next round.
        while left := _descendants(os.getpid()):
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)
            with suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass


def _end_with_the_parent(orphan_signal: signal.Signals, parent: int) -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, orphan_signal, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)  # it was killed before the kernel was told


def _descendants(ancestor: int) -> set[int]:
    """Return the children of a process, theirs and so on; those that have ended are left out."""
    parents: dict[int, int] = {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            # The name of the program stands in brackets and may hold anything.
            state, parent = file.read_text(errors="replace").rpartition(")")[2].split()[:2]
            if state != "Z":
                parents[int(file.parent.name)] = int(parent)
    found = {ancestor}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {ancestor}
