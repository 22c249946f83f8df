"""Late ranks in rings of context parallelism, which wait for each other before all meet, against simulated jobs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import polars as pl
import pytest
from made_calls import make_call

from scope.analysis.collective_tables import GroupRows
from scope.analysis.collectives import compute_collectives
from scope.analysis.straggler_charges import joined_by_pairs
from scope.analysis.stragglers import Stragglers, compute_stragglers
from scope.testing.jobs import matrix_product
from scope.testing.layout import Layout
from scope.testing.program import BeginStep, EndStep, Exchange, Instruction
from scope.testing.scenarios import START_NS, Scenario
from scope.testing.simulate import Simulation, simulate
from scope.trace import ReadOptions, load
from scope.units import NS_PER_MS, NS_PER_US

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

NUM_STEPS: Final = 5
LAYOUT: Final = Layout(cp=4, dp=2)


@dataclass(frozen=True, kw_only=True)
class Rings:
    """A job of two rings that pass their blocks on under attention, of which one rank is late in some steps."""

    late: int = 1
    steps: Collection[int] = ()
    extra_ns: int = 3 * NS_PER_MS

    def run(self) -> Simulation:
        """Simulate the job."""
        programs = {rank: tuple(self._program(rank)) for rank in range(LAYOUT.world_size)}
        return simulate(programs, start_ns=dict.fromkeys(programs, START_NS))

    def saving_ns(self) -> int:
        """Return how much sooner the job ends without the lateness."""
        return self.run().end_ns - replace(self, steps=()).run().end_ns

    def _program(self, rank: int) -> list[Instruction]:
        found: list[Instruction] = []
        for step in range(NUM_STEPS):
            extra_ns = self.extra_ns if rank == self.late and step in self.steps else 0
            found.append(BeginStep(number=step))
            for layer in range(3):
                found.append(matrix_product(600 * NS_PER_US, extra_ns=extra_ns if layer == 1 else 0))
                for _ in range(len(_ring(rank)) - 1):
                    found += [*_pass_on(rank), matrix_product(300 * NS_PER_US)]
            found += [make_call(LAYOUT.world, "reduce_scatter", 500), matrix_product(300 * NS_PER_US), EndStep()]
        return found


def _ring(rank: int) -> tuple[int, ...]:
    group = LAYOUT.group("cp", rank)
    assert group is not None
    return group.ranks


def _pass_on(rank: int) -> list[Instruction]:
    """Return what a rank sends to the next of its ring and gets from the one before, in an order without deadlock."""
    group, ranks = LAYOUT.group("cp", rank), _ring(rank)
    assert group is not None
    place = ranks.index(rank)
    both = [
        Exchange(group=group, is_send=is_send, peer=peer, elements=1 << 20, transfer_ns=50 * NS_PER_US)
        for is_send, peer in ((True, ranks[(place + 1) % len(ranks)]), (False, ranks[place - 1]))
    ]
    return [*both] if place % 2 else [*reversed(both)]


def _found(job: Rings, folder: Path) -> Stragglers:
    Scenario(layout=LAYOUT, simulation=job.run()).write(folder)
    loaded = load([str(folder)], options=ReadOptions(use_cache=False), processes=1)
    return compute_stragglers(loaded, compute_collectives(loaded)).check()


@pytest.mark.parametrize("steps", [(2,), (0, 3), tuple(range(NUM_STEPS))])
def test_who_holds_up_its_ring_is_named(steps: tuple[int, ...], tmp_path: Path) -> None:
    """All ranks of its ring come late behind it: it alone is named, imposes what it saves, and saves the simulated."""
    job = Rings(steps=steps)
    (straggler,) = _found(job, tmp_path).stragglers
    assert (straggler.rank, straggler.reason, straggler.num_steps) == (job.late, "compute", len(steps))
    saving_ns = job.saving_ns()
    assert saving_ns > 0.9 * len(steps) * job.extra_ns
    assert straggler.saving_ns == pytest.approx(saving_ns, rel=0.02)
    assert straggler.imposed_wait_ns == pytest.approx(saving_ns, rel=0.02)


def test_rings_without_a_late_rank_name_nobody(tmp_path: Path) -> None:
    """Ranks of a ring that pass blocks on in turn are late for nobody."""
    assert _found(Rings(), tmp_path).stragglers == ()


@pytest.mark.parametrize(
    ("label", "is_ring"),
    [
        ("mesh_cp", True),
        ("CP", True),
        ("context_parallel", True),
        ("ring", True),
        ("mesh_ring", True),
        ("ring_attention", True),
        ("RingAttention", True),
        ("FastRing", True),
        ("ringattention", True),
        ("ContextParallel", True),
        ("CONTEXT_PARALLEL_GROUP", True),
        ("CPGroup", True),
        ("ringmaster_dp", False),
        ("ringbuffer_dp", False),
        ("contextual_tp", False),
        ("TCPStore", False),
        ("training_pp", False),
        ("sharing", False),
        ("string", False),
        ("tcp_store", False),
        ("pp", False),
    ],
)
def test_rings_are_told_from_pipelines_by_whole_words(label: str, *, is_ring: bool) -> None:
    """The word may be a part of a label, and is none within another word."""
    row = {GroupRows.is_pair: True, GroupRows.ranks: [4, 7], GroupRows.description: label, GroupRows.name: None}
    groups = pl.DataFrame([row])
    joined = {4: 4, 7: 4}
    assert joined_by_pairs(groups, of_context=True) == (joined if is_ring else {})
    assert joined_by_pairs(groups, of_context=False) == ({} if is_ring else joined)
