"""What calls without gradients are: evaluations, or those of a frozen model; their FLOPs are none of training."""

from __future__ import annotations

import copy
import time
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("torch")

import torch
from torch import nn
from torch.utils.data import DataLoader

from scope.record import Recorder, session
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
    """Two layers, which sleep where no gradients are made."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        """Run both."""
        if not torch.is_grad_enabled():
            time.sleep(SLEEP_NS / 1e9)
        return self.layers(batch)


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
def test_a_frozen_teacher_is_the_same_of_whichever_class(tmp_path: Path, kind: type[Slow], gradients: bool) -> None:
    """Its calls, with gradients or without, are in no phase, and their FLOPs in no step, which has its batch."""

    def train(job: Job) -> None:
        teacher = kind().eval().requires_grad_(False)
        for batch in batches():
            with torch.set_grad_enabled(gradients):
                target = teacher(batch)
            job.optimizer.zero_grad()
            (job.model(batch) - target).sum().backward()
            job.optimizer.step()

    steps = record(tmp_path, train)
    assert [step.model_flop for step in steps] == [BY_HAND] * 4
    assert all(step.phases["other"] >= SLEEP_NS for step in steps if not gradients)
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
