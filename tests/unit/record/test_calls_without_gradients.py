"""Calls that no gradients flow through, of whatever model, are evaluations; their FLOPs are none of training."""

from __future__ import annotations

import copy
import time
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("torch")

import torch
import torch.utils.checkpoint
from torch import nn
from torch.utils.data import DataLoader

from scope.record import Recorder, session
from scope.record.device import DevicePhases
from scope.run.reader import read_steps

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from scope.run.schema import StepRecord

ROWS = 2
BY_HAND = 2 * ROWS * (2 * 4 * 8 + 3 * 8 * 2)
"""FLOPs of an update through 4 x 8 and 8 x 2: forward, for weights, and for the input of the second."""
SLEEP_NS = 20_000_000


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """After every test the recording and its hooks are gone."""
    before = nn.Sequential.__dict__.get("__call__"), Slow.__dict__.get("__call__")
    yield
    assert session.current is None
    assert (nn.Sequential.__dict__.get("__call__"), Slow.__dict__.get("__call__")) == before


class Slow(nn.Module):
    """Two layers, which sleep where they make no gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        """Run both."""
        result = self.layers(batch)
        if not result.requires_grad:
            time.sleep(SLEEP_NS / 1e9)
        return result


class OtherSlow(Slow):
    """The same of another class."""


def batches(number: int = 4, rows: int = ROWS) -> DataLoader[torch.Tensor]:
    """Batches of so many rows."""
    return DataLoader([torch.ones(4)] * (number * rows), batch_size=rows)  # pyright: ignore[reportArgumentType]


class Job:
    """A model and its optimizer."""

    def __init__(self) -> None:
        self.model = Slow()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def update(self, batch: torch.Tensor) -> None:
        """Make one update."""
        self.model(batch).sum().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


def evaluate(model: nn.Module) -> None:
    """Run a model over two batches of other sizes."""
    with torch.no_grad():
        for batch in batches(2, 16):
            model(batch)


def record(folder: Path, train: Callable[[Job], None]) -> list[StepRecord]:
    """Record a loop and return its steps, each checked to sum up exactly."""
    job = Job()
    with Recorder(run_dir=folder) as recorder:
        path = recorder.folder
        train(job)
    assert path is not None
    steps = read_steps(path)
    assert all(sum(step.phases.values()) == step.end_ns - step.start_ns for step in steps)
    return steps


def test_evaluating_an_average_is_evaluation(tmp_path: Path) -> None:
    """An averaged model that is never trained: its calls are evaluation, and no FLOPs of the step that holds them."""

    def train(job: Job) -> None:
        average = torch.optim.swa_utils.AveragedModel(job.model)
        for number, batch in enumerate(batches()):
            job.update(batch)
            average.update_parameters(job.model)
            if number == 1:
                evaluate(average.eval())

    steps = record(tmp_path, train)
    assert [step.model_flop for step in steps] == [BY_HAND] * 4
    # Its first batch is asked for after the update.
    assert [step.step for step in steps if step.phases.get("evaluation", 0) >= 2 * SLEEP_NS] == [2]


@pytest.mark.parametrize("mode", [True, False])
def test_a_validation_before_training_is_evaluation(tmp_path: Path, mode: bool) -> None:
    """In whichever mode, it is evaluation of the first step, which has the FLOPs of all others."""

    def train(job: Job) -> None:
        evaluate(job.model.train(mode))
        job.model.train()
        for batch in batches():
            job.update(batch)

    steps = record(tmp_path, train)
    assert [step.model_flop for step in steps] == [BY_HAND] * 4
    assert [step.step for step in steps if step.phases.get("evaluation", 0) >= 2 * SLEEP_NS] == [0]


@pytest.mark.parametrize("gradients", [True, False])
@pytest.mark.parametrize("kind", [Slow, OtherSlow])
@pytest.mark.parametrize("mode", [True, False])
def test_a_frozen_teacher_is_the_same_however_it_is_written(
    tmp_path: Path, kind: type[Slow], gradients: bool, mode: bool
) -> None:
    """Of whichever class and mode, with gradients switched off or with parameters that want none: evaluation."""

    def train(job: Job) -> None:
        teacher = kind().train(mode).requires_grad_(False)
        for batch in batches():
            with torch.set_grad_enabled(gradients):
                target = teacher(batch)
            job.optimizer.zero_grad()
            (job.model(batch) - target).sum().backward()
            job.optimizer.step()

    steps = record(tmp_path, train)
    assert [step.model_flop for step in steps] == [BY_HAND] * 4
    assert all(step.phases["evaluation"] >= SLEEP_NS for step in steps)
    assert [step.samples for step in steps] == [ROWS] * 4


def test_a_frozen_model_that_gradients_flow_through_is_part_of_the_update(tmp_path: Path) -> None:
    """A frozen model over a trained one (prompt tuning, a loss by features): its forward, and FLOPs for its input.

    By hand: 4 x 8 and 8 x 4 products forward, and the same again for the gradients of what they got.
    """
    frozen_by_hand = 2 * (2 * ROWS * (2 * 8 + 8 * 4))

    def train(job: Job) -> None:
        frozen = nn.Sequential(nn.Linear(2, 8), nn.Linear(8, 4)).eval().requires_grad_(False)
        for batch in batches():
            frozen(job.model(batch)).sum().backward()
            job.optimizer.step()
            job.optimizer.zero_grad()

    steps = record(tmp_path, train)
    assert [step.model_flop for step in steps] == [BY_HAND + frozen_by_hand] * 4
    assert all("evaluation" not in step.phases for step in steps)


def test_a_frozen_part_of_a_module_that_is_never_called_itself_is_seen(tmp_path: Path) -> None:
    """As of a trainer that calls a method of its module: of the frozen part, forward and the gradient of its input."""

    class Tuned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.prompt = nn.Sequential(nn.Linear(4, 4))
            self.frozen = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2)).requires_grad_(False)

        def training_step(self, batch: torch.Tensor) -> torch.Tensor:
            return self.frozen(self.prompt(batch)).sum()

    def train(job: Job) -> None:
        tuned = Tuned()
        optimizer = torch.optim.SGD(tuned.prompt.parameters(), lr=0.1)
        del job.model, job.optimizer
        for batch in batches():
            tuned.training_step(batch).backward()
            optimizer.step()
            optimizer.zero_grad()

    steps = record(tmp_path, train)
    by_hand = 2 * (2 * ROWS * 4 * 4) + 2 * (2 * ROWS * (4 * 8 + 8 * 2))
    assert [step.model_flop for step in steps[1:]] == [by_hand] * 3
    assert all("forward" in step.phases and "evaluation" not in step.phases for step in steps[1:])


def test_device_time_of_a_call_without_gradients_is_evaluation(tmp_path: Path) -> None:
    """A stand-in for a device's events, which count up: each call takes one of them, in the phase of the host.

    The hook of backward has the device of the process.
    """

    class Event:
        num_recorded = 0

        def record(self) -> None:
            Event.num_recorded += 1
            self.number = Event.num_recorded

        def query(self) -> bool:
            return True

        def elapsed_time(self, end: Event) -> int:
            return end.number - self.number

    def train(job: Job) -> None:
        assert session.current is not None
        session.current.hooks._device = DevicePhases(make_event=Event, capturing=lambda: False)  # pyright: ignore[reportPrivateUsage]
        teacher = Slow().requires_grad_(False)
        for batch in batches():
            teacher(batch)
            job.update(batch)

    steps = record(tmp_path, train)
    assert [step.device_ns for step in steps[1:3]] == [dict.fromkeys(("evaluation", "forward"), 10**6)] * 2


def test_a_critic_that_is_frozen_while_its_generator_learns_is_trained(tmp_path: Path) -> None:
    """Gradients of its parameters are turned off and on in each step: all four of its passes are of the update.

    By hand: the generator's update and, through the critic, forward and for the input; then a forward of the generator
    without a backward, and two updates' worth of the critic for the real and the made.
    """
    made = 2 * ROWS * (4 * 8 + 8 * 4)
    generator = made + 2 * ROWS * (4 * 8 + 2 * 8 * 4)
    critic = 2 * ROWS * (4 * 8 + 8 * 2)
    critic_update = 2 * ROWS * (2 * 4 * 8 + 3 * 8 * 2)

    def train(job: Job) -> None:
        maker = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 4))
        optimizer = torch.optim.SGD(maker.parameters(), lr=0.1)
        for batch in batches():
            job.model.requires_grad_(False)
            job.model(maker(batch)).sum().backward()
            optimizer.step()
            job.model.requires_grad_(True)
            (job.model(batch) - job.model(maker(batch).detach())).sum().backward()
            job.optimizer.step()
            job.optimizer.zero_grad()
            optimizer.zero_grad()

    steps = record(tmp_path, train)
    assert [step.model_flop for step in steps] == [generator + 2 * critic + made + 2 * critic_update] * 4
    assert all("evaluation" not in step.phases for step in steps)


def test_a_frozen_model_that_learns_from_now_on_is_trained(tmp_path: Path) -> None:
    """Its calls are evaluation up to where its parameters want gradients, and forward from the very next one on."""

    def train(job: Job) -> None:
        encoder = nn.Sequential(nn.Linear(4, 4)).requires_grad_(False)
        job.optimizer.add_param_group({"params": list(encoder.parameters())})
        for number, batch in enumerate(batches()):
            if number == 2:
                encoder.requires_grad_(True)
            job.model(encoder(batch)).sum().backward()
            job.optimizer.step()
            job.optimizer.zero_grad()

    steps = record(tmp_path, train)
    assert [("evaluation" in step.phases) for step in steps] == [True, True, False, False]
    # Of the encoder: forward, and for its weights; of the model, for the input as well.
    both = BY_HAND + 2 * ROWS * 4 * 8 + 2 * (2 * ROWS * 4 * 4)
    assert [step.model_flop for step in steps] == [BY_HAND, BY_HAND, both, both]


def test_a_model_in_a_reentrant_checkpoint_is_trained(tmp_path: Path) -> None:
    """Such a checkpoint switches gradients off for the forward, which is one for the update; it is computed again."""

    def train(job: Job) -> None:
        for batch in batches():
            batch.requires_grad_(True)
            torch.utils.checkpoint.checkpoint(job.model, batch, use_reentrant=True).sum().backward()
            job.optimizer.step()
            job.optimizer.zero_grad()

    model = BY_HAND + 2 * ROWS * 4 * 8  # the input wants gradients too
    steps = record(tmp_path, train)
    assert [step.model_flop for step in steps] == [model] * 4
    assert [step.hardware_flop for step in steps] == [model + 2 * ROWS * (4 * 8 + 8 * 2)] * 4
    assert all("evaluation" not in step.phases for step in steps)
    assert [step.samples for step in steps] == [ROWS] * 4


def test_a_model_that_is_trained_later_is_told_by_its_gradients(tmp_path: Path) -> None:
    """A copy, made amid training, is trained in place of the model: its calls are forward, its FLOPs the step's."""

    def train(job: Job) -> None:
        for number, batch in enumerate(batches()):
            if number == 2:
                job.model = copy.deepcopy(job.model)
                job.optimizer = torch.optim.SGD(job.model.parameters(), lr=0.1)
            job.update(batch)

    steps = record(tmp_path, train)
    assert [step.model_flop for step in steps] == [BY_HAND] * 4
    assert all("forward" in step.phases for step in steps)
