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


def compute_exposed_collectives(trace: RankTrace) -> pl.DataFrame:
    """Return the table `ExposedCollectives` of one rank."""
    events = host_events(trace) if trace.is_host_timeline else trace.device_events
    communication = events.filter(pl.col(DeviceEvents.category) == _COMMUNICATION)
    if communication.is_empty():
        return ExposedCollectives.empty()
    devices = communication[DeviceEvents.device].unique(maintain_order=True)
    measured = pl.concat([_measured(events, communication, device) for device in devices])
    return ExposedCollectives.check(_grouped(measured, trace.collective_calls))


def _measured(events: pl.DataFrame, communication: pl.DataFrame, device: int) -> pl.DataFrame:
    """Return the communication of one device with how long each event of it was exposed."""
    own = pl.col(DeviceEvents.device) == device
    category = pl.col(DeviceEvents.category)
    layers = {_COMPUTE: category == _COMPUTE, _COMMUNICATION: category == _COMMUNICATION}
    pieces = spans.sweep(events.filter(own, category.is_in([_COMPUTE, _COMMUNICATION])), layers=layers)
    exposed = pl.when(pl.col(_COMMUNICATION) > 0, pl.col(_COMPUTE) == 0).then(spans.SPAN_NS).otherwise(0)
    # How long communication was exposed before each boundary; every event that has a length begins and ends at one.
    before = pl.concat([pl.Series([0]), pieces.select(exposed.cum_sum()).to_series()])
    boundaries = pl.concat([pieces[DeviceEvents.start_ns], pieces[DeviceEvents.end_ns].tail(1)])
    mine = communication.filter(own)
    until, since = (
        before[boundaries.search_sorted(mine[edge], side="left").clip(upper_bound=len(pieces))]
        for edge in (DeviceEvents.end_ns, DeviceEvents.start_ns)
    )
    has_length = mine[DeviceEvents.end_ns] > mine[DeviceEvents.start_ns]
    # An event of no length is exposed for no time.
    return mine.with_columns((until - since).zip_with(has_length, pl.Series([0])).alias(ExposedCollectives.exposed_ns))


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
