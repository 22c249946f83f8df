"""The chain of host and device work that decided how long a step took.

The graph of a step has an edge

- along each host thread from instant to instant (`operator` and `runtime_call` by what is innermost, `input` while the
  thread fetches data, `host_gap` while the trace holds nothing), except across a blocking call, which waits for an
  event to end;
- from the last item of one of the step's threads to the next of another that was silent for longer (`HandOver`);
- from the start of a launching call to the start of its event (`launch_latency`);
- along each device event (`compute`, `communication`, `memory`);
- from the end of an event to the start of the next of its stream, and to the start of an event that a recorded stream
  wait made wait for it (`device_gap`);
- from the end of an event to the end of the blocking call that waited for it (`sync_return`).

Of the edges into an instant only the one that was ready last delayed it; it weighs the time that passed, the others
weigh nothing. The longest path to the end of the step's last event is therefore the chain of the last-ready edges,
found by walking back from there, and its length is the time that passed from its start. Tie rule, for edges ready at
the same instant: the order of the stream, then a stream wait, then the launch; of several last events the first by
start. The path begins where the next element back does not belong to the step: at the step's start on the host, or at
an event that waited for work of an earlier step.

Traces without synchronisation records do not say which stream waited for which. There, an event that starts at least
10 us after everything it is known to have waited for is taken to have waited for the event of another stream that ended
last before it; `num_inferred` counts these edges. Work of other devices is not followed: a call that waits for it is
host time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
import polars as pl

from scope.analysis.path_device import DeviceSide, build_device_side
from scope.analysis.path_host import BlockingCall, HostPieces, HostSide, build_host_side
from scope.analysis.result import Result
from scope.analysis.spans import Spans, intersect, subtract
from scope.errors import UsageError
from scope.structs import Record
from scope.trace.columns import Column, Table
from scope.trace.schema import DeviceEvents, Launches, Ops

if TYPE_CHECKING:
    from scope.analysis.windows import StepWindow, Timeline

PATH_KINDS: Final = (
    "operator",
    "runtime_call",
    "input",
    "host_gap",
    "launch_latency",
    "compute",
    "communication",
    "memory",
    "device_gap",
    "sync_return",
)
"""What a piece of the path is: see `PathPieces`."""


class PathPieces(Table):
    """The critical path in the order of time; the pieces are adjacent, so their lengths sum to the path."""

    kind = Column("kind", pl.Enum(PATH_KINDS), "what it is")
    name = Column("name", pl.String, "operator, call or kernel; null for gaps", nullable=True)
    start_ns = Column("start_ns", pl.Int64, "first nanosecond")
    end_ns = Column("end_ns", pl.Int64, "end, not part of it")
    thread = Column("thread", pl.Int64, "host thread, for host pieces", nullable=True)
    stream = Column("stream", pl.Int64, "stream, for device pieces", nullable=True)
    event_id = Column("event_id", pl.UInt32, "device event, for device pieces", nullable=True)


class CriticalPath(Result, frozen=True, kw_only=True):
    """The critical path of one step on one device."""

    device: int
    step_number: int
    start_ns: int
    end_ns: int
    length_ns: int
    """`end_ns - start_ns`, the sum of the pieces."""
    pieces: pl.DataFrame
    """The table `PathPieces`."""
    num_inferred: int
    """Edges between streams that the trace does not record."""
    ns_by_kind: dict[str, int]
    """Sum of the lengths of the pieces by kind; every kind is there."""

    def _check_sums(self) -> None:
        assert self.length_ns == self.end_ns - self.start_ns
        assert sum(self.ns_by_kind.values()) == self.length_ns
        if self.pieces.is_empty():
            return
        starts, ends = self.pieces[PathPieces.start_ns], self.pieces[PathPieces.end_ns]
        assert starts[0] == self.start_ns
        assert ends[-1] == self.end_ns
        assert starts[1:].equals(ends[:-1])


_Piece = tuple[str, int, int, int | None, int | None, int | None]
"""Kind, start, end, thread, event of the device side, launch."""


class _Walk(Record, frozen=True, kw_only=True):
    """The way back from the end of a step; pieces are collected last first."""

    device: DeviceSide
    host: HostSide
    by_launch: dict[int, int]
    """By launch: its event with the largest end."""
    pieces: list[_Piece] = msgspec.field(default_factory=list[_Piece])
    stretches: dict[int, list[tuple[int, int]]] = msgspec.field(default_factory=dict[int, list[tuple[int, int]]])
    """By thread: the stretches of host time on the path."""
    inferred: list[int] = msgspec.field(default_factory=list[int])

    def add_event(self, kind: str, start_ns: int, end_ns: int, event: int) -> None:
        """Note a piece on the device, unless it is empty."""
        if end_ns > start_ns:
            self.pieces.append((kind, start_ns, end_ns, None, event, None))

    def add_host(self, start_ns: int, end_ns: int, thread: int) -> None:
        """Note a stretch of a thread's time, unless it is empty."""
        if end_ns > start_ns:
            self.stretches.setdefault(thread, []).append((start_ns, end_ns))


def compute_critical_path(timeline: Timeline, *, device: int, step_id: int) -> CriticalPath | None:
    """Return the critical path of one step on one device; None when the step launched nothing there.

    Args:
        timeline: One rank's events.
        device: A device of the timeline.
        step_id: A step of the timeline.

    Raises:
        UsageError: The trace holds no such device or step.
    """
    step = _find_step(timeline, device, step_id)
    side = build_device_side(timeline, step)
    mine = [event for event, is_mine in enumerate(side.in_step) if is_mine]
    if not mine:
        return None
    launched: dict[int, int] = {}
    for event, launch_id in enumerate(side.frame[DeviceEvents.launch_id].to_list()):
        if launch_id is not None and side.ends[event] >= side.ends[launched.get(launch_id, event)]:
            launched[launch_id] = event
    walk = _Walk(device=side, host=build_host_side(timeline, step), by_launch=launched)
    last = max(mine, key=lambda event: (side.ends[event], -event))
    _walk_back(walk, last)
    pieces = _pieces_table(timeline, walk)
    end_ns = side.ends[last]
    start_ns = end_ns if pieces.is_empty() else int(pieces[PathPieces.start_ns][0])
    by_kind = dict(pieces.group_by(PathPieces.kind).agg(_LENGTH.sum()).iter_rows())
    return CriticalPath(
        device=device,
        step_number=step.number,
        start_ns=start_ns,
        end_ns=end_ns,
        length_ns=end_ns - start_ns,
        pieces=pieces,
        num_inferred=len(walk.inferred),
        ns_by_kind={kind: by_kind.get(kind, 0) for kind in PATH_KINDS},
    )


def _find_step(timeline: Timeline, device: int, step_id: int) -> StepWindow:
    found = [step for each in timeline.devices if each.device == device for step in each.steps]
    for step in found:
        if step.step_id == step_id:
            return step
    known = [each.device for each in timeline.devices]
    message = f"no step {step_id} on device {device}; the devices are {known}, and this one has {len(found)} steps"
    raise UsageError(message)


_LENGTH: Final = pl.col(PathPieces.end_ns) - pl.col(PathPieces.start_ns)


def _walk_back(walk: _Walk, last: int) -> None:
    """Follow the last-ready edges from the end of an event to the start of the path."""
    event: int | None = last
    now = walk.device.ends[last]
    thread: int | None = None
    while event is not None or thread is not None:
        if event is not None:
            event, thread, now = _step_device(walk, event, now)
        elif thread is not None:
            event, thread, now = _step_host(walk, thread, now)


_State = tuple[int | None, int | None, int]
"""The event or the thread that the walk has come to, and the instant; neither at the start of the path."""


def _step_device(walk: _Walk, event: int, now: int) -> _State:
    """Go back over an event to what it waited for."""
    side = walk.device
    start = side.starts[event]
    walk.add_event("event", start, now, event)
    before = side.binding(event)
    if before is None:
        return None, None, start
    if before.event is not None:
        if not side.in_step[before.event]:
            return None, None, start
        if before.is_inferred:
            walk.inferred.append(event)
        walk.add_event("device_gap", before.ready_ns, start, event)
        return before.event, None, before.ready_ns
    walk.add_event("launch_latency", before.ready_ns, start, event)
    return None, side.threads[event], before.ready_ns


def _step_host(walk: _Walk, thread: int, now: int) -> _State:
    """Go back along a thread to the last time that it waited for the device or was given control."""
    host = walk.host
    if now <= host.start_ns:
        return None, None, now
    hand_over = host.last_hand_over(thread, now)
    floor = max(host.start_ns, hand_over.start_ns if hand_over else host.start_ns)
    waited = _last_wait(walk, thread, now, floor)
    if waited is not None:
        call, source = waited
        done = min(walk.device.ends[source], call.end_ns)
        walk.add_host(call.end_ns, now, thread)
        walk.pieces.append(("sync_return", done, call.end_ns, thread, None, call.launch_id))
        return (source, None, done) if walk.device.in_step[source] else (None, None, done)
    walk.add_host(floor, now, thread)
    if hand_over is None or hand_over.silent_ns <= host.start_ns or hand_over.start_ns < host.start_ns:
        if floor > host.start_ns:
            walk.add_host(host.start_ns, floor, thread)
        return None, None, host.start_ns
    walk.add_host(hand_over.silent_ns, hand_over.start_ns, thread)
    return None, hand_over.thread, hand_over.silent_ns


def _last_wait(walk: _Walk, thread: int, now: int, floor: int) -> tuple[BlockingCall, int] | None:
    """Return the last call of a thread between two instants that really waited, and the event that it waited for."""
    call = walk.host.last_blocking(thread, now)
    while call is not None and call.end_ns > floor:
        if call.is_copy:
            source = walk.by_launch.get(call.launch_id)
        else:
            source = walk.device.last_done(launched_before_ns=call.start_ns, done_by_ns=call.end_ns, stream=call.stream)
        if source is not None and walk.device.ends[source] > call.start_ns:
            return call, source
        call = walk.host.last_blocking(thread, call.end_ns - 1)
    return None


def _pieces_table(timeline: Timeline, walk: _Walk) -> pl.DataFrame:
    """Return the table `PathPieces` of the walk."""
    on_host = pl.lit(None, dtype=Ops.op_id.dtype).alias(Ops.op_id)
    rows = pl.DataFrame(walk.pieces, schema=_PIECE_SCHEMA, orient="row").with_columns(on_host)
    both = pl.concat([rows, *_host_rows(walk)], how="diagonal_relaxed").sort(PathPieces.start_ns)
    # Pieces of no length are dropped where they arise, so starts are distinct.
    events, trace = walk.device.frame, timeline.trace
    event, kind = both[_EVENT], pl.col(PathPieces.kind)
    names = [
        events[DeviceEvents.name].gather(event).cast(pl.String),
        trace.ops[Ops.name].gather(both[Ops.op_id]).cast(pl.String),
        trace.launches[Launches.name].gather(both[Launches.launch_id]).cast(pl.String),
    ]
    table = both.with_columns(
        pl.when(kind != "device_gap").then(pl.coalesce(*names)).alias(PathPieces.name),
        pl.when(kind == "event")
        .then(events[DeviceEvents.category].gather(event).cast(pl.String))
        .otherwise(kind)
        .alias(PathPieces.kind),
        events[DeviceEvents.stream].gather(event).alias(PathPieces.stream),
        events[DeviceEvents.event_id].gather(event).alias(PathPieces.event_id),
    )
    return PathPieces.check(table.select(pl.col(column).cast(column.dtype) for column in PathPieces.columns()))


def _host_rows(walk: _Walk) -> list[pl.DataFrame]:
    """Return what the threads did in the stretches of host time on the path."""
    found: list[pl.DataFrame] = []
    for thread, stretches in walk.stretches.items():
        frame = pl.DataFrame(stretches[::-1], schema=Spans.schema(), orient="row")
        fetching = walk.host.input_spans.get(thread)
        if fetching is not None:
            found.append(_input_rows(thread, intersect(frame, fetching)))
            frame = subtract(frame, fetching)
        kind = (
            pl.when(pl.col(HostPieces.launch_id).is_not_null())
            .then(pl.lit("runtime_call"))
            .when(pl.col(HostPieces.op_id).is_not_null())
            .then(pl.lit("operator"))
            .otherwise(pl.lit("host_gap"))
        )
        found.append(walk.host.fill(thread, frame).with_columns(kind.alias(PathPieces.kind)))
    return found


def _input_rows(thread: int, stretches: pl.DataFrame) -> pl.DataFrame:
    """Return stretches in which a thread fetched data, whatever operators it ran to do so."""
    return stretches.with_columns(
        pl.lit("input").alias(PathPieces.kind), pl.lit(thread, dtype=PathPieces.thread.dtype).alias(PathPieces.thread)
    )


_EVENT: Final = "event"
_PIECE_SCHEMA: Final = {
    PathPieces.kind: pl.String,
    PathPieces.start_ns: pl.Int64,
    PathPieces.end_ns: pl.Int64,
    PathPieces.thread: pl.Int64,
    _EVENT: pl.Int64,
    HostPieces.launch_id: pl.UInt32,
}
