"""What a recording takes from the environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from scope.errors import UsageError
from scope.record.settings import read_settings


@pytest.mark.parametrize(
    ("variable", "value", "wanted"),
    [
        ("SCOPE_MAX_RUN_BYTES", "lots", "a size such as 256MiB"),
        ("SCOPE_FLOPS", "false", "1 or on, 0 or off"),
        ("SCOPE_CAPTURE_SHAPES", "no", "1 or on, 0 or off"),
    ],
)
def test_a_mistake_names_the_variable(variable: str, value: str, wanted: str) -> None:
    """It names what the variable holds and what it may hold, for a program that records by the API too."""
    with pytest.raises(UsageError) as raised:
        read_settings({variable: value}, Path("rank"))
    assert str(raised.value).startswith(f"{variable}={value!r}")
    assert wanted in str(raised.value)


@pytest.mark.parametrize(("value", "expected"), [("", True), ("on", True), ("1", True), ("off", False), ("0", False)])
def test_a_switch_is_a_word_or_a_number(value: str, expected: bool) -> None:
    """An empty variable leaves things as they are."""
    settings = read_settings({"SCOPE_FLOPS": value, "SCOPE_CAPTURE_SHAPES": value}, Path("rank"))
    assert (settings.count_flops, settings.capture.record_shapes) == (expected, expected)
    assert read_settings({"SCOPE_CAPTURE_STACK": value}, Path("rank")).capture.with_stack == (expected and value != "")
