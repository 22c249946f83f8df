"""Calls that no `Seq` numbers find their partners however far apart the ranks' clocks stand, or it is said.

What is true are the collectives of the simulator, on the true clock.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final

import polars as pl
import pytest
from msgspec.structs import replace

from scope.analysis.collectives import compute_collectives
from scope.analysis.matching import match_calls
from scope.analysis.stragglers import compute_stragglers
from scope.testing.jobs import START_NS, Plant, TrainingJob
from scope.testing.kineto import Clock, Recording, write_traces
from scope.testing.layout import Layout
from scope.testing.program import BeginStep, Call, Compute, EndStep
from scope.testing.simulate import simulate
from scope.trace import ReadOptions, load
from scope.units import NS_PER_MS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from scope.testing.program import Instruction
    from scope.testing.simulate import Simulation
    from scope.trace.model import Job

Parts = frozenset[tuple[int, int]]

WORLD: Final = Layout(dp=4, ranks_per_node=1)
OFFSETS_NS: Final = range(-50 * NS_PER_MS, 50 * NS_PER_MS, 2_333_333)
"""Strides that fit neither steps nor calls."""


def _sharded(rank: int) -> Iterator[Instruction]:
    """Yield four steps that gather the parameters of each layer and scatter its gradients."""

    def call(operation: str) -> Call:
        whole, part = 1 << 20, 1 << 18
        put_in, received = (part, whole) if operation == "all_gather" else (whole, part)
        return Call(
            group=WORLD.world, operation=operation, in_elements=put_in, out_elements=received, transfer_ns=80_000
        )

    for step in range(4):
        yield BeginStep(number=step)
        for layer in range(3):
            yield from (call("all_gather"), Compute(length_ns=500_000 + (rank * 37 + step * 11 + layer) % 23 * 7_000))
        for _ in range(3):
            yield from (call("all_gather"), Compute(length_ns=1_000_000), call("reduce_scatter"))
        yield EndStep()


def _jobs() -> dict[str, tuple[Layout, Simulation]]:
    data, stages = Layout(dp=4), Layout(dp=2, pp=2)
    programs = {rank: tuple(_sharded(rank)) for rank in range(4)}
    return {
        "data parallel": (data, TrainingJob(layout=data, jitter_ns=20_000).run()),
        "pipeline": (stages, TrainingJob(layout=stages, jitter_ns=20_000).run()),
        "sharded": (WORLD, simulate(programs, start_ns=dict.fromkeys(programs, START_NS))),
    }


JOBS: Final = _jobs()


def _recorded(name: str, folder: Path, recording: Recording) -> Job:
    layout, simulation = JOBS[name]
    write_traces(simulation, layout, folder, recordings=dict.fromkeys(range(4), recording))
    return load([str(folder)], options=ReadOptions(use_cache=False), processes=1)


def _planted(offset_ns: int) -> dict[int, int]:
    return dict(enumerate((0, offset_ns, -offset_ns // 3, offset_ns // 7)))


def _on_clocks(job: Job, planted: dict[int, int]) -> Job:
    """Return the job as recorded on hosts whose clocks stand apart."""
    instants = pl.col("start_ns", "end_ns")
    ranks = tuple(
        replace(trace, collective_calls=trace.collective_calls.with_columns(instants + planted[trace.rank or 0]))
        for trace in job.ranks
    )
    return replace(job, ranks=ranks)


def _found(job: Job, planted: dict[int, int]) -> set[Parts]:
    parts: defaultdict[int | None, set[tuple[int, int]]] = defaultdict(set)
    for collective, rank, start in match_calls(job).calls.select("collective_id", "rank", "start_ns").rows():
        parts[collective].add((rank, start - planted[rank]))
    return {frozenset(each) for each in parts.values()}


def _true(name: str) -> set[Parts]:
    return {frozenset(each.arrivals_ns.items()) for each in JOBS[name][1].collectives}


@pytest.mark.parametrize("name", JOBS)
def test_numbers_of_steps_pair_calls_at_any_distance_of_the_clocks(name: str, tmp_path: Path) -> None:
    """Without any `Seq`, calls of one step are one collective, and where some join all ranks the clocks come out."""
    job = _recorded(name, tmp_path, Recording(has_sequence=False))
    for offset in OFFSETS_NS:
        planted = _planted(offset)
        moved = _on_clocks(job, planted)
        assert _found(moved, planted) == _true(name), offset
        found = compute_collectives(moved)
        assert (found.num_incomplete, found.num_by_recorded_clocks, found.clock.num_contradictions) == (0, 0, 0)
        true = [planted[each.rank] - planted[each.reference_rank] for each in found.clock.offsets]
        # Sender and receiver of a pair end at once in the simulator, as the ranks of a collective do.
        assert [each.offset_ns for each in found.clock.offsets] == pytest.approx(true, abs=100)


def test_without_numbers_messages_are_paired_by_the_clocks_of_numbered_collectives(tmp_path: Path) -> None:
    """Messages of a pipeline without steps find their partners where collectives with `Seq` join the stages' clocks."""
    layout = Layout(dp=2, pp=2, tp=1)

    def program(rank: int) -> Iterator[Instruction]:
        job = TrainingJob(layout=layout, num_steps=5)
        for instruction in job.programs()[rank]:
            if isinstance(instruction, EndStep):
                yield Call(group=layout.world, operation="all_reduce", in_elements=1, out_elements=1, transfer_ns=9_000)
            yield instruction

    simulation = simulate({rank: tuple(program(rank)) for rank in range(4)}, start_ns=dict.fromkeys(range(4), START_NS))
    write_traces(simulation, layout, tmp_path, recordings=dict.fromkeys(range(4), Recording(has_steps=False)))
    job = load([str(tmp_path)], options=ReadOptions(use_cache=False), processes=1)
    true = {frozenset(each.arrivals_ns.items()) for each in simulation.collectives}
    for offset in OFFSETS_NS:
        planted = _planted(offset)
        moved = _on_clocks(job, planted)
        assert _found(moved, planted) == true, offset
        assert compute_collectives(moved).num_by_recorded_clocks == 0


def test_what_rests_on_clocks_of_which_nothing_is_known_is_counted(tmp_path: Path) -> None:
    """Without steps, `Seq` and hosts, calls are paired as if the clocks agreed, and their number is told."""
    job = _recorded("data parallel", tmp_path / "a", Recording(has_sequence=False, has_steps=False))
    found = compute_collectives(job)
    # All four calls of the three ranks that are not the one others are aligned with.
    assert (found.num_matched, found.num_by_recorded_clocks, found.num_incomplete) == (16, 12, 0)
    job = _recorded("data parallel", tmp_path / "b", Recording(has_sequence=False, has_steps=False, has_host=True))
    assert compute_collectives(job).num_by_recorded_clocks == 0


@pytest.mark.parametrize("offset_ms", [3, 8, 10, 20])
def test_a_straggler_is_named_whatever_the_clocks(offset_ms: int, tmp_path: Path) -> None:
    """A rank that is 1 ms late in each of four steps costs 4 ms, where a stage or a rank has another clock."""
    plants = (Plant(rank=1, kind="compute", extra_ns=NS_PER_MS, steps=range(99)),)
    apart = Clock(offset_ns=offset_ms * NS_PER_MS)
    for layout, others, has_sequence in ((Layout(dp=2, pp=2), (2, 3), True), (Layout(dp=4), (2,), False)):
        job = TrainingJob(layout=layout, plants=plants, jitter_ns=20_000)
        recordings = {
            rank: Recording(has_sequence=has_sequence, clock=apart if rank in others else Clock()) for rank in range(4)
        }
        folder = tmp_path / f"{layout.pp}"
        write_traces(job.run(), layout, folder, recordings=recordings)
        read = load([str(folder)], options=ReadOptions(use_cache=False), processes=1)
        found = compute_collectives(read)
        assert (found.num_incomplete, found.clock.num_contradictions) == (0, 0)
        (named,) = compute_stragglers(read, found).stragglers
        assert (named.rank, named.saving_ns) == (1, pytest.approx(job.saving_ns(1), abs=1_000))
