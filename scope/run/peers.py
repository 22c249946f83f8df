"""Which ranks do the same work, and may be compared: those at the same place of every mesh axis but data parallel.

Rank files name the axis of each process group that has been used, so what a rank tells of itself is enough. An axis
that was never used as a group, as often that of a pipeline, is made up for by where the rank's replicas begin. Where no
data parallel axis is named, ranks are told apart by their pipeline stage alone; where no axis is, not at all.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from scope.run.schema import RankInfo

_DATA_PARALLEL: Final = frozenset(
    {"dp", "data", "data_parallel", "ddp", "fsdp", "replicate", "shard", "dp_replicate", "dp_shard"}
)
_PIPELINE: Final = frozenset({"pp", "pipe", "pipeline", "pipeline_parallel", "stage"})
_EXPERT: Final = frozenset({"ep", "expert", "expert_parallel"})
"""Carved out of the other axes: ranks that are equal on those differ along data parallel ones alone."""


def is_data_parallel(axis: str) -> bool:
    """Return whether a mesh axis, or each of those that were flattened into it, is a data parallel one."""
    return all(part.lower() in _DATA_PARALLEL for part in axis.split("+"))


def name_place(info: RankInfo) -> str:
    """Return a name of a rank's place, such as `pp1 tp3`, which is that of its peers and of nobody else.

    Where the named axes do not account for all ranks, the first rank of its replicas stands in it too: `tp3 from8`.
    Flattened axes (`dp_shard+cp`) repeat others and are left out.
    """
    axes: dict[str, tuple[int, ...]] = {}
    for group in info.groups:
        if group.mesh_axis and info.rank in group.ranks:
            axes.setdefault(group.mesh_axis, group.ranks)
    replicas = {axis: ranks for axis, ranks in axes.items() if is_data_parallel(axis)}
    # A flattened one repeats those that it is made of, where they are there.
    replicas = {axis: ranks for axis, ranks in replicas.items() if "+" not in axis} or replicas
    others = {axis: ranks for axis, ranks in axes.items() if "+" not in axis and not is_data_parallel(axis)}
    if not replicas:
        return _name({axis: ranks for axis, ranks in others.items() if axis.lower() in _PIPELINE}, info.rank)
    places = {axis: ranks for axis, ranks in others.items() if axis.lower() not in _EXPERT}
    name = _name(places, info.rank)
    if math.prod(map(len, (*places.values(), *replicas.values()))) == info.world_size:
        return name
    # A mesh numbers its ranks evenly along each axis.
    first = info.rank - sum(info.rank - min(ranks) for ranks in replicas.values())
    return f"{name} from{first}".lstrip()


def _name(places: dict[str, tuple[int, ...]], rank: int) -> str:
    return " ".join(f"{axis}{ranks.index(rank)}" for axis, ranks in sorted(places.items()))
