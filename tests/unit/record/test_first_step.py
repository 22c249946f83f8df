"""Where a program that resumes begins to count its steps, and what becomes of numbers that make no sense."""

from __future__ import annotations

import gc
import sys
from typing import TYPE_CHECKING, Any, cast

import pytest

pytest.importorskip("torch")

import torch
from torch import nn
from torch.utils.data import DataLoader

from scope.record import Recorder, session
from scope.record import recorder as recorder_module
from scope.record.settings import CaptureSettings
from scope.run.reader import RankReader, read_steps

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NO_CAPTURE = CaptureSettings(reasons=frozenset())


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """After every test the recording and its hooks are gone."""
    before = nn.Linear.__call__, list(gc.callbacks), sys.excepthook
    yield
    assert session.current is None
    assert before == (nn.Linear.__call__, list(gc.callbacks), sys.excepthook)


def make_loader() -> DataLoader[torch.Tensor]:
    """Six batches of two samples."""
    return DataLoader(cast("torch.utils.data.Dataset[torch.Tensor]", [torch.ones(8)] * 12), batch_size=2)


class Training:
    """A model and its optimizer, recorded into a folder."""

    def __init__(self, folder: Path) -> None:
        self.model = nn.Linear(8, 4)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.recorder = Recorder(run_dir=folder, run_id="r", capture=NO_CAPTURE, peak_flop_per_s=1e9)
        self.rank: Path | None = None

    def __enter__(self) -> Recorder:
        """Begin to record."""
        self.recorder.__enter__()
        self.rank = self.recorder.folder
        return self.recorder

    def __exit__(self, *error: Any) -> None:
        """End recording."""
        self.recorder.__exit__(None, None, None)

    def step(self, batch: torch.Tensor) -> None:
        """Make one update."""
        self.model(batch).sum().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def numbers(self) -> list[int]:
        """Return the numbers of the steps on record."""
        assert self.rank is not None
        return [step.step for step in read_steps(self.rank)]

    def warnings(self) -> list[str]:
        """Return the warnings on record."""
        assert self.rank is not None
        return [event.message for event in RankReader(self.rank).new_events() if event.kind == "warning"]


def test_steps_are_counted_from_where_the_program_resumes(tmp_path: Path) -> None:
    """Ten updates were made before: six more are steps 10 to 15, and the black box stands behind the last."""
    with (training := Training(tmp_path)) as recorder:
        for batch in recorder.steps(make_loader(), start=10):
            training.step(batch)
    assert training.numbers() == [10, 11, 12, 13, 14, 15]
    assert training.rank is not None
    state = RankReader(training.rank).state()
    assert state is not None
    assert (state.step, state.num_steps) == (16, 6)  # the loader was asked for another batch
    assert training.warnings() == []


def test_flops_are_counted_wherever_steps_begin(tmp_path: Path) -> None:
    """The first step that is made is counted and marked, though its number is 1,000: 2 x 2 x 8 x 4 FLOPs, twice."""
    with (training := Training(tmp_path)) as recorder:
        for batch in recorder.steps(make_loader(), start=1_000):
            training.step(batch)
    assert training.rank is not None
    steps = read_steps(training.rank)
    assert [(step.step, step.disturbed) for step in steps[:2]] == [(1_000, "flops_counted"), (1_001, None)]
    # Forward, and the gradient of the weights; nobody needs that of the batch.
    assert {step.model_flop for step in steps} == {2 * 2 * 2 * 8 * 4}
    assert RankReader(training.rank).info().model is not None


def test_a_validation_before_training_is_part_of_the_first_step(tmp_path: Path) -> None:
    """Batches that are asked for before the number is known begin the first step, which takes it."""
    with (training := Training(tmp_path)) as recorder:
        training.model.eval()
        for batch in make_loader():
            training.model(batch)
        training.model.train()
        recorder.start_at(7)
        for batch in recorder.steps(make_loader()):
            training.step(batch)
    assert training.numbers() == [7, 8, 9, 10, 11, 12]
    assert training.warnings() == []


def test_each_epoch_may_say_where_it_begins(tmp_path: Path) -> None:
    """The number that is next anyway changes nothing, with six batches an epoch or one."""
    with (training := Training(tmp_path)) as recorder:
        for epoch in range(2):
            for batch in recorder.steps(make_loader(), start=3 + 6 * epoch):
                training.step(batch)
        for number in range(2):
            for batch in recorder.steps([torch.ones(2, 8)], start=15 + number):
                training.step(batch)
    assert training.numbers() == list(range(3, 17))
    assert training.warnings() == []


def test_numbers_neither_fall_nor_jump_within_an_attempt(tmp_path: Path) -> None:
    """A second start that is another than the next number is told, once, and steps are counted on."""
    with (training := Training(tmp_path)) as recorder:
        for start in (5, 0, 100):
            for batch in recorder.steps(make_loader(), start=start):
                training.step(batch)
    assert training.numbers() == list(range(5, 23))
    assert training.warnings() == ["steps are counted on from 11: start=0 came when some had ended"]


@pytest.mark.parametrize("start", ["10", 1.5, -1, 2**31, object()])
def test_a_start_that_is_none_lets_training_go_on(tmp_path: Path, start: Any) -> None:
    """Text, fractions, and numbers that no step can have are told, and steps are counted from 0."""
    with (training := Training(tmp_path)) as recorder:
        for batch in recorder.steps(make_loader(), start=start):
            training.step(batch)
    assert training.numbers() == [0, 1, 2, 3, 4, 5]
    (warning,) = training.warnings()
    assert warning.endswith("steps are counted from 0") or "counted from 0: " in warning


def test_a_tensor_is_a_number_too(tmp_path: Path) -> None:
    """Checkpoints often hold the step as a tensor of one whole number."""
    with (training := Training(tmp_path)) as recorder:
        for batch in recorder.steps(make_loader(), start=cast("int", torch.tensor(4))):
            training.step(batch)
    assert training.numbers() == [4, 5, 6, 7, 8, 9]


def test_without_a_recording_the_loop_runs_as_it_is(tmp_path: Path) -> None:
    """A recorder that could not be opened takes a start and records nothing."""
    (tmp_path / "file").write_text("")
    with Recorder(run_dir=tmp_path / "file" / "run", run_id="r") as recorder:
        recorder.start_at(3)
        assert list(recorder.steps([1, 2], start=3)) == [1, 2]


def test_a_number_said_before_the_recording_begins_holds_from_then_on(tmp_path: Path) -> None:
    """`start_at` on a recorder that is not entered is kept until it is, and for that recording alone."""
    training = Training(tmp_path)
    training.recorder.start_at(500)
    with training as recorder:
        for batch in recorder.steps(make_loader()):
            training.step(batch)
    assert training.numbers() == [500, 501, 502, 503, 504, 505]
    assert training.warnings() == []


def test_a_recorder_that_is_not_entered_speaks_to_the_recording_in_progress(tmp_path: Path) -> None:
    """As under `scope run`: number, tokens, phases and ends of steps that it says are on record; it owns nothing."""
    other = Recorder()
    with (training := Training(tmp_path)):
        other.start_at(40)
        for batch in other.steps(make_loader()):
            with other.phase("mine"):
                other.add_tokens(64)
            training.model(batch).sum().backward()
            other.end_step()
    assert training.rank is not None
    steps = read_steps(training.rank)
    assert [(step.step, step.tokens) for step in steps] == [(40 + number, 64) for number in range(6)]
    assert all("mine" in step.phases for step in steps)
    assert training.warnings() == []


@pytest.fixture
def untold(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that was told nothing yet, outside of `scope run`."""
    monkeypatch.setattr(recorder_module, "_told", set())
    monkeypatch.delenv("SCOPE_RUN_DIR", raising=False)


@pytest.mark.usefixtures("untold")
def test_a_recorder_that_nobody_enters_says_once_that_it_does_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a recording in progress the first call that is lost is told on standard error, and no other."""
    recorder = Recorder()
    recorder.start_at(3)
    assert capsys.readouterr().err == ""
    assert list(recorder.steps([1, 2])) == [1, 2]
    recorder.add_tokens(64)
    recorder.end_step()
    recorder.capture()
    with recorder.phase("x"):
        pass
    for _ in range(3):
        Recorder().end_step()
    assert capsys.readouterr().err == (
        "scope: recorder.steps() did nothing: begin the recording first, `with scope.Recorder() as recorder:`\n"
    )


@pytest.mark.usefixtures("untold")
def test_under_scope_run_nobody_is_told_to_begin(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where `scope run` could not record, a recording of the script's own is not what is missing."""
    monkeypatch.setenv("SCOPE_RUN_DIR", "/runs/r")
    Recorder().end_step()
    told = capsys.readouterr().err
    assert told.startswith("scope: recorder.end_step() did nothing: under `scope run` this process is not recorded")
    assert "with scope.Recorder()" not in told


@pytest.mark.usefixtures("untold")
@pytest.mark.parametrize("error", [ValueError, OSError, BrokenPipeError, None])
def test_words_that_cannot_be_written_stop_no_training(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception] | None
) -> None:
    """Standard error is closed, full, read by nobody, or there is none."""

    class Broken:
        def write(self, _: str) -> None:
            assert error is not None
            raise error

    monkeypatch.setattr(sys, "stderr", None if error is None else Broken())
    Recorder().add_tokens(5)


def test_a_recorder_that_nobody_enters_tells_where_is_recorded(tmp_path: Path) -> None:
    """Folder and run directory are those of the recording in progress, and none before and after."""
    other = Recorder()
    with Recorder(run_dir=tmp_path) as recorder:
        assert (other.folder, other.run_dir) == (recorder.folder, recorder.run_dir)
        assert other.run_dir == tmp_path
    assert (other.folder, other.run_dir, recorder.folder) == (None, None, None)
    assert recorder.run_dir == tmp_path
