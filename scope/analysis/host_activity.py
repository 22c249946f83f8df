"""What host threads were doing besides running operators: fetching data, waiting for the device, allocating.

The spans here decide idle causes and host-bound time. Those of one thread and different activities may overlap.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Final

import polars as pl

from scope.analysis.spans import SPAN_NS, Spans, in_order, union
from scope.trace.columns import Column, Table
from scope.trace.schema import Annotations, DeviceEvents, Launches, Ops

if TYPE_CHECKING:
    from scope.trace.model import RankTrace

ACTIVITIES: Final = ("input", "sync", "allocation", "profiler", "gc")
"""Activities in the order in which the first match wins."""


class Launched(Table):
    """What each launching call started on each device; sorted by launch and device."""

    launch_id = Column("launch_id", pl.UInt32, "the call")
    device = Column("device", pl.Int32, "device")
    thread = Column("thread", pl.Int64, "thread of the call")
    call_ns = Column("call_ns", pl.Int64, "start of the call")
    first_start_ns = Column("first_start_ns", pl.Int64, "start of the first event that it launched there")
    last_end_ns = Column("last_end_ns", pl.Int64, "largest end of the events that it launched there")
    touches_host = Column("touches_host", pl.Boolean, "some of them copy from or to the host's memory")


class HostSpans(Table):
    """Stretches of a host thread that an activity filled; sorted by thread, activity and start.

    Those of one thread and activity are disjoint: they are united, and of blocking calls that overlap, which stay
    apart, the one that began first has what they share.
    """

    thread = Column("thread", pl.Int64, "thread id; null for what holds up every thread", nullable=True)
    activity = Column("activity", pl.Enum(ACTIVITIES), "what it was doing")
    launch_id = Column("launch_id", pl.UInt32, "the call, for sync", nullable=True)
    began_ns = Column("began_ns", pl.Int64, "start of the whole call, for sync, else of the span")
    start_ns = Column("start_ns", pl.Int64, "first nanosecond")
    end_ns = Column("end_ns", pl.Int64, "end, not part of it")


_INPUT: Final = r"(?i)dataloader"
_GC: Final = r"^Python GC$|^gc[.:]|(?i)garbage collect"
_OVERHEAD: Final = "(?i)^overhead$"
_OF_PROFILER: Final = r"(?i)buffer[ _](?:flush|request)|instrumentation|resource|activity[ _]init"
"""What the profiler does for itself. A driver that loads modules, compiles, or waits for room among its commands stands
beside that among the overheads, and does so without a profiler as well."""
_LANE: Final = "lane_row"


class HostActivity:
    """What the host did, each table made when it is first asked for: a breakdown needs none of them.

    Args:
        trace: One rank's tables.
        whole: The activity of the whole trace, where this one is of a step.
        step_id: The step, where there is `whole`.
    """

    def __init__(self, trace: RankTrace, *, whole: HostActivity | None = None, step_id: int | None = None) -> None:
        self._trace = trace
        self._whole = whole
        self._step_id = step_id

    @cached_property
    def launched(self) -> pl.DataFrame:
        """The table `Launched` of the events, or of those that the step's calls launched."""
        if self._whole is None:
            return find_launched(self._trace.device_events, self._trace.launches)
        calls = self._trace.launches.filter(pl.col(Launches.step_id) == self._step_id)
        return self._whole.launched.join(calls, on=Launches.launch_id, how="semi", maintain_order="left")

    @cached_property
    def blocking(self) -> pl.DataFrame:
        """The rows of `launches` that made their thread wait for the device."""
        if self._whole is None:
            return find_blocking_calls(self._trace.launches, self.launched)
        return self._whole.blocking.filter(pl.col(Launches.step_id) == self._step_id)

    @cached_property
    def spans(self) -> pl.DataFrame:
        """The table `HostSpans` of the whole trace."""
        return find_host_spans(self._trace, self.blocking) if self._whole is None else self._whole.spans


def find_launched(events: pl.DataFrame, launches: pl.DataFrame) -> pl.DataFrame:
    """Return the table `Launched` of the events whose call is in the trace."""
    known = events.filter(events[DeviceEvents.launch_id].is_not_null()).select(
        DeviceEvents.launch_id,
        DeviceEvents.device,
        pl.col(DeviceEvents.start_ns).alias(Launched.first_start_ns),
        pl.col(DeviceEvents.end_ns).alias(Launched.last_end_ns),
        pl.col(DeviceEvents.copy_kind).is_in(["H2D", "D2H"]).fill_null(value=False).alias(Launched.touches_host),
    )
    found = in_order(known, Launched.launch_id, Launched.device)
    if not found[Launched.launch_id].is_unique().all():
        # A graph, or a call on several devices.
        found = found.group_by(Launched.launch_id, Launched.device, maintain_order=True).agg(
            pl.col(Launched.first_start_ns).min(),
            pl.col(Launched.last_end_ns).max(),
            pl.col(Launched.touches_host).any(),
        )
    call = found[Launched.launch_id]
    return found.with_columns(
        launches[Launches.thread][call].alias(Launched.thread),
        launches[Launches.start_ns][call].alias(Launched.call_ns),
    ).select(Launched.columns())


def find_blocking_calls(launches: pl.DataFrame, launched: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of `launches` that made their thread wait for the device.

    These are the synchronisations, and the copies and sets whose call returned no earlier than they ended on the
    device, unless the call is asynchronous and touches no memory of the host: `cudaMemcpyAsync` waits for a copy from
    or to pageable memory, and nothing but its length says so.
    """
    moves = launches.filter(pl.col(Launches.kind).is_in(["memcpy", "memset"]))
    moving = launched.filter(pl.col(Launched.launch_id).is_in(moves[Launches.launch_id].implode()))
    done = moving.group_by(Launched.launch_id).agg(
        pl.col(Launched.last_end_ns).max(), pl.col(Launched.touches_host).any()
    )
    moved = moves.join(done, on=Launches.launch_id)
    can_wait = pl.col(Launched.touches_host) | ~pl.col(Launches.name).cast(pl.String).str.contains("Async")
    waited = moved.filter(can_wait, pl.col(Launches.end_ns) >= pl.col(Launched.last_end_ns))
    sync = launches.filter(pl.col(Launches.kind) == "sync")
    return pl.concat([sync, waited.select(sync.columns)]).sort(Launches.start_ns)


def find_host_spans(trace: RankTrace, blocking: pl.DataFrame) -> pl.DataFrame:
    """Return the table `HostSpans`.

    Args:
        trace: One rank's tables.
        blocking: What `find_blocking_calls` returned.
    """
    calls = trace.launches.filter(pl.col(Launches.kind) == "allocation")
    threads = trace.launches[Launches.thread].unique()
    host = trace.annotations.filter(~pl.col(Annotations.on_device))
    found = [
        *(_named(frame, Ops.name, _INPUT, "input") for frame in (host, trace.ops)),
        call_spans(calls, "allocation"),
        _overheads(host, threads),
        _named(host, Annotations.name, _GC, "gc"),
    ]
    seen = [spans for spans in found if not spans.is_empty()]
    merged = [_merge(pl.concat(seen))] if seen else []
    apart = _first_begun(call_spans(blocking, "sync"))
    return pl.concat([apart, *merged]).sort(HostSpans.thread, HostSpans.activity, HostSpans.start_ns)


def _first_begun(calls: pl.DataFrame) -> pl.DataFrame:
    """Leave to each call what none of its thread that began before covers, nor an outer one that began with it."""
    ordered = calls.sort(HostSpans.thread, HostSpans.start_ns, -pl.col(HostSpans.end_ns), HostSpans.launch_id)
    reach = pl.col(HostSpans.end_ns).cum_max().shift(1).over(HostSpans.thread)
    return ordered.with_columns(pl.max_horizontal(HostSpans.start_ns, reach)).filter(SPAN_NS > 0)


def _merge(found: pl.DataFrame) -> pl.DataFrame:
    """Unite the spans of each thread and activity: nested ones say nothing more, and pairing each would cost much."""
    keys = (HostSpans.thread, HostSpans.activity)
    lanes = found.sort(keys).with_columns(pl.struct(keys).rle_id().alias(_LANE))
    names = lanes.select(_LANE, *keys).unique(_LANE)
    merged = union(lanes, by=_LANE).join(names, on=_LANE)
    return merged.select(
        *keys,
        pl.lit(None, dtype=HostSpans.launch_id.dtype).alias(HostSpans.launch_id),
        pl.col(Spans.start_ns).alias(HostSpans.began_ns),
        Spans.start_ns,
        Spans.end_ns,
    )


def call_spans(calls: pl.DataFrame, activity: str) -> pl.DataFrame:
    """Return calls of the runtime, rows of `launches`, as spans of an activity with the columns of `HostSpans`."""
    return calls.select(
        pl.col(Launches.thread).alias(HostSpans.thread),
        pl.lit(activity, dtype=HostSpans.activity.dtype).alias(HostSpans.activity),
        pl.col(Launches.launch_id).alias(HostSpans.launch_id),
        pl.col(Launches.start_ns).alias(HostSpans.began_ns),
        pl.col(Launches.start_ns).alias(HostSpans.start_ns),
        pl.col(Launches.end_ns).alias(HostSpans.end_ns),
    )


def _named(frame: pl.DataFrame, column: str, pattern: str, activity: str) -> pl.DataFrame:
    """Return the rows whose name matches as spans of an activity."""
    rows = _matching(frame, column, pattern)
    if rows.is_empty():
        return HostSpans.empty()
    return rows.select(
        pl.col(Ops.thread).alias(HostSpans.thread),
        pl.lit(activity, dtype=HostSpans.activity.dtype).alias(HostSpans.activity),
        pl.lit(None, dtype=pl.UInt32).alias(HostSpans.launch_id),
        pl.col(Spans.start_ns).alias(HostSpans.began_ns),
        pl.col(Spans.start_ns).alias(HostSpans.start_ns),
        pl.col(Spans.end_ns).alias(HostSpans.end_ns),
    )


def _matching(frame: pl.DataFrame, column: str, pattern: str) -> pl.DataFrame:
    """Return the rows in whose column a pattern is found, which is searched in each distinct value once."""
    values = frame[column].unique()
    found = values.filter(values.cast(pl.String).str.contains(pattern))
    return frame.clear() if found.is_empty() else frame.filter(pl.col(column).is_in(found.implode()))


def _overheads(host: pl.DataFrame, threads: pl.Series) -> pl.DataFrame:
    """Return the profiler's own time; records on a track that launches nothing hold up every thread."""
    overheads = _matching(host, Annotations.category, _OVERHEAD)
    spans = _named(overheads, Annotations.name, _OF_PROFILER, "profiler")
    if spans.is_empty():
        return spans
    is_own = pl.col(HostSpans.thread).is_in(threads.implode())
    return spans.with_columns(pl.when(is_own).then(HostSpans.thread).alias(HostSpans.thread))
