"""What the recorder does rarely and slowly is counted as its own, and never lengthens a step that passes for usual."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("torch")

import torch
from torch import nn

from scope.record import Recorder, device_peak, hooks, phases
from scope.record.settings import CaptureSettings
from scope.run.reader import RankReader, read_steps

if TYPE_CHECKING:
    from pathlib import Path

    from scope.run.schema import StepRecord

NO_CAPTURE = CaptureSettings(reasons=frozenset())
SLOW_NS = 100_000_000


class Slow(nn.Module):
    """A layer whose forward sleeps."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        """Sleep 20 ms."""
        time.sleep(0.02)
        return self.layer(batch)


def make_slow(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, original: Any) -> list[int]:
    """Let a function of the recorder sleep 100 ms before it does its work; return when each call began (epoch ns)."""
    begun: list[int] = []

    def slow(*arguments: Any) -> Any:
        begun.append(time.time_ns())
        time.sleep(SLOW_NS / 1e9)
        return original(*arguments)

    monkeypatch.setattr(owner, name, slow)
    return begun


def holds(step: StepRecord, instants: list[int]) -> bool:
    """Whether one of the instants lies in a step."""
    return any(step.start_ns <= instant < step.end_ns for instant in instants)


def train(recorder: Recorder, *, num_steps: int = 4) -> Path:
    """Train a model that is made while recording, without a loader; return the rank's folder."""
    with recorder:
        model = Slow()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(num_steps):
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
        assert recorder.folder is not None
        return recorder.folder


def test_measuring_the_peak_is_part_of_the_counted_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A measurement of 100 ms lies in the step that is marked, is its recorder's cost, and touches no step after it."""
    measured = make_slow(monkeypatch, device_peak, "measure_product", device_peak.measure_product)
    steps = read_steps(train(Recorder(run_dir=tmp_path, run_id="r", capture=NO_CAPTURE)))
    assert [step.disturbed for step in steps] == ["flops_counted", None, None, "end_unknown"]
    assert [holds(step, measured) for step in steps] == [True, False, False, False]
    assert SLOW_NS <= steps[0].recorder_ns <= steps[0].end_ns - steps[0].start_ns
    assert all(step.recorder_ns < SLOW_NS for step in steps[1:])


def test_looking_for_models_is_part_of_init(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks of 100 ms as recording begins and as the optimizer is made are in no step; the start tells their cost."""
    looked = make_slow(monkeypatch, hooks.TrainingHooks, "_discover", hooks.TrainingHooks._discover)
    folder = train(Recorder(run_dir=tmp_path, run_id="r", capture=NO_CAPTURE, peak_flop_per_s=1e9))
    steps = read_steps(folder)
    assert looked
    assert not any(holds(step, looked) for step in steps)
    assert all(step.recorder_ns < SLOW_NS for step in steps)
    (start,) = [event for event in RankReader(folder).new_events() if event.kind == "attempt_start"]
    recorder_ns, init_ns = start.detail["recorder_ns"], start.detail["init_ns"]
    assert isinstance(recorder_ns, int)
    assert isinstance(init_ns, int)
    assert 2 * SLOW_NS <= recorder_ns <= init_ns


def test_the_first_forward_is_in_the_first_step(tmp_path: Path) -> None:
    """Of a model that is made while recording, without a loader, the first call begins step 0."""
    steps = read_steps(train(Recorder(run_dir=tmp_path, run_id="r", capture=NO_CAPTURE)))
    assert [step.step for step in steps] == [0, 1, 2, 3]
    assert all(step.phases["forward"] >= 20_000_000 for step in steps)


def test_a_step_with_a_look_for_models_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program without modules is looked through again at the end of early steps: those are marked, the rest not."""
    looked = make_slow(monkeypatch, hooks.TrainingHooks, "_discover", hooks.TrainingHooks._discover)
    weight = torch.ones(4, requires_grad=True)
    with Recorder(run_dir=tmp_path, run_id="r", capture=NO_CAPTURE) as recorder:
        optimizer = torch.optim.SGD([weight], lr=0.1)
        for _ in range(8):
            (weight * 2).sum().backward()
            optimizer.step()
        folder = recorder.folder
    assert folder is not None
    steps = read_steps(folder)
    marked = [step for step in steps if step.disturbed == "models_searched"]
    assert 1 <= len(marked) < 5
    assert all(step.recorder_ns >= SLOW_NS for step in marked)
    assert all(holds(step, looked) for step in marked)
    assert all(step.disturbed for step in steps if holds(step, looked))


def test_a_checkpoint_is_as_long_as_its_phase(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads that hold up the change of a phase by 100 ms leave the event and the phase the same, to the ns."""
    with Recorder(run_dir=tmp_path, run_id="r", capture=NO_CAPTURE) as recorder:
        folder = recorder.folder
        recorder.end_step()
        with monkeypatch.context() as patch:
            make_slow(patch, phases.PhaseClock, "_tell", phases.PhaseClock._tell)
            torch.save(torch.ones(4), tmp_path / "model.pt")
        recorder.end_step()
    assert folder is not None
    (step,) = read_steps(folder)
    event = next(event for event in RankReader(folder).new_events() if event.kind == "checkpoint")
    assert event.duration_ns == event.detail["blocked_ns"] == step.phases["checkpoint"]
