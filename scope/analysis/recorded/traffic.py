"""Which parallel axis moved how many bytes, and over which tier: inside a node or across the network."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

from scope.frames.schema import CollectiveTotals, Ranks
from scope.trace.columns import Column, Table

if TYPE_CHECKING:
    from collections.abc import Mapping

WITHIN_NODE = "node"
ACROSS_NODES = "network"
_KEYS = (CollectiveTotals.attempt, CollectiveTotals.group, CollectiveTotals.group_ranks)
_NUM_HOSTS = "num_hosts"


class AxisTraffic(Table):
    """One axis and tier a row, most bytes first."""

    mesh_axis = Column("mesh_axis", pl.String, "axis of the device mesh; null for groups without one", nullable=True)
    tier = Column("tier", pl.String, "node: all ranks of a group on one host; network: on several", nullable=True)
    num_groups = Column("num_groups", pl.UInt32, "process groups")
    group_size = Column("group_size", pl.UInt32, "ranks of the largest of them", nullable=True)
    max_hosts = Column("max_hosts", pl.UInt32, "hosts that a group spans at most", nullable=True)
    num_calls = Column("num_calls", pl.Int64, "calls of all ranks")
    in_bytes = Column("in_bytes", pl.Int64, "bytes that all ranks gave to collectives")
    duration_ns = Column("duration_ns", pl.Int64, "issued to completed, added over timed calls", nullable=True)


def summarize_traffic(totals: pl.DataFrame, ranks: pl.DataFrame) -> pl.DataFrame:
    """Return calls and bytes by axis and tier (table `AxisTraffic`).

    Bytes are what the ranks handed over, not what the links carried: that depends on the algorithm of the library.

    Args:
        totals: Table `CollectiveTotals`.
        ranks: Table `Ranks`, which says on which host each rank is; the tier of a group with a rank that is not in it
            is unknown.
    """
    hosts = {
        (attempt, rank): host for attempt, rank, host in ranks.select(Ranks.attempt, Ranks.rank, Ranks.host).iter_rows()
    }
    by_group = totals.group_by(*_KEYS, CollectiveTotals.mesh_axis).agg(
        pl.col(CollectiveTotals.num_calls, CollectiveTotals.in_bytes).sum(),
        pl.when(pl.col(CollectiveTotals.duration_ns).is_not_null().any())
        .then(pl.col(CollectiveTotals.duration_ns).sum())
        .alias(CollectiveTotals.duration_ns),
    )
    num_hosts = [_hosts_of(row, hosts) for row in by_group.select(*_KEYS).iter_rows(named=True)]
    spans = pl.col(_NUM_HOSTS)
    table = (
        by_group.with_columns(
            pl.Series(_NUM_HOSTS, num_hosts, pl.UInt32), pl.col(CollectiveTotals.mesh_axis).cast(pl.String)
        )
        .with_columns(
            pl.when(spans == 1)
            .then(pl.lit(WITHIN_NODE))
            .when(spans > 1)
            .then(pl.lit(ACROSS_NODES))
            .alias(AxisTraffic.tier),
            pl.col(CollectiveTotals.group_ranks).list.len().alias(AxisTraffic.group_size),
        )
        .group_by(AxisTraffic.mesh_axis, AxisTraffic.tier)
        .agg(
            pl.len().cast(pl.UInt32).alias(AxisTraffic.num_groups),
            pl.col(AxisTraffic.group_size).max(),
            spans.max().alias(AxisTraffic.max_hosts),
            pl.col(AxisTraffic.num_calls, AxisTraffic.in_bytes).sum(),
            pl.when(pl.col(AxisTraffic.duration_ns).is_not_null().any())
            .then(pl.col(AxisTraffic.duration_ns).sum())
            .alias(AxisTraffic.duration_ns),
        )
        .sort(AxisTraffic.in_bytes, AxisTraffic.mesh_axis, descending=[True, False], nulls_last=True)
    )
    return AxisTraffic.check(table.select(*AxisTraffic.columns()))


def _hosts_of(group: Mapping[str, Any], hosts: Mapping[tuple[int, int], str]) -> int | None:
    """Return on how many hosts the ranks of a group are; None when one of them is not known."""
    members: list[int] | None = group[CollectiveTotals.group_ranks]
    if not members:
        return None
    found = {hosts.get((group[CollectiveTotals.attempt], rank)) for rank in members}
    return None if None in found else len(found)
