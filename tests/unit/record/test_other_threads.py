"""Training in a thread that is not measured: lost, but never without a word."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, cast

import pytest

pytest.importorskip("torch")

import torch

from scope.frames import open_run
from scope.record import Recorder
from scope.record.settings import CaptureSettings
from scope.report.run_state import describe_run, render_run
from scope.run.goodbyes import OTHER_THREAD
from scope.run.reader import RankReader, read_steps

if TYPE_CHECKING:
    from pathlib import Path


def train(num_steps: int) -> None:
    """Make steps in the thread that calls."""
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(num_steps):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()


@pytest.mark.parametrize(("in_thread", "is_told"), [(2, True), (0, False)])
def test_a_thread_that_trains_beside_the_measured_one_is_told_once(
    tmp_path: Path, in_thread: int, *, is_told: bool
) -> None:
    """Steps of the measured thread are recorded as ever; what the other made is in none, and goodput is at least."""
    with Recorder(run_dir=tmp_path, run_id="r", capture=CaptureSettings(reasons=frozenset())) as recorder:
        rank = recorder.folder
        train(3)
        for _ in range(2):
            step_in_thread(in_thread)
        train(1)
    assert rank is not None
    assert len(read_steps(rank)) == 4
    told = [event for event in RankReader(rank).new_events() if OTHER_THREAD in event.detail]
    assert [event.kind for event in told] == ["warning"] * is_told
    shown = render_run(describe_run(open_run(tmp_path)))
    assert ("rank 0 also trained in another thread" in shown) == is_told
    assert ("goodput at least " in shown) == is_told


class StepsInBackward(torch.autograd.Function):
    """An optimizer that a thread of its own steps inside of a backward pass, as autograd has it on devices."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
        """Pass the value through."""
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        """Pass the gradient through, behind a step."""
        step_in_thread(1)
        return gradients[0]


def step_in_thread(num_steps: int) -> None:
    """Make steps in a thread, and wait for it."""
    thread = threading.Thread(target=train, args=(num_steps,))
    thread.start()
    thread.join()


def test_an_optimizer_that_steps_within_backward_is_no_other_training(tmp_path: Path) -> None:
    """Its time is in the backward pass that waits for it, and steps end where the program says."""
    with Recorder(run_dir=tmp_path, run_id="r", capture=CaptureSettings(reasons=frozenset())) as recorder:
        rank = recorder.folder
        for _ in range(3):
            recorder.end_step()
            weight = torch.ones(4, requires_grad=True)
            cast("torch.Tensor", StepsInBackward.apply(weight)).sum().backward()  # pyright: ignore[reportUnknownMemberType]
    assert rank is not None
    assert not [event for event in RankReader(rank).new_events() if OTHER_THREAD in event.detail]
    assert "also trained" not in render_run(describe_run(open_run(tmp_path)))
