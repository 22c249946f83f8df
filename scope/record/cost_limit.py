"""Keeps what recording costs below its share of a step, by giving up what can be done without."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from scope.record.session import Session

_MAX_COST_RATIO: Final = 0.005
_MAX_STEPS_OVER: Final = 50
"""Steps in a row that may cost more than their share before something is given up."""


class CostLimit:
    """Gives up memory by phase, then hashes of collectives; never collectives or phases."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._num_over = 0

    def keep(self, cost_ns: int, length_ns: int) -> None:
        """Give something up when recording has cost too much for long.

        Args:
            cost_ns: What recording took of a step that has ended.
            length_ns: How long it was.
        """
        self._num_over = self._num_over + 1 if cost_ns > _MAX_COST_RATIO * length_ns else 0
        if self._num_over < _MAX_STEPS_OVER:
            return
        clock, writer = self._session.clock, self._session.writer
        if not (clock.on_change or writer.calls.hashing):
            return
        self._num_over = 0
        given_up = "memory by phase" if clock.on_change else "hashes of collectives"
        if clock.on_change:
            clock.on_change = None
        else:
            writer.calls.hashing = False
        share = 100 * cost_ns / max(length_ns, 1)
        message = f"recording takes {share:.1f} % of a step of {length_ns / 1e6:.1f} ms: {given_up} given up"
        writer.add_event("warning", message, step=self._session.step)
