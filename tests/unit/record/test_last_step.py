"""Where the last step ends, behind which no other begins: with the last that was seen of training, not at the close."""

from __future__ import annotations

import gc
import itertools
import time
from typing import TYPE_CHECKING, Any, cast

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader

from scope.record import Recorder
from scope.record.phases import PhaseClock
from scope.record.settings import CaptureSettings
from scope.run.blackbox import BlackBox, BlackBoxIdentity
from scope.run.calls import CallLog
from scope.run.reader import read_steps

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from scope.run.schema import StepRecord

TAIL_S = 0.02


class Job:
    """A model, its optimizer and what a test notes of them; instants are monotonic, as the recorder's own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.model = nn.Linear(8, 4)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.updated_ns = 0
        self.optimizer.register_step_post_hook(self._note)
        self.recorder: Recorder | None = None
        self.offset_ns = 0

    def _note(self, *_: Any) -> None:
        self.updated_ns = time.monotonic_ns()

    def update(self, batch: torch.Tensor) -> None:
        """Make one update."""
        self.model(batch).sum().backward()
        self.optimizer.step()

    def run(self, train: Callable[[Job], None]) -> list[StepRecord]:
        """Record what a function does and return the steps, each checked to sum up exactly."""
        options = {"capture": CaptureSettings(reasons=frozenset()), "peak_flop_per_s": 1e9}
        with Recorder(run_dir=self.folder, run_id="r", **options) as recorder:
            self.recorder = recorder
            assert recorder.session is not None
            self.offset_ns = recorder.session.writer.wall_offset_ns
            folder = recorder.folder
            train(self)
        assert folder is not None
        steps = read_steps(folder)
        assert all(sum(step.phases.values()) == step.end_ns - step.start_ns for step in steps)
        assert all(one.end_ns == other.start_ns for one, other in itertools.pairwise(steps))
        return steps


def batches(number: int) -> DataLoader[torch.Tensor]:
    """A loader of so many batches of two samples."""
    return DataLoader(cast("torch.utils.data.Dataset[torch.Tensor]", [torch.ones(8)] * 2 * number), batch_size=2)


def loop_over_loader(job: Job) -> None:
    """Four updates of ten batches."""
    for place, batch in enumerate(batches(10)):
        job.update(batch)
        if place == 3:
            break


def loop_without_loader(job: Job) -> None:
    """Four updates."""
    for _ in range(4):
        job.update(torch.ones(2, 8))


LOOPS = pytest.mark.parametrize("loop", [loop_over_loader, loop_without_loader])


@LOOPS
def test_what_follows_the_loop_is_in_no_step(tmp_path: Path, loop: Callable[[Job], None]) -> None:
    """The last step ends with its optimizer, and neither the program's other work nor its garbage is in it."""
    left: list[int] = []

    def train(job: Job) -> None:
        loop(job)
        left.append(time.monotonic_ns())
        for _ in range(3):
            gc.collect()
        time.sleep(TAIL_S)

    job = Job(tmp_path)
    gc.collect()
    gc.disable()
    try:
        steps = job.run(train)
    finally:
        gc.enable()
    assert [step.step for step in steps] == [0, 1, 2, 3]
    assert job.updated_ns <= steps[-1].end_ns - job.offset_ns <= left[0]
    assert (steps[-1].gc_ns, steps[-1].num_gc) == (0, 0)
    assert [step.disturbed for step in steps[1:]] == [None, None, "end_unknown"]
    assert steps[-1].memory is not None
    assert set(steps[-1].memory.phases) <= set(steps[-1].phases)


@LOOPS
def test_a_pause_between_updates_stays_in_its_step(tmp_path: Path, loop: Callable[[Job], None]) -> None:
    """Only behind the last update is time left out: a pause that more training follows is part of the step before."""

    def train(job: Job) -> None:
        loop(job)
        time.sleep(TAIL_S)
        gc.collect()
        loop(job)

    steps = Job(tmp_path).run(train)
    assert len(steps) == 8
    assert steps[3].phases["other"] >= TAIL_S * 1e9
    assert steps[3].num_gc >= 1


@pytest.fixture
def group() -> Iterator[None]:
    """A process group of this process alone."""
    store = dist.HashStore()  # pyright: ignore[reportPrivateImportUsage]
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def evaluate(job: Job) -> None:
    """An evaluation that no `train()` ends."""
    job.model.eval()
    with torch.no_grad():
        for batch in batches(2):
            job.model(batch)
        job.model(torch.ones(2, 8))


def predict(job: Job) -> None:
    """A call of the model without gradients, and no `eval()`."""
    with torch.no_grad():
        job.model(torch.ones(2, 8))


def save(job: Job) -> None:
    """A checkpoint."""
    torch.save(job.model.state_dict(), job.folder / "model.pt")


def reduce_later(job: Job) -> None:
    """A collective that is waited for."""
    del job
    work = dist.all_reduce(torch.ones(4), async_op=True)
    assert work is not None
    work.wait()


def publish(job: Job) -> None:
    """A phase of the user's own."""
    assert job.recorder is not None
    with job.recorder.phase("publish"):
        pass


@LOOPS
@pytest.mark.usefixtures("group")
@pytest.mark.parametrize(
    ("follow", "phase"),
    [
        (evaluate, "evaluation"),
        (predict, "evaluation"),
        (save, "checkpoint"),
        (reduce_later, "other"),
        (publish, "publish"),
    ],
)
def test_what_training_does_after_its_last_update_is_in_its_step(
    tmp_path: Path, loop: Callable[[Job], None], follow: Callable[[Job], None], phase: str
) -> None:
    """An evaluation, a checkpoint, a collective or a phase lengthens the last step to its own end, and no farther."""
    instants: list[int] = []

    def train(job: Job) -> None:
        loop(job)
        time.sleep(TAIL_S)
        instants.append(time.monotonic_ns())
        follow(job)
        instants.append(time.monotonic_ns())
        time.sleep(TAIL_S)

    job = Job(tmp_path)
    steps = job.run(train)
    assert len(steps) == 4
    begun, ended = instants
    assert begun <= steps[-1].end_ns - job.offset_ns <= ended
    assert steps[-1].phases[phase] > 0
    assert steps[-1].phases["other"] >= TAIL_S * 1e9


def test_a_phase_that_is_open_at_the_close_lasts_until_then(tmp_path: Path) -> None:
    """A recorder that is closed inside a phase of the user's own has its time in the last step."""
    instants: list[int] = []

    def train(job: Job) -> None:
        assert job.recorder is not None
        loop_without_loader(job)
        with job.recorder.phase("publish"):
            time.sleep(TAIL_S)
            instants.append(time.monotonic_ns())
            job.recorder.close()

    job = Job(tmp_path)
    steps = job.run(train)
    assert steps[-1].end_ns - job.offset_ns >= instants[0]
    assert steps[-1].phases["publish"] >= TAIL_S * 1e9


@LOOPS
def test_a_step_without_an_update_is_no_step(tmp_path: Path, loop: Callable[[Job], None]) -> None:
    """A forward and backward that no optimizer follows are not finished, and the step before ends at their begin."""
    instants: list[int] = []

    def train(job: Job) -> None:
        loop(job)
        instants.append(time.monotonic_ns())
        for batch in batches(1):
            job.model(batch).sum().backward()
        instants.append(time.monotonic_ns())

    job = Job(tmp_path)
    steps = job.run(train)
    assert len(steps) == 4
    assert instants[0] <= steps[-1].end_ns - job.offset_ns <= instants[1]


class Ticks:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now = 1_000

    def __call__(self) -> int:
        """Return the instant."""
        return self.now


def test_an_open_evaluation_lasts_until_its_last_sign(tmp_path: Path) -> None:
    """10 of a forward, 5 between, 7 of an evaluation with a last sign at its end; the 100 behind are in no step."""
    ticks = Ticks()
    who = BlackBoxIdentity(rank=0, attempt=0, world_size=1, pid=1, process_start_ticks=None, wall_offset_ns=0)
    box = BlackBox(tmp_path / "b", who)
    clock = PhaseClock(box, CallLog(box), now=ticks, start_ns=ticks.now)
    clock.set_base("other")
    clock.push("forward")
    ticks.now += 10
    assert clock.find_end() == 1_010
    clock.pop("forward")
    ticks.now += 5
    clock.push("evaluation")
    ticks.now += 4
    assert not clock.push("forward")
    ticks.now += 3
    clock.notice()
    ticks.now += 100
    assert clock.find_end() == 1_022
    assert clock.cut(end_ns=clock.find_end()) == (1_000, 1_022, {"forward": 10, "other": 5, "evaluation": 7})
    clock.push("mine", automatic=False)
    ticks.now += 1
    assert clock.find_end() == ticks.now


def test_a_last_step_that_its_loader_ended_is_like_others(tmp_path: Path) -> None:
    """The loader was asked for a batch behind it: it holds what all others hold."""

    def train(job: Job) -> None:
        for batch in batches(4):
            job.update(batch)

    steps = Job(tmp_path).run(train)
    assert len(steps) == 4
    assert steps[-1].disturbed is None
