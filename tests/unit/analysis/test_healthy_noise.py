"""Jobs whose kernels vary by chance: nobody is named for that, and who is late besides still is."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final, NamedTuple

import pytest

from scope.analysis.collectives import compute_collectives
from scope.analysis.stragglers import Stragglers, compute_stragglers
from scope.testing.jobs import matrix_product
from scope.testing.layout import Layout
from scope.testing.program import BeginStep, Call, EndStep, Instruction
from scope.testing.scenarios import START_NS, Scenario
from scope.testing.simulate import Simulation, simulate
from scope.trace import ReadOptions, load
from scope.units import NS_PER_MS, NS_PER_US

if TYPE_CHECKING:
    from pathlib import Path

    from scope.testing.layout import Axis

LAYER_NS: Final = 800 * NS_PER_US


class Length(NamedTuple):
    """How much of a job is recorded, and whether compute hides its all-reduces of gradients."""

    num_steps: int = 5
    num_layers: int = 4
    hides: bool = True
    num_exact: int = 0
    """Its first layers, which take as long every time."""


USUAL: Final = Length()

Late = dict[tuple[int, int], int]
"""By rank and step, how much longer its third layer takes."""


def _all_reduce(layout: Layout, axis: Axis, rank: int, transfer_us: int, *, hides: bool) -> list[Instruction]:
    group = layout.group(axis, rank)
    if group is None:
        return []
    elements = 1 << 20
    call = Call(
        group=group,
        operation="all_reduce",
        in_elements=elements,
        out_elements=elements,
        transfer_ns=transfer_us * NS_PER_US,
        is_blocking=not hides,
    )
    return [call]


def _run(
    layout: Layout, *, share: float, seed: int, late: Late, slow_by: float = 0.0, length: Length = USUAL
) -> Simulation:
    """Simulate a job whose kernels vary by a share of their length, normally, and that of late ranks without fault.

    Rank 1 takes longer in every layer, by the share `slow_by` of it.
    """
    programs: dict[int, tuple[Instruction, ...]] = {}
    for rank in range(layout.world_size):
        chance = random.Random(1000 * seed + rank)
        found: list[Instruction] = []
        for step in range(length.num_steps):
            found.append(BeginStep(number=step))
            for layer in range(length.num_layers):
                varies = share if layer >= length.num_exact else 0
                own_ns = max(1000, round(LAYER_NS * chance.gauss(1, varies)))
                extra_ns = late.get((rank, step), 0) if layer == 2 else 0
                extra_ns += round(LAYER_NS * slow_by) if rank == 1 else 0
                found.append(matrix_product(own_ns, extra_ns=extra_ns))
                found += _all_reduce(layout, "tp", rank, 100, hides=False)
                found += _all_reduce(layout, "dp", rank, 300, hides=length.hides and layer < length.num_layers - 1)
            found.append(EndStep())
        programs[rank] = tuple(found)
    return simulate(programs, start_ns=dict.fromkeys(programs, START_NS))


def _found(layout: Layout, simulation: Simulation, folder: Path) -> Stragglers:
    Scenario(layout=layout, simulation=simulation).write(folder)
    job = load([str(folder)], options=ReadOptions(use_cache=False), processes=1)
    return compute_stragglers(job, compute_collectives(job)).check()


LAYOUTS: Final = (Layout(dp=2), Layout(dp=3), Layout(dp=8), Layout(dp=4, tp=2), Layout(dp=2, tp=4))


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("share", [0.05, 0.1])
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: f"dp{layout.dp} tp{layout.tp}")
def test_a_healthy_job_names_nobody(layout: Layout, share: float, seed: int, tmp_path: Path) -> None:
    """Kernels that vary by up to a tenth make nobody a straggler, alone or with others, in groups of any size."""
    found = _found(layout, _run(layout, share=share, seed=seed, late={}), tmp_path)
    assert found.stragglers == ()
    assert found.together is None
    assert found.num_collectives_judged > 0


@pytest.mark.parametrize("steps", [range(USUAL.num_steps), range(3, 4)], ids=["steadily", "once"])
@pytest.mark.parametrize("share", [0.0, 0.05])
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: f"dp{layout.dp} tp{layout.tp}")
def test_who_is_late_among_noise_is_named(layout: Layout, share: float, steps: range, tmp_path: Path) -> None:
    """A rank that is late by several layers, always or once, is named alone, with about what the job would save."""
    late = {(1, step): 4 * NS_PER_MS for step in steps}
    simulation = _run(layout, share=share, seed=1, late=late)
    (straggler,) = _found(layout, simulation, tmp_path).stragglers
    assert straggler.rank == 1
    assert straggler.reason == "compute"
    assert straggler.saving_ns is not None
    saving_ns = simulation.end_ns - _run(layout, share=share, seed=1, late={}).end_ns
    # Mended, it is as fast as its peers, not as it happened to be.
    chance_ns = round(3 * share * LAYER_NS * USUAL.num_layers**0.5) * len(steps)
    assert straggler.saving_ns == pytest.approx(saving_ns, abs=chance_ns)


PAIRS: Final = (Layout(dp=2), Layout(dp=2, tp=2))
SHORT: Final = (Length(1, 10, hides=False), Length(2, 12, hides=False))


@pytest.mark.parametrize("share", [0.0, 0.02, 0.05])
@pytest.mark.parametrize("length", SHORT, ids=lambda length: f"{length.num_steps} steps")
@pytest.mark.parametrize("layout", [*PAIRS, Layout(dp=8)], ids=lambda layout: f"dp{layout.dp} tp{layout.tp}")
def test_a_slow_rank_is_named_from_few_steps(layout: Layout, length: Length, share: float, tmp_path: Path) -> None:
    """Who is slower in every layer is named, of two or eight, though no place of the step is seen time after time."""
    simulation = _run(layout, share=share, seed=1, late={}, slow_by=0.3, length=length)
    (straggler,) = _found(layout, simulation, tmp_path).stragglers
    assert straggler.rank == 1
    assert straggler.reason == "compute"


@pytest.mark.parametrize("share", [0.05, 0.1])
@pytest.mark.parametrize("length", SHORT, ids=lambda length: f"{length.num_steps} steps")
@pytest.mark.parametrize(
    "layout", [*PAIRS, Layout(dp=2, tp=4), Layout(dp=8)], ids=lambda layout: f"dp{layout.dp} tp{layout.tp}"
)
def test_a_healthy_job_names_nobody_from_few_steps(
    layout: Layout, length: Length, share: float, tmp_path: Path
) -> None:
    """Chance is noise also where no place of the step is seen time after time."""
    found = _found(layout, _run(layout, share=share, seed=2, late={}, length=length), tmp_path)
    assert found.stragglers == ()
    assert found.together is None
    assert found.num_collectives_judged > 0


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize(
    "layout", [Layout(dp=2), Layout(dp=4, tp=2)], ids=lambda layout: f"dp{layout.dp} tp{layout.tp}"
)
def test_few_layers_vary_of_many(layout: Layout, seed: int, tmp_path: Path) -> None:
    """A pair is judged at each place by what varies there too, as experts do, not by the places that never vary."""
    length = Length(num_steps=5, num_layers=12, hides=False, num_exact=9)
    found = _found(layout, _run(layout, share=0.2, seed=seed, late={}, length=length), tmp_path)
    assert found.stragglers == ()
    assert found.together is None


def test_one_place_of_a_pair_that_changes_is_lateness(tmp_path: Path) -> None:
    """Of two ranks that nobody else shows the noise of, one that is late in every other step is named."""
    late = {(1, step): 4 * NS_PER_MS for step in (1, 3)}
    simulation = _run(Layout(dp=2), share=0.02, seed=1, late=late)
    (straggler,) = _found(Layout(dp=2), simulation, tmp_path).stragglers
    assert straggler.rank == 1
    assert straggler.num_steps == len(late)
