"""Collectives of a recorded run by group and operation."""

from __future__ import annotations

from typing import Final

import polars as pl

from scope.definitions import bus_factor, mean_message_bytes
from scope.frames.schema import CollectiveTotals
from scope.trace.columns import Column, Table
from scope.units import format_bytes


class CollectiveSummary(Table):
    """All calls of one operation on groups of one axis and size a row, the most time first."""

    mesh_axis = Column("mesh_axis", pl.String, "axis of the device mesh", nullable=True)
    group = Column("group", pl.String, "torch's name of the group, where the row is of one", nullable=True)
    group_ranks = Column("group_ranks", pl.List(pl.Int32), "its global ranks, where the row is of one", nullable=True)
    group_size = Column("group_size", pl.UInt32, "ranks of the group", nullable=True)
    operation = Column("operation", pl.String, "one name whatever the library")
    variant = Column("variant", pl.String, "how it was called")
    control = Column("control", pl.Boolean, "control traffic of object collectives")
    num_groups = Column("num_groups", pl.UInt32, "process groups in this row")
    num_calls = Column("num_calls", pl.Int64, "calls of all ranks")
    message_bytes = Column("message_bytes", pl.Float64, "mean full message of a call", nullable=True)
    in_bytes = Column("in_bytes", pl.Int64, "bytes that the ranks gave")
    out_bytes = Column("out_bytes", pl.Int64, "bytes that the ranks got")
    num_timed = Column("num_timed", pl.Int64, "calls whose completion was seen")
    duration_ns = Column("duration_ns", pl.Int64, "issued to completed, added over these", nullable=True)
    blocked_ns = Column("blocked_ns", pl.Int64, "host time blocked in them", nullable=True)
    busbw_at_least_bytes_per_s = Column(
        "busbw_at_least_bytes_per_s",
        pl.Float64,
        "bus bandwidth over issued to completed, the wait for late ranks included: the link did at least this",
        nullable=True,
    )
    busbw_absent_reason = Column(
        "busbw_absent_reason", pl.String, "why there is no bus bandwidth, where that is not plain", nullable=True
    )


_ROW: Final = (
    CollectiveSummary.mesh_axis,
    CollectiveSummary.group_size,
    CollectiveTotals.operation,
    CollectiveTotals.variant,
    CollectiveTotals.control,
)
_ROOTED: Final = ("broadcast", "reduce", "gather", "scatter")
_LONGEST_NS: Final = "longest_ns"
LEAST_MESSAGE_BYTES: Final = 64 << 10
"""Bus bandwidth is given from messages of this size up: the time of smaller ones is latency, whatever the link."""
_TOO_SMALL: Final = f"messages below {format_bytes(LEAST_MESSAGE_BYTES)} show latency and no bandwidth"


def summarize_collectives(totals: pl.LazyFrame) -> pl.DataFrame:
    """Return calls, bytes, time and a lower bound of bus bandwidth by axis and operation (table `CollectiveSummary`).

    Args:
        totals: Table `CollectiveTotals`.
    """
    named = totals.with_columns(
        pl.col(CollectiveTotals.mesh_axis).cast(pl.String).alias(CollectiveSummary.mesh_axis),
        pl.col(CollectiveTotals.group_ranks).list.len().alias(CollectiveSummary.group_size),
    )
    grouped = (
        named.group_by(*_ROW)
        .agg(
            pl.struct(CollectiveTotals.attempt, CollectiveTotals.group, CollectiveTotals.group_ranks)
            .n_unique()
            .alias(CollectiveSummary.num_groups),
            pl.when(pl.col(CollectiveTotals.group).n_unique() == 1)
            .then(pl.col(CollectiveTotals.group).cast(pl.String).first())
            .alias(CollectiveSummary.group),
            pl.when(pl.struct(CollectiveTotals.group, CollectiveTotals.group_ranks).n_unique() == 1)
            .then(pl.col(CollectiveTotals.group_ranks).first())
            .alias(CollectiveSummary.group_ranks),
            pl.col(
                CollectiveTotals.num_calls,
                CollectiveTotals.in_bytes,
                CollectiveTotals.out_bytes,
                CollectiveTotals.num_timed,
            ).sum(),
            _sum_of_known(CollectiveTotals.duration_ns),
            _sum_of_known(CollectiveTotals.blocked_ns),
        )
        .join(_longest_of_rooted(named), on=_ROW, how="left", nulls_equal=True)
        .with_columns(pl.col(CollectiveTotals.operation, CollectiveTotals.variant).cast(pl.String))
        .collect()
    )
    bandwidths = [_bandwidth(row) for row in grouped.iter_rows(named=True)]
    reasons = [_TOO_SMALL if mean is not None and mean < LEAST_MESSAGE_BYTES else None for mean, _ in bandwidths]
    columns = {
        CollectiveSummary.message_bytes: [message for message, _ in bandwidths],
        CollectiveSummary.busbw_at_least_bytes_per_s: [bandwidth for _, bandwidth in bandwidths],
    }
    table = grouped.with_columns(
        pl.Series(CollectiveSummary.busbw_absent_reason, reasons, pl.String),
        *(pl.Series(str(name), values, pl.Float64) for name, values in columns.items()),
    )
    ordered = table.sort(
        CollectiveSummary.duration_ns, CollectiveSummary.in_bytes, descending=True, nulls_last=True, maintain_order=True
    )
    return CollectiveSummary.check(ordered.select(*CollectiveSummary.columns()).cast(CollectiveSummary.schema()))


def _longest_of_rooted(named: pl.LazyFrame) -> pl.LazyFrame:
    """Return how long a rooted operation takes on average on the rank on which that is longest, by row.

    A rank that only sends to the root is done before the others, so that the mean over ranks would be too short.
    """
    mean = pl.col(CollectiveTotals.duration_ns).sum() / pl.col(CollectiveTotals.num_timed).sum()
    return (
        named.filter(
            pl.col(CollectiveTotals.operation).cast(pl.String).is_in(_ROOTED),
            pl.col(CollectiveTotals.duration_ns).is_not_null(),
            pl.col(CollectiveTotals.num_timed) > 0,
        )
        .group_by(*_ROW, CollectiveTotals.attempt, CollectiveTotals.rank)
        .agg(mean.alias(_LONGEST_NS))
        .group_by(*_ROW)
        .agg(pl.col(_LONGEST_NS).max())
    )


def _bandwidth(row: dict[str, object]) -> tuple[float | None, float | None]:
    """Return the mean message and the lower bound of bus bandwidth of one row."""
    operation, size = str(row[CollectiveTotals.operation]), row[CollectiveSummary.group_size]
    mean = mean_message_bytes(
        operation,
        num_calls=_integer(row, CollectiveTotals.num_calls),
        in_bytes=_integer(row, CollectiveTotals.in_bytes),
        out_bytes=_integer(row, CollectiveTotals.out_bytes),
        num_ranks=size if isinstance(size, int) else None,
    )
    if mean is None or mean < LEAST_MESSAGE_BYTES:
        return mean, None
    duration, num_timed, longest = (
        row[column] for column in (CollectiveTotals.duration_ns, CollectiveTotals.num_timed, _LONGEST_NS)
    )
    if not (isinstance(size, int) and isinstance(duration, int) and isinstance(num_timed, int)):
        return mean, None
    factor = bus_factor(operation, num_ranks=size) if size > 0 else None
    if factor is None or duration <= 0 or num_timed <= 0:
        return mean, None
    return mean, factor * mean / (longest if isinstance(longest, float) else duration / num_timed) * 1e9


def _integer(row: dict[str, object], column: str) -> int:
    value = row[column]
    assert isinstance(value, int)
    return value


def _sum_of_known(column: str) -> pl.Expr:
    return pl.when(pl.col(column).is_not_null().any()).then(pl.col(column).sum()).alias(column)
