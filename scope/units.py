"""Units: integer nanoseconds and bytes inside, people's units at the edges.

Bandwidth is decimal: 1 GB/s is 1e9 bytes a second. Memory sizes that vendors state in GB are decimal as well; GiB
(2**30) is written out where it is meant.
"""

from __future__ import annotations

import re
import signal
from typing import TYPE_CHECKING, Final, NewType, TypeVar

from scope.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

Ns = NewType("Ns", int)
"""Integer nanoseconds: an instant since the epoch, or a length."""

Bytes = NewType("Bytes", int)
"""Integer bytes."""

NS_PER_US: Final = 1_000
NS_PER_MS: Final = 1_000_000
NS_PER_S: Final = 1_000_000_000
BITS_PER_BYTE: Final = 8

_DURATION_STEPS: Final = ((NS_PER_S, "s"), (NS_PER_MS, "ms"), (NS_PER_US, "us"), (1, "ns"))
_DECIMAL_STEPS: Final = ((10**15, "P"), (10**12, "T"), (10**9, "G"), (10**6, "M"), (10**3, "k"))
_DURATION_UNITS: Final = {
    "ns": 1,
    "us": NS_PER_US,
    "ms": NS_PER_MS,
    "s": NS_PER_S,
    "min": 60 * NS_PER_S,
    "h": 3600 * NS_PER_S,
}
_SIZE_UNITS: Final = {
    "": 1,
    "B": 1,
    "kB": 10**3,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}
_QUANTITY: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")
_SWITCH: Final = {"1": True, "on": True, "0": False, "off": False}
_Value = TypeVar("_Value")


def format_duration(duration_ns: int) -> str:
    """Return a length of time for people: in the largest unit that keeps it at 1 or more, or in minutes and seconds.

    From a minute on it is rounded to seconds, from an hour on to minutes.

    Args:
        duration_ns: A length in nanoseconds; may be negative.

    Examples:
        >>> format_duration(1_234_567)
        '1.235 ms'
        >>> format_duration(-950)
        '-950 ns'
        >>> format_duration(0)
        '0 ns'
        >>> format_duration(76_560_000_000), format_duration(5_400_000_000_000)
        ('1 min 17 s', '1 h 30 min')
    """
    magnitude = abs(duration_ns)
    if magnitude >= 60 * NS_PER_S:
        return f"{'-' if duration_ns < 0 else ''}{_long_duration(magnitude)}"
    for size, unit in _DURATION_STEPS:
        if magnitude >= size:
            return f"{duration_ns} ns" if unit == "ns" else f"{duration_ns / size:.4g} {unit}"
    return "0 ns"


def _long_duration(duration_ns: int) -> str:
    seconds = round(duration_ns / NS_PER_S)
    if seconds < 3_600:
        whole, rest, names = seconds // 60, seconds % 60, ("min", "s")
    else:
        minutes = round(duration_ns / (60 * NS_PER_S))
        whole, rest, names = minutes // 60, minutes % 60, ("h", "min")
    return f"{whole} {names[0]} {rest} {names[1]}" if rest else f"{whole} {names[0]}"


def format_bytes(size_bytes: float) -> str:
    """Return a size for people in decimal units.

    Examples:
        >>> format_bytes(24_500_000_000)
        '24.5 GB'
        >>> format_bytes(512)
        '512 B'
    """
    return f"{_scaled(size_bytes)}B"


def format_bandwidth(bytes_per_s: float) -> str:
    """Return a bandwidth for people in decimal units.

    Examples:
        >>> format_bandwidth(450e9)
        '450 GB/s'
    """
    return f"{_scaled(bytes_per_s)}B/s"


def format_flop_rate(flop_per_s: float) -> str:
    """Return a rate of floating point operations for people.

    Examples:
        >>> format_flop_rate(989.4e12)
        '989.4 TFLOP/s'
    """
    return f"{_scaled(flop_per_s)}FLOP/s"


def format_ratio(ratio: float) -> str:
    """Return a ratio of 0 to 1 as a percentage.

    Examples:
        >>> format_ratio(0.0593)
        '5.9 %'
    """
    return f"{100 * ratio:.1f} %"


def signal_name(number: int) -> str | None:
    """Return the name of a signal; None for one that has none, as most real-time signals have.

    Examples:
        >>> signal_name(9)
        'SIGKILL'
    """
    try:
        return signal.Signals(number).name
    except ValueError:
        return None


def parse_duration(text: str) -> Ns:
    """Read a length of time such as `90s`, `1.5ms` or `10min`.

    Raises:
        UsageError: The text has no unit, an unknown one, or is no number.

    Examples:
        >>> parse_duration("1.5ms")
        1500000
    """
    return Ns(_parse(text, _DURATION_UNITS, "a length of time such as 90s, 1.5ms or 10min"))


def parse_size(text: str) -> Bytes:
    """Read a size such as `256MiB`, `4GB` or `1000` (bytes).

    Raises:
        UsageError: The text has an unknown unit or is no number.

    Examples:
        >>> parse_size("256MiB")
        268435456
    """
    return Bytes(_parse(text, _SIZE_UNITS, "a size such as 256MiB, 4GB or 1000"))


def parse_switch(text: str) -> bool:
    """Read whether something is on: `1` or `on`, `0` or `off`.

    Raises:
        UsageError: The text is none of these.

    Examples:
        >>> parse_switch("off")
        False
    """
    if text not in _SWITCH:
        message = f"{text!r}: must be 1 or on, 0 or off"
        raise UsageError(message)
    return _SWITCH[text]


def parse_variable(name: str, text: str, parse: Callable[[str], _Value]) -> _Value:
    """Return what an environment variable says.

    Args:
        name: The variable.
        text: Its value.
        parse: Reads the value; the message of its error begins with it.

    Raises:
        UsageError: As `parse` does, with the variable named before its value.

    Examples:
        >>> parse_variable("SCOPE_CACHE_MAX_BYTES", "4GB", parse_size)
        4000000000
    """
    try:
        return parse(text)
    except UsageError as error:
        message = f"{name}={error}"
        raise UsageError(message) from error


def _scaled(value: float) -> str:
    magnitude = abs(value)
    for size, prefix in _DECIMAL_STEPS:
        if magnitude >= size:
            return f"{value / size:.4g} {prefix}"
    return f"{value:.4g} "


def _parse(text: str, units: dict[str, int], wanted: str) -> int:
    match = _QUANTITY.fullmatch(text)
    if match is None or match[2] not in units:
        message = f"{text!r} is not {wanted}"
        raise UsageError(message)
    whole, _, fraction = match[1].partition(".")
    # Integer arithmetic, so that no length of time is off by the rounding of a binary fraction.
    return int(whole + fraction) * units[match[2]] // 10 ** len(fraction)
