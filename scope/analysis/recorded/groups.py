"""Ranks by the groups that the device mesh puts them in: is one group slower than its like?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from scope.analysis.medians import lower_median_ns
from scope.analysis.recorded.ranks import RankExcess
from scope.run.peers import name_place
from scope.trace.columns import Column, Table

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from scope.run.schema import RankInfo


class MeshRanks(Table):
    """Which group of one axis each rank belongs to."""

    group = Column("group", pl.String, "global ranks of the group, such as `0, 2, 4`")
    rank = Column("rank", pl.Int32, "global rank")


class GroupExcess(Table):
    """One group of an axis a row, the one that works longest first."""

    group = Column("group", pl.String, "global ranks of the group")
    num_ranks = Column("num_ranks", pl.UInt32, "ranks of the group whose work is known")
    busy_ns = Column("busy_ns", pl.Int64, "median of its ranks' busy time a step, the lower of two")
    longest_ns = Column("longest_ns", pl.Int64, "busy time of its slowest rank")
    slowest_rank = Column("slowest_rank", pl.Int32, "that rank, the lowest of equals")


def mesh_axes(infos: Iterable[RankInfo]) -> dict[str, pl.DataFrame]:
    """Return the table `MeshRanks` of each axis of the device mesh that has more than one group, by its name.

    Args:
        infos: `rank.json` of the ranks of one attempt.
    """
    rows: dict[str, dict[int, str]] = {}
    for info in infos:
        for group in info.groups:
            if group.mesh_axis is not None and info.rank in group.ranks:
                rows.setdefault(group.mesh_axis, {})[info.rank] = ", ".join(map(str, sorted(group.ranks)))
    return {
        axis: pl.DataFrame(
            [(group, rank) for rank, group in sorted(of_rank.items())], schema=MeshRanks.schema(), orient="row"
        )
        for axis, of_rank in sorted(rows.items())
        if len(set(of_rank.values())) > 1
    }


def peer_sets(infos: Iterable[RankInfo]) -> dict[int, int]:
    """Return, by rank, the lowest of its peers: the ranks equal to it on every axis of the mesh but data parallel ones.

    The rule is that of `scope.run.peers`, as of the exporter's label `peers`. The result is empty when no rank names an
    axis: then nobody knows who does the same work. A rank that is alone in its set, such as a pipeline stage without
    replicas, has nobody to be compared with.

    Args:
        infos: `rank.json` of the ranks of one attempt.
    """
    known = sorted(infos, key=lambda info: info.rank)
    if not any(group.mesh_axis for info in known for group in info.groups):
        return {}
    lowest: dict[str, int] = {}
    return {info.rank: lowest.setdefault(name_place(info), info.rank) for info in known}


def is_nobody_compared(peers: Mapping[int, int]) -> bool:
    """Return whether each of several ranks is alone in its set of `peer_sets`, so that none can be said to be slow."""
    return 1 < len(set(peers.values())) == len(peers)


def summarize_excess_by_group(excess: pl.DataFrame, ranks: pl.DataFrame) -> pl.DataFrame:
    """Return how long the ranks of each group work in a typical step (table `GroupExcess`).

    Args:
        excess: Table `RankExcess`.
        ranks: Table `MeshRanks`; ranks that are not in `excess` are left out.
    """
    busy = pl.col(RankExcess.busy_ns)
    table = (
        ranks.join(excess.select(RankExcess.rank, RankExcess.busy_ns), on=MeshRanks.rank)
        .sort(MeshRanks.rank)
        .group_by(MeshRanks.group, maintain_order=True)
        .agg(
            pl.len().cast(pl.UInt32).alias(GroupExcess.num_ranks),
            lower_median_ns(busy).alias("median"),
            busy.max().alias(GroupExcess.longest_ns),
            pl.col(MeshRanks.rank).get(busy.arg_max()).alias(GroupExcess.slowest_rank),
        )
        .rename({"median": GroupExcess.busy_ns})
        .sort(GroupExcess.busy_ns, descending=True, maintain_order=True)
    )
    return GroupExcess.check(table.select(*GroupExcess.columns()))
