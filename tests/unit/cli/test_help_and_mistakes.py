"""Mistakes in options about windows are named as the user wrote them; examples of commands can be pasted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from scope.cli.registry import COMMANDS

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Done


@pytest.mark.parametrize(
    ("option", "value", "allowed"),
    [("--capture", "bogus", "schedule, file, anomaly, signal"), ("--capture-ranks", "0-x", "0-7,12, or all")],
)
def test_a_mistake_names_the_option(scope: Callable[..., Done], option: str, value: str, allowed: str) -> None:
    """It names neither the variable that ranks read nor options beside it, and nothing is started."""
    done = scope("run", option, value, "--", "false")
    assert done.code == 2
    assert f"'{option}': '{value}': " in done.err
    assert allowed in done.err
    assert "SCOPE_" not in done.err


def test_a_mistake_in_the_environment_names_the_variable(
    scope: Callable[..., Done], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is nobody's option."""
    monkeypatch.setenv("SCOPE_CAPTURE_RANKS", "one")
    done = scope("run", "--", "false")
    assert (done.code, done.err.partition(": name")[0]) == (2, "scope: SCOPE_CAPTURE_RANKS='one'")


def test_the_help_says_what_is_taken_unasked(scope: Callable[..., Done]) -> None:
    """Defaults of both options about windows."""
    words = " ".join(scope("run", "--help").out.split())
    assert "[default: schedule,file,anomaly]" in words
    assert "[default: 0]" in words


@pytest.mark.parametrize("command", sorted(COMMANDS.keys() - {"dashboard", "exporter"}))
def test_an_example_stands_on_one_line(
    scope: Callable[..., Done], command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a terminal of 80 columns; of dashboard and exporter another process prints the help."""
    monkeypatch.setenv("COLUMNS", "80")
    lines = scope(command, "--help").out.splitlines()
    (place,) = [place for place, line in enumerate(lines) if line.startswith("  Example:")]
    assert lines[place].startswith("  Example: scope ") or lines[place].startswith("  Example: srun ")
    assert not lines[place + 1].strip()
