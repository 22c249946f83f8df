"""The simulation follows its model: hand-worked instants, and programs that can't end are refused."""

from __future__ import annotations

import pytest

from scope.errors import UsageError
from scope.testing.layout import Layout
from scope.testing.program import BeginStep, Call, Compute, Copy, EndStep, Host, Program
from scope.testing.simulate import Simulation, simulate
from scope.testing.truth import true_breakdown

LAYOUT = Layout(dp=2)


def _call(*, operation: str = "all_reduce", root: int | None = None, blocking: bool = True) -> Call:
    return Call(
        group=LAYOUT.world,
        operation=operation,
        in_elements=8,
        out_elements=8,
        transfer_ns=1_000,
        root=root,
        is_blocking=blocking,
    )


def _run(first: Program, second: Program) -> Simulation:
    return simulate({0: first, 1: second}, start_ns={0: 0, 1: 0})


def test_launch_reaches_the_device_after_its_latency() -> None:
    """A kernel starts 3 us to the call, 4 us of call and 1.5 us of latency after its instruction; the next queues."""
    done = _run((Compute(length_ns=50_000), Compute(length_ns=7)), ())
    spans = [(event.start_ns, event.end_ns) for each in done.issued[0] for event in each.events]
    assert spans == [(8_500, 58_500), (58_500, 58_507)]


def test_collective_waits_for_the_last() -> None:
    """All ranks end a symmetric collective its transfer after the last arrival, and compute behind it waits."""
    done = _run((Compute(length_ns=100_000), _call(), Compute(length_ns=5)), (Compute(length_ns=900_000), _call()))
    (each,) = done.collectives
    assert each.arrivals_ns == {0: 108_500, 1: 908_500}
    assert each.ends_ns == {0: 909_500, 1: 909_500}
    assert (each.transfer_ns, each.waits_ns) == (1_000, {0: 800_000, 1: 0})
    assert done.issued[0][-1].events[0].start_ns == 909_500


@pytest.mark.parametrize(
    ("operation", "root", "ends", "waits"),
    [
        ("broadcast", 0, {0: 109_500, 1: 909_500}, {0: 0, 1: 0}),
        ("broadcast", 1, {0: 909_500, 1: 909_500}, {0: 800_000, 1: 0}),
        ("reduce", 0, {0: 909_500, 1: 909_500}, {0: 800_000, 1: 0}),
        ("reduce", 1, {0: 109_500, 1: 909_500}, {0: 0, 1: 0}),
    ],
)
def test_rooted_operations(operation: str, root: int, ends: dict[int, int], waits: dict[int, int]) -> None:
    """A root that came first does not wait for receivers; the root of a reduction waits for all."""
    call = _call(operation=operation, root=root)
    (each,) = _run((Compute(length_ns=100_000), call), (Compute(length_ns=900_000), call)).collectives
    assert (each.ends_ns, each.waits_ns) == (ends, waits)


def test_step_ends_when_the_device_is_idle() -> None:
    """A synchronising step ends on the host after its last event; without, the host runs ahead."""
    body = (BeginStep(number=0), Compute(length_ns=1_000_000))
    assert _run((*body, EndStep()), ()).issued[0][-1].host_end_ns == 3_000 + 8_500 + 1_000_000 + 3_000
    assert _run((*body, EndStep(synchronize=False)), ()).issued[0][-1].host_end_ns == 3_000 + 10_000 + 10_000


def test_breakdown_of_a_hand_made_rank() -> None:
    """Compute, exposed communication, exposed copies and idle time of a rank drawn by hand."""
    program = (
        Compute(length_ns=100_000),  # [8.5, 108.5) us
        _call(blocking=False),  # arrives at 108.5, ends at 909.5
        Compute(length_ns=200_000),  # [108.5, 308.5)
        Host(length_ns=1_000_000),
        Copy(length_ns=20_000, num_bytes=1),  # [1038.5, 1058.5)
    )
    done = _run(program, (Compute(length_ns=900_000), _call()))
    found = true_breakdown(done.issued[0])
    assert found.window_ns == 1_050_000
    assert found.compute_ns == 300_000
    assert (found.communication_ns, found.overlap_ns, found.exposed_communication_ns) == (801_000, 200_000, 601_000)
    assert (found.exposed_memory_ns, found.idle_ns) == (20_000, 129_000)


def test_programs_that_wait_for_ever_are_refused() -> None:
    """A rank that never comes to a collective is an error that names who waits."""
    with pytest.raises(UsageError, match=r"ranks \[0\] wait"):
        _run((_call(),), ())
