"""A command whose memory ran out says so in a sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scope.cli import main

if TYPE_CHECKING:
    import pytest


def test_memory_that_ran_out_is_a_sentence(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """No traceback: what happened, what to do, and the code of a limit that was reached."""

    def exhaust(_: list[str]) -> int:
        raise MemoryError

    monkeypatch.setattr(main, "_invoke", exhaust)
    assert main.run() == 4
    assert capsys.readouterr().err == (
        "scope: the memory that this process may use ran out: allow it more (ulimit -v), or give it less to read\n"
    )
