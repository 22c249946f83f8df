"""Message size against bus bandwidth, and what the links would allow."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from scope.analysis.collective_tables import ROOFLINE_KEYS, CollectiveRooflineRows, CollectiveRows, GroupRows
from scope.analysis.medians import median_rate
from scope.analysis.result import Result
from scope.structs import Record

if TYPE_CHECKING:
    from scope.analysis.collectives import Collectives


class LinkRates(Record, frozen=True, kw_only=True):
    """What is known of the links of a job, all one way, in decimal bytes a second."""

    node_bytes_per_s: float | None = None
    """Inside a node: NVLink (or Infinity Fabric, else PCIe) of one GPU."""
    nic_bytes_per_s: float | None = None
    """Network: the rate of the NICs that one rank uses."""
    source: str = "given"


class CollectiveRoofline(Result, frozen=True, kw_only=True):
    """All measured collectives by size; `points` is the table `CollectiveRooflineRows`."""

    points: pl.DataFrame
    links: LinkRates
    num_collectives: int
    """Collectives with a bus bandwidth, which the points hold."""
    num_without_bandwidth: int
    """Collectives left out: incomplete, cut, of unknown size or no transfer."""


def compute_collective_roofline(collectives: Collectives, *, links: LinkRates) -> CollectiveRoofline:
    """Group the measured collectives by size and hold them against what the links allow.

    The ceiling inside a node is the link of one GPU, one way; across nodes min(that link, the NIC rate of a rank x the
    group's ranks on its narrowest node). Without a tier, or without the rate of a link, there is no ceiling.

    Args:
        collectives: What `compute_collectives` returned. Complete collectives count, those that a window's edge cuts
            too, since an early arrival doesn't change the transfer.
        links: The rates of the job's links.
    """
    shape = (GroupRows.group_id, GroupRows.num_ranks_on_narrowest_node)
    rows = collectives.collectives.join(collectives.groups.select(shape), on=GroupRows.group_id, how="left")
    busbw = pl.col(CollectiveRows.busbw_bytes_per_s)
    measured = rows.filter(
        CollectiveRows.is_complete,
        busbw.is_not_null() & (busbw > 0),
        pl.col(CollectiveRows.message_bytes).is_not_null(),
    )
    transfer = pl.col(CollectiveRows.transfer_ns)
    points = measured.group_by(ROOFLINE_KEYS).agg(
        pl.len().cast(pl.Int64).alias(CollectiveRooflineRows.num_collectives),
        transfer.sum().alias(CollectiveRooflineRows.total_transfer_ns),
        median_rate(busbw).alias(CollectiveRooflineRows.median_busbw_bytes_per_s),
        busbw.max().alias(CollectiveRooflineRows.max_busbw_bytes_per_s),
    )
    points = _with_ceiling(points, links).sort(
        CollectiveRooflineRows.total_transfer_ns,
        *ROOFLINE_KEYS,
        descending=[True, *(False for _ in ROOFLINE_KEYS)],
        nulls_last=True,
    )
    return CollectiveRoofline(
        points=CollectiveRooflineRows.check(points.select(CollectiveRooflineRows.schema().names())),
        links=links,
        num_collectives=measured.height,
        num_without_bandwidth=rows.height - measured.height,
    )


def _with_ceiling(points: pl.DataFrame, links: LinkRates) -> pl.DataFrame:
    """Add ceiling, attained share and the reason where there is none."""
    node = pl.lit(links.node_bytes_per_s, dtype=pl.Float64)
    narrowest = pl.col(CollectiveRooflineRows.num_ranks_on_narrowest_node)
    network = pl.min_horizontal(node, narrowest * pl.lit(links.nic_bytes_per_s, dtype=pl.Float64))
    tier = pl.col(CollectiveRooflineRows.tier)
    knows_network = links.nic_bytes_per_s is not None
    ceiling = pl.when(tier == "node").then(node).when((tier == "network") & pl.lit(knows_network)).then(network)
    reason = (
        pl.when(tier.is_null())
        .then(pl.lit("which nodes its ranks are on is unknown: give --ranks-per-node or --topology"))
        .when(tier == "network")
        .then(pl.lit("the rate of the network is unknown"))
        .otherwise(pl.lit("the link inside the node is unknown: give --gpu"))
    )
    median, best = (
        pl.col(name)
        for name in (CollectiveRooflineRows.median_busbw_bytes_per_s, CollectiveRooflineRows.max_busbw_bytes_per_s)
    )
    return points.with_columns(ceiling.alias(CollectiveRooflineRows.ceiling_bytes_per_s)).with_columns(
        (median / pl.col(CollectiveRooflineRows.ceiling_bytes_per_s)).alias(CollectiveRooflineRows.attained_ratio),
        (best > pl.col(CollectiveRooflineRows.ceiling_bytes_per_s))
        .fill_null(value=False)
        .alias(CollectiveRooflineRows.is_above_ceiling),
        pl.when(pl.col(CollectiveRooflineRows.ceiling_bytes_per_s).is_null())
        .then(reason)
        .alias(CollectiveRooflineRows.reason),
    )
