"""The publishing process that `scope run` starts beside the command."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

    from scope.run.command import Ending

_PUBLISH_END_S: Final = 20.0
_MAX_PROBLEMS: Final = 5
_LEFT: Final = 76
"""`scope.run.publish.EXIT_LEFT`; that module is a process of its own."""


class Publisher:
    """The publishing process; closing its standard input asks it for a last round.

    Attributes:
        problems: What could not be published, and why, once it has ended.
        is_left: It has left the spool to a successor, which waits for ranks that are yet to begin.
        is_stuck: It has not ended in time, and goes on by itself.
    """

    def __init__(
        self, spool: Path, run_dir: Path, max_run_bytes: int, *, identity: tuple[int, int] | None = None
    ) -> None:
        self._command = [
            sys.executable,
            "-P",
            "-m",
            "scope.run.publish",
            "--spool",
            str(spool),
            "--run-dir",
            str(run_dir),
        ]
        self._command += ["--max-run-bytes", str(max_run_bytes), "--launched"]
        if identity is not None:
            self._command += ["--identity", *map(str, identity)]
        self.problems: list[str] = []
        self.is_left = self.is_stuck = False
        self._process = self._start()

    def __enter__(self) -> Publisher:
        return self

    def __exit__(self, *error: object) -> None:
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()

    def finish(self, ending: Ending) -> bool:
        """Wait for the last round; return whether everything was published. A process that hangs is left behind.

        Args:
            ending: How the command ended, which ranks that a signal ended, or that never were, could not tell.
        """
        if self._process is None or self._process.poll() is not None:
            # Somebody killed it, or there was no room for it; what is left is published now.
            self._process = self._start()
        process = self._process
        if process is None:
            return False
        if process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                known = (ending.signal, ending.returncode, ending.pid, ending.signal_ns)
                process.stdin.write(b"".join(b"\n" if each is None else b"%d\n" % each for each in known))
                process.stdin.flush()
            process.stdin.close()
        try:
            status = process.wait(timeout=_PUBLISH_END_S)
        except subprocess.TimeoutExpired:
            self.is_stuck = True
            return False
        if process.stderr is not None:
            with process.stderr:
                said = process.stderr.read()
            self.problems = said.decode(errors="replace").splitlines()[:_MAX_PROBLEMS]
        self.is_left = status == _LEFT
        return status == 0

    def _start(self) -> subprocess.Popen[bytes] | None:
        """Start the process; the command runs all the same where it cannot be, and is told of at its end."""
        try:
            return subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,  # not ours: one that hangs would hold the other end of the caller's pipe
                start_new_session=True,
                preexec_fn=_take_signals,
            )
        except OSError as error:
            self.problems = [f"{self._command[0]}: cannot be started to publish the run ({error.strerror})"]
            return None


def _take_signals() -> None:
    """Let a new process have the signals that this one holds back for its command."""
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
