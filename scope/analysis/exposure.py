"""Which collectives were exposed: communication of each operation, group and size that no compute hid."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from scope.analysis import spans
from scope.analysis.breakdown import counts_as_compute
from scope.analysis.collective_bandwidth import full_message
from scope.analysis.group_names import UNDESCRIBED
from scope.analysis.host import host_events
from scope.analysis.options import Options
from scope.analysis.step_time import starts_within
from scope.definitions import find_mesh_axis
from scope.trace.columns import Column, Table
from scope.trace.schema import OPERATIONS, CollectiveCalls, DeviceEvents

if TYPE_CHECKING:
    from scope.trace.model import RankTrace


class ExposedCollectives(Table):
    """Communication of one rank grouped by operation, group and size; most exposed first, then by operation and size.

    Two collectives that run at once count each, so rows may sum to more than the exposed communication of the rank.
    """

    operation = Column("operation", pl.Enum(OPERATIONS), "one name whatever the library; `unknown` for bare kernels")
    group = Column(
        "group",
        pl.String,
        "axis of the device mesh, else description of the process group, else its name",
        nullable=True,
    )
    num_ranks = Column("num_ranks", pl.Int32, "ranks of the group", nullable=True)
    message_bytes = Column("message_bytes", pl.Int64, "full message, as bandwidth counts it", nullable=True)
    num_calls = Column("num_calls", pl.UInt32, "calls, or kernels without one")
    total_ns = Column("total_ns", pl.Int64, "sum of lengths, waiting for other ranks included")
    exposed_ns = Column(
        "exposed_ns", pl.Int64, "part of it in which the device computed nothing; calls in flight together count each"
    )
    num_step_calls = Column("num_step_calls", pl.UInt32, "of the calls, those that start in step time")
    step_exposed_ns = Column("step_exposed_ns", pl.Int64, "the part of `exposed_ns` that lies in step time")


EXPOSED_KEYS: Final = (
    ExposedCollectives.operation,
    ExposedCollectives.group,
    ExposedCollectives.num_ranks,
    ExposedCollectives.message_bytes,
)
_COMPUTE: Final = "compute"
_COMMUNICATION: Final = "communication"
_STEP_TIME: Final = "step_time"
_LAYERS: Final = (_COMPUTE, _COMMUNICATION, _STEP_TIME)
_IN_STEP_TIME: Final = "is_in_step_time"
_SUMS: Final = (ExposedCollectives.exposed_ns, ExposedCollectives.step_exposed_ns)


def compute_exposed_collectives(
    trace: RankTrace, *, step_time: pl.DataFrame | None = None, options: Options | None = None
) -> pl.DataFrame:
    """Return the table `ExposedCollectives` of one rank.

    Args:
        trace: The rank's tables.
        step_time: What `scope.analysis.step_time.compute_step_time` returned; None for all of the recording.
        options: What counts as compute, and which events count at all; the same as of the breakdown beside it.
    """
    chosen = options or Options()
    events = host_events(trace) if trace.is_host_timeline else trace.device_events
    if chosen.linked_only and not trace.is_host_timeline:
        events = events.filter(pl.col(DeviceEvents.launch_id).is_not_null())
    communication = events.filter(pl.col(DeviceEvents.category) == _COMMUNICATION)
    if communication.is_empty():
        return ExposedCollectives.empty()
    devices = communication[DeviceEvents.device].unique(maintain_order=True)
    if step_time is None:
        step_time = events.group_by(DeviceEvents.device).agg(
            pl.col(DeviceEvents.start_ns).min(), pl.col(DeviceEvents.end_ns).max()
        )
    communication = communication.with_columns(starts_within(step_time).alias(_IN_STEP_TIME))
    events = events.with_columns(counts_as_compute(chosen).alias(_COMPUTE))
    measured = pl.concat([_measured(events, communication, step_time, device) for device in devices])
    return ExposedCollectives.check(_grouped(measured, trace.collective_calls))


def _measured(events: pl.DataFrame, communication: pl.DataFrame, step_time: pl.DataFrame, device: int) -> pl.DataFrame:
    """Return the communication of one device with how long each event of it was exposed.

    Args:
        events: All events, with a column `_COMPUTE` that says which count as compute.
        communication: Those that communicate, with a column `_IN_STEP_TIME`.
        step_time: The spans that count as step time.
        device: The device.
    """
    own = pl.col(DeviceEvents.device) == device
    computes, communicates = pl.col(_COMPUTE), pl.col(DeviceEvents.category) == _COMMUNICATION
    running = events.filter(own, computes | communicates)
    parts = [
        _flagged(running, computes, communicates, pl.lit(value=False)),
        _flagged(step_time.filter(own), pl.lit(value=False), pl.lit(value=False), pl.lit(value=True)),
    ]
    pieces = spans.sweep(pl.concat(parts), layers={name: pl.col(name) for name in _LAYERS})
    is_exposed = (pl.col(_COMMUNICATION) > 0) & (pl.col(_COMPUTE) == 0)
    # How long communication was exposed before each boundary; every event that has a length begins and ends at one.
    boundaries = pl.concat([pieces[DeviceEvents.start_ns], pieces[DeviceEvents.end_ns].tail(1)])
    mine = communication.filter(own)
    until, since = (
        boundaries.search_sorted(mine[edge], side="left").clip(upper_bound=len(pieces))
        for edge in (DeviceEvents.end_ns, DeviceEvents.start_ns)
    )
    has_length = mine[DeviceEvents.end_ns] > mine[DeviceEvents.start_ns]
    lengths: list[pl.Series] = []
    for name, counts in zip(_SUMS, (is_exposed, is_exposed & (pl.col(_STEP_TIME) > 0)), strict=True):
        exposed = pl.when(counts).then(spans.SPAN_NS).otherwise(0)
        before = pl.concat([pl.Series([0]), pieces.select(exposed.cum_sum()).to_series()])
        # An event of no length is exposed for no time.
        lengths.append((before[until] - before[since]).zip_with(has_length, pl.Series([0])).alias(name))
    return mine.with_columns(lengths)


def _flagged(frame: pl.DataFrame, *belong: pl.Expr) -> pl.DataFrame:
    """Return the spans of a frame with the layers that each belongs to."""
    flags = (each.alias(name) for name, each in zip(_LAYERS, belong, strict=True))
    return frame.select(DeviceEvents.start_ns, DeviceEvents.end_ns, *flags)


def _name_groups(calls: pl.DataFrame) -> pl.Expr:
    """Return the axis of the mesh that a group is, else its description, else its name, as `name_group` does."""
    description = pl.col(CollectiveCalls.group_description).cast(pl.String)
    names = {each: find_mesh_axis(each) or each for each in calls.select(description.unique()).to_series()}
    # What torch calls a group that nobody has described tells nothing of it.
    names[UNDESCRIBED] = None
    return pl.coalesce(description.replace(names), pl.col(CollectiveCalls.group_name).cast(pl.String))


def _grouped(measured: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    named = calls.select(
        CollectiveCalls.call_id,
        pl.col(CollectiveCalls.operation).alias(ExposedCollectives.operation),
        _name_groups(calls).alias(ExposedCollectives.group),
        pl.col(CollectiveCalls.group_size).alias(ExposedCollectives.num_ranks),
        full_message().alias(ExposedCollectives.message_bytes),
    )
    operation = pl.col(ExposedCollectives.operation).fill_null(pl.lit("unknown", dtype=pl.Enum(OPERATIONS)))
    length = pl.col(DeviceEvents.end_ns) - pl.col(DeviceEvents.start_ns)
    return (
        measured.join(named, on=DeviceEvents.call_id, how="left")
        .with_columns(operation)
        .group_by(EXPOSED_KEYS)
        .agg(
            _num_calls(pl.col(DeviceEvents.call_id)).alias(ExposedCollectives.num_calls),
            length.sum().alias(ExposedCollectives.total_ns),
            _num_calls(pl.col(DeviceEvents.call_id).filter(_IN_STEP_TIME)).alias(ExposedCollectives.num_step_calls),
            *(pl.col(name).sum() for name in _SUMS),
        )
        .sort(
            pl.col(ExposedCollectives.exposed_ns),
            *(pl.col(key) for key in EXPOSED_KEYS),
            descending=[True, *(False for _ in EXPOSED_KEYS)],
            nulls_last=True,
        )
        .select(*(str(each) for each in ExposedCollectives.columns()))
    )


def _num_calls(call_ids: pl.Expr) -> pl.Expr:
    """Return how many calls events are of, each event without one counting as one."""
    return (call_ids.drop_nulls().n_unique() + call_ids.null_count()).cast(pl.UInt32)
