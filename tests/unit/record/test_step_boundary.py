"""Where steps end and how phases sum up, for any order of events, without torch and with a clock of our own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from scope.record.phases import PhaseClock
from scope.record.steps import StepBoundary
from scope.run import layout
from scope.run.blackbox import BlackBox, BlackBoxIdentity, read_black_box
from scope.run.calls import CallLog

if TYPE_CHECKING:
    from pathlib import Path

WHO = BlackBoxIdentity(rank=0, attempt=0, world_size=1, pid=1, process_start_ticks=None, wall_offset_ns=0)


class Ticks:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now = 1_000

    def __call__(self) -> int:
        """Return the instant."""
        return self.now


def make_clock(ticks: Ticks, path: Path | None = None) -> PhaseClock:
    """A clock of phases; without a path its black box cannot be made and is silent."""
    from pathlib import Path as AnyPath

    box = BlackBox(path or AnyPath("/nonexistent/blackbox.bin"), WHO)
    clock = PhaseClock(box, CallLog(box), now=ticks, start_ns=ticks.now)
    clock.set_base("other")
    return clock


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["push", "pop", "cut"]),
        st.sampled_from(["input", "forward", "backward", "evaluation", "mine"]),
        st.integers(0, 1000),
        st.booleans(),
    ),
    max_size=60,
)


@given(EVENTS)
def test_exclusive_times_sum_to_the_step(events: list[tuple[str, str, int, bool]]) -> None:
    """Whatever is begun and ended in whatever order, the phases of each step sum to its length, and steps meet."""
    ticks = Ticks()
    clock = make_clock(ticks)
    end = ticks.now
    for what, name, wait, automatic in events:
        ticks.now += wait
        if what == "push":
            clock.push(name, automatic=automatic)
        elif what == "pop":
            clock.pop(name)
        else:
            start, until, spent = clock.cut()
            assert start == end
            assert sum(spent.values()) == until - start
            assert all(length >= 0 for length in spent.values())
            end = until
    assert end + sum(clock.spent_so_far().values()) == ticks.now


def test_the_innermost_phase_owns_the_time(tmp_path: Path) -> None:
    """A nested phase takes its time from the outer one; an evaluation keeps what hooks find inside it."""
    ticks = Ticks()
    clock = make_clock(ticks, tmp_path / "b")
    clock.begin_step(4)
    for name, wait in (("forward", 10), ("mine", 5)):
        clock.push(name, automatic=name != "mine")
        ticks.now += wait
    clock.pop("mine")
    ticks.now += 2
    assert read_black_box(tmp_path / "b").phase == "forward"
    clock.pop("forward")
    clock.push("evaluation")
    assert not clock.push("forward")
    ticks.now += 7
    clock.pop("evaluation")
    assert clock.cut()[2] == {"forward": 12, "mine": 5, "evaluation": 7}
    assert (tmp_path / "b").stat().st_size == layout.BLACK_BOX_BYTES


def run_loop(boundary: StepBoundary, events: str) -> list[int]:
    """Play a loop: `i` input, `f` forward, `b` backward, `A` and `B` optimizers, `r` a rollout; return step starts."""
    starts: list[int] = []
    for place, event in enumerate(events):
        begins = False
        if event == "i":
            begins = boundary.on_input()
        elif event in "fb":
            begins = boundary.on_compute()
        elif event == "r":
            begins = boundary.on_own_phase("rollout")
        else:
            boundary.on_optimizer(ord(event))
        if begins:
            boundary.next_step()
            starts.append(place)
            if event == "r":
                boundary.on_own_phase("rollout")
        if event in "ifb":
            boundary.on_work()
    return starts


def test_a_loader_begins_each_step() -> None:
    """With a loader a step begins where a batch is asked for after an update, however many passes it has."""
    assert run_loop(StepBoundary(), "ifbA" * 3) == [4, 8]
    assert run_loop(StepBoundary(), "ifbifbifbA" * 2) == [10]
    assert run_loop(StepBoundary(), "iifbA" * 2) == [5]


def test_two_optimizers_are_one_step() -> None:
    """Two optimizers a batch are one update; without a loader as soon as both are known."""
    assert run_loop(StepBoundary(), "ifbAfbB" * 3) == [7, 14]
    boundary = StepBoundary()
    boundary.expect(ord("A"))
    boundary.expect(ord("B"))
    assert run_loop(boundary, "fbAfbB" * 3) == [6, 12]
    assert run_loop(StepBoundary(), "fbAfbB" * 3) == [3, 9, 15]


def test_several_critic_updates_a_round() -> None:
    """Five updates of one optimizer and one of the other are one step."""
    boundary = StepBoundary()
    for name in "AB":
        boundary.expect(ord(name))
    assert run_loop(boundary, ("fbA" * 5 + "fbB") * 2) == [18]


def test_batches_loaded_beforehand_do_not_make_one_endless_step() -> None:
    """A loop over a list that a loader filled before has steps again from the second update on."""
    assert run_loop(StepBoundary(), "iii" + "fbA" * 4) == [9, 12]


def test_a_leading_phase_of_ones_own_begins_the_step() -> None:
    """A rollout before the first batch of a step begins the next step after the update."""
    assert run_loop(StepBoundary(), "rifbA" * 3) == [5, 10]


def test_each_update_on_one_batch_is_a_step() -> None:
    """Three updates a batch are three steps, but for the first two, of which that is not known yet."""
    assert run_loop(StepBoundary(), "ifbAfbAfbA" * 3) == [7, 10, 14, 17, 20, 24, 27]


def test_critics_and_generators_on_one_batch_are_one_step() -> None:
    """Two updates of one optimizer and one of another a batch are one step once both are known."""
    assert run_loop(StepBoundary(), "ifbAfbAfbB" * 4) == [7, 10, 20, 30]


def test_only_the_step_that_joins_updates_says_so() -> None:
    """The first step of such a loop is marked, those after it are not, nor is a generator's beside its critic."""
    boundary = StepBoundary()
    run_loop(boundary, "ifbAfbA")
    assert boundary.is_merged
    run_loop(boundary, "fbAifbA")
    assert not boundary.is_merged
    several = StepBoundary()
    several.expect(ord("B"))
    run_loop(several, "ifbAfbAfbB")
    assert not several.is_merged
