"""What the repair of one rank or one link saves, against the same job simulated without the fault."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import polars as pl
import pytest
from made_calls import make_call

from scope.analysis.collective_tables import CollectiveRows, GroupRows
from scope.analysis.collectives import Collectives, compute_collectives
from scope.analysis.rank_activity import build_activity
from scope.analysis.readiness import compute_ready
from scope.analysis.replay_building import LazyReplay, build_replay
from scope.analysis.stragglers import compute_stragglers
from scope.testing import scenarios
from scope.testing.jobs import Plant, PlantKind, TrainingJob, matrix_product
from scope.testing.kineto import Clock, Recording, write_traces
from scope.testing.layout import Layout
from scope.testing.program import BeginStep, EndStep
from scope.testing.simulate import simulate
from scope.trace import ReadOptions, load
from scope.units import NS_PER_MS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from scope.testing.program import Instruction
    from scope.testing.scenarios import Scenario
    from scope.testing.simulate import Simulation
    from scope.trace.model import Job

ALWAYS: Final = range(99)


def _plant(rank: int, kind: PlantKind, ms: int, steps: range = ALWAYS) -> Plant:
    return Plant(rank=rank, kind=kind, extra_ns=ms * NS_PER_MS, steps=steps)


def _load(job: TrainingJob, folder: Path) -> Job:
    write_traces(job.run(), job.layout, folder)
    return load([str(folder)], options=ReadOptions(use_cache=False), processes=1)


def _replay(loaded: Job) -> tuple[Collectives, LazyReplay]:
    collectives = compute_collectives(loaded)
    return collectives, LazyReplay(collectives, build_activity(loaded, collectives), compute_ready(loaded, collectives))


UNCHANGED: dict[str, Callable[[], Scenario]] = {
    "early root": scenarios.early_broadcast_root,
    "late root": scenarios.late_broadcast_root,
    "rooted": scenarios.rooted_operations,
    "two groups of equal ranks": scenarios.equal_groups,
    "missing ranks": scenarios.missing_ranks,
    "drifting clocks": scenarios.drifting_clocks,
    "coalesced": scenarios.coalesced_calls,
    "prefetch": scenarios.prefetched_copies,
    "overlap": scenarios.overlapped_communication,
    "overrun": scenarios.overrunning_kernels,
    "no metadata": scenarios.without_metadata,
    "namesakes": scenarios.elided_groups,
    "pipeline": scenarios.pipeline_cascade,
    "send and recv": scenarios.send_and_receive,
    "window edge": scenarios.window_edge,
    "several nodes": scenarios.several_nodes,
    "deep_ep": scenarios.deep_ep,
}


@pytest.mark.parametrize("name", UNCHANGED)
def test_played_unchanged_everything_happens_when_it_did(name: str, tmp_path: Path) -> None:
    """A replay without a change moves no instant of any rank, whatever the job."""
    UNCHANGED[name]().write(tmp_path)
    loaded = load([str(tmp_path)], options=ReadOptions(use_cache=False), processes=1)
    collectives = compute_collectives(loaded)
    replay = build_replay(collectives, build_activity(loaded, collectives), compute_ready(loaded, collectives))
    shifts = replay.play()
    assert shifts.job_ns == 0
    assert set(shifts.by_step_ns.values()) == {0}
    # Not because it holds nothing: every call of every rank is in it.
    assert sum(event.kind == "ready" for events in replay.events.values() for event in events) == collectives.num_calls


@dataclass(frozen=True, kw_only=True)
class Faulty:
    """A job with faults, and who is to be named."""

    layout: Layout
    plants: tuple[Plant, ...] = ()
    slow_groups: Mapping[str, float] = field(default_factory=dict[str, float])
    named: tuple[int, ...] = ()

    def job(self) -> TrainingJob:
        """Return the job."""
        return TrainingJob(layout=self.layout, plants=self.plants, slow_groups=self.slow_groups, num_steps=3)


FAULTS: dict[str, Faulty] = {
    "nothing": Faulty(layout=Layout(dp=2, tp=4)),
    "nothing, all axes": Faulty(layout=Layout(dp=2, tp=2, pp=2, cp=2)),
    "innermost link": Faulty(layout=Layout(dp=2, tp=4), slow_groups={"mesh_tp:4": 0.02}),
    "link of replicas": Faulty(layout=Layout(dp=2, tp=4), slow_groups={"mesh_dp:1": 0.05}),
    "link across nodes": Faulty(layout=Layout(dp=2, tp=4, ranks_per_node=4), slow_groups={"mesh_dp:2": 0.1}),
    "outermost link": Faulty(layout=Layout(dp=2, pp=4), slow_groups={"mesh_pp:1": 0.02}),
    "link of experts": Faulty(layout=Layout(dp=8, ep=4), slow_groups={"mesh_ep:4": 0.02}),
    "two links": Faulty(layout=Layout(dp=2, tp=2, pp=2), slow_groups={"mesh_tp:2": 0.1, "mesh_dp:1": 0.2}),
    "all links of an axis": Faulty(layout=Layout(dp=2, tp=4), slow_groups={f"mesh_dp:{i}": 0.05 for i in range(4)}),
    "two ranks in two groups": Faulty(
        layout=Layout(dp=2, tp=4), plants=(_plant(1, "compute", 5), _plant(6, "memory", 3)), named=(1, 6)
    ),
    "two ranks in one group": Faulty(
        layout=Layout(dp=8), plants=(_plant(1, "compute", 3), _plant(6, "host", 5)), named=(6,)
    ),
    "two ranks at two times": Faulty(
        layout=Layout(dp=4, tp=2),
        plants=(_plant(3, "input", 6, range(10, 11)), _plant(4, "host", 4, range(12, 13))),
        named=(3, 4),
    ),
    "rank, and link of others": Faulty(
        layout=Layout(dp=8, ep=4), plants=(_plant(1, "host", 4),), slow_groups={"mesh_ep:4": 0.2}, named=(1,)
    ),
    "rank, and its own link": Faulty(
        layout=Layout(dp=2, tp=4), plants=(_plant(5, "host", 4),), slow_groups={"mesh_tp:4": 0.1}, named=(5,)
    ),
    "rank that a link hides partly": Faulty(
        layout=Layout(dp=2, tp=4), plants=(_plant(1, "host", 4),), slow_groups={"mesh_tp:4": 0.1}, named=(1,)
    ),
    "rank in a pipeline": Faulty(layout=Layout(dp=2, pp=4), plants=(_plant(3, "compute", 6),), named=(3,)),
    "ranks of half of the pairs, each in other steps": Faulty(
        layout=Layout(dp=2, pp=4),
        plants=(_plant(2, "compute", 6, range(10, 14, 2)), _plant(7, "compute", 6, range(11, 14, 2))),
        named=(2, 7),
    ),
    "rank in the bubble": Faulty(
        layout=Layout(dp=4, tp=2, pp=2), plants=(_plant(10, "memory", 5, range(10, 11)),), named=(10,)
    ),
    "ranks and links on all axes": Faulty(
        layout=Layout(dp=2, tp=2, pp=2, cp=2),
        plants=(_plant(5, "compute", 5), _plant(12, "input", 3, range(11, 13))),
        slow_groups={"mesh_cp:4": 0.1, "mesh_tp:0": 0.2},
        named=(5, 12),
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_saving_is_that_of_a_job_without_the_fault(name: str, tmp_path: Path) -> None:
    """The planted ranks alone are named, and for each rank and link the saving is the simulated one, to the ns."""
    faulty = FAULTS[name]
    job = faulty.job()
    loaded = _load(job, tmp_path)
    collectives, lazy = _replay(loaded)
    found = compute_stragglers(loaded, collectives).check()
    savings = {each.rank: each.saving_ns for each in found.stragglers}
    assert savings == {rank: job.saving_ns(rank) for rank in faulty.named}
    for group, ratio in faulty.slow_groups.items():
        healthy = {other: left for other, left in faulty.slow_groups.items() if other != group}
        shifts = lazy.without_slow_link(dict.fromkeys(_collectives_of(group, collectives), ratio))
        saving = job.run().end_ns - replace(job, slow_groups=healthy).run().end_ns
        # The simulated transfers are rounded to whole ns, each by itself.
        assert shifts.job_ns == pytest.approx(saving, abs=20)


def _collectives_of(group: str, collectives: Collectives) -> list[int]:
    """Return the collectives of a group that is named by its axis and first rank; those of all its pairs."""
    axis, _, first = group.partition(":")
    groups = collectives.groups.filter(pl.col(GroupRows.description) == axis)
    names = groups.filter(pl.col(GroupRows.ranks).list.first() == int(first))[GroupRows.name].to_list()
    ids = groups.filter(pl.col(GroupRows.name).is_in(names))[GroupRows.group_id].to_list()
    rows = collectives.collectives.filter(pl.col(CollectiveRows.group_id).is_in(ids))
    return rows[CollectiveRows.collective_id].to_list()


def test_savings_of_all_ranks_and_steps(tmp_path: Path) -> None:
    """Each rank gains in each step what the delay cost it there, and nothing where nobody was late."""
    job = TrainingJob(layout=Layout(dp=4), plants=(_plant(2, "host", 5, range(11, 13)),))
    loaded = _load(job, tmp_path)
    found = compute_stragglers(loaded, compute_collectives(loaded))
    gains = [(2, rank, step, 5 * NS_PER_MS) for rank in range(4) for step in (11, 12)]
    assert found.savings.rows() == gains


@pytest.mark.parametrize("ahead_ms", [-50, 0, 50])
def test_jobs_that_nothing_joins_save_each_its_own(ahead_ms: int, tmp_path: Path) -> None:
    """Of two jobs in one folder each straggler saves what its own job does, whatever the clocks of the other."""
    layout = Layout(dp=2, tp=4)
    extra_ns = {1: 5 * NS_PER_MS, 6: 2 * NS_PER_MS}

    def run(late: Mapping[int, int]) -> Simulation:
        programs: dict[int, tuple[Instruction, ...]] = {}
        for rank in range(layout.world_size):
            compute = matrix_product(NS_PER_MS, extra_ns=late.get(rank, 0))
            body = (compute, make_call(layout.group("tp", rank), "all_reduce", 100))
            steps = ((BeginStep(number=step), *body, EndStep()) for step in range(4))
            programs[rank] = tuple(each for step in steps for each in step)
        return simulate(programs, start_ns=dict.fromkeys(programs, scenarios.START_NS))

    clock = Clock(offset_ns=ahead_ms * NS_PER_MS)
    write_traces(run(extra_ns), layout, tmp_path, recordings=dict.fromkeys(range(4, 8), Recording(clock=clock)))
    loaded = load([str(tmp_path)], options=ReadOptions(use_cache=False), processes=1)
    found = compute_stragglers(loaded, compute_collectives(loaded)).check()
    alone = {rank: run({rank: ns}).end_ns - run({}).end_ns for rank, ns in extra_ns.items()}
    assert {each.rank: each.saving_ns for each in found.stragglers} == alone
