"""What fixing a rank saves where all compute scatters, against the same job in which it is as fast as its peers."""

from __future__ import annotations

import random
from dataclasses import replace
from statistics import median_low
from typing import TYPE_CHECKING, Final

import pytest

from scope.analysis.collectives import compute_collectives
from scope.analysis.stragglers import compute_stragglers
from scope.testing.jobs import TrainingJob, matrix_product
from scope.testing.layout import Layout
from scope.testing.program import BeginStep, Compute, EndStep, Instruction, Program
from scope.testing.scenarios import START_NS, Scenario
from scope.testing.simulate import Simulation, simulate
from scope.trace import ReadOptions, load
from scope.units import NS_PER_MS, NS_PER_US

if TYPE_CHECKING:
    from pathlib import Path

LAYOUT: Final = Layout(dp=4, tp=2)
"""Replicas of a model that is sharded over pairs: the axis `tp` stands for the shards."""
LATE: Final = 1
NOISE: Final = 0.1


def _program(rank: int, seed: int) -> Program:
    """Return steps that gather parameters before each layer, and scatter and reduce its gradients behind it."""
    chance, job = random.Random(f"{seed} {rank}"), TrainingJob(layout=LAYOUT)
    shards, replicas = LAYOUT.group("tp", rank), LAYOUT.group("dp", rank)
    assert shards is not None
    assert replicas is not None

    def compute(length_us: int, *, extra_ns: int = 0) -> Compute:
        product = matrix_product(length_us * NS_PER_US)
        length_ns = round(product.length_ns * (1 + chance.uniform(-NOISE, NOISE)))
        return replace(product, length_ns=length_ns + extra_ns)

    gather = job.call(shards, "all_gather", 1 << 23)
    found: list[Instruction] = []
    for step in range(5):
        found.append(BeginStep(number=step))
        for layer in range(3):
            found += [gather, compute(1000, extra_ns=3 * NS_PER_MS if (rank, layer) == (LATE, 1) else 0)]
        for _ in range(3):
            found += [gather, compute(2000), job.call(shards, "reduce_scatter", 1 << 23)]
            found.append(job.call(replicas, "all_reduce", 1 << 22))
        found += [compute(300), EndStep()]
    return tuple(found)


def _as_fast_as_peers(programs: dict[int, Program]) -> Program:
    """Return the program of the late rank, of which no compute takes longer than the median of its peers."""
    peers = [program for rank, program in programs.items() if rank != LATE]
    return tuple(
        replace(each, length_ns=min(each.length_ns, median_low(_length_ns(peer[place]) for peer in peers)))
        if isinstance(each, Compute)
        else each
        for place, each in enumerate(programs[LATE])
    )


def _length_ns(instruction: Instruction) -> int:
    assert isinstance(instruction, Compute)
    return instruction.length_ns


def _run(programs: dict[int, Program]) -> Simulation:
    return simulate(programs, start_ns=dict.fromkeys(programs, START_NS))


@pytest.mark.parametrize("seed", range(3))
def test_a_saving_under_noise_is_that_of_a_rank_as_fast_as_its_peers(seed: int, tmp_path: Path) -> None:
    """Compute scatters by 10 %: what the late rank scatters beyond its peers is mended with what was planted."""
    programs = {rank: _program(rank, seed) for rank in range(LAYOUT.world_size)}
    simulation = _run(programs)
    truth_ns = simulation.end_ns - _run(programs | {LATE: _as_fast_as_peers(programs)}).end_ns
    Scenario(layout=LAYOUT, simulation=simulation).write(tmp_path)
    job = load([str(tmp_path)], options=ReadOptions(use_cache=False), processes=1)
    straggler = compute_stragglers(job, compute_collectives(job)).check().stragglers[0]
    assert straggler.rank == LATE
    assert straggler.saving_ns == pytest.approx(truth_ns, rel=0.01)
