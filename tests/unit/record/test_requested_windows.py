"""Profiler windows that a recording in this process takes on request, by file, call or signal."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("torch")

import torch
from torch import nn

from scope.record import Recorder
from scope.record.settings import CaptureSettings
from scope.run.reader import RankReader, read_steps

if TYPE_CHECKING:
    from pathlib import Path


def make_model() -> nn.Module:
    """A small model."""
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


@pytest.mark.parametrize(("named", "expected"), [(b"6\n", 6), (b"1\n", 2), (b"", 2), (b"soon", 2)])
def test_a_window_begins_at_the_step_that_its_request_names(tmp_path: Path, named: bytes, expected: int) -> None:
    """Not before it, on whatever step the request is seen; at the next one where it is over, or none is named."""
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    settings = CaptureSettings(reasons=frozenset(("file",)))
    with Recorder(run_dir=tmp_path, run_id="r", capture=settings) as recorder:
        rank = recorder.folder
        assert rank is not None
        assert recorder.session is not None
        for step in range(12):
            if step == 2:
                (rank / "capture.request").write_bytes(named)
                recorder.session.writer.flush()
            model(torch.ones(2, 8)).sum().backward()
            optimizer.step()
    (trace,) = RankReader(rank).traces()
    assert (trace.info.first_step, trace.info.num_steps) == (expected, 2)
    (record,) = [step for step in read_steps(rank) if step.start_ns <= trace.info.start_ns < step.end_ns]
    assert record.step == expected
    assert f"ProfilerStep#{expected}" in trace.path.read_text()


def test_a_window_that_the_end_overtakes_is_told(tmp_path: Path) -> None:
    """An event says which request was not met, and the file that marks it as open stays; a met one leaves neither."""
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    settings = CaptureSettings(reasons=frozenset(("file",)))
    with Recorder(run_dir=tmp_path, run_id="r", capture=settings) as recorder:
        rank = recorder.folder
        assert rank is not None
        assert recorder.session is not None
        (rank / "capture.request").write_bytes(b"120\n")
        recorder.session.writer.flush()
        recorder.capture()
        for _ in range(6):
            model(torch.ones(2, 8)).sum().backward()
            optimizer.step()
        assert (rank / "capture.taken").exists()
    assert [trace.info.reason for trace in RankReader(rank).traces()] == ["user"]
    (told,) = [event for event in RankReader(rank).new_events() if event.kind == "warning"]
    assert "(trigger_file) from step 120 on was not taken: the recording ended in step 5" in told.message
    assert told.detail == {"reason": "trigger_file", "first_step": 120}
    assert (rank / "capture.taken").exists()


def test_capture_on_request_and_never_beside_another_profiler(tmp_path: Path) -> None:
    """A requested window holds two marked steps; one that the program's own profiler meets gives way at once."""

    def loop(steps: int) -> None:
        for _ in range(steps):
            model(torch.ones(2, 8)).sum().backward()
            optimizer.step()

    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    settings = CaptureSettings(reasons=frozenset(("file",)))
    with Recorder(run_dir=tmp_path, run_id="r", capture=settings) as recorder:
        rank = recorder.folder
        assert rank is not None
        loop(2)
        (rank / "capture.request").touch()
        assert recorder.session is not None
        recorder.session.writer.flush()
        assert not (rank / "capture.request").exists()
        loop(5)
        assert not (rank / "capture.taken").exists()
        (trace,) = RankReader(rank).traces()
        recorder.capture()
        loop(2)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as own:
            recorder.capture()
            loop(3)
    assert trace.info.num_steps == 2
    assert trace.info.reason == "trigger_file"
    text = trace.path.read_text()
    assert all(f"ProfilerStep#{trace.info.first_step + number}" in text for number in (0, 1))
    assert own.events()
    assert len(RankReader(rank).traces()) == 1
    disturbed = [step.step for step in read_steps(rank) if step.disturbed == "capture"]
    assert disturbed[:2] == [trace.info.first_step, trace.info.first_step + 1]


def test_a_signal_asks_for_a_window_only_where_nobody_listens(tmp_path: Path) -> None:
    """The signal's window is taken and the signal left as it was; a handler of the program's own is not replaced."""

    def train() -> None:
        model = make_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for number in range(6):
            model(torch.ones(2, 8)).sum().backward()
            optimizer.step()
            if number == 1:
                os.kill(os.getpid(), signal.SIGUSR2)

    settings = CaptureSettings(reasons=frozenset(("signal",)), signal=int(signal.SIGUSR2))
    before = signal.getsignal(signal.SIGUSR2)
    with Recorder(run_dir=tmp_path / "ours", run_id="r", capture=settings) as recorder:
        rank = recorder.folder
        train()
    assert rank is not None
    assert [trace.info.reason for trace in RankReader(rank).traces()] == ["signal"]
    assert signal.getsignal(signal.SIGUSR2) == before
    seen: list[int] = []
    signal.signal(signal.SIGUSR2, lambda number, frame: seen.append(number))
    try:
        with Recorder(run_dir=tmp_path / "theirs", run_id="r", capture=settings) as recorder:
            rank = recorder.folder
            train()
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert rank is not None
    assert (len(seen), RankReader(rank).traces()) == (1, [])
