"""Synthetic training jobs: a layout, the work of a step, what is planted, and what is therefore true."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Literal, get_args

from scope.definitions import bus_factor
from scope.errors import UsageError
from scope.testing.program import (
    BeginStep,
    Call,
    Compute,
    Copy,
    EndStep,
    Exchange,
    Host,
    Instruction,
    Program,
)
from scope.testing.simulate import simulate
from scope.units import NS_PER_MS, NS_PER_S, NS_PER_US

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from scope.testing.layout import Axis, Group, Layout
    from scope.testing.simulate import Simulation

PlantKind = Literal["compute", "input", "memory", "host"]

_KINDS: Final = get_args(PlantKind)

START_NS: Final = 1_790_000_000 * NS_PER_S
"""When synthetic jobs begin: in September 2026."""
_PRODUCT_FLOP_PER_NS: Final = 550_000
"""550 TFLOP/s, as large BF16 matrix products reach on an H100 (peak 989)."""
_PRODUCT_EDGE: Final = 4_096
_COLUMNS_MULTIPLE: Final = 128


@dataclass(frozen=True, kw_only=True, slots=True)
class Plant:
    """A delay of one rank in some steps."""

    rank: int
    kind: PlantKind
    extra_ns: int
    steps: range


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """What every rank does in a step, before anything is planted."""

    num_layers: int = 2
    """Layers of each pipeline stage."""
    forward_ns: int = 800 * NS_PER_US
    """Compute of one layer; backward takes twice as long."""
    input_ns: int = 200 * NS_PER_US
    copy_ns: int = 150 * NS_PER_US
    copy_bytes: int = 4_000_000
    optimizer_ns: int = 300 * NS_PER_US
    layer_elements: int = 8_388_608
    """Elements that tensor, expert and pipeline parallel calls carry."""
    gradient_elements: int = 67_108_864
    node_bytes_per_s: int = 400_000_000_000
    network_bytes_per_s: int = 40_000_000_000
    """Bus bandwidth of groups that span nodes."""


@dataclass(frozen=True, kw_only=True)
class TrainingJob:
    """A training job of any layout.

    A step: fetch input, copy it to the device, forward and backward through the layers with tensor parallel
    all_reduce, expert parallel all_to_all and pipeline send and recv where the layout has them, all_reduce of the
    gradients over the data parallel group, optimizer.

    Raises:
        UsageError: A plant of a rank or kind that there is not, or that makes a step shorter; a slow group that the
            layout does not have, or a share of its bandwidth that is none.
    """

    layout: Layout
    num_steps: int = 4
    first_step: int = 10
    work: Work = field(default_factory=Work)
    plants: tuple[Plant, ...] = ()
    slow_groups: Mapping[str, float] = field(default_factory=dict[str, float])
    """By description and first rank (`mesh_dp:0`): the share of its bandwidth that the group of a slow link keeps."""
    jitter_ns: int = 0
    """Spread of the start of the ranks' hosts, so that not all arrivals are equal."""

    def __post_init__(self) -> None:
        problems = [*self._find_plant_problems(), *self._find_group_problems()]
        if problems:
            raise UsageError("; ".join(problems))

    def _find_plant_problems(self) -> Iterator[str]:
        for plant in self.plants:
            if not 0 <= plant.rank < self.layout.world_size:
                yield f"a delay is planted on rank {plant.rank}, and the ranks are 0 to {self.layout.world_size - 1}"
            if plant.kind not in _KINDS:
                yield f"a delay of kind {plant.kind!r} is planted, and the kinds are {', '.join(_KINDS)}"
            if plant.extra_ns < 0:
                yield f"a delay of {plant.extra_ns} ns is planted on rank {plant.rank}; it is at least 0"

    def _find_group_problems(self) -> Iterator[str]:
        known = {f"{group.description}:{group.ranks[0]}" for group in self.layout.groups}
        for name, share in self.slow_groups.items():
            if name not in known:
                yield f"there is no group {name!r} to be slow (mesh_dp:0 is the data parallel one of rank 0)"
            if share <= 0:
                yield f"the group {name!r} keeps {share} of its bandwidth; it is more than 0"

    @property
    def steps(self) -> range:
        """Numbers of the steps."""
        return range(self.first_step, self.first_step + self.num_steps)

    def programs(self) -> dict[int, Program]:
        """Return what each rank does."""
        return {rank: tuple(self._program(rank)) for rank in range(self.layout.world_size)}

    def run(self) -> Simulation:
        """Return what happens."""
        starts = {rank: START_NS + (rank * 7919 % (self.jitter_ns + 1)) for rank in range(self.layout.world_size)}
        return simulate(self.programs(), start_ns=starts)

    def saving_ns(self, rank: int) -> int:
        """Return how much sooner the whole job would end without the plants of one rank."""
        without = replace(self, plants=tuple(plant for plant in self.plants if plant.rank != rank))
        return self.run().end_ns - without.run().end_ns

    def transfer_ns(self, group: Group, operation: str, message_bytes: int) -> int:
        """Return how long a collective of the group takes once all ranks have arrived."""
        nodes = {self.layout.node(rank) for rank in group.ranks}
        rate = self.work.node_bytes_per_s if len(nodes) == 1 else self.work.network_bytes_per_s
        rate = int(rate * self.slow_groups.get(f"{group.description}:{group.ranks[0]}", 1.0))
        factor = bus_factor(operation, num_ranks=len(group.ranks)) or 1.0
        return max(1, round(message_bytes * factor * NS_PER_S / rate))

    def _program(self, rank: int) -> list[Instruction]:
        found: list[Instruction] = []
        for step in self.steps:
            extra = {plant.kind: plant.extra_ns for plant in self.plants if plant.rank == rank and step in plant.steps}
            found += [
                BeginStep(number=step),
                Host(length_ns=self.work.input_ns + extra.get("input", 0), activity="input"),
                *([Host(length_ns=extra["host"])] if "host" in extra else []),
                Copy(length_ns=self.work.copy_ns + extra.get("memory", 0), num_bytes=self.work.copy_bytes),
                *self._forward(rank, extra.get("compute", 0)),
                *self._backward(rank),
                *self._reduce_gradients(rank),
                matrix_product(self.work.optimizer_ns),
                EndStep(),
            ]
        return found

    def _forward(self, rank: int, extra_ns: int) -> list[Instruction]:
        found: list[Instruction] = [*self._exchange(rank, -1, is_send=False)]
        for layer in range(self.work.num_layers):
            found.append(matrix_product(self.work.forward_ns, extra_ns=extra_ns if layer == 0 else 0))
            found += self._layer_calls(rank)
        return [*found, *self._exchange(rank, 1, is_send=True)]

    def _backward(self, rank: int) -> list[Instruction]:
        found: list[Instruction] = [*self._exchange(rank, 1, is_send=False)]
        for _ in range(self.work.num_layers):
            found.append(matrix_product(2 * self.work.forward_ns))
            found += self._layer_calls(rank)
        return [*found, *self._exchange(rank, -1, is_send=True)]

    def _layer_calls(self, rank: int) -> list[Instruction]:
        found: list[Instruction] = []
        calls: tuple[tuple[Axis, str], ...] = (("tp", "all_reduce"), ("cp", "all_gather"), ("ep", "all_to_all"))
        for axis, operation in calls:
            group = self.layout.group(axis, rank)
            if group is not None:
                found.append(self.call(group, operation, self.work.layer_elements))
        return found

    def _reduce_gradients(self, rank: int) -> list[Instruction]:
        group = self.layout.group("dp", rank)
        return [] if group is None else [self.call(group, "all_reduce", self.work.gradient_elements)]

    def _exchange(self, rank: int, direction: int, *, is_send: bool) -> list[Instruction]:
        group = self.layout.group("pp", rank)
        stage = self.layout.place(rank)["pp"] + direction
        if group is None or not 0 <= stage < self.layout.pp:
            return []
        peer = self.layout.stage_peer(rank, stage=stage)
        elements = self.work.layer_elements
        return [
            Exchange(
                group=group,
                is_send=is_send,
                peer=peer,
                elements=elements,
                transfer_ns=self.transfer_ns(group, "send", 2 * elements),
            )
        ]

    def call(self, group: Group, operation: str, elements: int) -> Call:
        """Return a BF16 collective of the group: `elements` is the full message."""
        part = elements // len(group.ranks)
        return Call(
            group=group,
            operation=operation,
            in_elements=part if operation == "all_gather" else elements,
            out_elements=part if operation == "reduce_scatter" else elements,
            transfer_ns=self.transfer_ns(group, operation, 2 * elements),
        )


def matrix_product(length_ns: int, *, extra_ns: int = 0) -> Compute:
    """Return a matrix product of shapes that an H100 computes in about `length_ns`.

    Args:
        length_ns: Time of a product that nothing delays; it decides the shapes.
        extra_ns: How much longer this one takes with the same shapes.
    """
    flops_per_column = 2 * _PRODUCT_EDGE * _PRODUCT_EDGE
    num_blocks = length_ns * _PRODUCT_FLOP_PER_NS // (flops_per_column * _COLUMNS_MULTIPLE)
    return Compute(
        length_ns=length_ns + extra_ns,
        rows=_PRODUCT_EDGE,
        inner=_PRODUCT_EDGE,
        columns=max(1, num_blocks) * _COLUMNS_MULTIPLE,
    )


def straggling_job(layout: Layout, *, rank: int, kind: PlantKind, extra_ns: int = 5 * NS_PER_MS) -> TrainingJob:
    """Return a job in which one rank is late in every step, for one reason."""
    job = TrainingJob(layout=layout)
    return replace(job, plants=(Plant(rank=rank, kind=kind, extra_ns=extra_ns, steps=job.steps),))
