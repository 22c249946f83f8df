"""GPU time by phase from pairs of events on the caller's stream, asked for later; nothing is waited for."""

# torch annotates only a part of itself.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

_MAX_EVENTS: Final = 4096
"""Beyond these a sample is dropped, never a step."""


class EventPool:
    """Timing events that are used again; making one takes far longer than recording it."""

    def __init__(self, make_event: Callable[[], Any]) -> None:
        """Start empty."""
        self._make_event = make_event
        self._free: list[Any] = []
        self._made = 0

    def take(self) -> Any:
        """Return an event; None when all that may be are in use."""
        if self._free:
            return self._free.pop()
        if self._made >= _MAX_EVENTS:
            return None
        self._made += 1
        return self._make_event()

    def give(self, event: Any) -> None:
        """Take an event back."""
        self._free.append(event)


class _Step:
    """GPU times of one step, and how many of its pairs are still under way."""

    __slots__ = ("pending", "times")

    def __init__(self) -> None:
        self.times: dict[str, int] = {}
        self.pending = 0


class DevicePhases:
    """Times phases on the device. Without a GPU every method does nothing.

    A pair times the stream that was current at its begin. While a CUDA graph is being captured nothing is recorded.

    Attributes:
        num_dropped: Samples that found no event in the pool.
        is_possible: Whether this torch was built for such devices at all.
    """

    def __init__(
        self, *, make_event: Callable[[], Any] | None = None, capturing: Callable[[], bool] | None = None
    ) -> None:
        """Start with an empty pool.

        Args:
            make_event: Makes a timing event; torch's own by default.
            capturing: Whether a CUDA graph is being captured; torch's own by default.
        """
        self.num_dropped = 0
        self._pool = EventPool(make_event or (lambda: torch.cuda.Event(enable_timing=True)))
        self._capturing = capturing or torch.cuda.is_current_stream_capturing
        self._stand_in = make_event is not None
        self.is_possible = self._stand_in or torch.backends.cuda.is_built()
        self._pending: deque[tuple[_Step, str, Any, Any]] = deque()
        self._step = _Step()

    def begin(self, name: str) -> tuple[str, Any] | None:
        """Record the event that begins a phase; return what `end` needs."""
        if not self.is_possible or not self._is_active():
            return None
        event = self._take()
        if event is None:
            return None
        event.record()
        return name, event

    def end(self, begun: tuple[str, Any]) -> None:
        """Record the event that ends a phase."""
        name, start = begun
        end = self._take() if self._is_active() else None
        if end is None:
            self._pool.give(start)
            return
        end.record()
        self._step.pending += 1
        self._pending.append((self._step, name, start, end))

    def end_step(self) -> Callable[[], dict[str, int] | None] | None:
        """Return what asks for the times of the step that ends now, `None` until they are known."""
        if not self.is_possible or not self._is_active():
            return None
        done, self._step = self._step, _Step()
        return lambda: dict(done.times) if not done.pending else None

    def poll(self) -> None:
        """Take the times of the pairs that are done, the oldest first; called at each step by the training thread."""
        while self._pending and self._pending[0][3].query():
            step, name, start, end = self._pending.popleft()
            step.times[name] = step.times.get(name, 0) + round(start.elapsed_time(end) * 1e6)
            step.pending -= 1
            self._pool.give(start)
            self._pool.give(end)

    def _is_active(self) -> bool:
        return (self._stand_in or (torch.cuda.is_available() and torch.cuda.is_initialized())) and not self._capturing()

    def _take(self) -> Any:
        event = self._pool.take()
        if event is None:
            self.num_dropped += 1
        return event
