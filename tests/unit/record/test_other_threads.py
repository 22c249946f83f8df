"""Training in a thread that is not measured: lost, but never without a word."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

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
            thread = threading.Thread(target=train, args=(in_thread,))
            thread.start()
            thread.join()
        train(1)
    assert rank is not None
    assert len(read_steps(rank)) == 4
    told = [event for event in RankReader(rank).new_events() if OTHER_THREAD in event.detail]
    assert [event.kind for event in told] == ["warning"] * is_told
    shown = render_run(describe_run(open_run(tmp_path)))
    assert ("rank 0 also trained in another thread" in shown) == is_told
    assert ("goodput at least " in shown) == is_told
