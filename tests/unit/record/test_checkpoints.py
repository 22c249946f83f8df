"""Checkpoints of one process: what failed, what alone was written, and what is unknown of it."""

from __future__ import annotations

import errno
import itertools
import os
from concurrent.futures import Future
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("torch")

import safetensors.torch
import torch
from safetensors.torch import save_file
from torch import nn
from torch.distributed import checkpoint
from torch.distributed.checkpoint import filesystem, state_dict_saver

from scope.record import Recorder, session
from scope.record.checkpoint_targets import FileTarget, FolderTarget
from scope.record.settings import CaptureSettings
from scope.run.reader import RankReader, read_steps

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from scope.run.schema import EventRecord


class Unwritable:
    """What no pickle can hold."""

    def __reduce__(self) -> str:
        msg = "planted"
        raise LookupError(msg)


def record(folder: Path, save: Callable[[], None], **more: Any) -> tuple[list[EventRecord], dict[str, int]]:
    """Record a step that saves; return the events of checkpoints and the phases of the step."""
    capture = CaptureSettings(reasons=frozenset())
    with Recorder(run_dir=folder / "run", run_id="r", capture=capture, **more) as recorder:
        rank = recorder.folder
        recorder.end_step()
        save()
        recorder.end_step()
    assert rank is not None
    events = [event for event in RankReader(rank).new_events() if event.kind.startswith("checkpoint")]
    (step,) = read_steps(rank)
    return events, dict(step.phases)


def test_a_save_that_raises_was_not_written(tmp_path: Path) -> None:
    """A file cut off half way and a folder that is not there: their own events, without bytes, in the phase's time."""

    def save() -> None:
        torch.save({"weights": torch.ones(99)}, tmp_path / "whole.pt")
        with pytest.raises(LookupError, match="planted"):
            torch.save({"weights": torch.ones(99), "state": Unwritable()}, f=str(tmp_path / "cut.pt"))
        with pytest.raises(RuntimeError):
            torch.save(torch.ones(9), tmp_path / "none" / "model.pt")

    events, phases = record(tmp_path, save)
    assert (tmp_path / "cut.pt").is_file()
    whole, cut, nowhere = events
    assert (whole.kind, whole.detail["bytes"]) == ("checkpoint", (tmp_path / "whole.pt").stat().st_size)
    for event, error, file in ((cut, "LookupError", "cut.pt"), (nowhere, "RuntimeError", "none/model.pt")):
        assert (event.kind, event.message) == ("checkpoint_failed", f"a checkpoint failed: {error}")
        assert event.detail["error"] == error
        assert event.detail["path"] == str(tmp_path / file)
        assert not {"bytes", "bytes_per_s"} & event.detail.keys()
    assert phases["checkpoint"] == sum(event.duration_ns or 0 for event in events)


def test_a_checkpoint_in_an_evaluation_is_told_apart(tmp_path: Path) -> None:
    """Trainers save what they have just validated, with the model still in evaluation mode."""
    model = nn.Linear(4, 4)

    def save() -> None:
        model(torch.ones(2, 4)).sum().backward()
        model.eval()
        with torch.no_grad():
            model(torch.ones(2, 4))
        torch.save(model.state_dict(), tmp_path / "model.pt")
        model.train()

    events, phases = record(tmp_path, save, model=model)
    (event,) = events
    assert event.detail["bytes"] == (tmp_path / "model.pt").stat().st_size
    assert phases["checkpoint"] == event.duration_ns
    assert phases["evaluation"] > 0


def test_a_checkpoint_is_no_part_of_another(tmp_path: Path) -> None:
    """One that is written inside a phase of that name, or inside an evaluation in it, is the time of the outer one."""
    with Recorder(run_dir=tmp_path / "run", run_id="r") as recorder:
        rank = recorder.folder
        recorder.end_step()
        with recorder.phase("checkpoint"), recorder.phase("evaluation"):
            torch.save(torch.ones(9), tmp_path / "model.pt")
        recorder.end_step()
    assert rank is not None
    assert [event.kind for event in RankReader(rank).new_events() if event.kind == "checkpoint"] == []


@pytest.mark.parametrize("own_name", [True, False])
def test_safetensors_are_checkpoints(tmp_path: Path, own_name: bool) -> None:
    """By the module's function, or one that a program has taken from it before anything was recorded."""
    module: Any = safetensors.torch
    before = module.serialize_file

    def save() -> None:
        write = save_file if own_name else safetensors.torch.save_file
        write({"weights": torch.ones(99)}, tmp_path / "model.safetensors")
        with pytest.raises(safetensors.SafetensorError):
            safetensors.torch.save_file({"weights": torch.ones(99)}, tmp_path / "none" / "model.safetensors")

    events, phases = record(tmp_path, save)
    whole, nowhere = events
    file = tmp_path / "model.safetensors"
    assert (whole.kind, whole.detail["bytes"], whole.detail["path"]) == ("checkpoint", file.stat().st_size, str(file))
    assert (nowhere.kind, nowhere.detail["error"]) == ("checkpoint_failed", "SafetensorError")
    assert phases["checkpoint"] == sum(event.duration_ns or 0 for event in events)
    assert module.serialize_file is before


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_a_distributed_save_that_raises_says_what_of(tmp_path: Path) -> None:
    """Torch raises one type of exception for all; the event names the one that was raised within too."""

    def save() -> None:
        with pytest.raises(checkpoint.api.CheckpointException):
            state_dict_saver.save({"state": Unwritable()}, checkpoint_id=tmp_path / "shards")

    (event,), _ = record(tmp_path, save)
    assert (event.kind, event.detail["error"]) == ("checkpoint_failed", "CheckpointException (LookupError)")


def test_the_program_gets_its_own_exception_whatever_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where what failed cannot be named, the hook is switched off, and the exception is the program's all the same."""

    class Unnamed(checkpoint.api.CheckpointException):
        @property
        def failures(self) -> Any:
            raise LookupError

    def fail(*args: Any, **options: Any) -> None:
        msg = "planted"
        raise Unnamed(msg, {})

    for owner, name in itertools.product((checkpoint, state_dict_saver), ("save", "async_save")):
        monkeypatch.setattr(owner, name, fail)

    def save() -> None:
        assert session.current is not None
        with pytest.raises(Unnamed):
            state_dict_saver.save({}, checkpoint_id=tmp_path)
        assert session.current.guard.reasons.keys() == {"checkpoint"}
        session.current.guard.reasons.clear()
        with pytest.raises(Unnamed):
            state_dict_saver.async_save({}, checkpoint_id=tmp_path)

    events, phases = record(tmp_path, save)
    assert not events
    assert phases["checkpoint"] > 0


def test_an_asynchronous_save_that_fails_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What fails in its thread or is cancelled, and what raises at once, are failures; what is fulfilled is none."""
    uploads: list[Future[None]] = [Future(), Future(), Future()]
    waiting = iter(uploads)

    def async_save(state: dict[str, Any], **options: Any) -> Any:
        del state, options
        # torch returns the future, or what holds it.
        return SimpleNamespace(upload_completion=first) if (first := next(waiting)) is uploads[0] else first

    def save() -> None:
        for _ in uploads:
            state_dict_saver.async_save({}, checkpoint_id=tmp_path)
        uploads[0].set_exception(OSError("disk"))
        uploads[1].cancel()
        (tmp_path / "__0_0.distcp").write_bytes(bytes(77))
        uploads[2].set_result(None)
        with pytest.raises(StopIteration):
            state_dict_saver.async_save({}, checkpoint_id=tmp_path)

    for owner in (checkpoint, state_dict_saver):
        monkeypatch.setattr(owner, "async_save", async_save)
    events, _ = record(tmp_path, save)
    assert [(event.kind, event.detail.get("error"), event.detail.get("bytes")) for event in events] == [
        ("checkpoint_failed", "OSError", None),
        ("checkpoint_failed", "CancelledError", None),
        ("checkpoint", None, 77),
        ("checkpoint_failed", "StopIteration", None),
    ]
    assert all(event.detail["asynchronous"] for event in events)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_the_folder_of_a_writer_is_known(tmp_path: Path) -> None:
    """A writer of torch's for a folder says path and bytes, whatever the rank, since whoever saves alone is 0."""

    def save() -> None:
        state_dict_saver.save(
            {"weights": torch.ones(99)}, storage_writer=filesystem.FileSystemWriter(tmp_path / "shards")
        )

    (event,), _ = record(tmp_path, save)
    assert event.detail["path"] == str(tmp_path / "shards")
    assert event.detail["bytes"] == (tmp_path / "shards" / "__0_0.distcp").stat().st_size > 4 * 99


def test_what_is_unknown_says_why(tmp_path: Path) -> None:
    """Foreign writers, folders without a file of the rank and file objects without a position have no size."""

    class Bucket:
        pass

    (tmp_path / "__1_0.distcp").write_bytes(b"of another rank")
    unknown = {
        FolderTarget({}, storage_writer=Bucket(), checkpoint_id=tmp_path): "files of Bucket are not known by name",
        FolderTarget({}, Bucket()): "files of Bucket are not known by name",
        FolderTarget({}, checkpoint_id=tmp_path): "its folder has no local file of this rank (__0_*.distcp)",
        FolderTarget({}): "it has no path",
        FileTarget(object()): "its file object does not say where it stands",
        FileTarget(os.devnull): "its path is no regular file",
    }
    for target, reason in unknown.items():
        assert target.measure() == (None, reason)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_what_cannot_be_looked_at_costs_its_bytes_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shard that goes while it is measured and a file system that answers with an error; then a file of 99 bytes."""
    (tmp_path / "shards").mkdir()
    (tmp_path / "shards" / "__0_0.distcp").symlink_to("gone")
    stat = type(tmp_path).stat

    def stat_or_fail(path: Path, *, follow_symlinks: bool = True) -> os.stat_result:
        if path.name == "stale.pt":
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return stat(path, follow_symlinks=follow_symlinks)

    for owner in (checkpoint, state_dict_saver):
        monkeypatch.setattr(owner, "save", lambda *_, **__: None)

    def save() -> None:
        state_dict_saver.save({}, checkpoint_id=tmp_path / "shards")
        monkeypatch.setattr(type(tmp_path), "stat", stat_or_fail)
        torch.save(torch.ones(9), tmp_path / "stale.pt")
        torch.save(torch.ones(9), tmp_path / "whole.pt")

    events, _ = record(tmp_path, save)
    why = "a checkpoint was written, its size is unknown: what was written cannot be looked at"
    assert [(event.kind, event.message, event.detail.get("bytes")) for event in events] == [
        ("checkpoint", f"{why} (No such file or directory)", None),
        ("checkpoint", f"{why} (Stale file handle)", None),
        ("checkpoint", "a checkpoint was written", (tmp_path / "whole.pt").stat().st_size),
    ]
