"""Units in words."""

from __future__ import annotations

import pytest

from scope.units import signal_name


@pytest.mark.parametrize(
    ("number", "name"),
    [
        (9, "SIGKILL"),
        (15, "SIGTERM"),
        (34, "SIGRTMIN"),
        (35, None),
        (40, None),
        (64, "SIGRTMAX"),
        (65, None),
        (0, None),
        (-9, None),
    ],
)
def test_names_of_signals(number: int, name: str | None) -> None:
    """Signals of Linux are named as in signal(7), but real-time signals between the ends, and what is no signal."""
    assert signal_name(number) == name
