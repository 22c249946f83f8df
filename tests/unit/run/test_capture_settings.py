"""What options and variables about profiler windows may say."""

from __future__ import annotations

import pytest

from scope.errors import UsageError
from scope.run.windows import CaptureSettings, read_capture


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0-7,12", {*range(8), 12}), ("3", {3}), ("0, 2-2,", {0, 2}), ("all", set(range(40)))],
)
def test_ranks_are_numbers_ranges_or_all(text: str, expected: set[int]) -> None:
    """Both ends of a range take windows."""
    ranks = read_capture({"SCOPE_CAPTURE_RANKS": text}).ranks
    assert {rank for rank in range(40) if rank in ranks} == expected


def test_all_holds_ranks_of_any_job() -> None:
    """However large the job is, and a range that is as large costs nothing."""
    assert 1_000_000 in read_capture({"SCOPE_CAPTURE_RANKS": "all"}).ranks
    assert 10**8 in read_capture({"SCOPE_CAPTURE_RANKS": "0-999999999"}).ranks


@pytest.mark.parametrize(
    ("variable", "value", "allowed"),
    [
        ("SCOPE_CAPTURE_RANKS", "0-x", "0-7,12, or all"),
        ("SCOPE_CAPTURE_RANKS", "7-0", "0-7,12, or all"),
        ("SCOPE_CAPTURE_RANKS", "-1", "0-7,12, or all"),
        ("SCOPE_CAPTURE_RANKS", "²", "0-7,12, or all"),
        ("SCOPE_CAPTURE_RANKS", " , ", "0-7,12, or all"),
        ("SCOPE_CAPTURE", "bogus", "schedule, file, anomaly, signal with commas between, or off"),
        ("SCOPE_CAPTURE", ",", "schedule, file, anomaly, signal with commas between, or off"),
        ("SCOPE_CAPTURE_STEPS", "two", "a whole number of steps, from 1 on"),
        ("SCOPE_CAPTURE_STEPS", "0", "a whole number of steps, from 1 on"),
        ("SCOPE_CAPTURE_BUDGET", "5%", "from 0 to 1, such as 0.005"),
        ("SCOPE_CAPTURE_BUDGET", "nan", "from 0 to 1, such as 0.005"),
        ("SCOPE_CAPTURE_SIGNAL", "USR2", "the number of a signal"),
        ("SCOPE_CAPTURE_SIGNAL", "4711", "the number of a signal"),
    ],
)
def test_a_mistake_names_its_variable_its_value_and_what_is_allowed(variable: str, value: str, allowed: str) -> None:
    """No other variable is named."""
    with pytest.raises(UsageError) as raised:
        read_capture({variable: value})
    assert str(raised.value).startswith(f"{variable}={value!r}: ")
    assert allowed in str(raised.value)
    assert str(raised.value).count("SCOPE_") == 1


@pytest.mark.parametrize("name", ["", "_RANKS", "_STEPS", "_BUDGET", "_STACK", "_SHAPES", "_SIGNAL"])
def test_an_empty_variable_is_as_if_it_were_not_set(name: str) -> None:
    """A job's script that passes on what nobody has set costs no recording."""
    assert read_capture({f"SCOPE_CAPTURE{name}": ""}) == CaptureSettings()


def test_variables_say_what_they_say() -> None:
    """Each setting is the variable's; those without one are the usual ones."""
    environment = {
        "SCOPE_CAPTURE": "file,signal", "SCOPE_CAPTURE_STEPS": "3", "SCOPE_CAPTURE_BUDGET": "0.05",
        "SCOPE_CAPTURE_SIGNAL": "12", "SCOPE_CAPTURE_STACK": "1", "SCOPE_CAPTURE_SHAPES": "0",
    }  # fmt: skip
    assert read_capture(environment) == CaptureSettings(
        reasons=frozenset(("file", "signal")), num_steps=3, budget_ratio=0.05, with_stack=True, record_shapes=False,
        signal=12,
    )  # fmt: skip
    assert read_capture({}) == CaptureSettings()
    assert read_capture({"SCOPE_CAPTURE": "off"}).reasons == frozenset()
    assert read_capture({"SCOPE_CAPTURE": "file, signal,"}).reasons == frozenset(("file", "signal"))
