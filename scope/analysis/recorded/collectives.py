"""Collectives of a recorded run by group and operation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from scope.analysis.recorded.large_calls import LEAST_MESSAGE_BYTES, ROOTED, LargeCalls, find_large_calls
from scope.definitions import bus_factor, mean_message_bytes
from scope.frames.schema import CollectiveTotals
from scope.structs import Record
from scope.trace.columns import Column, Table
from scope.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable


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
    num_large_calls = Column(
        "num_large_calls",
        pl.Int64,
        "recorded calls that the bus bandwidth is of, where small messages among them leave the mean to mean nothing",
        nullable=True,
    )
    large_message_bytes = Column("large_message_bytes", pl.Float64, "mean full message of those", nullable=True)
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
_LONGEST_NS: Final = "longest_ns"
_MOST_IN_A_STEP: Final = "most_in_a_step_bytes"
_LEAST: Final = format_bytes(LEAST_MESSAGE_BYTES)
_TOO_SMALL: Final = f"messages below {_LEAST} show latency and no bandwidth"
_UNDECIDED: Final = (
    f"the mean message is below {_LEAST}, which shows latency, and no call was recorded one by one to tell larger ones"
)


class _Speed(Record, frozen=True, kw_only=True):
    """Message and bandwidth of one row."""

    message_bytes: float | None
    busbw_at_least_bytes_per_s: float | None = None
    num_large_calls: int | None = None
    large_message_bytes: float | None = None
    busbw_absent_reason: str | None = None


def summarize_collectives(totals: pl.LazyFrame, *, calls: Callable[[], pl.DataFrame] | None = None) -> pl.DataFrame:
    """Return calls, bytes, time and a lower bound of bus bandwidth by axis and operation (table `CollectiveSummary`).

    Args:
        totals: Table `CollectiveTotals`.
        calls: Returns the table `Calls`. It is asked for only where the mean message of a row is too small to show
            bandwidth and the totals leave open whether single messages are.
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
            pl.max_horizontal(CollectiveTotals.in_bytes, CollectiveTotals.out_bytes).max().alias(_MOST_IN_A_STEP),
        )
        .join(_longest_of_rooted(named), on=_ROW, how="left", nulls_equal=True)
        .with_columns(pl.col(CollectiveTotals.operation, CollectiveTotals.variant).cast(pl.String))
        .collect()
    )
    rows = grouped.to_dicts()
    speeds = [_speed(row) for row in rows]
    undecided = [place for place, speed in enumerate(speeds) if speed.busbw_absent_reason == _UNDECIDED]
    if undecided and calls is not None:
        large = find_large_calls(calls())
        for place in undecided:
            found = large.get(tuple(rows[place][name] for name in _ROW))
            if found is not None:
                speeds[place] = _speed_of_large(speeds[place].message_bytes, found)
    table = grouped.with_columns(
        pl.Series(name, [getattr(speed, name) for speed in speeds], CollectiveSummary.schema()[name])
        for name in _Speed.__struct_fields__
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
            pl.col(CollectiveTotals.operation).cast(pl.String).is_in(ROOTED),
            pl.col(CollectiveTotals.duration_ns).is_not_null(),
            pl.col(CollectiveTotals.num_timed) > 0,
        )
        .group_by(*_ROW, CollectiveTotals.attempt, CollectiveTotals.rank)
        .agg(mean.alias(_LONGEST_NS))
        .group_by(*_ROW)
        .agg(pl.col(_LONGEST_NS).max())
    )


def _speed(row: dict[str, object]) -> _Speed:
    """Return the mean message and the lower bound of bus bandwidth of one row, as its totals tell them."""
    operation, size = str(row[CollectiveTotals.operation]), row[CollectiveSummary.group_size]
    num_ranks = size if isinstance(size, int) else None
    mean = mean_message_bytes(
        operation,
        num_calls=_integer(row, CollectiveTotals.num_calls),
        in_bytes=_integer(row, CollectiveTotals.in_bytes),
        out_bytes=_integer(row, CollectiveTotals.out_bytes),
        num_ranks=num_ranks,
    )
    if mean is not None and mean < LEAST_MESSAGE_BYTES:
        # No message is larger than all that a rank gave or got in a step, the parts of the others counted.
        most = _integer(row, _MOST_IN_A_STEP) * (num_ranks or 1)
        return _Speed(message_bytes=mean, busbw_absent_reason=_TOO_SMALL if most < LEAST_MESSAGE_BYTES else _UNDECIDED)
    duration, num_timed, longest = (
        row[column] for column in (CollectiveTotals.duration_ns, CollectiveTotals.num_timed, _LONGEST_NS)
    )
    factor = bus_factor(operation, num_ranks=num_ranks) if num_ranks else None
    if mean is None or factor is None or not (isinstance(duration, int) and isinstance(num_timed, int)):
        return _Speed(message_bytes=mean)
    if duration <= 0 or num_timed <= 0:
        return _Speed(message_bytes=mean)
    time_ns = longest if isinstance(longest, float) else duration / num_timed
    return _Speed(message_bytes=mean, busbw_at_least_bytes_per_s=factor * mean / time_ns * 1e9)


def _speed_of_large(mean: float | None, found: LargeCalls) -> _Speed:
    """Return the bandwidth of the large calls of a row whose mean message is small."""
    if found.num_large == 0:
        reason = f"none of the {found.num_recorded:,} calls recorded one by one is timed and of {_LEAST} or more"
        return _Speed(message_bytes=mean, busbw_absent_reason=reason)
    return _Speed(
        message_bytes=mean,
        busbw_at_least_bytes_per_s=found.busbw_at_least_bytes_per_s,
        num_large_calls=found.num_large,
        large_message_bytes=found.message_bytes,
    )


def _integer(row: dict[str, object], column: str) -> int:
    value = row[column]
    assert isinstance(value, int)
    return value


def _sum_of_known(column: str) -> pl.Expr:
    return pl.when(pl.col(column).is_not_null().any()).then(pl.col(column).sum()).alias(column)
