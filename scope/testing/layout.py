"""Who works with whom: the parallel layout of a synthetic job and its process groups."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal

from scope.errors import UsageError

Axis = Literal["dp", "tp", "pp", "cp", "ep"]

MAX_RANKS: Final = 1_024


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """One process group of a synthetic job."""

    name: str
    """Name as torch gives it: a number."""
    description: str
    """What it is for, as in `mesh_tp`."""
    ranks: tuple[int, ...]
    """Global ranks, sorted; the place of a rank is its number in the group."""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Sizes of the parallel axes; ranks are numbered tensor-parallel first, then context, data and pipeline.

    Expert parallelism is carved out of data times context parallelism and must divide it.

    Raises:
        UsageError: A size below 1, more than `MAX_RANKS` ranks, or an `ep` that does not divide dp x cp.
    """

    dp: int = 1
    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    ranks_per_node: int = 8

    def __post_init__(self) -> None:
        sizes = {"dp": self.dp, "tp": self.tp, "pp": self.pp, "cp": self.cp, "ep": self.ep}
        wrong = [f"{axis}={size}" for axis, size in sizes.items() if size < 1]
        if wrong or self.ranks_per_node < 1:
            message = f"sizes of a layout are at least 1: {', '.join(wrong) or 'ranks_per_node'}"
            raise UsageError(message)
        if self.world_size > MAX_RANKS:
            message = f"a synthetic job has at most {MAX_RANKS} ranks, not {self.world_size}"
            raise UsageError(message)
        if (self.dp * self.cp) % self.ep:
            message = f"ep={self.ep} does not divide dp x cp = {self.dp * self.cp}"
            raise UsageError(message)

    @property
    def world_size(self) -> int:
        """Number of ranks: dp x tp x pp x cp."""
        return self.dp * self.tp * self.pp * self.cp

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        """Every process group with more than one rank, the world first."""
        found: list[tuple[str, tuple[int, ...]]] = [("default_pg", tuple(range(self.world_size)))]
        for axis in ("tp", "cp", "dp", "ep", "pp"):
            members: dict[tuple[int, ...], list[int]] = {}
            for rank in range(self.world_size):
                members.setdefault(self._key(axis, rank), []).append(rank)
            found += [(f"mesh_{axis}", tuple(ranks)) for ranks in members.values() if len(ranks) > 1]
        return tuple(
            Group(name=str(index), description=description, ranks=ranks)
            for index, (description, ranks) in enumerate(found)
        )

    @cached_property
    def _group_of(self) -> dict[tuple[str, int], Group]:
        return {(group.description, rank): group for group in self.groups for rank in group.ranks}

    def group(self, axis: Axis, rank: int) -> Group | None:
        """Return the group of a rank on an axis, or None where the axis has one rank."""
        return self._group_of.get((f"mesh_{axis}", rank))

    @property
    def world(self) -> Group:
        """The group of all ranks."""
        return self.groups[0]

    def place(self, rank: int) -> dict[Axis, int]:
        """Return the coordinate of a rank on each axis."""
        rest, tp = divmod(rank, self.tp)
        rest, cp = divmod(rest, self.cp)
        pp, dp = divmod(rest, self.dp)
        return {"tp": tp, "cp": cp, "dp": dp, "pp": pp, "ep": (dp * self.cp + cp) % self.ep}

    def node(self, rank: int) -> str:
        """Return the host name of a rank's node."""
        return f"node-{rank // self.ranks_per_node:03d}"

    def stage_peer(self, rank: int, *, stage: int) -> int:
        """Return the rank that has the same place in another pipeline stage."""
        per_stage = self.world_size // self.pp
        return rank % per_stage + stage * per_stage

    def _key(self, axis: Axis, rank: int) -> tuple[int, ...]:
        """Return what all ranks of one group of an axis have in common."""
        place = self.place(rank)
        if axis == "ep":
            block = (place["dp"] * self.cp + place["cp"]) // self.ep
            return (place["tp"], place["pp"], block)
        return tuple(place[other] for other in ("tp", "cp", "dp", "pp") if other != axis)
