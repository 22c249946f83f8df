"""Processes that a command starts, and how it tells of their ends."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from scope.cli import children as children_module
from scope.cli.children import Children

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (None, "did not become ready"),
        (0, "has ended"),
        (3, "has ended with code 3, see {log}"),
        (-9, "was ended by SIGKILL"),
        (-40, "was ended by signal 40"),
    ],
)
def test_ends_are_told_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int | None, words: str) -> None:
    """A process that runs, ended in order, with a code, or by a signal with a name or without, is told of as such."""
    monkeypatch.setattr(children_module, "_libc", SimpleNamespace(prctl=lambda *_: 0))  # adopt nothing in this process
    children = Children(tmp_path)
    monkeypatch.setitem(children._running, "training", SimpleNamespace(poll=lambda: code))
    assert children.end_of("training") == words.format(log=tmp_path / "training.log")
