"""Why a device stood idle: each gap split by what the thread that launched the next event was doing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from scope.analysis import spans
from scope.analysis.host_activity import ACTIVITIES, HostSpans
from scope.analysis.host_overlap import overlap_with_host
from scope.analysis.result import Result
from scope.analysis.windows import Parts, find_parts
from scope.trace.columns import Column, Table
from scope.trace.schema import DeviceEvents, Launches

if TYPE_CHECKING:
    from collections.abc import Iterable

    from scope.analysis.windows import Timeline

BACK_TO_BACK_NS: Final = 10_000
"""A gap shorter than this, before an event that was launched in time, is what the device itself needs between two."""

_CALL_NS: Final = "call_ns"
_INSIDE: Final = "inside"
_HOST_END: Final = "host_end_ns"
_GAP_START: Final = "gap_start_ns"
_STRETCH: Final = (DeviceEvents.device, HostSpans.thread, DeviceEvents.start_ns, DeviceEvents.end_ns)

IDLE_CAUSES: Final = (
    "input",
    "sync",
    "allocation",
    "profiler",
    "gc",
    "host",
    "launch_latency",
    "back_to_back",
    "blocked",
    "unknown",
)
"""The causes in the order in which they are tried."""


class IdleSpans(Table):
    """The idle time of all devices, cut wherever the cause changes; sorted by device and start, disjoint."""

    device = Column("device", pl.Int32, "device index in the trace")
    start_ns = Column("start_ns", pl.Int64, "first nanosecond")
    end_ns = Column("end_ns", pl.Int64, "end, not part of it")
    cause = Column("cause", pl.Enum(IDLE_CAUSES), "why the device stood idle")
    event_id = Column("event_id", pl.UInt32, "the device event that ended the gap")
    thread = Column("thread", pl.Int64, "the thread that launched it; null where no launch is seen", nullable=True)


class IdleCauses(Result, frozen=True, kw_only=True):
    """Idle time by cause; the causes sum to `idle_ns` exactly."""

    idle_ns: int
    input_ns: int
    """The launching thread fetched data."""
    sync_ns: int
    """It sat in a blocking call or copy that began before the device ran dry."""
    allocation_ns: int
    """It allocated or freed device memory in the driver."""
    profiler_ns: int
    """The profiler itself held it up."""
    gc_ns: int
    """Python's garbage collector ran on it."""
    host_ns: int
    """Anything else it did: Python, operators' host code."""
    launch_latency_ns: int
    """From the start of the launching call to the start of the event."""
    back_to_back_ns: int
    """Gaps below `BACK_TO_BACK_NS` before an event that was launched in time."""
    blocked_ns: int
    """Longer gaps before an event that was launched in time: it waited for another stream, say."""
    unknown_ns: int
    """Gaps before an event whose launch the trace does not hold."""

    def _check_sums(self) -> None:
        parts = sum(getattr(self, f"{cause}_ns") for cause in IDLE_CAUSES)
        assert parts == self.idle_ns, f"causes sum to {parts} of {self.idle_ns} ns idle"


def sum_idle_causes(parts: Iterable[IdleCauses]) -> IdleCauses:
    """Return the causes of several windows together."""
    each = list(parts)
    return _idle_causes({cause: sum(getattr(part, f"{cause}_ns") for part in each) for cause in IDLE_CAUSES})


def find_idle_spans(timeline: Timeline) -> pl.DataFrame:
    """Return the table `IdleSpans`: why each device stood idle at each instant of its window.

    A gap lies between two neighbouring device events; an event of length 0 ends a gap and begins the next. The event
    that ends a gap is, of several that start together, the one launched first. The gap is split:

    - `unknown`: no launch of that event is in the trace;
    - launched in time (the call began no later than the gap): `back_to_back` below `BACK_TO_BACK_NS`, else `blocked`;
    - else up to the start of the call by what the launching thread was doing, at each instant the first of `input`,
      `sync` (a call that blocks and began before the gap), `allocation`, `profiler`, `gc`, and `host` for the rest;
      and from the start of the call `launch_latency`. A call that starts after its event (clocks that disagree) leaves
      no latency.
    """
    gaps = _find_gaps(timeline)
    call, start, end = pl.col(_CALL_NS), pl.col(IdleSpans.start_ns), pl.col(IdleSpans.end_ns)
    in_time = pl.when(end - start < BACK_TO_BACK_NS).then(pl.lit("back_to_back")).otherwise(pl.lit("blocked"))
    whole = pl.when(call.is_null()).then(pl.lit("unknown")).when(call <= start).then(in_time)
    gaps = gaps.with_columns(
        whole.otherwise(None).cast(IdleSpans.cause.dtype).alias(IdleSpans.cause),
        pl.min_horizontal(call, IdleSpans.end_ns).alias(_HOST_END),
    )
    late = gaps.filter(pl.col(IdleSpans.cause).is_null()).drop(IdleSpans.cause)
    latency = late.filter(pl.col(_HOST_END) < end).with_columns(
        pl.col(_HOST_END).alias(IdleSpans.start_ns), _cause("launch_latency")
    )
    waits = _split_host(late.with_columns(pl.col(_HOST_END).alias(IdleSpans.end_ns)), timeline.host_spans)
    found = [gaps.drop_nulls(IdleSpans.cause), latency, waits]
    spread = pl.concat(part.select(IdleSpans.columns()) for part in found)
    return spans.in_order(spread, IdleSpans.device, IdleSpans.start_ns)


def compute_part_idle_causes(timeline: Timeline, idle: pl.DataFrame) -> dict[int, IdleCauses]:
    """Return the idle causes of every part of every device's window, by `part_id`; spans are cut at the edges.

    Args:
        timeline: One rank's events.
        idle: What `find_idle_spans` returned for it.
    """
    lengths: dict[int, dict[str, int]] = {part: dict.fromkeys(IDLE_CAUSES, 0) for part in timeline.parts[Parts.part_id]}
    for windows in timeline.devices:
        own = idle if len(timeline.devices) == 1 else idle.filter(pl.col(IdleSpans.device) == windows.device)
        parts = timeline.parts.filter(pl.col(Parts.device) == windows.device, spans.SPAN_NS > 0)
        _add_causes(lengths, own, parts)
    return {part: _idle_causes(by_cause) for part, by_cause in lengths.items()}


def _add_causes(lengths: dict[int, dict[str, int]], idle: pl.DataFrame, parts: pl.DataFrame) -> None:
    """Add the idle time of one device to that of its parts, which are adjacent and cover all of it."""
    owners = find_parts(idle[IdleSpans.start_ns], parts)
    sums = idle.select(owners, IdleSpans.cause, spans.SPAN_NS).group_by(Parts.part_id, IdleSpans.cause).sum()
    for part, cause, length_ns in sums.iter_rows():
        lengths[part][cause] += length_ns
    # What reaches over the edge between two parts was counted whole in the first of them; what lies beyond moves on.
    edges = list(parts.select(Parts.end_ns, Parts.part_id).iter_rows())
    before = idle[IdleSpans.start_ns].search_sorted(parts[Parts.end_ns], side="left")
    for (edge_ns, part), (_, following), num_before in zip(edges, edges[1:], before, strict=False):
        if num_before:
            end_ns, cause = idle[num_before - 1, IdleSpans.end_ns], idle[num_before - 1, IdleSpans.cause]
            beyond = max(0, end_ns - edge_ns)
            lengths[part][cause] -= beyond
            lengths[following][cause] += beyond


def _find_gaps(timeline: Timeline) -> pl.DataFrame:
    """Return every gap of every device with the event that ended it and the call that launched that event."""
    launches, launch_id = timeline.trace.launches, timeline.events[DeviceEvents.launch_id]
    events = timeline.events.select(
        DeviceEvents.device,
        DeviceEvents.event_id,
        pl.col(DeviceEvents.start_ns),
        pl.col(DeviceEvents.end_ns),
        launches[Launches.thread][launch_id].alias(IdleSpans.thread),
        launches[Launches.start_ns][launch_id].alias(_CALL_NS),
    )
    events = spans.in_order(events, DeviceEvents.device, DeviceEvents.start_ns, _CALL_NS, DeviceEvents.event_id)
    reach = pl.col(DeviceEvents.end_ns).cum_max()
    if spans.is_constant(events[DeviceEvents.device]):
        before = reach.shift(1)
    else:
        before = reach.over(DeviceEvents.device).shift(1).over(DeviceEvents.device)
    return events.with_columns(
        before.alias(IdleSpans.start_ns), pl.col(DeviceEvents.start_ns).alias(IdleSpans.end_ns)
    ).filter(spans.SPAN_NS > 0)


def _split_host(late: pl.DataFrame, host: pl.DataFrame) -> pl.DataFrame:
    """Split the stretches before a late launch by what the launching thread was doing."""
    stretches = late.select(*_STRETCH, pl.col(IdleSpans.start_ns).alias(_GAP_START))
    shared = overlap_with_host(stretches, host)
    began_before = pl.col(HostSpans.began_ns) < pl.col(_GAP_START)
    shared = shared.filter((pl.col(HostSpans.activity) != "sync") | began_before)
    both = pl.concat([late.with_columns(pl.lit(value=True).alias(_INSIDE)), shared], how="diagonal")
    layers = {activity: pl.col(HostSpans.activity) == activity for activity in ACTIVITIES}
    pieces = spans.sweep(both, layers={_INSIDE: pl.col(_INSIDE), **layers}, by=IdleSpans.device)
    first = pl.coalesce(*(pl.when(pl.col(each) > 0).then(pl.lit(each)) for each in ACTIVITIES), pl.lit("host"))
    owners = late.select(IdleSpans.device, IdleSpans.start_ns, IdleSpans.event_id, IdleSpans.thread)
    return (
        pieces.filter(pl.col(_INSIDE) > 0)
        .with_columns(first.cast(IdleSpans.cause.dtype).alias(IdleSpans.cause))
        .sort(IdleSpans.start_ns)
        .join_asof(owners.sort(IdleSpans.start_ns), on=IdleSpans.start_ns, by=IdleSpans.device, check_sortedness=False)
    )


def _cause(name: str) -> pl.Expr:
    return pl.lit(name, dtype=IdleSpans.cause.dtype).alias(IdleSpans.cause)


def _idle_causes(lengths: dict[str, int]) -> IdleCauses:
    return IdleCauses(
        idle_ns=sum(lengths[cause] for cause in IDLE_CAUSES),
        input_ns=lengths["input"],
        sync_ns=lengths["sync"],
        allocation_ns=lengths["allocation"],
        profiler_ns=lengths["profiler"],
        gc_ns=lengths["gc"],
        host_ns=lengths["host"],
        launch_latency_ns=lengths["launch_latency"],
        back_to_back_ns=lengths["back_to_back"],
        blocked_ns=lengths["blocked"],
        unknown_ns=lengths["unknown"],
    )
