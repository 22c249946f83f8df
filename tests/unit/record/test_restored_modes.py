"""Modes that are set again without `train()`, as Lightning does after each validation: the evaluation is over then."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

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

EPOCHS, ROWS, BATCH = 3, 14, 4
"""Batches of 4, 4, 4 and 2 rows an epoch: two updates of two batches each."""
SAMPLES = [8, 6] * EPOCHS
VALIDATED = [0, 2, 4]
"""Steps that a validation is part of: they begin where their loader is asked in vain for more."""


def loader(rows: int = ROWS) -> DataLoader[torch.Tensor]:
    """Return so many rows in batches of four."""
    return DataLoader(torch.ones(rows, 4), batch_size=BATCH)  # pyright: ignore[reportArgumentType]


@contextlib.contextmanager
def modes_kept(module: nn.Module) -> Iterator[None]:
    """Give each part of a module the mode afterwards that it had, without calling `train()`."""
    modes = {name: part.training for name, part in module.named_modules()}
    yield
    for name, part in module.named_modules():
        part.training = modes[name]


class Wrapped(nn.Module):
    """What DDP is to a model: the model is its `module`, and its own mode is nobody's business."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Call the model."""
        return self.module(rows)


class Whole(nn.Module):
    """A module whose parts are called one by one, and never itself."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(4, 1)


def fit(called: nn.Module, switched: nn.Module, restored: nn.Module) -> None:
    """Train with gradient accumulation over two batches, and validate after each epoch.

    Args:
        called: The model whose call is the forward.
        switched: Whose `eval()` begins a validation.
        restored: Whose modes, and those of its parts, are restored after it.
    """
    optimizer = torch.optim.SGD(called.parameters(), lr=0.1)

    def validate() -> None:
        with modes_kept(restored), torch.no_grad():
            switched.eval()
            for rows in loader(20):
                called(rows)

    validate()  # Lightning's check before it trains
    for _ in range(EPOCHS):
        for number, rows in enumerate(loader(), start=1):
            called(rows).sum().backward()
            if number % 2 == 0:
                optimizer.step()
                optimizer.zero_grad()
        validate()


def record(folder: Path, train: Callable[[], Any]) -> list[StepRecord]:
    """Record a loop."""
    with Recorder(run_dir=folder) as recorder:
        path = recorder.folder
        train()
    assert path is not None
    assert session.current is None
    return read_steps(path)


def check(steps: list[StepRecord]) -> None:
    """Each step has its two batches and backward passes, all of them seen as such."""
    assert [step.samples for step in steps] == SAMPLES
    assert [(step.num_microbatches, step.num_optimizer_steps) for step in steps] == [(2, 1)] * len(SAMPLES)
    assert [step.disturbed for step in steps[1:]] == [None] * (len(SAMPLES) - 1)
    assert all({"input", "forward", "backward", "optimizer"} <= step.phases.keys() for step in steps[1:])
    assert [step.step for step in steps if "evaluation" in step.phases] == VALIDATED


def test_a_model_whose_modes_are_restored(tmp_path: Path) -> None:
    """No batch, pass or phase of the step after a validation is taken for one of the validation."""
    model = nn.Sequential(nn.Linear(4, 1))
    check(record(tmp_path, lambda: fit(model, model, model)))


def test_a_wrapper_whose_own_mode_stays_that_of_evaluation(tmp_path: Path) -> None:
    """Its `eval()` reaches the model, and the model alone is put back: the wrapper's calls are training."""
    inner = nn.Sequential(nn.Linear(4, 1))
    model = Wrapped(inner)
    check(record(tmp_path, lambda: fit(model, model, inner)))
    assert not model.training


def test_a_module_whose_parts_are_called(tmp_path: Path) -> None:
    """Its `eval()` begins the evaluation of what is called, though nobody calls the module."""
    whole = Whole()
    check(record(tmp_path, lambda: fit(whole.net, whole, whole)))


def test_batches_of_a_check_before_training_are_none_of_the_first_step(tmp_path: Path) -> None:
    """They are asked for without gradients, before anything is known of the model."""

    def train() -> None:
        with torch.no_grad():
            validated = [rows.sum() for rows in loader(20)]
        assert len(validated) == 5
        weight = torch.ones(4, requires_grad=True)
        optimizer = torch.optim.SGD([weight], lr=0.1)
        for rows in loader():
            (rows * weight).sum().backward()
            optimizer.step()

    assert [step.samples for step in record(tmp_path, train)] == [4, 4, 4, 2]
