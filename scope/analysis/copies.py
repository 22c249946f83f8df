"""Copies and sets: how many bytes, how fast, and how much of it nothing hid."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from scope.analysis import spans
from scope.trace.columns import Column, Table
from scope.trace.schema import COPY_KINDS, DeviceEvents
from scope.units import NS_PER_S

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scope.analysis.windows import Timeline

_GROUP: Final = "group"


class CopyStats(Table):
    """Copies and sets of one direction and name; sorted by `total_ns` descending, then by kind and name."""

    copy_kind = Column("copy_kind", pl.Enum(COPY_KINDS), "direction; null where the trace doesn't say", nullable=True)
    name = Column("name", pl.String, "name in the trace, which may tell pageable from pinned memory")
    num_copies = Column("num_copies", pl.UInt32, "copies or sets")
    num_sized = Column("num_sized", pl.UInt32, "of these, how many say their bytes and take longer than 0 ns")
    total_ns = Column("total_ns", pl.Int64, "sum of lengths")
    exposed_ns = Column("exposed_ns", pl.Int64, "time in which one of them runs and no compute or communication does")
    total_bytes = Column("total_bytes", pl.Int64, "bytes of those that say; null when none does", nullable=True)
    max_bytes = Column("max_bytes", pl.Int64, "bytes of the largest", nullable=True)
    bandwidth_bytes_per_s = Column(
        "bandwidth_bytes_per_s",
        pl.Float64,
        "bytes over length of the sized ones; null for none",
        nullable=True,
    )


def summarize_copies(timelines: Sequence[Timeline]) -> pl.DataFrame:
    """Return the table `CopyStats` of one or several ranks, all devices together."""
    keys = (CopyStats.copy_kind, CopyStats.name)
    ranks = [_copies_of(timeline) for timeline in timelines]
    size, length, exposed = pl.col(DeviceEvents.copy_bytes), pl.col(CopyStats.total_ns), pl.col(CopyStats.exposed_ns)
    sized = size.is_not_null() & (length > 0)
    moved = pl.concat([copies for copies, _ in ranks]) if ranks else None
    if moved is None:
        return CopyStats.empty()
    figures = moved.group_by(keys).agg(
        pl.len().cast(pl.UInt32).alias(CopyStats.num_copies),
        sized.sum().cast(pl.UInt32).alias(CopyStats.num_sized),
        length.sum(),
        pl.when(size.count() > 0).then(size.sum()).alias(CopyStats.total_bytes),
        size.max().alias(CopyStats.max_bytes),
        pl.when(sized.any())
        .then(size.filter(sized).sum() * float(NS_PER_S) / length.filter(sized).sum())
        .alias(CopyStats.bandwidth_bytes_per_s),
    )
    shown = pl.concat([exposed_of for _, exposed_of in ranks]).group_by(keys).agg(exposed.sum())
    table = figures.join(shown, on=keys, how="left", nulls_equal=True).with_columns(exposed.fill_null(0))
    order = (-length, pl.col(CopyStats.copy_kind).cast(pl.String), pl.col(CopyStats.name))
    return CopyStats.check(table.select(CopyStats.columns()).sort(*order))


def _copies_of(timeline: Timeline) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return one rank's copies, and by kind and name how long they were exposed."""
    moved = timeline.events.filter(pl.col(DeviceEvents.category) == "memory").with_columns(
        pl.col(DeviceEvents.name).cast(pl.String)
    )
    copies = moved.select(
        CopyStats.copy_kind, CopyStats.name, DeviceEvents.copy_bytes, spans.SPAN_NS.alias(CopyStats.total_ns)
    )
    return copies, _exposed(timeline.all_events, moved)


def _exposed(events: pl.DataFrame, moved: pl.DataFrame) -> pl.DataFrame:
    """Return per kind and name the time in which such a copy runs and no compute or communication does."""
    keys = (DeviceEvents.copy_kind, DeviceEvents.name)
    hidden = spans.union(events.filter(pl.col(DeviceEvents.category) != "memory"), by=DeviceEvents.device)
    lanes = moved.sort(*keys, DeviceEvents.device).with_columns(
        pl.struct(*keys, DeviceEvents.device).rle_id().alias(_GROUP)
    )
    names = lanes.group_by(_GROUP).agg(pl.col(*keys, DeviceEvents.device).first())
    runs = spans.union(lanes, by=_GROUP).join(names, on=_GROUP, maintain_order="left")
    covered = [
        spans.covered_before(hidden, runs, column=column, by=DeviceEvents.device)
        for column in (spans.Spans.end_ns, spans.Spans.start_ns)
    ]
    return (
        runs.with_columns((spans.SPAN_NS - (covered[0] - covered[1])).alias(CopyStats.exposed_ns))
        .group_by(keys)
        .agg(pl.col(CopyStats.exposed_ns).sum())
    )
