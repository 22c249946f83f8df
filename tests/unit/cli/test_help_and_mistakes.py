"""Mistakes in options and variables are named as the user wrote them; examples of commands can be pasted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from scope.cli.registry import COMMANDS, POST_MORTEM

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Done


@pytest.mark.parametrize(
    ("option", "value", "allowed"),
    [
        ("--capture", "bogus", "schedule, file, anomaly, signal"),
        ("--capture", "", "schedule, file, anomaly, signal"),
        ("--capture-ranks", "0-x", "0-7,12, or all"),
        ("--capture-ranks", "", "0-7,12, or all"),
    ],
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


@pytest.mark.parametrize(
    ("variable", "value", "wanted"),
    [
        ("SCOPE_MAX_TRACE_BYTES", "nonsense", "a size such as 256MiB"),
        ("SCOPE_MAX_TRACE_RATIO", "1GB", "a whole number, from 1 on, such as 600"),
        ("SCOPE_MAX_TRACE_RATIO", "0", "a whole number, from 1 on, such as 600"),
        ("SCOPE_CACHE_MAX_BYTES", "much", "a size such as 256MiB"),
    ],
)
def test_a_mistake_in_a_variable_of_reading_is_told(
    scope: Callable[..., Done], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, wanted: str
) -> None:
    """The one line names the variable, what it holds and what it may hold."""
    path = tmp_path / "rank0.json"
    path.write_text('{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 1}]}')
    monkeypatch.setenv(variable, value)
    done = scope("analyze", path)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert done.err.startswith(f"scope: {variable}={value!r}")
    assert wanted in done.err


@pytest.mark.parametrize(
    ("variable", "value", "wanted"),
    [
        ("SCOPE_FLOPS", "no", "1 or on, 0 or off"),
        ("SCOPE_PREFLIGHT", "true", "1 or on, 0 or off"),
        ("SCOPE_CAPTURE_STACK", "yes", "1 or on, 0 or off"),
        ("SCOPE_CAPTURE_SHAPES", "2", "1 or on, 0 or off"),
        ("SCOPE_TAGS", "a", "write name=value"),
        ("SCOPE_RUN_ID", "a/b", "letters, digits"),
    ],
)
def test_a_mistake_in_a_variable_of_recording_stops_the_job_before_it_begins(
    scope: Callable[..., Done], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, wanted: str
) -> None:
    """A rank that found it would train unrecorded, or without what was asked for."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(variable, value)
    done = scope("run", "--", "touch", "begun")
    assert (done.code, [*tmp_path.iterdir()]) == (2, [])
    assert done.err.startswith(f"scope: {variable}={value!r}")
    assert wanted in done.err


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


def test_a_budget_that_is_no_size_names_option_and_variable(
    scope: Callable[..., Done], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever set the variable finds it, and nothing is started."""
    monkeypatch.setenv("SCOPE_MAX_RUN_BYTES", "lots")
    done = scope("run", "--", "false")
    assert done.code == 2
    assert "'--max-run-bytes' (env var: 'SCOPE_MAX_RUN_BYTES'): 'lots' is not a size" in " ".join(done.err.split())


def test_the_help_leads_to_the_words(scope: Callable[..., Done], monkeypatch: pytest.MonkeyPatch) -> None:
    """That of all and of each command that prints tables of traces ends with the glossary, whose address is whole."""
    monkeypatch.setenv("COLUMNS", "80")
    for command in ((), *((name,) for name in POST_MORTEM)):
        assert (
            scope(*command, "--help").out.split()[-1]
            == "https://github.com/stepscope/stepscope/blob/main/docs/glossary.md"
        )
