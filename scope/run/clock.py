"""The clock of a run directory: monotonic inside the process, shown as time since the epoch."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from scope.run.schema import ClockAnchor

if TYPE_CHECKING:
    from collections.abc import Callable

_NUM_READINGS = 16


def read_anchor(
    *, wall: Callable[[], int] = time.time_ns, monotonic: Callable[[], int] = time.monotonic_ns
) -> ClockAnchor:
    """Return the wall clock and the monotonic clock read together: the narrowest of 16 tries.

    Args:
        wall: Nanoseconds since the epoch.
        monotonic: Nanoseconds of the monotonic clock.
    """
    best: ClockAnchor | None = None
    for _ in range(_NUM_READINGS):
        before = monotonic()
        now = wall()
        after = monotonic()
        error = (after - before + 1) // 2
        if best is None or error < best.error_ns:
            best = ClockAnchor(wall_ns=now, monotonic_ns=(before + after) // 2, error_ns=error)
    assert best is not None
    return best


def wall_offset(anchor: ClockAnchor) -> int:
    """Return what has to be added to a monotonic instant to give nanoseconds since the epoch."""
    return anchor.wall_ns - anchor.monotonic_ns
