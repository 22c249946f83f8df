"""Names, numbers and exceptions of the program that no document can hold: repaired or refused, and no step is lost."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("torch")

import torch

from scope.record import Recorder
from scope.run import paths

if TYPE_CHECKING:
    from pathlib import Path


class Unspeakable(Exception):
    """An exception whose words cannot be had."""

    def __str__(self) -> str:
        raise RuntimeError


def record(folder: Path, monkeypatch: pytest.MonkeyPatch, *, name: Any = "own", tokens: Any = 1) -> list[Any]:
    """Record two steps with a phase and tokens; return them."""
    monkeypatch.setenv("SCOPE_REGISTRY", str(folder / "registry"))
    with Recorder(run_dir=folder / "run") as recorder:
        for _ in range(2):
            with recorder.phase(name):
                recorder.add_tokens(tokens)
            recorder.end_step()
    file = paths.rank_folder(folder / "run", 0, 0) / paths.STEPS_FILE
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.mark.parametrize(
    ("name", "recorded"),
    [(None, "None"), ((1, 2), "(1, 2)"), ("a\udce9", "a?"), ("é", "é"), ("x" * 300, "x" * 200), ("", "(empty)")],
)
def test_names_of_phases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: Any, recorded: str) -> None:
    """Every name is recorded as text that can be written, in every step."""
    steps = record(tmp_path, monkeypatch, name=name)
    assert len(steps) >= 2
    assert all(recorded in step["phases"] for step in steps[:2])


@pytest.mark.parametrize(
    ("tokens", "recorded"),
    [(torch.tensor(5), 5), (torch.empty((), device="meta"), None), ("many", None), (2**70, None), (-1, None)],
)
def test_numbers_of_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tokens: Any, recorded: int | None) -> None:
    """A tensor of the CPU is a number; what is none, or waits on a device, is left out."""
    assert [step.get("tokens") for step in record(tmp_path, monkeypatch, tokens=tokens)][:2] == [recorded] * 2


def test_an_exception_without_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program's own exception comes out, and its kind is recorded."""
    monkeypatch.setenv("SCOPE_REGISTRY", str(tmp_path / "registry"))
    with pytest.raises(Unspeakable), Recorder(run_dir=tmp_path / "run"):
        raise Unspeakable
    events = (paths.rank_folder(tmp_path / "run", 0, 0) / paths.EVENTS_FILE).read_text()
    assert "Unspeakable: (its words cannot be had: RuntimeError)" in events
