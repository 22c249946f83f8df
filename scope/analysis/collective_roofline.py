"""Message size against bus bandwidth, group by group: what the links would allow, and what sister groups reach."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from scope.analysis.collective_tables import ROOFLINE_KEYS, CollectiveRooflineRows, CollectiveRows, GroupRows
from scope.analysis.medians import median_rate
from scope.analysis.result import Result
from scope.structs import Record

if TYPE_CHECKING:
    from scope.analysis.collectives import Collectives

_KEYS: Final = (CollectiveRooflineRows.group_id, *ROOFLINE_KEYS)
_SISTER_KEYS: Final = (GroupRows.description, *ROOFLINE_KEYS)


class LinkRates(Record, frozen=True, kw_only=True):
    """What is known of the links of a job, all one way, in decimal bytes a second."""

    node_bytes_per_s: float | None = None
    """Inside a node: NVLink (or Infinity Fabric, else PCIe) of one GPU."""
    nic_bytes_per_s: float | None = None
    """Network: the rate of the NICs that one rank uses."""
    source: str = "given"


class CollectiveRoofline(Result, frozen=True, kw_only=True):
    """All measured collectives by group and size; `points` is the table `CollectiveRooflineRows`."""

    points: pl.DataFrame
    groups: pl.DataFrame
    """The table `GroupRows` that the points refer to."""
    links: LinkRates
    num_collectives: int
    """Collectives with a bus bandwidth, which the points hold."""
    num_without_bandwidth: int
    """Collectives left out: incomplete, cut, of unknown size or no transfer."""


def compute_collective_roofline(collectives: Collectives, *, links: LinkRates) -> CollectiveRoofline:
    """Take the measured collectives by group and size, and hold them against what the links allow and sisters reach.

    The ceiling inside a node is the link of one GPU, one way; across nodes min(that link, the NIC rate of a rank x the
    group's ranks on its narrowest node). Without a tier, or without the rate of a link, there is no ceiling. Sisters
    need neither: one slow link makes its own group slower than the other groups of the axis, whatever the hardware.

    Args:
        collectives: What `compute_collectives` returned. Complete collectives count, those that a window's edge cuts
            too, since an early arrival doesn't change the transfer.
        links: The rates of the job's links.
    """
    measured = measured_collectives(collectives)
    transfer, busbw = pl.col(CollectiveRows.transfer_ns), pl.col(CollectiveRows.busbw_bytes_per_s)
    points = measured.group_by(*_KEYS, GroupRows.description).agg(
        pl.len().cast(pl.Int64).alias(CollectiveRooflineRows.num_collectives),
        transfer.sum().alias(CollectiveRooflineRows.total_transfer_ns),
        median_rate(busbw).alias(CollectiveRooflineRows.median_busbw_bytes_per_s),
        busbw.max().alias(CollectiveRooflineRows.max_busbw_bytes_per_s),
    )
    points = with_ceiling(_with_sisters(points, collectives.groups), links).sort(
        CollectiveRooflineRows.total_transfer_ns,
        *_KEYS,
        descending=[True, *(False for _ in _KEYS)],
        nulls_last=True,
    )
    return CollectiveRoofline(
        points=CollectiveRooflineRows.check(points.select(CollectiveRooflineRows.schema().names())),
        groups=collectives.groups,
        links=links,
        num_collectives=measured.height,
        num_without_bandwidth=collectives.collectives.height - measured.height,
    )


def measured_collectives(collectives: Collectives) -> pl.DataFrame:
    """Return the complete collectives that have a bus bandwidth, with the description and the shape of their group."""
    shape = (GroupRows.group_id, GroupRows.description, GroupRows.num_ranks_on_narrowest_node)
    busbw = pl.col(CollectiveRows.busbw_bytes_per_s)
    return collectives.collectives.join(collectives.groups.select(shape), on=GroupRows.group_id, how="left").filter(
        CollectiveRows.is_complete,
        busbw.is_not_null() & (busbw > 0),
        pl.col(CollectiveRows.message_bytes).is_not_null(),
    )


def with_ceiling(points: pl.DataFrame, links: LinkRates) -> pl.DataFrame:
    """Add ceiling, attained share, whether the best is above, and the reason where there is no ceiling.

    Args:
        points: Columns tier, ranks on the narrowest node, median and best bus bandwidth.
        links: The rates of the job's links.
    """
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
    known = pl.col(CollectiveRooflineRows.ceiling_bytes_per_s)
    return points.with_columns(ceiling.alias(CollectiveRooflineRows.ceiling_bytes_per_s)).with_columns(
        (median / known).alias(CollectiveRooflineRows.attained_ratio),
        (best > known).alias(CollectiveRooflineRows.is_above_ceiling),
        pl.when(known.is_null()).then(reason).alias(CollectiveRooflineRows.reason),
    )


def _with_sisters(points: pl.DataFrame, groups: pl.DataFrame) -> pl.DataFrame:
    """Add how many sisters each group has, the median of what they reach, and its own share of that.

    The two directions of a pair are one link, so neither is the other's sister.
    """
    busbw = CollectiveRooflineRows.median_busbw_bytes_per_s
    place, link, both = "place", "link", [*_SISTER_KEYS, "link"]
    links = groups.select(GroupRows.group_id, _link_of_group().alias(link))
    placed = (
        points.join(links, on=GroupRows.group_id, how="left", maintain_order="left")
        .sort(*_SISTER_KEYS, busbw, CollectiveRooflineRows.group_id)
        .with_columns(pl.int_range(pl.len()).over(_SISTER_KEYS).alias(place))
        .with_columns((pl.col(link).n_unique().over(_SISTER_KEYS) - 1).alias(CollectiveRooflineRows.num_sisters))
    )
    # The middle one of the others in order; the link's own places in that order, of one or two, are stepped over.
    own = pl.len().over(both)
    first, last = pl.col(place).min().over(both), pl.col(place).max().over(both)
    middle = (pl.len().over(_SISTER_KEYS) - own) // 2
    middle += (middle >= first).cast(pl.Int64)
    middle += ((own > 1) & (middle >= last)).cast(pl.Int64)
    ordered = placed.select(*_SISTER_KEYS, place, pl.col(busbw).alias(CollectiveRooflineRows.sister_busbw_bytes_per_s))
    joined = (
        placed.with_columns(middle.alias("middle"))
        .join(
            ordered,
            left_on=[*_SISTER_KEYS, "middle"],
            right_on=[*_SISTER_KEYS, place],
            how="left",
            nulls_equal=True,
        )
        .with_columns(pl.col(CollectiveRooflineRows.num_sisters).cast(pl.Int64))
    )
    ratio = pl.col(busbw) / pl.col(CollectiveRooflineRows.sister_busbw_bytes_per_s)
    return joined.with_columns(ratio.alias(CollectiveRooflineRows.sister_ratio))


def _link_of_group() -> pl.Expr:
    """Return a name of the link that a group uses: a pair's is that of both its directions."""
    ranks = pl.col(GroupRows.ranks).list.sort().cast(pl.List(pl.String)).list.join(",")
    names = (pl.col(name).fill_null("") for name in (GroupRows.name, GroupRows.description))
    pair = pl.concat_str(*names, ranks, separator="\x00")
    # A pair of whose ends one is not known stands for itself.
    return pl.when(GroupRows.is_pair).then(pair).fill_null(pl.col(GroupRows.group_id).cast(pl.String))
