"""The device's side of the critical path: what each event had to wait for."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, Final, NamedTuple

import polars as pl

from scope.structs import Record
from scope.trace.schema import DeviceEvents, Launches, Syncs

if TYPE_CHECKING:
    from scope.analysis.windows import StepWindow, Timeline

_CALL_NS: Final = "call_ns"
_THREAD: Final = "thread"
_SOURCE: Final = "source"
_INFERRED_NS: Final = 10_000
"""A wait shorter than this is what a device needs between two events, and no sign of a dependency."""


class Predecessor(NamedTuple):
    """What an event waited for last; a tuple, since a path has one for every event on it."""

    ready_ns: int
    """When it was done, no later than the start of the event that waited."""
    event: int | None
    """The event it waited for; None for its launch."""
    is_inferred: bool = False


class DeviceSide(Record, frozen=True, kw_only=True):
    """Events of one device in the order of (start, end, id), as parallel lists, and what binds them."""

    frame: pl.DataFrame
    starts: list[int]
    ends: list[int]
    streams: list[int]
    in_step: list[bool]
    """Whether the event was launched in the step."""
    calls: list[int | None]
    """Start of the launching call."""
    threads: list[int | None]
    """Thread of the launching call."""
    previous: list[int | None]
    """The event before it on its stream."""
    waits: dict[int, list[int]]
    """By event: the events that a recorded stream wait made it wait for."""
    has_waits: bool
    """The trace records which stream waited for which event."""
    by_end: list[tuple[int, int]]
    """(end, event), sorted."""

    def binding(self, event: int) -> Predecessor | None:
        """Return what the event waited for last; None when nothing is known.

        Of several that were ready at the same instant, the stream's order wins over a wait for an event, and that over
        the launch.
        """
        start, best = self.starts[event], None
        previous, call = self.previous[event], self.calls[event]
        # A later candidate must have been ready strictly later, which makes this order the tie rule.
        if previous is not None:
            best = Predecessor(min(self.ends[previous], start), previous)
        for source in self.waits.get(event, ()):
            ready = min(self.ends[source], start)
            if source < event and (best is None or ready > best.ready_ns):
                best = Predecessor(ready, source)
        if call is not None and (best is None or min(call, start) > best.ready_ns):
            best = Predecessor(min(call, start), None)
        if best is None or self.has_waits or start - best.ready_ns < _INFERRED_NS:
            return best
        return self._inferred(event, best)

    def _inferred(self, event: int, best: Predecessor) -> Predecessor:
        """Return the last end on another stream between what is known and the event's start, if there is one.

        Traces without synchronisation records do not say which event a stream waited for. An event that was launched
        in time, and whose own stream was free, yet started late, waited for something: most likely for what ended last.
        """
        position = bisect_right(self.by_end, (self.starts[event], len(self.starts)))
        while position > 0:
            position -= 1
            end, other = self.by_end[position]
            if end <= best.ready_ns:
                break
            if self.streams[other] != self.streams[event] and other < event:
                return Predecessor(end, other, is_inferred=True)
        return best

    def last_done(self, *, launched_before_ns: int, done_by_ns: int, stream: int | None) -> int | None:
        """Return the event with the largest end up to `done_by_ns`, of those launched before an instant.

        Args:
            launched_before_ns: Only events whose call began before it.
            done_by_ns: Only events that ended by it.
            stream: Only events of this stream; all when None.
        """
        position = bisect_left(self.by_end, (done_by_ns + 1, -1))
        while position > 0:
            position -= 1
            end, event = self.by_end[position]
            if end <= launched_before_ns:
                # It ended before the wait began, and so did every event before it.
                return None
            call = self.calls[event]
            if call is not None and call < launched_before_ns and stream in (None, self.streams[event]):
                return event
        return None


def build_device_side(timeline: Timeline, step: StepWindow) -> DeviceSide:
    """Return the events of the step's device that ran after the step began on the host, with their predecessors.

    An event that ended before cannot have delayed one that was launched in the step.
    """
    device = step.device
    calls = timeline.trace.launches.select(
        Launches.launch_id, pl.col(Launches.start_ns).alias(_CALL_NS), pl.col(Launches.thread).alias(_THREAD)
    )
    frame = (
        timeline.events.filter(pl.col(DeviceEvents.device) == device, pl.col(DeviceEvents.end_ns) >= step.host.start_ns)
        .join(calls, on=Launches.launch_id, how="left", maintain_order="left")
        .sort(DeviceEvents.start_ns, DeviceEvents.end_ns, DeviceEvents.event_id)
        .with_columns(pl.int_range(pl.len(), dtype=pl.Int64).alias(_SOURCE))
        .with_columns(pl.col(_SOURCE).shift(1).over(DeviceEvents.stream).alias("previous"))
    )
    waits, has_waits = _stream_waits(timeline, frame, device)
    return DeviceSide(
        frame=frame,
        starts=frame[DeviceEvents.start_ns].to_list(),
        ends=frame[DeviceEvents.end_ns].to_list(),
        streams=frame[DeviceEvents.stream].to_list(),
        in_step=(frame[DeviceEvents.step_id] == step.step_id).fill_null(value=False).to_list(),
        calls=frame[_CALL_NS].to_list(),
        threads=frame[_THREAD].to_list(),
        previous=frame["previous"].to_list(),
        waits=waits,
        has_waits=has_waits,
        by_end=frame.select(DeviceEvents.end_ns, _SOURCE).sort(DeviceEvents.end_ns, _SOURCE).rows(),
    )


def _stream_waits(timeline: Timeline, frame: pl.DataFrame, device: int) -> tuple[dict[int, list[int]], bool]:
    """Return the events that stream waits tie together, and whether the trace records stream waits at all.

    The wait holds back the first event launched on the waiting stream after the waiting call, until the last event
    that was launched on the other stream before the event was recorded.
    """
    waits = timeline.trace.syncs.filter(
        pl.col(Syncs.kind) == "stream_wait_event", pl.col(Syncs.device).fill_null(device) == device
    )
    if waits.is_empty():
        return {}, False
    calls = timeline.trace.launches.select(
        pl.col(Launches.correlation).alias(Syncs.correlation), pl.col(Launches.start_ns).alias(_CALL_NS)
    ).unique(Syncs.correlation)
    recorded = calls.rename({Syncs.correlation: Syncs.waited_event_correlation, _CALL_NS: "recorded_ns"})
    placed = waits.join(calls, on=Syncs.correlation).join(recorded, on=Syncs.waited_event_correlation)
    launched = frame.filter(pl.col(_CALL_NS).is_not_null()).sort(_CALL_NS, _SOURCE)
    order = launched.select(DeviceEvents.stream, _CALL_NS, _SOURCE)
    targets = placed.sort(_CALL_NS).join_asof(
        order.rename({_SOURCE: "target"}),
        on=_CALL_NS,
        by=DeviceEvents.stream,
        strategy="forward",
        check_sortedness=False,
    )
    pairs = targets.sort("recorded_ns").join_asof(
        order.rename({_CALL_NS: "recorded_ns", DeviceEvents.stream: Syncs.waited_stream}),
        on="recorded_ns",
        by=Syncs.waited_stream,
        check_sortedness=False,
    )
    found: dict[int, list[int]] = {}
    for target, source in pairs.select("target", _SOURCE).drop_nulls().sort("target", _SOURCE).iter_rows():
        found.setdefault(target, []).append(source)
    return found, True
