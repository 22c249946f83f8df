"""Which collectives were exposed: communication of each operation, group and size that no compute hid."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from scope.analysis import spans
from scope.analysis.host import host_events
from scope.trace.columns import Column, Table
from scope.trace.schema import OPERATIONS, CollectiveCalls, DeviceEvents

if TYPE_CHECKING:
    from scope.trace.model import RankTrace


class ExposedCollectives(Table):
    """Communication of one rank grouped by operation, group and size; most exposed first, then by operation and size.

    Two collectives that run at once count each, so rows may sum to more than the exposed communication of the rank.
    """

    operation = Column("operation", pl.Enum(OPERATIONS), "one name whatever the library; `unknown` for bare kernels")
    group = Column("group", pl.String, "description of the process group, else its name", nullable=True)
    num_ranks = Column("num_ranks", pl.Int32, "ranks of the group", nullable=True)
    message_bytes = Column("message_bytes", pl.Int64, "the larger of the bytes put in and received", nullable=True)
    num_calls = Column("num_calls", pl.UInt32, "calls, or kernels without one")
    total_ns = Column("total_ns", pl.Int64, "sum of lengths, waiting for other ranks included")
    exposed_ns = Column("exposed_ns", pl.Int64, "part of it in which the device computed nothing")


_KEYS: Final = (
    ExposedCollectives.operation,
    ExposedCollectives.group,
    ExposedCollectives.num_ranks,
    ExposedCollectives.message_bytes,
)
_COMPUTE: Final = "compute"
_COMMUNICATION: Final = "communication"
_EXPOSED_BEFORE: Final = "exposed_before_ns"
_EXPOSED_UNTIL: Final = "exposed_until_ns"


def compute_exposed_collectives(trace: RankTrace) -> pl.DataFrame:
    """Return the table `ExposedCollectives` of one rank."""
    events = host_events(trace) if trace.is_host_timeline else trace.device_events
    communication = events.filter(pl.col(DeviceEvents.category) == _COMMUNICATION)
    if communication.is_empty():
        return ExposedCollectives.empty()
    curve = _exposed_before(events)
    sides = (DeviceEvents.device, DeviceEvents.start_ns)
    measured = (
        communication.join(curve, on=sides, how="left")
        .join(
            curve.rename({_EXPOSED_BEFORE: _EXPOSED_UNTIL, DeviceEvents.start_ns: DeviceEvents.end_ns}),
            on=(DeviceEvents.device, DeviceEvents.end_ns),
            how="left",
        )
        # An event of no length bounds no piece and is exposed for no time.
        .with_columns(
            (pl.col(_EXPOSED_UNTIL) - pl.col(_EXPOSED_BEFORE)).fill_null(0).alias(ExposedCollectives.exposed_ns)
        )
    )
    return ExposedCollectives.check(_grouped(measured, trace.collective_calls))


def _exposed_before(events: pl.DataFrame) -> pl.DataFrame:
    """Return, at every boundary of a device's events, how long communication was exposed before it."""
    category = pl.col(DeviceEvents.category)
    layers = {_COMPUTE: category == _COMPUTE, _COMMUNICATION: category == _COMMUNICATION}
    pieces = spans.sweep(events, layers=layers, by=DeviceEvents.device)
    exposed = pl.when(pl.col(_COMMUNICATION) > 0, pl.col(_COMPUTE) == 0).then(spans.SPAN_NS).otherwise(0)
    until = exposed.cum_sum().over(DeviceEvents.device)
    measured = pieces.with_columns(until.alias(_EXPOSED_UNTIL), (until - exposed).alias(_EXPOSED_BEFORE))
    begins = measured.select(DeviceEvents.device, DeviceEvents.start_ns, _EXPOSED_BEFORE)
    last = measured.group_by(DeviceEvents.device).agg(
        pl.col(DeviceEvents.end_ns).max().alias(DeviceEvents.start_ns),
        pl.col(_EXPOSED_UNTIL).max().alias(_EXPOSED_BEFORE),
    )
    return pl.concat([begins, last.select(begins.columns)])


def _grouped(measured: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    named = calls.select(
        CollectiveCalls.call_id,
        pl.col(CollectiveCalls.operation).alias(ExposedCollectives.operation),
        pl.coalesce(pl.col(CollectiveCalls.group_description), pl.col(CollectiveCalls.group_name))
        .cast(pl.String)
        .alias(ExposedCollectives.group),
        pl.col(CollectiveCalls.group_size).alias(ExposedCollectives.num_ranks),
        pl.max_horizontal(CollectiveCalls.in_bytes, CollectiveCalls.out_bytes).alias(ExposedCollectives.message_bytes),
    )
    operation = pl.col(ExposedCollectives.operation).fill_null(pl.lit("unknown", dtype=pl.Enum(OPERATIONS)))
    length = pl.col(DeviceEvents.end_ns) - pl.col(DeviceEvents.start_ns)
    return (
        measured.join(named, on=DeviceEvents.call_id, how="left")
        .with_columns(operation)
        .group_by(_KEYS)
        .agg(
            (pl.col(DeviceEvents.call_id).drop_nulls().n_unique() + pl.col(DeviceEvents.call_id).null_count())
            .cast(pl.UInt32)
            .alias(ExposedCollectives.num_calls),
            length.sum().alias(ExposedCollectives.total_ns),
            pl.col(ExposedCollectives.exposed_ns).sum(),
        )
        .sort(
            pl.col(ExposedCollectives.exposed_ns),
            *(pl.col(key) for key in _KEYS),
            descending=[True, *(False for _ in _KEYS)],
            nulls_last=True,
        )
        .select(*(str(each) for each in ExposedCollectives.columns()))
    )
