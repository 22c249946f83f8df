"""When windows are taken: under the time budget, and never because of a window before; on a clock of the test's own."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("torch")

from torch.autograd import profiler as autograd_profiler

from scope.record import captures
from scope.record.captures import Captures
from scope.record.collectives.guard import HookGuard
from scope.run.schema import CaptureInfo
from scope.run.windows import CaptureSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MS = 1_000_000
S = 1_000 * MS
STEP_NS = 100 * MS


class World:
    """A training loop whose windows cost what the test says.

    Attributes:
        now_ns: Its clock.
        windows: (first step, reason, when it ended) of each window.
        spent_ns: What they cost together: 1.5 s to write each, and the profiler's slowness.
    """

    def __init__(self, settings: CaptureSettings, *, write_ns: int = 1_500 * MS, slow_ns: int = 0) -> None:
        self.now_ns = 1_000 * S
        self.windows: list[tuple[int, str, int]] = []
        self.spent_ns = 0
        self.write_ns, self.slow_ns = write_ns, slow_ns
        self.disturbed: list[int] = []
        self.usual_ns: Callable[[int], int] = lambda step: STEP_NS
        writer = SimpleNamespace(
            info=SimpleNamespace(rank=0),
            pollers=list[Any](),
            folder=Path("/nowhere"),
            add_event=lambda *args, **details: None,
        )
        budget = SimpleNamespace(max_bytes=2**40)
        session: Any = SimpleNamespace(
            settings=SimpleNamespace(capture=settings, budget=budget), writer=writer, guard=HookGuard()
        )
        self.captures = Captures(session)

    def train(self, num_steps: int) -> None:
        """Run steps; what a window costs when it ends lies in the step after it, as in real training."""
        owed = 0
        for step in range(num_steps):
            length = self.usual_ns(step) + owed + (self.slow_ns if self.captures._window is not None else 0)
            self.now_ns += length
            before = len(self.windows)
            if self.captures.on_step(step, length) == "capture":
                self.disturbed.append(step)
            owed = self.write_ns if len(self.windows) > before else 0
            self.spent_ns += owed


@pytest.fixture
def make_world(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., World]]:
    """Makes a world, in which windows are those of torch but for the profiler."""
    made: list[World] = []

    class Window(captures._Window):
        def start(self) -> None:
            self.starting = False

        def finish(self, session: Any) -> CaptureInfo:
            world = made[-1]
            world.windows.append((self.first_step, self.reason, world.now_ns))
            world.spent_ns += self.num_steps * world.slow_ns
            return CaptureInfo(
                trace="t.json",
                rank=0,
                first_step=self.first_step,
                num_steps=self.num_steps,
                start_ns=0,
                end_ns=1,
                reason=self.reason,
                cost_ns=world.write_ns,
                with_stack=False,
                record_shapes=True,
                trace_bytes=1_000,
            )

        def end_step(self, length_ns: int = 0) -> None:
            self._length_ns += length_ns
            self.num_steps += 1

        def begin_step(self, step: int) -> None:
            return

    def make(settings: CaptureSettings, **costs: int) -> World:
        made.append(World(settings, **costs))
        world = made[-1]
        monkeypatch.setattr(captures, "time", SimpleNamespace(monotonic_ns=lambda: world.now_ns))
        world.captures._started_ns = world.now_ns
        world.captures.attach()
        return world

    monkeypatch.setattr(captures, "_Window", Window)
    original = autograd_profiler.profile._prepare_trace
    yield make
    for world in made:
        world.captures.close()
    assert autograd_profiler.profile._prepare_trace is original


def test_the_default_schedule_costs_half_a_percent(make_world: Callable[..., World]) -> None:
    """In 3,500 s there is room for 17.5 s: eleven windows of 1.5 s, the first when 2 s, its supposed cost, fit."""
    world = make_world(CaptureSettings())
    begin = world.now_ns
    world.train(35_000)
    assert [reason for _, reason, _ in world.windows] == ["schedule"] * 11
    ends = [end - begin for _, _, end in world.windows]
    assert 400 * S <= ends[0] < 401 * S
    for number, end in enumerate(ends, start=1):
        assert number * 1_500 * MS <= 0.005 * end
    assert world.spent_ns <= 0.005 * (world.now_ns - begin)


def test_slow_steps_of_a_window_count(make_world: Callable[..., World]) -> None:
    """Two steps that are 750 ms longer under the profiler double what a window costs and halve their number."""
    world = make_world(CaptureSettings(), slow_ns=750 * MS)
    begin = world.now_ns
    world.train(34_000)
    # 3 s each: 5.8 fit into 3,500 s; the first one's cost was not known before.
    assert len(world.windows) == 5
    assert world.spent_ns == 5 * 3_000 * MS
    assert world.spent_ns <= 0.005 * (world.now_ns - begin)


def test_a_window_is_no_anomaly_of_its_own(make_world: Callable[..., World]) -> None:
    """One long step starts one window; the step in which it is written is long, marked, and starts none."""
    settings = dataclasses.replace(CaptureSettings(), reasons=frozenset({"anomaly"}), budget_ratio=1e9)
    world = make_world(settings)
    world.usual_ns = lambda step: 5 * STEP_NS if step == 60 else STEP_NS
    world.train(200)
    assert [(first, reason) for first, reason, _ in world.windows] == [(61, "anomaly")]
    assert world.disturbed == [61, 62, 63]


def test_no_window_on_ranks_that_take_none(make_world: Callable[..., World]) -> None:
    """Another rank than the chosen ones never profiles, whatever its budget."""
    world = make_world(CaptureSettings(ranks=(1, 2), budget_ratio=1.0))
    world.train(5_000)
    assert world.windows == []


def test_scheduled_windows_keep_their_distance(make_world: Callable[..., World]) -> None:
    """What the first window, supposed to cost 2 s, left of the budget is not spent at once: 60 s for 0.3 s."""
    world = make_world(CaptureSettings(), write_ns=300 * MS)
    world.train(10_000)
    ends = [end for _, _, end in world.windows]
    assert len(ends) > 5
    assert all(later - earlier >= 60 * S for earlier, later in itertools.pairwise(ends))


def test_scheduled_windows_are_steps_apart_whatever_the_budget(make_world: Callable[..., World]) -> None:
    """Twenty steps lie between two windows of two steps each where the budget is without bounds."""
    world = make_world(dataclasses.replace(CaptureSettings(), budget_ratio=1e9))
    world.train(200)
    firsts = [first for first, _, _ in world.windows]
    assert len(firsts) > 5
    assert all(later - earlier >= 20 for earlier, later in itertools.pairwise(firsts))
