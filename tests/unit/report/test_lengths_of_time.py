"""Lengths of time in words: nobody has to turn 1.276 min into seconds."""

from __future__ import annotations

import pytest

from scope.units import format_duration

S = 1_000_000_000


@pytest.mark.parametrize(
    ("length_ns", "words"),
    [
        (59_500_000_000, "59.5 s"),
        (60 * S, "1 min"),
        (76_560_000_000, "1 min 17 s"),
        (119_600_000_000, "2 min"),
        (-90 * S, "-1 min 30 s"),
        (3_599_600_000_000, "1 h"),
        (90 * 60 * S + 29 * S, "1 h 30 min"),
        (49 * 3_600 * S, "49 h"),
    ],
)
def test_a_minute_and_more_is_told_in_two_units(length_ns: int, words: str) -> None:
    """By hand: 76.56 s are 1 min 16.56 s; what rounds to a full minute or hour is called one."""
    assert format_duration(length_ns) == words
