"""Small jobs, each with one thing planted that traces of real jobs hold and that analyses get wrong.

Every function returns a `Scenario`; its simulation says what is true.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from scope.testing.jobs import START_NS, Plant, TrainingJob
from scope.testing.kineto import Clock, Recording, write_traces
from scope.testing.layout import Group, Layout
from scope.testing.program import BeginStep, Call, Compute, Copy, EndStep, Exchange, Host, Instruction
from scope.testing.simulate import Simulation, simulate
from scope.units import NS_PER_MS, NS_PER_US

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

_COMPUTE_NS: Final = 500 * NS_PER_US
_TRANSFER_NS: Final = 80 * NS_PER_US
_ELEMENTS: Final = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A simulated job and how its traces were recorded."""

    layout: Layout
    simulation: Simulation
    recordings: Mapping[int, Recording] = field(default_factory=dict[int, Recording])
    missing_ranks: tuple[int, ...] = ()
    """Ranks whose trace is not at hand."""

    def write(self, folder: Path) -> list[Path]:
        """Write the traces of the ranks that are at hand, and return the files."""
        files = write_traces(self.simulation, self.layout, folder, recordings=dict(self.recordings))
        kept: list[Path] = []
        for rank, file in zip(sorted(self.simulation.issued), files, strict=True):
            if rank in self.missing_ranks:
                file.unlink()
            else:
                kept.append(file)
        return kept


def _run(
    layout: Layout, body: Callable[[int, int], list[Instruction]], *, num_steps: int = 3, synchronize: bool = True
) -> Simulation:
    """Simulate steps 0 to `num_steps`, of each of which `body(rank, step)` gives the instructions."""
    programs = {
        rank: tuple(
            instruction
            for step in range(num_steps)
            for instruction in (BeginStep(number=step), *body(rank, step), EndStep(synchronize=synchronize))
        )
        for rank in range(layout.world_size)
    }
    return simulate(programs, start_ns=dict.fromkeys(programs, START_NS))


def _late(rank: int, step: int) -> int:
    """Return compute of different length on every rank and step, so that no two arrivals are equal by chance."""
    return _COMPUTE_NS + (rank * 37 + step * 11) % 23 * 7 * NS_PER_US + rank * 101


def _call(group: Group, operation: str, *, root: int | None = None, transfer_ns: int = _TRANSFER_NS) -> Call:
    size = len(group.ranks)
    elements = _ELEMENTS
    return Call(
        group=group,
        operation=operation,
        in_elements=elements // size if operation in ("all_gather", "gather") else elements,
        out_elements=elements // size if operation in ("reduce_scatter", "scatter") else elements,
        transfer_ns=transfer_ns,
        root=root,
    )


def early_broadcast_root(*, num_ranks: int = 4) -> Scenario:
    """Return a job whose broadcast root arrives first: it waits for nobody, and nobody for the late receivers."""
    layout = Layout(dp=num_ranks)

    def body(rank: int, step: int) -> list[Instruction]:
        length_ns = _late(rank, step) if rank else _COMPUTE_NS // 2
        return [Compute(length_ns=length_ns), _call(layout.world, "broadcast", root=0)]

    return Scenario(layout=layout, simulation=_run(layout, body))


def late_broadcast_root(*, num_ranks: int = 4) -> Scenario:
    """Return a job whose broadcast root arrives last, so that all receivers wait for it."""
    layout = Layout(dp=num_ranks)

    def body(rank: int, step: int) -> list[Instruction]:
        return [
            Compute(length_ns=_late(rank, step) + (3 * NS_PER_MS if rank == 1 else 0)),
            _call(layout.world, "broadcast", root=1),
        ]

    return Scenario(layout=layout, simulation=_run(layout, body))


def rooted_operations(*, num_ranks: int = 4) -> Scenario:
    """Return a job with reduce, gather and scatter, whose roots wait for all or are waited for."""
    layout = Layout(dp=num_ranks)

    def body(rank: int, step: int) -> list[Instruction]:
        found: list[Instruction] = []
        for root, operation in enumerate(("reduce", "gather", "scatter")):
            found += [
                Compute(length_ns=_late(rank, step + root)),
                replace(_call(layout.world, operation, root=root), is_blocking=False),
            ]
        return found

    return Scenario(layout=layout, simulation=_run(layout, body))


def equal_groups() -> Scenario:
    """Return a job with two groups of the same ranks, whose calls interleave differently from step to step."""
    layout = Layout(dp=4)
    twins = [Group(name=name, description=f"mesh_{name}", ranks=layout.world.ranks) for name in ("left", "right")]

    def body(rank: int, step: int) -> list[Instruction]:
        order = twins if step % 2 else twins[::-1]
        found: list[Instruction] = []
        for place, group in enumerate((*order, *order[:1])):
            found += [Compute(length_ns=_late(rank, step + place)), _call(group, "all_reduce")]
        return found

    return Scenario(layout=layout, simulation=_run(layout, body))


def missing_ranks() -> Scenario:
    """Return a data parallel job of which two of four ranks are at hand, the latest not among them."""
    job = TrainingJob(layout=Layout(dp=4), plants=(Plant(rank=3, kind="host", extra_ns=NS_PER_MS, steps=range(99)),))
    return Scenario(layout=job.layout, simulation=job.run(), missing_ranks=(1, 3))


def drifting_clocks(*, offset_ns: int = 3 * NS_PER_MS, drift_ppb: int = 20_000, num_steps: int = 40) -> Scenario:
    """Return a job on four nodes whose clocks stand apart and drift; all ranks but rank 0 have a wrong clock."""
    layout = Layout(dp=4, ranks_per_node=1)

    def body(rank: int, step: int) -> list[Instruction]:
        return [Compute(length_ns=_late((rank + step) % 4, step)), _call(layout.world, "all_reduce")]

    clocks = {
        rank: Clock(offset_ns=offset_ns * (-1) ** rank * rank, drift_ppb=drift_ppb * (rank - 2), origin_ns=START_NS)
        for rank in (1, 2, 3)
    }
    return Scenario(
        layout=layout,
        simulation=_run(layout, body, num_steps=num_steps),
        recordings={rank: Recording(clock=clock) for rank, clock in clocks.items()},
    )


def uneven_all_to_all() -> Scenario:
    """Return a job whose ranks send each other different amounts; rank 2 sends most."""
    layout = Layout(dp=4, ep=4)
    group = layout.group("ep", 0)
    assert group is not None
    sends = [[1000, 2000, 3000, 0], [500, 500, 500, 500], [4000, 9000, 100, 7000], [10, 20, 30, 40]]

    def body(rank: int, step: int) -> list[Instruction]:
        received = [row[rank] for row in sends]
        call = Call(
            group=group,
            operation="all_to_all",
            in_elements=sum(sends[rank]),
            out_elements=sum(received),
            in_split=tuple(sends[rank]),
            out_split=tuple(received),
            transfer_ns=_TRANSFER_NS,
        )
        return [Compute(length_ns=_late(rank, step)), call]

    return Scenario(layout=layout, simulation=_run(layout, body))


def coalesced_calls() -> Scenario:
    """Return a job whose all_reduce is one call of three kernels."""
    layout = Layout(dp=4)

    def body(rank: int, step: int) -> list[Instruction]:
        call = replace(_call(layout.world, "all_reduce", transfer_ns=90 * NS_PER_US), num_kernels=3)
        return [Compute(length_ns=_late(rank, step)), call]

    return Scenario(layout=layout, simulation=_run(layout, body))


def prefetched_copies() -> Scenario:
    """Return a job whose host runs ahead: the copy for the next step runs during the compute of this one."""
    layout = Layout(dp=2)

    def body(rank: int, step: int) -> list[Instruction]:
        return [
            Copy(length_ns=120 * NS_PER_US, num_bytes=1_000_000, is_prefetch=True),
            Compute(length_ns=_late(rank, step)),
            _call(layout.world, "all_reduce"),
            Compute(length_ns=3 * NS_PER_MS),
        ]

    return Scenario(layout=layout, simulation=_run(layout, body, synchronize=False))


def overlapped_communication() -> Scenario:
    """Return a job whose all_reduce runs beside compute and is partly exposed."""
    layout = Layout(dp=4)

    def body(rank: int, step: int) -> list[Instruction]:
        return [
            Compute(length_ns=_late(rank, step)),
            replace(_call(layout.world, "all_reduce", transfer_ns=NS_PER_MS), is_blocking=False),
            Compute(length_ns=400 * NS_PER_US),
            Copy(length_ns=700 * NS_PER_US, num_bytes=1_000_000, kind="D2H", is_prefetch=True),
        ]

    return Scenario(layout=layout, simulation=_run(layout, body))


def overrunning_kernels() -> Scenario:
    """Return a job in which a kernel's recorded end lies inside the next kernel of its stream."""
    layout = Layout(dp=2)

    def body(rank: int, step: int) -> list[Instruction]:
        return [
            Compute(length_ns=_late(rank, step), overrun_ns=30 * NS_PER_US),
            Compute(length_ns=_COMPUTE_NS),
            _call(layout.world, "all_reduce"),
        ]

    return Scenario(layout=layout, simulation=_run(layout, body))


def shifted_windows(*, has_sequence: bool, offset_ns: int = 0) -> Scenario:
    """Return a job whose ranks were recorded from different steps on, so that first calls are not the same call."""
    layout = Layout(dp=4, ranks_per_node=1)

    def body(rank: int, step: int) -> list[Instruction]:
        return [
            Compute(length_ns=_late(rank, step)),
            _call(layout.world, "all_reduce"),
            Compute(length_ns=_late(rank, step + 1)),
            _call(layout.world, "all_gather"),
            Compute(length_ns=_late(rank, step + 2)),
            _call(layout.world, "all_reduce"),
        ]

    windows = {0: range(2, 8), 1: range(3, 9), 2: range(2, 8), 3: range(4, 10)}
    recordings = {
        rank: Recording(steps=steps, has_sequence=has_sequence, clock=Clock(offset_ns=offset_ns * rank))
        for rank, steps in windows.items()
    }
    return Scenario(layout=layout, simulation=_run(layout, body, num_steps=10), recordings=recordings)


def without_metadata() -> Scenario:
    """Return a data parallel job whose kernels say nothing but their name."""
    job = TrainingJob(layout=Layout(dp=4), plants=(Plant(rank=2, kind="input", extra_ns=NS_PER_MS, steps=range(99)),))
    recordings = dict.fromkeys(range(4), Recording(has_metadata=False))
    return Scenario(layout=job.layout, simulation=job.run(), recordings=recordings)


def elided_groups() -> Scenario:
    """Return a job whose traces name groups but not their ranks, with namesakes that can't be told apart."""
    layout = Layout(dp=2, tp=2)

    def body(rank: int, step: int) -> list[Instruction]:
        group = layout.group("tp", rank)
        assert group is not None
        named = replace(group, name="tp")
        return [
            Compute(length_ns=_late(rank, step)),
            _call(named, "all_reduce"),
            Compute(length_ns=_late(rank, step)),
            _call(layout.world, "all_reduce"),
        ]

    recordings = dict.fromkeys(range(4), Recording(has_group_ranks=False, has_sequence=False))
    programs_layout = _run_namesakes(layout, body)
    return Scenario(layout=layout, simulation=programs_layout, recordings=recordings)


def _run_namesakes(layout: Layout, body: Callable[[int, int], list[Instruction]]) -> Simulation:
    """Simulate groups of one name but different ranks, by telling them apart while it runs."""

    def renamed(rank: int, step: int) -> list[Instruction]:
        return [
            replace(each, group=replace(each.group, name=f"{each.group.name}@{each.group.ranks[0]}"))
            if isinstance(each, Call) and each.group.description != "default_pg"
            else each
            for each in body(rank, step)
        ]

    simulation = _run(layout, renamed)
    issued = {
        rank: tuple(
            replace(
                each,
                instruction=replace(
                    each.instruction,
                    group=replace(each.instruction.group, name=each.instruction.group.name.partition("@")[0]),
                ),
            )
            if isinstance(each.instruction, Call)
            else each
            for each in one
        )
        for rank, one in simulation.issued.items()
    }
    return replace(simulation, issued=issued)


def pipeline_cascade(*, rank: int = 2, extra_ns: int = 5 * NS_PER_MS) -> Scenario:
    """Return a job of four stages and two replicas in which one rank is slow and makes its whole pipeline late."""
    job = TrainingJob(
        layout=Layout(dp=2, pp=4), plants=(Plant(rank=rank, kind="compute", extra_ns=extra_ns, steps=range(99)),)
    )
    return Scenario(layout=job.layout, simulation=job.run())


def send_and_receive() -> Scenario:
    """Return a job of two stages that exchange several messages a step, in both directions, of two sizes."""
    layout = Layout(pp=2, ranks_per_node=1)
    group = layout.group("pp", 0)
    assert group is not None

    def body(rank: int, step: int) -> list[Instruction]:
        found: list[Instruction] = []
        for place, (sender, elements) in enumerate(((0, 4096), (0, 1024), (1, 4096))):
            found += [
                Compute(length_ns=_late(rank, step + place)),
                Exchange(
                    group=group,
                    is_send=rank == sender,
                    peer=1 - rank,
                    elements=elements,
                    transfer_ns=_TRANSFER_NS,
                ),
            ]
        return found

    return Scenario(layout=layout, simulation=_run(layout, body))


def window_edge(*, spin_ns: int = 40 * NS_PER_MS) -> Scenario:
    """Return a job in which one rank's recording began while the others already spun in the first collective."""
    layout = Layout(dp=4)

    def body(rank: int, step: int) -> list[Instruction]:
        starting = [Host(length_ns=spin_ns)] if step == 0 and rank == 3 else []
        return [*starting, Compute(length_ns=_late(rank, step)), _call(layout.world, "all_reduce")]

    simulation = _run(layout, body)
    # Starting its profiler is what kept rank 3 from its first step, so nothing of that was recorded.
    issued = dict(simulation.issued)
    rest = [each for each in issued[3] if not isinstance(each.instruction, Host)]
    begin = rest[0]
    issued[3] = (
        replace(begin, host_start_ns=begin.host_start_ns + spin_ns, host_end_ns=begin.host_end_ns + spin_ns),
        *rest[1:],
    )
    return Scenario(layout=layout, simulation=replace(simulation, issued=issued))


def several_nodes() -> Scenario:
    """Return a job on two nodes: tensor parallel groups inside, data parallel groups across; one link is slow."""
    job = TrainingJob(layout=Layout(dp=2, tp=4, ranks_per_node=4), slow_groups={"mesh_dp:1": 0.25})
    recordings = dict.fromkeys(range(8), Recording(has_host=True))
    return Scenario(layout=job.layout, simulation=job.run(), recordings=recordings)


def deep_ep() -> Scenario:
    """Return a job whose experts are reached by DeepEP kernels, which carry no metadata and last unequally long."""
    layout = Layout(dp=4, ep=4)

    def body(rank: int, step: int) -> list[Instruction]:
        call = replace(_call(layout.world, "all_to_all"), library="deep_ep")
        return [
            Compute(length_ns=_late(rank, step)),
            call,
            Compute(length_ns=_late(rank, step + 1)),
            _call(layout.world, "all_reduce"),
        ]

    return Scenario(layout=layout, simulation=_run(layout, body))
