"""Which exit codes commands end with, beside those that errors carry."""

from __future__ import annotations

import errno
import os
import re
import signal
import sys
from pathlib import Path

import click
import pytest

from scope.cli import main
from scope.cli.run import _end_like

README = (Path(__file__).parents[3] / "README.md").read_text()


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


@pytest.mark.parametrize("command", ["analyze", "show", "doctor", "watch"])
def test_a_name_that_no_file_can_have_is_no_fault_of_a_device(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Linux refuses names of more than 255 bytes as it is asked for them; the code is that of a missing file."""
    monkeypatch.setattr(sys, "argv", ["scope", command, "a" * 5000])
    monkeypatch.setattr(main, "discard_output", lambda: None)  # the test's own
    assert main.run() == 3
    assert capsys.readouterr().err.endswith("aaa: File name too long\n")


@pytest.mark.parametrize(("number", "code"), [(errno.EACCES, 3), (errno.ENOSPC, 74), (errno.EIO, 74)])
def test_denied_access_is_told_from_a_device_that_fails(
    number: int, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that this user may not look into is one that is unreadable; a full disk is none of that."""

    def fail(_: object) -> int:
        raise OSError(number, os.strerror(number), "/x")

    monkeypatch.setattr(main, "_invoke", fail)
    monkeypatch.setattr(main, "discard_output", lambda: None)
    assert main.run() == code


@pytest.mark.parametrize(
    ("error", "number"), [(OSError(errno.ENOSPC, ""), 74), (KeyboardInterrupt(), 130), (BrokenPipeError(), 141)]
)
def test_the_readme_lists_codes_that_no_error_carries(
    error: BaseException, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its table has a row for each way to end that is no error of Scope's own."""

    def fail(_: object) -> int:
        raise error

    monkeypatch.setattr(main, "_invoke", fail)
    monkeypatch.setattr(main, "discard_output", lambda: None)
    assert main.run() == number
    assert re.search(rf"^\| {number} \| ", README, flags=re.MULTILINE)
