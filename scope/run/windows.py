"""When profiler windows are taken: read by `scope run`, which refuses mistakes, and by the ranks that take them."""

from __future__ import annotations

import math
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from scope.errors import UsageError
from scope.units import parse_switch, parse_variable

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Mapping

CAPTURE_REASONS: Final = ("schedule", "file", "anomaly", "signal")
DEFAULT_CAPTURE: Final = frozenset(("schedule", "file", "anomaly"))
_MOST_RANKS: Final = 2**31
_MAX_DIGITS: Final = 9
_Value = TypeVar("_Value")


@dataclass(frozen=True, kw_only=True, slots=True)
class RankRanges:
    """Ranks by ranges.

    Attributes:
        ranges: The ranges; a rank in any of them is one of these ranks.
    """

    ranges: tuple[range, ...]

    def __contains__(self, rank: object) -> bool:
        """Return whether a rank is one of these."""
        return any(rank in each for each in self.ranges)


@dataclass(frozen=True, kw_only=True)
class CaptureSettings:
    """When profiler windows are taken.

    Attributes:
        reasons: Which of `CAPTURE_REASONS` may start a window.
        ranks: Ranks that take windows; a window asked for by file is taken by these as well.
        num_steps: Steps of a window.
        budget_ratio: Time that windows may cost / time of training.
        with_stack: Record Python stacks.
        record_shapes: Record shapes of operators (needed for FLOPs and the roofline).
        signal: Number of the signal that asks for a window; used only where the program has no handler for it.
    """

    reasons: frozenset[str] = DEFAULT_CAPTURE
    ranks: Container[int] = (0,)
    num_steps: int = 2
    budget_ratio: float = 0.005
    with_stack: bool = False
    record_shapes: bool = True
    signal: int | None = None


def read_capture(environment: Mapping[str, str]) -> CaptureSettings:
    """Return the capture settings that `SCOPE_CAPTURE...` variables ask for; an empty one is as if it were not set.

    Raises:
        UsageError: A variable makes no sense.
    """
    usual = CaptureSettings()

    def read(variable: str, parse: Callable[[str], _Value], default: _Value) -> _Value:
        text = environment.get(variable)
        return parse_variable(variable, text, parse) if text else default

    def switch(variable: str, default: str) -> bool:
        return parse_variable(variable, environment.get(variable) or default, parse_switch)

    return CaptureSettings(
        reasons=read("SCOPE_CAPTURE", parse_reasons, usual.reasons),
        ranks=read("SCOPE_CAPTURE_RANKS", parse_ranks, usual.ranks),
        num_steps=read("SCOPE_CAPTURE_STEPS", _parse_steps, usual.num_steps),
        budget_ratio=read("SCOPE_CAPTURE_BUDGET", _parse_budget, usual.budget_ratio),
        with_stack=switch("SCOPE_CAPTURE_STACK", "off"),
        record_shapes=switch("SCOPE_CAPTURE_SHAPES", "on"),
        signal=read("SCOPE_CAPTURE_SIGNAL", _parse_signal, usual.signal),
    )


def parse_reasons(text: str) -> frozenset[str]:
    """Return what may start a window: names of `CAPTURE_REASONS`, or `off`, with commas between.

    Raises:
        UsageError: One is none of them, or there is none.

    Examples:
        >>> sorted(parse_reasons("file,signal"))
        ['file', 'signal']
        >>> parse_reasons("off")
        frozenset()
    """
    parts = frozenset(part.strip() for part in text.split(","))
    wanted = parts - {"", "off"}
    # An option that names nothing is most often a shell's variable that is not set, and no wish for nothing.
    if not wanted <= set(CAPTURE_REASONS) or not parts - {""}:
        message = f"{text!r}: name one or more of {', '.join(CAPTURE_REASONS)} with commas between, or off"
        raise UsageError(message)
    return wanted


def parse_ranks(text: str) -> Container[int]:
    """Return the ranks that a text names: numbers and ranges with commas between, or `all`.

    Raises:
        UsageError: A part of it is none of these, or there is none.

    Examples:
        >>> ranks = parse_ranks("0-7,12")
        >>> [rank for rank in range(20) if rank in ranks]
        [0, 1, 2, 3, 4, 5, 6, 7, 12]
    """
    parts = [part.strip() for part in text.split(",") if part.strip()]
    return RankRanges(ranges=tuple(_parse_range(part, text) for part in parts or [""]))


def _parse_range(part: str, text: str) -> range:
    if part == "all":
        return range(_MOST_RANKS)
    first, dash, last = part.partition("-")
    last = last if dash else first
    if _is_number(first) and _is_number(last) and int(first) <= int(last):
        return range(int(first), int(last) + 1)
    message = f"{text!r}: name ranks by their numbers, such as 0,7 or 0-7,12, or all"
    raise UsageError(message)


def _parse_steps(text: str) -> int:
    if _is_number(text) and int(text) > 0:
        return int(text)
    message = f"{text!r}: must be a whole number of steps, from 1 on"
    raise UsageError(message)


def _parse_budget(text: str) -> float:
    try:
        ratio = float(text)
    except ValueError:
        ratio = math.nan
    if 0.0 <= ratio <= 1.0:
        return ratio
    message = f"{text!r}: must be a share of the time, from 0 to 1, such as 0.005"
    raise UsageError(message)


def _parse_signal(text: str) -> int:
    if _is_number(text) and int(text) in signal.valid_signals():
        return int(text)
    message = f"{text!r}: must be the number of a signal, such as {int(signal.SIGUSR2)} for SIGUSR2"
    raise UsageError(message)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS
