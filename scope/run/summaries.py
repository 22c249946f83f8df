"""Summaries of captured windows, made outside the training process and outside this one.

The publisher hands over each window that it has published; `python -m scope analyze --json` reads it at the lowest
priority, one window at a time, and its report (schema `scope.report/1`) lands beside the trace as `NAME.summary.json`.
Where the `trace` extra is not installed there is none, and readers that find none do without.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import subprocess
import sys
import time
from collections import deque
from pathlib import Path
from typing import Final

from scope.run.files import FILE_MODE

SUMMARY_SUFFIX: Final = ".summary.json"
_NICE: Final = 19
_MAX_S: Final = 600.0
_MAX_WAITING: Final = 64
_READER: Final = "polars"
_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC


def summary_path(trace: Path) -> Path:
    """Return where the summary of a captured trace lies, whether there is one or not."""
    return trace.with_name(trace.name.partition(".")[0] + SUMMARY_SUFFIX)


class Summaries:
    """Makes the summaries of one run's windows, one after the other.

    Attributes:
        available: Whether this interpreter can read traces at all.
        num_failed: Windows that could not be read, or took longer than ten minutes.
    """

    def __init__(self, *, available: bool | None = None) -> None:
        self.available = importlib.util.find_spec(_READER) is not None if available is None else available
        self.num_failed = 0
        self._waiting: deque[Path] = deque(maxlen=_MAX_WAITING)
        self._process: subprocess.Popen[bytes] | None = None
        self._trace = Path()
        self._began = 0.0

    @property
    def busy(self) -> bool:
        """Whether a summary is being made or waits to be."""
        return self._process is not None or bool(self._waiting)

    def add(self, trace: Path) -> None:
        """Ask for the summary of a published trace; beyond 64 that wait, the oldest is left without one."""
        if self.available:
            self._waiting.append(trace)

    def poll(self) -> None:
        """Look after the process at work, and start the next one; returns at once."""
        if self._process is not None:
            if self._process.poll() is None and time.monotonic() - self._began < _MAX_S:
                return
            self._finish()
        if self._waiting:
            self._start(self._waiting.popleft())

    def close(self, *, wait_s: float) -> None:
        """Give what is at work or waits so many seconds, then end it without its summary."""
        deadline = time.monotonic() + wait_s
        while self.busy and time.monotonic() < deadline:
            self.poll()
            time.sleep(0.05)
        self._waiting.clear()
        if self._process is not None:
            self._finish()

    def _part(self) -> Path:
        return self._trace.with_name(f".{self._trace.name}.summary.part")

    def _start(self, trace: Path) -> None:
        self._trace = trace
        try:
            output = os.open(
                self._part(), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, FILE_MODE
            )
        except OSError:
            self.num_failed += 1
            return
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "scope", "analyze", str(trace), "--json", "--no-cache"],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.DEVNULL,
                preexec_fn=lambda: os.nice(_NICE),
            )
        except OSError:
            self.num_failed += 1
            with contextlib.suppress(OSError):
                self._part().unlink()
        finally:
            os.close(output)
        self._began = time.monotonic()

    def _finish(self) -> None:
        process, self._process = self._process, None
        assert process is not None
        if process.poll() is None:
            process.kill()
            process.wait()
        with contextlib.suppress(OSError):
            if process.returncode == 0:
                self._part().rename(summary_path(self._trace))
                return
            self._part().unlink()
        self.num_failed += 1
