"""Stragglers of jobs whose collectives overlap compute, against the same jobs simulated without the fault."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import polars as pl
import pytest
from made_calls import make_call
from msgspec.structs import replace

from scope.analysis.collectives import compute_collectives
from scope.analysis.stragglers import Straggler, Stragglers, compute_stragglers
from scope.testing.jobs import Plant, TrainingJob, matrix_product
from scope.testing.layout import Layout
from scope.testing.program import BeginStep, EndStep, Host, Instruction
from scope.testing.scenarios import START_NS, Scenario
from scope.testing.simulate import Simulation, simulate
from scope.trace import ReadOptions, load
from scope.trace.schema import DeviceEvents
from scope.units import NS_PER_MS, NS_PER_US

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    Body = Callable[["Work"], list[Instruction]]

Extra = dict[tuple[int, str], int]
"""By rank and place in the step, how much longer its compute takes, in every step."""

US: Final = NS_PER_US
FOUR: Final = Layout(dp=4)
EIGHT: Final = Layout(dp=8)
REPLICAS: Final = Layout(dp=4, tp=2)


@dataclass(frozen=True)
class Work:
    """The compute of one rank."""

    rank: int
    extra: Extra

    def __call__(self, length_us: int, place: str) -> Instruction:
        """Return the compute at a place."""
        return matrix_product(length_us * US, extra_ns=self.extra.get((self.rank, place), 0))


def _buckets(layout: Layout, *, number: int, compute_us: int, transfer_us: int) -> Body:
    """Return data parallel steps: buckets of gradients are reduced under the backward pass, the last is waited for."""

    def body(work: Work) -> list[Instruction]:
        found = [work(2000, "forward")]
        for place in range(number):
            found.append(work(compute_us, f"backward {place}"))
            found.append(make_call(layout.world, "all_reduce", transfer_us, hides=place < number - 1))
        return [*found, work(300, "optimizer")]

    return body


def _sharded(work: Work) -> list[Instruction]:
    """Return steps of a sharded model: parameters are gathered ahead, gradients reduced under the backward pass."""
    world = EIGHT.world
    found: list[Instruction] = [make_call(world, "all_gather", 500)]
    for place in range(4):
        found += [make_call(world, "all_gather", 500, hides=True), work(1000, f"forward {place}")]
    for place in range(4):
        found += [make_call(world, "all_gather", 500, hides=True), work(2000, f"backward {place}")]
        found.append(make_call(world, "reduce_scatter", 600, hides=place < 3))
    return [*found, work(400, "optimizer")]


def _never_waited_for(work: Work) -> list[Instruction]:
    """Return sharded steps of which only a small all-reduce at the end is waited for."""
    world = FOUR.world
    found: list[Instruction] = [make_call(world, "all_gather", 400)]
    for place in range(3):
        found += [make_call(world, "all_gather", 400, hides=True) if place < 2 else Host(length_ns=US)]
        found.append(work(1000, f"forward {place}"))
    for place in range(3):
        found += [make_call(world, "all_gather", 400, hides=True), work(2000, f"backward {place}")]
        found.append(make_call(world, "reduce_scatter", 500, hides=True))
    return [*found, make_call(world, "all_reduce", 20), work(300, "optimizer")]


def _tensor_parallel(work: Work) -> list[Instruction]:
    """Return steps whose tensor parallel calls block while gradients are reduced under the backward pass."""
    inner, outer = REPLICAS.group("tp", work.rank), REPLICAS.group("dp", work.rank)
    assert inner is not None
    assert outer is not None
    found: list[Instruction] = [Host(length_ns=200 * US, activity="input")]
    for place in range(3):
        found += [work(1000, f"forward {place}"), make_call(inner, "all_reduce", 150)]
    for place in range(3):
        found += [work(2000, f"backward {place}"), make_call(inner, "all_reduce", 150)]
        found.append(make_call(outer, "all_reduce", 1200, hides=place < 2))
    return [*found, work(400, "optimizer")]


def _slower(rank: int, percent: int, number: int, compute_us: int) -> Extra:
    """Return what a rank takes longer whose compute up to the last call of a step is slower by a share."""
    places = {f"backward {place}": compute_us for place in range(number)} | {"forward": 2000}
    return {(rank, place): length_us * US * percent // 100 for place, length_us in places.items()}


@dataclass(frozen=True, kw_only=True)
class Made:
    """A job whose ranks differ by what is planted alone."""

    layout: Layout
    body: Body
    extra: Extra
    named: int | None
    """The rank that is to be named."""
    imposed_ns: int | None = None
    """What it imposes in each step, where that is not what mending it saves."""
    num_steps: int = 4

    def run(self, extra: Extra) -> Simulation:
        """Simulate the job with some of what is planted."""
        programs: Mapping[int, tuple[Instruction, ...]] = {
            rank: tuple(
                each
                for step in range(self.num_steps)
                for each in (BeginStep(number=step), *self.body(Work(rank, extra)), EndStep())
            )
            for rank in range(self.layout.world_size)
        }
        return simulate(programs, start_ns=dict.fromkeys(programs, START_NS))

    def saving_ns(self, rank: int) -> int:
        """Return how much sooner the simulated job ends without what is planted on a rank."""
        healthy = {place: length_ns for place, length_ns in self.extra.items() if place[0] != rank}
        return self.run(self.extra).end_ns - self.run(healthy).end_ns


MS: Final = NS_PER_MS
FEW: Final = _buckets(FOUR, number=4, compute_us=1000, transfer_us=600)
MANY: Final = _buckets(EIGHT, number=10, compute_us=1000, transfer_us=900)
BOUND: Final = _buckets(FOUR, number=4, compute_us=500, transfer_us=3000)
MADE: dict[str, Made] = {
    "sharded, forward": Made(layout=EIGHT, body=_sharded, extra={(3, "forward 1"): 2 * MS}, named=3),
    "sharded, a little": Made(layout=EIGHT, body=_sharded, extra={(3, "forward 1"): 400 * US}, named=3),
    "sharded, backward": Made(layout=EIGHT, body=_sharded, extra={(3, "backward 1"): 2 * MS}, named=3),
    "sharded, last layer": Made(layout=EIGHT, body=_sharded, extra={(3, "backward 3"): 2 * MS}, named=3),
    "sharded, nobody": Made(layout=EIGHT, body=_sharded, extra={}, named=None),
    "nothing waited for": Made(layout=FOUR, body=_never_waited_for, extra={(3, "forward 1"): 3 * MS}, named=3),
    "buckets, forward": Made(layout=FOUR, body=FEW, extra={(2, "forward"): 2 * MS}, named=2),
    "buckets, backward": Made(layout=FOUR, body=FEW, extra={(2, "backward 0"): 2 * MS}, named=2),
    "later for less": Made(
        layout=FOUR,
        body=FEW,
        extra={(0, "forward"): 2 * MS, (1, "backward 2"): 1200 * US},
        named=0,
        imposed_ns=2 * MS,
    ),
    "two of four": Made(
        layout=FOUR, body=FEW, extra={(1, "forward"): 2 * MS, (3, "forward"): 1500 * US}, named=1, num_steps=5
    ),
    "every bucket": Made(
        layout=FOUR,
        body=_buckets(FOUR, number=10, compute_us=1000, transfer_us=900),
        extra={(2, f"backward {place}"): 100 * US for place in range(10)},
        named=2,
    ),
    "many buckets": Made(layout=EIGHT, body=MANY, extra={(2, "forward"): 3 * MS}, named=2),
    "5 % slower": Made(layout=EIGHT, body=MANY, extra=_slower(2, 5, 10, 1000), named=2, num_steps=6),
    "20 % slower": Made(layout=EIGHT, body=MANY, extra=_slower(2, 20, 10, 1000), named=2, num_steps=6),
    "hidden by slow calls": Made(layout=FOUR, body=BOUND, extra={(2, "backward 2"): 2 * MS}, named=None),
    "before slow calls": Made(layout=FOUR, body=BOUND, extra={(2, "backward 0"): 2 * MS}, named=2),
    "partly hidden": Made(layout=FOUR, body=BOUND, extra={(2, "backward 2"): 8 * MS}, named=2),
    "tensor parallel, forward": Made(layout=REPLICAS, body=_tensor_parallel, extra={(5, "forward 0"): 2 * MS}, named=5),
    "tensor parallel, backward": Made(
        layout=REPLICAS, body=_tensor_parallel, extra={(5, "backward 1"): 2 * MS}, named=5
    ),
}


def _found(scenario: Scenario, folder: Path) -> Stragglers:
    scenario.write(folder)
    job = load([str(folder)], options=ReadOptions(use_cache=False), processes=1)
    return compute_stragglers(job, compute_collectives(job)).check()


@pytest.mark.parametrize("name", MADE)
def test_lateness_under_overlap_costs_what_the_job_without_it_saves(name: str, tmp_path: Path) -> None:
    """One lateness is charged once, the excess is what was planted, and the saving is the simulated, to the ns."""
    made = MADE[name]
    found = _found(Scenario(layout=made.layout, simulation=made.run(made.extra)), tmp_path)
    assert [each.rank for each in found.stragglers] == ([] if made.named is None else [made.named])
    for each in found.stragglers:
        saving_ns = made.saving_ns(each.rank)
        assert saving_ns > 0
        assert each.saving_ns == saving_ns
        assert each.imposed_wait_ns == (saving_ns if made.imposed_ns is None else made.imposed_ns * made.num_steps)
        assert each.reason == "compute"
        assert each.excess is not None
        planted_ns = sum(length_ns for (rank, _), length_ns in made.extra.items() if rank == each.rank)
        assert each.excess.compute_ns == planted_ns * made.num_steps


@pytest.mark.parametrize(("num_ranks", "second_us"), [(4, 1900), (4, 2100), (4, 4000), (3, 2100), (3, 3500)])
def test_the_later_of_two_late_ranks_is_named(num_ranks: int, second_us: int, tmp_path: Path) -> None:
    """That others are late as well, steadily, is no noise: of three or four ranks the later of two is named."""
    first, second = 1, num_ranks - 1
    plants = (
        Plant(rank=first, kind="compute", extra_ns=5 * MS, steps=range(99)),
        Plant(rank=second, kind="compute", extra_ns=second_us * US, steps=range(99)),
    )
    job = TrainingJob(layout=Layout(dp=num_ranks), num_steps=10, plants=plants)
    (straggler,) = _found(Scenario(layout=job.layout, simulation=job.run()), tmp_path).stragglers
    assert straggler.rank == first
    assert straggler.imposed_wait_ns == straggler.saving_ns == job.saving_ns(first) == 10 * (5000 - second_us) * US


def _rooted(operation: str, root: int, *rest: Instruction) -> Body:
    def body(work: Work) -> list[Instruction]:
        return [work(1000, "compute"), make_call(FOUR.world, operation, 80, root=root), *rest]

    return body


def _only(found: Stragglers) -> Straggler:
    (straggler,) = found.stragglers
    return straggler


@pytest.mark.parametrize("operation", ["broadcast", "scatter"])
def test_a_late_root_makes_the_receivers_wait(operation: str, tmp_path: Path) -> None:
    """The late root of a broadcast or scatter is named, with what the receivers wait and the job would save."""
    made = Made(layout=FOUR, body=_rooted(operation, 1), extra={(1, "compute"): 9 * MS}, named=1)
    straggler = _only(_found(Scenario(layout=FOUR, simulation=made.run(made.extra)), tmp_path))
    assert (straggler.rank, straggler.reason, straggler.num_collectives) == (1, "compute", made.num_steps)
    assert straggler.imposed_wait_ns == straggler.saving_ns == made.saving_ns(1) == 9 * MS * made.num_steps
    assert straggler.excess is not None
    assert straggler.excess.compute_ns == 9 * MS * made.num_steps


def test_a_wait_for_the_root_of_the_same_group_is_no_excuse(tmp_path: Path) -> None:
    """Root 0 brings all others 40 ms late; rank 2, which waited for it, is 9 ms late behind that, by its own work."""

    def body(work: Work) -> list[Instruction]:
        broadcast = make_call(FOUR.world, "broadcast", 80, root=0)
        return [work(1000, "before"), broadcast, work(1000, "behind"), make_call(FOUR.world, "all_reduce", 80)]

    made = Made(layout=FOUR, body=body, extra={(0, "before"): 40 * MS, (2, "behind"): 9 * MS}, named=None)
    found = _found(Scenario(layout=FOUR, simulation=made.run(made.extra)), tmp_path)
    imposed = {each.rank: each.imposed_wait_ns for each in found.stragglers}
    assert imposed == {0: 40 * MS * made.num_steps, 2: 9 * MS * made.num_steps}
    assert all(each.saving_ns == made.saving_ns(each.rank) for each in found.stragglers)


@pytest.mark.parametrize("operation", ["reduce", "gather"])
def test_a_late_sender_makes_the_root_wait(operation: str, tmp_path: Path) -> None:
    """The root of a reduce or gather waits for the late sender, which is named with what the job would save."""
    # Roots end when they please; what all do together tells the clocks.
    body = _rooted(operation, 1, make_call(FOUR.world, "all_reduce", 80))
    made = Made(layout=FOUR, body=body, extra={(2, "compute"): 9 * MS}, named=2)
    straggler = _only(_found(Scenario(layout=FOUR, simulation=made.run(made.extra)), tmp_path))
    assert (straggler.rank, straggler.reason) == (2, "compute")
    assert straggler.saving_ns == made.saving_ns(2)
    assert straggler.imposed_wait_ns == 9 * MS * made.num_steps


@pytest.mark.parametrize(("operation", "late"), [("broadcast", 2), ("scatter", 0), ("reduce", 1), ("gather", 1)])
def test_who_is_waited_for_by_nobody_is_not_named(operation: str, late: int, tmp_path: Path) -> None:
    """Nobody waits for a late receiver of a broadcast or scatter, or for the late root of a reduce or gather."""
    made = Made(layout=FOUR, body=_rooted(operation, 1), extra={(late, "compute"): 9 * MS}, named=None, num_steps=1)
    found = _found(Scenario(layout=FOUR, simulation=made.run(made.extra)), tmp_path)
    assert found.stragglers == ()
    assert found.num_collectives_judged == 1


def test_without_launches_no_lateness_is_charged_twice(tmp_path: Path) -> None:
    """Of traces without launches nothing is charged at calls that were queued under compute: nobody can tell."""
    made = MADE["sharded, forward"]
    Scenario(layout=made.layout, simulation=made.run(made.extra)).write(tmp_path)
    job = load([str(tmp_path)], options=ReadOptions(use_cache=False), processes=1)
    none = pl.lit(None, dtype=DeviceEvents.launch_id.dtype).alias(DeviceEvents.launch_id)
    ranks = tuple(
        replace(each, launches=each.launches.clear(), device_events=each.device_events.with_columns(none))
        for each in job.ranks
    )
    unlaunched = replace(job, ranks=ranks)
    found = compute_stragglers(unlaunched, compute_collectives(unlaunched)).check()
    assert found.num_collectives_skipped > 0
    assert [each.rank for each in found.stragglers] == [made.named]
    assert found.stragglers[0].imposed_wait_ns <= made.saving_ns(3)
    # What mending it saves depends on what the queued calls waited for.
    assert found.stragglers[0].saving_ns is None
    assert "overlap compute" in found.stragglers[0].absent["saving_ns"]


SHARDS: Final = Layout(dp=2, tp=4)


def _gradients_under_shards(work: Work) -> list[Instruction]:
    """Return steps whose gradients are reduced beside tensor parallel calls, and take longer than these."""
    inner, outer = SHARDS.group("tp", work.rank), SHARDS.group("dp", work.rank)
    found: list[Instruction] = []
    for place in range(6):
        found += [work(500, f"forward {place}"), make_call(inner, "all_reduce", 120)]
    for place in range(6):
        found.append(work(1000, f"backward {place}"))
        if place % 2:
            found.append(make_call(outer, "all_reduce", 700, hides=place < 5))
        found.append(make_call(inner, "all_reduce", 120))
    return [*found, work(300, "optimizer")]


def test_two_late_ranks_of_one_group_save_what_the_jobs_without_them_save(tmp_path: Path) -> None:
    """That nobody waits for gradients beside a tensor parallel call, the late rank shows, whose peers stood still."""
    extra = {(7, "forward 2"): 3 * MS, (5, "backward 3"): 3 * MS}
    made = Made(layout=SHARDS, body=_gradients_under_shards, extra=extra, named=None)
    found = _found(Scenario(layout=made.layout, simulation=made.run(made.extra)), tmp_path)
    savings = {each.rank: each.saving_ns for each in found.stragglers}
    assert savings == {rank: made.saving_ns(rank) for rank in (5, 7)}
    assert found.together is not None
    assert found.together.saving_ns == made.run(extra).end_ns - made.run({}).end_ns
