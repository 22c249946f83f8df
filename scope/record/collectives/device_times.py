"""Times of calls that run on a device's streams: from events, asked for later; nothing is waited for.

A backend like NCCL only queues its work: `Work.wait` makes the caller's stream wait and returns at once, so the host's
clock knows neither when a call began nor when it was over. Events on the caller's stream do:

- *arrival*: an event before the call;
- *blocked*: the time between an event before a wait site and one after it;
- *completion*: the instant of the second event, if the stream was blocked at all. A stream that found the call over
  proves that it is over, and not since when: its completion is known, its instant is absent.

Events are asked for by the training thread alone, and never while a CUDA graph is captured: a query from another thread
would break the capture. Calls that belong to a captured graph keep no times.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import torch

from scope.record.device import EventPool

if TYPE_CHECKING:
    from collections.abc import Callable

    from scope.record.collectives.sink import CallSink
    from scope.run.calls import Call

# torch annotates only a part of itself.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

BLOCKED_NS: Final = 20_000
"""Below this a stream was not blocked: two events in a row are some microseconds apart."""
_MAX_ASKED: Final = 64
"""Events under way that one poll asks for, before it leaves the rest to the next."""
_ANCHOR_EVERY_NS: Final = 10_000_000_000
"""torch gives the time between two events in milliseconds as float32: over 10 s it is good to a microsecond."""
_ANCHOR_ROUNDS: Final = 8
_ANCHOR_LIMIT_NS: Final = 500_000


class DeviceClock:
    """Turns events into instants of the host's monotonic clock, by an event whose instant is known on both sides.

    Attributes:
        error_ns: Half the width of the interval in which the anchor lies on the host's clock; None without an anchor.
    """

    def __init__(self, make_event: Callable[[], Any], make_stream: Callable[[], Any]) -> None:
        """Start without an anchor.

        Args:
            make_event: Makes a timing event.
            make_stream: Makes a stream on which nothing else runs.
        """
        self.error_ns: int | None = None
        self._make_event = make_event
        self._make_stream = make_stream
        self._stream: Any = None
        self._anchor: tuple[Any, int] | None = None
        self._tried_ns: int | None = None

    def renew(self) -> None:
        """Take a new anchor if the last one is old: the shortest of some rounds on an idle stream."""
        now = time.monotonic_ns()
        if self._tried_ns is not None and now - self._tried_ns < _ANCHOR_EVERY_NS:
            return
        self._tried_ns = now
        if self._stream is None:
            self._stream = self._make_stream()
        best: tuple[int, int, Any] | None = None
        for _ in range(_ANCHOR_ROUNDS):
            event = self._make_event()
            begin = time.monotonic_ns()
            event.record(self._stream)
            while not (done := event.query()) and time.monotonic_ns() - begin < _ANCHOR_LIMIT_NS:
                pass
            width = time.monotonic_ns() - begin
            if not done:
                break
            if best is None or width < best[0]:
                best = width, begin, event
        if best is not None:
            width, begin, event = best
            self._anchor = event, begin + width // 2
            self.error_ns = (width + 1) // 2

    def instant_ns(self, event: Any) -> int | None:
        """Return when a finished event happened; None without an anchor."""
        if self._anchor is None:
            return None
        anchor, host_ns = self._anchor
        return host_ns + round(anchor.elapsed_time(event) * 1e6)


class DeviceTimes:
    """Follows calls by events. Only the training thread calls it.

    Attributes:
        num_dropped: Samples given up: no events of this kind, none left in the pool, a graph was being captured, or an
            event could not be read.
        clock: See `DeviceClock`.
    """

    def __init__(
        self,
        sink: CallSink,
        *,
        make_event: Callable[[], Any] | None = None,
        make_stream: Callable[[], Any] | None = None,
        capturing: Callable[[], bool] | None = None,
    ) -> None:
        """Start with nothing under way.

        Args:
            sink: Told what became known.
            make_event: Makes a timing event; torch's own by default.
            make_stream: Makes a stream of its own; torch's by default.
            capturing: Whether a CUDA graph is being captured; torch's own by default.
        """
        self._usable = None if make_event is None else True
        make_event = make_event or (lambda: torch.cuda.Event(enable_timing=True))
        self.num_dropped = 0
        self.clock = DeviceClock(make_event, make_stream or torch.cuda.Stream)
        self._sink = sink
        self._capturing = capturing or torch.cuda.is_current_stream_capturing
        self._pool = EventPool(make_event)
        self._pending: list[tuple[Call, Any, Any, bool]] = []

    def mark(self) -> Any:
        """Record an event on the current stream and return it; None while a graph is captured or the pool is empty."""
        if self._usable is None:
            # Devices of other makers have no such events: their calls keep no times.
            self._usable = torch.cuda.is_available()
        if not self._usable or self._capturing():
            self.num_dropped += 1
            return None
        event = self._pool.take()
        if event is None:
            self.poll()
            event = self._pool.take()
        if event is None:
            self.num_dropped += 1
            return None
        event.record()
        return event

    def issued(self, call: Call) -> None:
        """Take a call just before it is handed to the backend."""
        event = self.mark()
        if event is not None:
            self._pending.append((call, None, event, False))

    def waited(self, call: Call, before: Any) -> None:
        """Take a wait site whose wait has just been queued.

        Args:
            call: What is waited for.
            before: What `mark` returned before the wait.
        """
        after = self.mark() if before is not None else None
        if after is not None:
            self._pending.append((call, before, after, self._sink.is_apart()))
        elif before is not None:
            self._pool.give(before)

    def poll(self) -> None:
        """Take what is known by now; for the end of a step. While a graph is captured it does nothing."""
        if not self._pending or self._capturing():
            return
        self.clock.renew()
        left: list[tuple[Call, Any, Any, bool]] = []
        for at, entry in enumerate(self._pending):
            if len(left) >= _MAX_ASKED:
                left += self._pending[at:]
                break
            call, before, after, apart = entry
            if not after.query():
                left.append(entry)
                continue
            try:
                self._resolve(call, before, after, apart=apart)
            except RuntimeError:
                # Events of two devices, or of one that has failed.
                self.num_dropped += 1
            self._pool.give(after)
            if before is not None:
                self._pool.give(before)
        self._pending = left

    def _resolve(self, call: Call, before: Any, after: Any, *, apart: bool) -> None:
        if before is None:
            call.arrived_ns = self.clock.instant_ns(after) or 0
            return
        blocked_ns = max(round(before.elapsed_time(after) * 1e6), 0)
        self._sink.add_wait(call, blocked_ns, apart=apart)
        instant = self.clock.instant_ns(after) if blocked_ns >= BLOCKED_NS else None
        self._sink.complete(call, instant or 0)
