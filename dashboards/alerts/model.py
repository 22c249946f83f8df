"""What a rule is, and how its settings are filled in."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from string import Template
from typing import Final, Literal

from scope.errors import UsageError

Severity = Literal["critical", "warning", "info"]

_DURATION: Final = re.compile(r"(\d+)(ms|s|m|h|d)")
_RANGES: Final = re.compile(r"\[[^\]]*\]|\boffset \w+")
_SECONDS_IN_BRACKETS: Final = re.compile(r"\[([\d.e+]+)s(?=[\]:])")
SCALES: Final = (1.0, 10_000.0)
"""Smallest and largest factor by which lengths of time may be shortened."""

_BOUNDS: Final[dict[str, tuple[float, float]]] = {
    "seconds": (1, 315_360_000),
    "ratio": (0, 1),
    "bytes/s": (1, 1e15),
    "celsius": (0, 200),
    "times": (0, 1e9),
    "errors/s": (0, 1e12),
    "replays/min": (0, 1e6),
    "rows": (1, 1e6),
    "requests": (0, 1e9),
    "s/operation": (0, 86_400),
    "steps": (1, 1e6),
}
"""What a setting may be, by its unit; ten years are what Prometheus can look back."""

_SECONDS: Final = {"ms": 0.001, "s": 1, "m": 60, "h": 3_600, "d": 86_400}


@dataclass(frozen=True, slots=True)
class Setting:
    """A threshold that a site may change.

    Attributes:
        name: How expressions refer to it, as `$name`.
        default: Its value.
        unit: Unit for people; a value in `seconds` is a length of time and shrinks with `scale`.
        meaning: What it decides, and where the default is from.
        own_bounds: Smallest and largest value that makes sense, where they are not those of its unit.
    """

    name: str
    default: float
    unit: str
    meaning: str
    own_bounds: tuple[float, float] | None = None

    @property
    def bounds(self) -> tuple[float, float]:
        """Smallest and largest value that makes sense."""
        return self.own_bounds or _BOUNDS[self.unit]


@dataclass(frozen=True, slots=True)
class Alert:
    """One alert.

    Attributes:
        name: CamelCase, with the product's prefix.
        group: Rule group.
        expression: PromQL with `$setting`.
        hold: How long the expression must hold (`for`), such as `5m`; `0s` fires at once.
        severity: `critical` pages, `warning` waits for the morning, `info` is for dashboards.
        summary: One line with `{{ $labels... }}`.
        description: What is wrong and how much.
        meaning: Runbook: what stands behind it.
        action: Runbook: what to do.
        keep: How long it goes on firing once the expression is empty (`keep_firing_for`).
    """

    name: str
    group: str
    expression: str
    hold: str
    severity: Severity
    summary: str
    description: str
    meaning: str
    action: str
    keep: str | None = None


@dataclass(frozen=True, slots=True)
class Recording:
    """One recording rule: `name` is `level:metric:operations`."""

    name: str
    expression: str
    meaning: str


@dataclass(frozen=True, slots=True)
class Values:
    """The settings of one site.

    Attributes:
        settings: Value by name of a setting.
        scale: All lengths of time are divided by it; 1 but in tests.
    """

    settings: dict[str, float] = field(default_factory=dict[str, float])
    scale: float = 1

    def expression(self, text: str) -> str:
        """Return an expression with its settings filled in and its ranges shrunk."""
        # A range that is a setting is shrunk with it.
        shrunk = _RANGES.sub(lambda match: self._shrink(match[0]), text) if self.scale != 1 else text
        filled = Template(shrunk).substitute({name: format_number(value) for name, value in self.settings.items()})
        return _SECONDS_IN_BRACKETS.sub(lambda match: f"[{_write_seconds(float(match[1]))}", filled)

    def duration(self, text: str) -> str:
        """Return a length of time, shrunk."""
        return text if self.scale == 1 else self._shrink(text)

    def _shrink(self, text: str) -> str:
        return _DURATION.sub(lambda match: self._one(match), text)

    def _one(self, match: re.Match[str]) -> str:
        milliseconds = int(match[1]) * _SECONDS[match[2]] * 1_000 / self.scale
        return f"{max(1, round(milliseconds))}ms" if milliseconds else "0s"


def _write_seconds(seconds: float) -> str:
    """Return a length of time as PromQL takes it in a range, which knows no fractions."""
    return f"{seconds:.0f}s" if seconds % 1 == 0 else f"{max(1, round(seconds * 1_000))}ms"


def format_number(value: float) -> str:
    """Return a number as PromQL and people write it.

    Examples:
        >>> format_number(600.0), format_number(0.05), format_number(1e9)
        ('600', '0.05', '1e+09')
    """
    return f"{value:.10g}" if abs(value) < 1e9 else f"{value:.10g}" if value % 1 else f"{value:g}"


def _read_value(setting: Setting, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        message = f"{text!r} is no number for {setting.name}"
        raise ValueError(message) from None
    low, high = setting.bounds
    if not low <= value <= high:
        message = f"{setting.name}={text} must be from {format_number(low)} to {format_number(high)} ({setting.unit})"
        raise ValueError(message)
    return value


def choose_values(settings: tuple[Setting, ...], given: list[str], *, scale: float = 1) -> Values:
    """Return the settings' values.

    Args:
        settings: Those that exist.
        given: `name=value` of those that a site changes.
        scale: What lengths of time are divided by.

    Raises:
        UsageError: A name is unknown, or a value is no number or none that makes sense; all mistakes are listed.
    """
    low, high = SCALES
    # So written, NaN is refused as well.
    if not low <= scale <= high:
        message = f"--scale {scale:g} makes no sense; it must be from {low:g} to {high:g}"
        raise UsageError(message)
    by_name = {setting.name: setting for setting in settings}
    values = {setting.name: setting.default for setting in settings}
    mistakes: list[str] = []
    for item in given:
        name, _, text = item.partition("=")
        if name not in by_name:
            mistakes.append(f"no setting {name!r} (there are {', '.join(sorted(values))})")
            continue
        try:
            values[name] = _read_value(by_name[name], text)
        except ValueError as error:
            mistakes.append(str(error))
    if mistakes:
        raise UsageError("; ".join(mistakes))
    for setting in settings:
        if setting.unit == "seconds":
            values[setting.name] /= scale
    return Values(values, scale)
