"""Stragglers where calls are queued behind others without compute between them, against jobs made without the fault."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import polars as pl
import pytest
from made_calls import make_call
from msgspec import structs

from scope.analysis.collectives import compute_collectives
from scope.analysis.stragglers import Stragglers, compute_stragglers
from scope.testing.jobs import matrix_product
from scope.testing.kineto import Recording
from scope.testing.layout import Layout
from scope.testing.program import BeginStep, EndStep, Exchange, Instruction
from scope.testing.scenarios import START_NS, Scenario
from scope.testing.simulate import Simulation, simulate
from scope.trace import ReadOptions, load
from scope.trace.schema import DeviceEvents
from scope.units import NS_PER_MS, NS_PER_US

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Work = Callable[[int, str], Instruction]
    """Length in us, and place in the step, to compute."""
    Body = Callable[[Layout, int, Work], list[Instruction]]

US: Final = NS_PER_US
NUM_STEPS: Final = 4
BEGIN_GAP_NS: Final = 2 * US
"""Devices begin a call that was not queued about as long after the compute that it depends on."""


def _sharded(layout: Layout, rank: int, work: Work) -> list[Instruction]:
    """Return steps in which a gather stands right behind the scatter before it."""
    del rank
    found: list[Instruction] = [make_call(layout.world, "all_gather", 300, hides=False)]
    for place in range(4):
        found += [make_call(layout.world, "all_gather", 300, hides=True), work(600, f"forward {place}")]
    for place in range(4):
        found += [make_call(layout.world, "all_gather", 300, hides=True), work(1200, f"backward {place}")]
        found.append(make_call(layout.world, "reduce_scatter", 400, hides=place < 3))
    return [*found, work(300, "optimizer")]


def _norm(layout: Layout, rank: int, work: Work) -> list[Instruction]:
    """Return steps in which two tiny calls run back to back."""
    del rank
    tiny = [make_call(layout.world, "all_reduce", 20, hides=place == 0) for place in range(2)]
    return [
        work(2000, "backward"),
        *tiny,
        work(300, "optimizer"),
        make_call(layout.world, "all_gather", 400, hides=False),
    ]


def _hybrid(layout: Layout, rank: int, work: Work) -> list[Instruction]:
    """Return steps in which what was scattered among shards is reduced among replicas, both under compute."""
    shards, replicas = layout.group("tp", rank), layout.group("dp", rank)
    found = [work(600, "forward")]
    for place in range(6):
        found.append(work(1200, f"backward {place}"))
        found.append(make_call(shards, "reduce_scatter", 400, hides=place < 5))
        found.append(make_call(replicas, "all_reduce", 300, hides=place < 5, follows=shards))
    return [*found, work(300, "optimizer")]


def _beside(layout: Layout, rank: int, work: Work) -> list[Instruction]:
    """Return steps in which buckets of gradients begin beside tensor parallel calls, and take longer than those."""
    inner, outer = layout.group("tp", rank), layout.group("dp", rank)
    found = [work(600, "forward")]
    for place in range(6):
        found.append(work(1000, f"backward {place}"))
        found.append(make_call(outer, "all_reduce", 700, hides=place < 5))
        found.append(make_call(inner, "all_reduce", 150, hides=False))
    return [*found, work(300, "optimizer")]


def _gradients_beside(layout: Layout, rank: int, work: Work) -> list[Instruction]:
    """Return steps in which tensor parallel calls run under buckets of gradients that nothing waits for before the end.

    On a group that comes late they run under the transfer of a bucket, on the other under its wait for that group.
    """
    inner, outer = layout.group("tp", rank), layout.group("dp", rank)
    found: list[Instruction] = []
    for place in range(6):
        found += [work(500, f"forward {place}"), make_call(inner, "all_reduce", 120, hides=False)]
    for place in range(6):
        found.append(work(1000, f"backward {place}"))
        if place % 2:
            found.append(make_call(outer, "all_reduce", 700, hides=place < 5))
        found.append(make_call(inner, "all_reduce", 120, hides=False))
    return [*found, work(300, "optimizer")]


def _pipeline(layout: Layout, rank: int, work: Work) -> list[Instruction]:
    """Return steps of two stages, at whose end all ranks reduce a number right behind the gradients."""
    group, stage = layout.group("pp", rank), layout.place(rank)["pp"]
    assert group is not None
    peer = layout.stage_peer(rank, stage=1 - stage)
    exchange = Exchange(group=group, is_send=stage == 0, peer=peer, elements=1 << 20, transfer_ns=50 * US)
    compute = work(2000, "forward")
    found: list[Instruction] = [exchange, compute] if stage else [compute, exchange]
    found += [work(1000, "backward"), make_call(layout.group("dp", rank), "all_reduce", 400, hides=False)]
    return [*found, make_call(layout.world, "all_reduce", 20, hides=False), work(300, "optimizer")]


@dataclass(frozen=True, kw_only=True)
class Made:
    """A job in which one rank computes longer at one place of every step."""

    layout: Layout
    body: Body
    place: str
    rank: int = 3
    extra_ns: int = 4 * NS_PER_MS

    def run(self, *, is_late: bool) -> Simulation:
        """Simulate the job, with the rank as fast as its peers or not."""
        programs: dict[int, tuple[Instruction, ...]] = {}
        for rank in range(self.layout.world_size):

            def work(length_us: int, place: str, rank: int = rank) -> Instruction:
                extra = self.extra_ns if is_late and (rank, place) == (self.rank, self.place) else 0
                # Recorded to end before the device goes on.
                return replace(matrix_product(length_us * US, extra_ns=extra), overrun_ns=-BEGIN_GAP_NS)

            body = [BeginStep(number=0), *self.body(self.layout, rank, work), EndStep()]
            programs[rank] = tuple(
                replace(each, number=step) if isinstance(each, BeginStep) else each
                for step in range(NUM_STEPS)
                for each in body
            )
        return simulate(programs, start_ns=dict.fromkeys(programs, START_NS))


def _found(
    layout: Layout, simulation: Simulation, folder: Path, *, recordings: dict[int, Recording] | None = None
) -> Stragglers:
    Scenario(layout=layout, simulation=simulation, recordings=recordings or {}).write(folder)
    job = load([str(folder)], options=ReadOptions(use_cache=False), processes=1)
    return compute_stragglers(job, compute_collectives(job)).check()


EIGHT: Final = Layout(dp=8)
HYBRID: Final = Layout(dp=2, tp=4)
REPLICAS: Final = Layout(dp=4, tp=2)
MADE: Final = {
    "sharded, forward": Made(layout=EIGHT, body=_sharded, place="forward 2"),
    "sharded, backward": Made(layout=EIGHT, body=_sharded, place="backward 1"),
    "back to back": Made(layout=EIGHT, body=_norm, place="backward"),
    "behind back to back": Made(layout=EIGHT, body=_norm, place="optimizer"),
    "hybrid, forward": Made(layout=HYBRID, body=_hybrid, place="forward"),
    "beside, forward": Made(layout=REPLICAS, body=_beside, place="forward"),
    "beside, backward": Made(layout=REPLICAS, body=_beside, place="backward 2"),
    "beside, last": Made(layout=REPLICAS, body=_beside, place="backward 5"),
    "beside, a little": Made(layout=HYBRID, body=_gradients_beside, place="forward 2", extra_ns=400 * US),
    "beside, more": Made(layout=HYBRID, body=_gradients_beside, place="forward 2", extra_ns=1500 * US),
    "pipeline, a narrower group ahead": Made(layout=Layout(dp=2, pp=2), body=_pipeline, place="backward"),
    "hybrid, backward": Made(layout=HYBRID, body=_hybrid, place="backward 2"),
}


@pytest.mark.parametrize("name", MADE)
def test_late_before_calls_that_stand_in_one_queue(name: str, tmp_path: Path) -> None:
    """The late rank alone is named, with what was planted, and its saving is the simulated one."""
    made = MADE[name]
    late = made.run(is_late=True)
    found = _found(made.layout, late, tmp_path)
    (straggler,) = found.stragglers
    assert straggler.rank == made.rank
    saving_ns = late.end_ns - made.run(is_late=False).end_ns
    assert saving_ns >= NUM_STEPS * (made.extra_ns - NS_PER_MS)
    # How long after its compute a call would have begun that was queued, the trace does not tell.
    assert straggler.saving_ns == pytest.approx(saving_ns, abs=NUM_STEPS * BEGIN_GAP_NS)
    assert straggler.imposed_wait_ns == pytest.approx(NUM_STEPS * made.extra_ns, abs=NUM_STEPS * BEGIN_GAP_NS)
    assert straggler.reason == "compute"
    assert straggler.excess is not None
    assert straggler.excess.compute_ns == NUM_STEPS * made.extra_ns


@pytest.mark.parametrize("name", ["sharded, forward", "sharded, backward", "back to back", "behind back to back"])
def test_groups_that_no_metadata_tell(name: str, tmp_path: Path) -> None:
    """A gather queued behind a scatter is so without metadata too, where each operation has a group of its own."""
    made = MADE[name]
    late = made.run(is_late=True)
    bare = {rank: Recording(has_metadata=False) for rank in range(made.layout.world_size)}
    (straggler,) = _found(made.layout, late, tmp_path, recordings=bare).stragglers
    assert straggler.rank == made.rank
    saving_ns = late.end_ns - made.run(is_late=False).end_ns
    assert straggler.saving_ns == pytest.approx(saving_ns, abs=NUM_STEPS * BEGIN_GAP_NS)
    assert straggler.imposed_wait_ns == pytest.approx(NUM_STEPS * made.extra_ns, abs=NUM_STEPS * BEGIN_GAP_NS)


@pytest.mark.parametrize("name", MADE)
def test_without_launches_what_is_imposed_is_a_bound(name: str, tmp_path: Path) -> None:
    """Where no launch tells what queued calls waited for, the wait is a bound, and excess and saving are absent."""
    made = MADE[name]
    Scenario(layout=made.layout, simulation=made.run(is_late=True)).write(tmp_path)
    job = load([str(tmp_path)], options=ReadOptions(use_cache=False), processes=1)
    none = pl.lit(None, dtype=DeviceEvents.launch_id.dtype).alias(DeviceEvents.launch_id)
    bare = [
        structs.replace(each, launches=each.launches.clear(), device_events=each.device_events.with_columns(none))
        for each in job.ranks
    ]
    unlaunched = structs.replace(job, ranks=tuple(bare))
    found = compute_stragglers(unlaunched, compute_collectives(unlaunched)).check()
    for each in found.stragglers:
        if each.excess is None:
            assert "overlap compute" in each.absent["excess"]
            assert "overlap compute" in each.absent["saving_ns"]
        else:
            assert each.rank == made.rank
            assert each.imposed_wait_ns <= NUM_STEPS * (made.extra_ns + BEGIN_GAP_NS)
    if found.stragglers:
        assert found.stragglers[0].rank == made.rank
        assert ("at most" in found.verdict) == (found.stragglers[0].excess is None)


@pytest.mark.parametrize(("cp", "dp"), [(2, 1), (2, 2), (4, 2)])
@pytest.mark.parametrize("is_late", [False, True])
def test_a_ring_of_context_parallelism_judges_no_pair(cp: int, dp: int, *, is_late: bool, tmp_path: Path) -> None:
    """Exchanges in a ring are judged by nobody, and a late rank shows at the collectives of the whole job."""
    layout = Layout(cp=cp, dp=dp)

    def ring(layout: Layout, rank: int, work: Work) -> list[Instruction]:
        group = layout.group("cp", rank)
        assert group is not None
        place = group.ranks.index(rank)
        to, since = group.ranks[(place + 1) % cp], group.ranks[place - 1]
        send = Exchange(group=group, is_send=True, peer=to, elements=1 << 20, transfer_ns=50 * US)
        receive = Exchange(group=group, is_send=False, peer=since, elements=1 << 20, transfer_ns=50 * US)
        exchanges = [send, receive] if place % 2 else [receive, send]
        reduce = make_call(layout.world, "all_reduce", 500, hides=False)
        return [work(1000, "attention"), *exchanges, work(2000, "backward"), reduce, work(300, "optimizer")]

    made = Made(layout=layout, body=ring, place="backward", rank=1)
    simulation = made.run(is_late=is_late)
    found = _found(layout, simulation, tmp_path)
    assert [each.rank for each in found.stragglers] == [1] * is_late
    assert found.num_collectives_judged == NUM_STEPS
    for each in found.stragglers:
        saving_ns = simulation.end_ns - made.run(is_late=False).end_ns
        assert each.saving_ns == pytest.approx(saving_ns, abs=NUM_STEPS * BEGIN_GAP_NS)
