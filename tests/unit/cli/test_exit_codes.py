"""How `scope run` ends where a signal ended the command."""

from __future__ import annotations

import os
import signal

import click
import pytest

from scope.cli.run import _end_like


@pytest.mark.parametrize(("signalled", "code"), [(signal.SIGKILL, 137), (signal.SIGABRT, 134), (signal.SIGTERM, 143)])
def test_the_first_process_of_a_container_ends_as_a_shell_would(
    monkeypatch: pytest.MonkeyPatch, signalled: signal.Signals, code: int
) -> None:
    """Its own signals do not end it, so that its exit code names the signal."""
    sent: list[int] = []
    monkeypatch.setattr(os, "kill", lambda _, number: sent.append(number))
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    with pytest.raises(click.exceptions.Exit) as ended:
        _end_like(-signalled)
    assert sent == [signalled]
    assert ended.value.exit_code == code
