"""The collective calls of one rank of a synthetic run: totals, records of a segment, slots of the black box."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

from scope.definitions import bus_factor
from scope.run import layout as binary
from scope.run.calls import Call, CallShape, GroupCounter, pack_segment_header
from scope.run.schema import DTYPES, OPERATIONS, PHASES, VARIANTS, CollectiveTotal, GroupInfo
from scope.units import NS_PER_S

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scope.testing.layout import Axis, Layout

_CALLS: Final[tuple[tuple[Axis, str, int], ...]] = (
    ("tp", "all_reduce", 128),
    ("cp", "all_gather", 32),
    ("ep", "all_to_all", 64),
    ("dp", "all_reduce", 8),
)
"""Axis, operation, calls a step."""

_AXES: Final = {"dp": "dp_replicate"}
_ELEMENT_BYTES: Final = 2
_LATENCY_NS: Final = 10_000
_NODE_BYTES_PER_S: Final = 350e9
"""Bus bandwidth that an H100 reaches over NVLink 4, whose links carry 450 GB/s one way."""
_NETWORK_BYTES_PER_S: Final = 45e9
"""The same over one port of 400 Gbit/s, 50 GB/s, for each GPU."""


@dataclass(frozen=True, kw_only=True)
class RankCalls:
    """The calls that a rank makes in every step: those of its axes, data parallel last."""

    layout: Layout
    rank: int
    num_parameters: int = 7_000_000_000
    tokens: int = 8_192

    @cached_property
    def _mine(self) -> tuple[tuple[int, str, int, int], ...]:
        """Number of the group, operation, calls a step, bytes."""
        found: list[tuple[int, str, int, int]] = []
        for axis, operation, count in _CALLS:
            group = self.layout.group(axis, self.rank)
            if group is not None:
                found.append((self._numbers[group.name], operation, count, self._size(axis, count)))
        return tuple(found)

    def _size(self, axis: Axis, count: int) -> int:
        """Return the bytes of one call: a part of the gradients along data parallel, else the activations."""
        if axis == "dp":
            return _ELEMENT_BYTES * self.num_parameters // (self.layout.tp * self.layout.pp) // count
        width = round(2_048 * (self.num_parameters / 7e9) ** 0.5)
        return _ELEMENT_BYTES * self.tokens * width

    def _transfer_ns(self, group: int, operation: str, size: int) -> int:
        """Return how long a call takes once all have arrived, at what its slowest link carries."""
        ranks = next(each.ranks for each in self.groups if each.group == group)
        is_one_node = len({self.layout.node(rank) for rank in ranks}) == 1
        rate = _NODE_BYTES_PER_S if is_one_node else _NETWORK_BYTES_PER_S
        factor = bus_factor(operation, num_ranks=len(ranks)) or 1.0
        return _LATENCY_NS + round(size * factor / rate * NS_PER_S)

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {group.name: group.group for group in self.groups}

    @cached_property
    def groups(self) -> tuple[GroupInfo, ...]:
        """The process groups of the rank, the world first."""
        found = [self.layout.world] if self.layout.world_size > 1 else []
        for axis in ("tp", "cp", "ep", "pp", "dp"):
            group = self.layout.group(axis, self.rank)
            if group is not None:
                found.append(group)
        return tuple(
            GroupInfo(
                group=number,
                name=group.name,
                ranks=group.ranks,
                backend="nccl",
                mesh_axis=_axis(group.description),
                description=group.description,
            )
            for number, group in enumerate(found)
        )

    def totals(self, *, num_steps: int, blocked_ns: int) -> tuple[CollectiveTotal, ...]:
        """Return the totals of some steps; the last operation of a step holds all the blocked time."""
        found: list[CollectiveTotal] = []
        for place, (group, operation, count, size) in enumerate(self._mine):
            is_last = place == len(self._mine) - 1
            found.append(
                CollectiveTotal(
                    group=group,
                    operation=operation,
                    num_calls=num_steps * count,
                    in_bytes=num_steps * count * size,
                    out_bytes=num_steps * count * size,
                    num_timed=num_steps * count,
                    duration_ns=num_steps * count * self._transfer_ns(group, operation, size)
                    + (blocked_ns if is_last else 0),
                    num_blocked_known=num_steps * count,
                    blocked_ns=blocked_ns if is_last else 0,
                )
            )
        return tuple(found)

    def segment(self, arrivals: Sequence[tuple[int, int, int]], *, wall_offset_ns: int) -> bytes:
        """Return a closed segment with the last call of each step.

        Args:
            arrivals: Step, instant of arrival at its last collective, and end of the step, on the monotonic clock.
            wall_offset_ns: What makes an instant since the epoch of it.
        """
        header = pack_segment_header(
            rank=self.rank, attempt=0, wall_offset_ns=wall_offset_ns, first_step=arrivals[0][0]
        )
        return header + b"".join(self._record(*each) for each in arrivals if self._mine)

    def _record(self, step: int, arrived_ns: int, end_ns: int) -> bytes:
        group, operation, count, size = self._mine[-1]
        call = Call(
            _shape(group, operation, size),
            binary.FLAG_COMPLETED | binary.FLAG_WAIT_SEEN | binary.FLAG_DEVICE_TIMED,
            arrived_ns - 100_000,
            GroupCounter(),
            step,
            (step + 1) * count,
            step,
            PHASES.index("backward"),
            self._hash((step + 1) * count, operation),
            arrived_ns=arrived_ns,
            completed_ns=end_ns,
            blocked_ns=end_ns - arrived_ns,
        )
        return call.pack()

    def group_slots(self, num_steps: int, now_ns: int) -> list[bytes]:
        """Return the slots of the black box after some steps, all calls completed."""
        return [
            binary.GROUP.pack(
                group,
                num_steps * count,
                num_steps * count,
                now_ns,
                now_ns,
                self._hash(num_steps * count, operation),
                *(0, 0, 0),
                OPERATIONS.index(operation),
                DTYPES.index("bfloat16"),
                binary.FLAG_COMPLETED,
            )
            for group, operation, count, _ in self._mine
        ]

    def _hash(self, num_calls: int, operation: str) -> int:
        """Return a hash that all ranks which made as many calls of the operation share.

        A run of millions of calls is not hashed call by call; only the equality of the ranks means anything.
        """
        word = binary.hash_word(operation=OPERATIONS.index(operation), dtype=3, root=-1, count=num_calls)
        return binary.roll_hash(binary.FNV_OFFSET, word)


def _axis(description: str) -> str | None:
    axis = description.removeprefix("mesh_")
    return None if axis == description else _AXES.get(axis, axis)


def _shape(group: int, operation: str, size: int) -> CallShape:
    return CallShape(
        group=group,
        operation=OPERATIONS.index(operation),
        variant=VARIANTS.index("plain"),
        dtype=DTYPES.index("bfloat16"),
        in_bytes=size,
        out_bytes=size,
        word=0,
    )
