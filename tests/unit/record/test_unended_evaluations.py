"""An evaluation that `eval()` began is over once the model is trained again, whether or not `train()` was called."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("torch")

import torch
from torch import nn
from torch.utils.data import DataLoader

from scope.frames import open_run
from scope.record import Recorder, session
from scope.record.phases import PhaseClock
from scope.record.unended_evaluations import UnendedEvaluation
from scope.run.blackbox import BlackBox, BlackBoxIdentity
from scope.run.calls import CallLog
from scope.run.reader import RankReader, read_steps

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from scope.run.schema import StepRecord

MARK = "trained_in_evaluation"
NUM_BATCHES = 4


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """After every test the recording and its hooks are gone."""
    patched = ((torch.autograd, "backward"), (torch.autograd, "grad"), (nn.Module, "train"))
    before = [getattr(owner, name) for owner, name in patched]
    yield
    assert session.current is None
    assert [getattr(owner, name) for owner, name in patched] == before


def batches() -> DataLoader[torch.Tensor]:
    """Four batches of two samples."""
    return DataLoader([torch.ones(4)] * (2 * NUM_BATCHES), batch_size=2)  # pyright: ignore[reportArgumentType]


class Job:
    """A model and its optimizer, and a probe with one of its own."""

    def __init__(self) -> None:
        self.model = nn.Sequential(nn.Linear(4, 2))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.head = nn.Sequential(nn.Linear(2, 1))
        self.of_head = torch.optim.SGD(self.head.parameters(), lr=0.1)

    def pass_on(self, batch: torch.Tensor) -> None:
        """Run forward and backward."""
        self.model(batch).sum().backward()

    def update(self, batch: torch.Tensor) -> None:
        """Make one update."""
        self.pass_on(batch)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def validate(self) -> None:
        """Switch to evaluation mode, and stay there."""
        self.model.eval()
        with torch.no_grad():
            for batch in batches():
                self.model(batch)


def record(folder: Path, train: Callable[[Job], None]) -> list[StepRecord]:
    """Record a loop and return its steps, each checked to sum up exactly."""
    job = Job()
    with Recorder(run_dir=folder) as recorder:
        path = recorder.folder
        train(job)
    assert path is not None
    steps = read_steps(path)
    assert all(sum(step.phases.values()) == step.end_ns - step.start_ns for step in steps)
    assert "hook_disabled" not in open_run(folder).events()["kind"].to_list()
    return steps


def updates(steps: list[StepRecord]) -> list[tuple[int | None, int | None]]:
    """Return the backward passes and optimizer steps of each step."""
    return [(step.num_microbatches, step.num_optimizer_steps) for step in steps]


def test_a_forgotten_train_ends_no_recording(tmp_path: Path) -> None:
    """Three epochs of four updates are twelve steps; the first after the first validation alone is marked."""

    def train(job: Job) -> None:
        for _ in range(3):
            for batch in batches():
                job.update(batch)
            job.validate()

    steps = record(tmp_path, train)
    assert updates(steps) == [(1, 1)] * 12
    assert [step.step for step in steps if step.disturbed == MARK] == [4]
    assert [step.disturbed for step in steps[5:]] == [None] * 7
    assert [step.step for step in steps if "evaluation" in step.phases] == [4, 8]
    assert all("forward" in step.phases for step in steps if step.step != 4)


def test_a_validation_amid_an_epoch_begins_the_step_of_the_next_update(tmp_path: Path) -> None:
    """The batch of the next update was asked for in the evaluation: both steps that have a part of it are marked."""

    def train(job: Job) -> None:
        for number, batch in enumerate(batches()):
            job.update(batch)
            if number == 1:
                job.validate()

    steps = record(tmp_path, train)
    assert updates(steps) == [(1, 1)] * 4
    assert [step.step for step in steps if step.disturbed == MARK] == [1, 2]


def test_a_loop_without_a_loader_goes_on_too(tmp_path: Path) -> None:
    """Six updates are six steps; those before and after the validation are marked."""

    def train(job: Job) -> None:
        for number in range(6):
            job.update(torch.ones(2, 4))
            if number == 2:
                job.validate()

    steps = record(tmp_path, train)
    assert updates(steps) == [(1, 1)] * 6
    assert [step.step for step in steps if step.disturbed == MARK] == [2, 3]


def test_a_model_frozen_amid_training_is_trained(tmp_path: Path) -> None:
    """`eval()` between a batch and its forward, for good: the step of it is marked, and holds no evaluation."""

    def train(job: Job) -> None:
        for number, batch in enumerate(batches()):
            if number == 1:
                job.model.eval()
            job.update(batch)

    steps = record(tmp_path, train)
    assert updates(steps) == [(1, 1)] * 4
    assert [step.disturbed for step in steps[1:]] == [MARK, None, None]
    assert all("evaluation" not in step.phases for step in steps)
    # 2 x 2 samples x 4 x 2, forward and for the weights.
    assert [step.model_flop for step in steps] == [64.0, None, 64.0, 64.0]


def test_all_passes_of_an_update_are_its_own(tmp_path: Path) -> None:
    """Two micro-batches after a validation are two, and those of the validation none."""

    def train(job: Job) -> None:
        for _ in range(2):
            for number, batch in enumerate(batches()):
                job.pass_on(batch)
                if number % 2:
                    job.optimizer.step()
            job.validate()

    assert updates(record(tmp_path, train)) == [(2, 1)] * 4


def test_a_model_in_evaluation_mode_from_the_start_is_trained(tmp_path: Path) -> None:
    """Its calls begin steps from the second update on, and its parameters are told: 4 x 2 and 2."""

    def train(job: Job) -> None:
        job.model.eval()
        for _ in range(5):
            job.update(torch.ones(2, 4))

    steps = record(tmp_path, train)
    assert updates(steps) == [(1, 1)] * 5
    assert all("forward" in step.phases for step in steps[2:])
    assert "models_searched" not in [step.disturbed for step in steps[1:]]
    model = RankReader(tmp_path / "attempt-000/ranks/00000").info().model
    assert model is not None
    assert model.num_parameters == 10


def attack(job: Job, batch: torch.Tensor) -> None:
    """Look for an adversarial example by backward, and by functional gradients."""
    image = batch.clone().requires_grad_(True)
    job.pass_on(image)
    torch.autograd.grad(job.model(image).sum(), image)
    job.model.zero_grad()


def probe(job: Job, batch: torch.Tensor) -> None:
    """Train a probe, with an optimizer of its own, on what the model makes of a batch."""
    job.head(job.model(batch).detach()).sum().backward()
    job.of_head.step()


def test_an_evaluation_with_backward_passes_lasts_until_train(tmp_path: Path) -> None:
    """Steps have none of its passes, and the sleep behind them is evaluation."""

    def train(job: Job) -> None:
        for _ in range(2):
            for batch in batches():
                job.update(batch)
            job.model.eval()
            for batch in batches():
                attack(job, batch)
            time.sleep(0.02)
            job.model.train()

    steps = record(tmp_path, train)
    assert updates(steps) == [(1, 1)] * 8
    assert MARK not in [step.disturbed for step in steps]
    assert steps[4].phases["evaluation"] >= 20e6


@pytest.mark.parametrize("trains", [True, False])
def test_another_model_is_recorded_though_the_evaluation_of_the_first_has_no_end(tmp_path: Path, trains: bool) -> None:
    """A student behind its teacher, models in turn, or a probe: four updates each, and the first of each is marked."""

    def train(job: Job) -> None:
        for batch in batches():
            job.update(batch)
        job.validate()
        if trains:
            job.head.train()
        for batch in batches():
            probe(job, batch)
        job.head.eval()
        for batch in batches():
            job.model.train()
            job.update(batch)

    steps = record(tmp_path, train)
    assert updates(steps) == [(1, 1)] * 12
    assert [step.samples for step in steps] == [2] * 12


def test_each_of_several_models_that_follow_one_another_is_recorded(tmp_path: Path) -> None:
    """Three folds of twice four updates, each with a model of its own that ends in evaluation mode."""

    def train(job: Job) -> None:
        del job
        for _ in range(3):
            fold = Job()
            for _ in range(2):
                fold.model.train()
                for batch in batches():
                    fold.update(batch)
                fold.validate()

    steps = record(tmp_path, train)
    assert updates(steps) == [(1, 1)] * 24
    assert [step.samples for step in steps] == [2] * 24


def test_a_first_call_that_is_evaluated_hides_no_training(tmp_path: Path) -> None:
    """A look at the shapes of a teacher, which is evaluated from then on: the updates of another are all steps."""

    def train(job: Job) -> None:
        job.model(torch.ones(2, 4))
        job.model.eval()
        for batch in batches():
            with torch.no_grad():
                made = job.model(batch)
            job.head(made).sum().backward()
            job.of_head.step()

    assert sum(count or 0 for _, count in updates(record(tmp_path, train))) == 4


def test_a_loop_that_calls_train_once_it_has_the_batch_has_a_step_for_each(tmp_path: Path) -> None:
    """As trainers do, which leave evaluations in that mode: eight steps of two samples, none of them marked."""

    def train(job: Job) -> None:
        number = 0
        for _ in range(2):
            for batch in batches():
                job.model.train()
                job.update(batch)
                number += 1
                if number % 3 == 0:
                    job.validate()

    steps = record(tmp_path, train)
    assert updates(steps) == [(1, 1)] * 8
    assert [(step.samples, step.disturbed) for step in steps[1:]] == [(2, None)] * 7


def test_a_critic_in_evaluation_mode_ends_no_recording(tmp_path: Path) -> None:
    """A generator's update through a critic in that mode is one of the step, and after the first none is marked."""

    def train(job: Job) -> None:
        generator = nn.Sequential(nn.Linear(4, 4))
        other = torch.optim.SGD(generator.parameters(), lr=0.1)
        for _ in range(2):
            for batch in batches():
                job.model.train()
                job.update(generator(batch).detach())
                job.model.eval()
                job.pass_on(generator(batch))
                other.step()

    steps = record(tmp_path, train)
    assert updates(steps) == [(2, 2)] * 8
    assert MARK not in [step.disturbed for step in steps[1:]]


def test_an_evaluation_of_the_users_own_stays_theirs(tmp_path: Path) -> None:
    """An update inside `phase("evaluation")` is none of training."""
    job = Job()
    with Recorder(run_dir=tmp_path) as recorder:
        path = recorder.folder
        for batch in batches():
            job.update(batch)
        with recorder.phase("evaluation"):
            job.model.eval()
            job.update(torch.ones(2, 4))
    assert path is not None
    assert updates(read_steps(path)) == [(1, 1)] * 4


def test_a_backward_that_another_tool_replaced_is_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An object without a name in place of torch's function: FLOPs are counted, and no hook is switched off."""

    class Wrapper:
        def __init__(self, original: Any) -> None:
            self.original = original

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return self.original(*args, **kwargs)

    def train(job: Job) -> None:
        for batch in batches():
            job.update(batch)
        job.validate()
        attack(job, torch.ones(2, 4))

    monkeypatch.setattr(torch.autograd, "backward", Wrapper(torch.autograd.backward))
    steps = record(tmp_path, train)
    assert [step.model_flop for step in steps] == [64.0] * 4


class Ticks:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now = 1_000

    def __call__(self) -> int:
        """Return the instant."""
        return self.now


def test_an_evaluation_ends_with_the_last_that_was_part_of_it() -> None:
    """10 up to the end of a call without gradients, then 3 up to a batch; the 4 and 5 of an update are none of it."""
    who = BlackBoxIdentity(rank=0, attempt=0, world_size=1, pid=1, process_start_ticks=None, wall_offset_ns=0)
    ticks = Ticks()
    box = BlackBox("/nonexistent/blackbox.bin", who)  # pyright: ignore[reportArgumentType]
    clock = PhaseClock(box, CallLog(box), now=ticks, start_ns=ticks.now)
    clock.set_base("other")
    unended = UnendedEvaluation(clock)
    clock.push("evaluation")
    unended.on_forward(None, gradients=False)
    ticks.now += 10
    clock.notice()
    ticks.now += 3
    clock.push("input")
    ticks.now += 4
    unended.on_forward(None, gradients=True)
    clock.push("forward")
    ticks.now += 5
    assert unended.end_ns is not None
    assert clock.end_evaluation(unended.end_ns)
    assert clock.is_training()
    assert clock.cut()[2] == {"evaluation": 13, "other": 9}
