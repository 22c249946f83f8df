"""An evaluation that `eval()` began is over where the model is trained again, whether or not `train()` was called."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.utils.data import DataLoader

from scope.record import Recorder
from scope.run.reader import read_steps

if TYPE_CHECKING:
    from pathlib import Path

    from scope.run.schema import StepRecord

_NUM_EPOCHS = 3
_NUM_BATCHES = 4


def _train(folder: Path, *, own: bool = False, updates: int = 1, validates: bool = True) -> list[StepRecord]:
    """Train a model whose mode is never set back after a validation; return the steps."""
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader([torch.ones(4)] * (2 * _NUM_BATCHES), batch_size=2)  # pyright: ignore[reportArgumentType]

    def train_on(batch: torch.Tensor) -> None:
        model(batch).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    with Recorder(run_dir=folder) as recorder:
        path = recorder.folder
        for _ in range(_NUM_EPOCHS):
            for batch in loader:
                for _ in range(updates):
                    train_on(batch)
            if validates:
                model.eval()
                with torch.no_grad():
                    for batch in loader:
                        model(batch)
        if own:
            with recorder.phase("evaluation"):
                train_on(torch.ones(2, 4))
    assert path is not None
    return read_steps(path)


def test_a_forgotten_train_ends_no_recording(tmp_path: Path) -> None:
    """Each update is a step with its backward pass, and phases sum to the step."""
    steps = _train(tmp_path)
    assert [(step.num_microbatches, step.num_optimizer_steps) for step in steps] == [(1, 1)] * (
        _NUM_EPOCHS * _NUM_BATCHES
    )
    assert all(sum(step.phases.values()) == step.end_ns - step.start_ns for step in steps)
    assert sum("evaluation" in step.phases for step in steps) == _NUM_EPOCHS - 1  # no step follows the last


def test_an_evaluation_of_the_users_own_stays_theirs(tmp_path: Path) -> None:
    """An update inside `phase("evaluation")` is none of training."""
    steps = _train(tmp_path, own=True, validates=False)
    assert sum(step.num_optimizer_steps or 0 for step in steps) == _NUM_EPOCHS * _NUM_BATCHES


def test_models_are_not_looked_for_in_steps_that_a_forward_began(tmp_path: Path) -> None:
    """A forward that begins a step belongs to it: its model is known, and no step is disturbed by a search."""
    steps = _train(tmp_path, updates=3, validates=False)
    assert sum(step.num_optimizer_steps or 0 for step in steps) == 3 * _NUM_EPOCHS * _NUM_BATCHES
    assert "models_searched" not in [step.disturbed for step in steps]
    assert "updates_merged" in [step.disturbed for step in steps]
