"""Stacks of all threads: on request, and once in a step that stands still, for what a rank that hangs was doing.

The 1 Hz thread asks `faulthandler`, which reads the threads' frames and runs no code of theirs. A thread that holds the
interpreter lock for good stops this one, too; then the black box is what is left.
"""

from __future__ import annotations

import faulthandler
import os
import time
from typing import TYPE_CHECKING, Final

from scope.run import paths

if TYPE_CHECKING:
    from collections.abc import Callable

    from scope.record.session import Session

_STALL_FACTOR: Final = 10
_LEAST_STALL_NS: Final = 60_000_000_000
_MAX_BYTES: Final = 32 * 2**10


class StackDumps:
    """Decides at each pulse whether stacks are written.

    Args:
        session: Whose threads, steps and events these are.
        now: The monotonic clock.
    """

    def __init__(self, session: Session, *, now: Callable[[], int] = time.monotonic_ns) -> None:
        self._session = session
        self._request = session.writer.folder / paths.STACKS_REQUEST_FILE
        self._now = now
        self._step = -1
        self._start_ns = 0
        self._longest_ns = 0
        self._dumped_step = -1

    def poll(self) -> None:
        """Write stacks where somebody asked for them, or the step stands still; called by the 1 Hz thread."""
        if self._is_requested():
            self._dump("requested")
        clock = self._session.clock
        if clock.step < 0:
            return
        if clock.step != self._step:
            if clock.step == self._step + 1 and self._start_ns:
                self._longest_ns = max(self._longest_ns, clock.step_start_ns - self._start_ns)
            self._step, self._start_ns = clock.step, clock.step_start_ns
        stalled_ns = self._now() - clock.step_start_ns
        if stalled_ns > max(_LEAST_STALL_NS, _STALL_FACTOR * self._longest_ns) and self._dumped_step != clock.step:
            self._dumped_step = clock.step
            self._dump(f"the step has lasted {stalled_ns // 1_000_000_000} s")

    def _is_requested(self) -> bool:
        try:
            self._request.unlink()
        except OSError:
            return False
        return True

    def _dump(self, reason: str) -> None:
        self._session.writer.add_event(
            "stack_dump",
            f"stacks of all threads: {reason}",
            step=self._session.step,
            phase=self._session.clock.phase,
            reason=reason,
            stacks=read_stacks(),
        )


def read_stacks() -> str:
    """Return the stacks of all threads as `faulthandler` writes them, the latest call first; at most 32 KiB."""
    descriptor = os.memfd_create("scope-stacks")
    try:
        faulthandler.dump_traceback(file=descriptor, all_threads=True)
        return os.pread(descriptor, _MAX_BYTES, 0).decode("utf-8", "replace")
    finally:
        os.close(descriptor)
