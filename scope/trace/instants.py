"""From the microseconds of a trace to integer nanoseconds, exactly.

A 64-bit float resolves a quarter of a microsecond at 1.7e15 us (an instant since the epoch), so a float is trusted
only below 2**43 us, where half its spacing is under half a nanosecond and rounding returns what was written.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from scope.units import NS_PER_US

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

EXACT_FLOAT_LIMIT_US: Final = 2.0**43
_MAX_DECIMALS: Final = 3
LARGEST_NS: Final = 2**61
"""Base, start and length are each below it, so that their sum fits 64 bits; as an instant it is in the year 2043."""
_LONGEST_NUMBER: Final = 64
_ROUNDING: Final = 1.5 * 2.0**52
"""Added and taken away again, it rounds a small float half to even: floats of its size have no fraction."""


class InexactError(Exception):
    """A float in the chunk is too large to stand for one nanosecond; the chunk must be read as text."""


def ns_from_text(text: bytes) -> int | None:
    """Return the nanoseconds of a JSON number, or of a JSON string that holds one, given in microseconds.

    Exact up to three decimals; more are rounded half to even. None when the text is no finite number or beyond
    `LARGEST_NS`.

    Examples:
        >>> ns_from_text(b"1712867402348256.123")
        1712867402348256123
        >>> ns_from_text(b"1e3")
        1000000
        >>> ns_from_text(b"null") is None
        True
    """
    text = bytes(text).strip(b' \t\r\n"')
    whole, _, fraction = text.partition(b".")
    if len(text) > _LONGEST_NUMBER:
        return None
    if whole.isdigit() and len(fraction) <= _MAX_DECIMALS and (fraction.isdigit() or not fraction):
        ns = int(whole) * NS_PER_US + int(fraction.ljust(_MAX_DECIMALS, b"0"))
        return ns if ns < LARGEST_NS else None
    try:
        value = Decimal(text.decode("ascii"))
        if not value.is_finite() or value.adjusted() > _LONGEST_NUMBER:
            return None
        ns = int((value * NS_PER_US).to_integral_value(rounding=ROUND_HALF_EVEN))
    except (InvalidOperation, ValueError):
        return None
    return ns if abs(ns) < LARGEST_NS else None


def ns_series(values: Sequence[int | float | None]) -> pl.Series:
    """Return a column of nanoseconds from JSON numbers in microseconds.

    Raises:
        InexactError: A float is too large to be exact, or a number is beyond 64 bits of nanoseconds.
    """
    if values and values[0].__class__ is float:
        return _ns_of_floats(values)
    try:
        whole = pl.Series(values, dtype=pl.Int64)
    except (TypeError, OverflowError):
        return _ns_of_floats(values)
    _check_range(whole, LARGEST_NS // NS_PER_US)
    return whole * NS_PER_US


def _ns_of_floats(values: Sequence[int | float | None]) -> pl.Series:
    micro = pl.Series("micro", values, dtype=pl.Float64, strict=False)
    _check_range(micro, EXACT_FLOAT_LIMIT_US)
    # Arithmetic of series alone, since an expression would cost more than the numbers of a chunk.
    whole = micro.cast(pl.Int64)
    parts = (micro - whole) * float(NS_PER_US)
    nearest = (parts + _ROUNDING) - _ROUNDING
    return whole * NS_PER_US + nearest.cast(pl.Int64)


def _check_range(series: pl.Series, limit: float) -> None:
    lowest, highest = series.min(), series.max()
    if lowest is not None and not (-limit < lowest <= highest < limit):  # pyright: ignore[reportOperatorIssue]
        raise InexactError


def instants_of(values: Sequence[Any], *, exact: bool) -> pl.Series:
    """Return a column of nanoseconds from microseconds: JSON numbers, or with `exact` their texts.

    Raises:
        InexactError: They must be read as texts.
    """
    if exact:
        return pl.Series([ns_from_text(bytes(value)) for value in values], dtype=pl.Int64)
    return ns_series(values)


@dataclass(frozen=True, slots=True)
class Instants:
    """Starts and lengths of some records."""

    starts: pl.Series
    durations: pl.Series
    are_sound: bool
    """None is absent, and none is 0 and of length 0."""

    @classmethod
    def of(cls, groups: Iterable[list[Any]], *, exact: bool) -> Instants:
        """Return those of groups of decoded records, one group after the other.

        Raises:
            InexactError: They must be read as texts.
        """
        groups = tuple(groups)
        starts = [event.ts for events in groups for event in events]
        durations = [event.dur for events in groups for event in events]
        size = len(starts)
        try:
            # What arithmetic of series costs is their number, not their length.
            both = instants_of(starts + durations, exact=exact)
            known = both.slice(0, size), both.slice(size)
        except InexactError:
            # Whole instants may be large, beside lengths with a fraction.
            known = instants_of(starts, exact=exact), instants_of(durations, exact=exact)
        num_nulls = known[0].null_count() + known[1].null_count()
        earliest: Any = known[0].min()
        return cls(*known, are_sound=not num_nulls and (earliest is None or earliest > 0))

    def piece(self, first: int, size: int) -> Instants:
        """Return those of a run of the records."""
        return Instants(self.starts.slice(first, size), self.durations.slice(first, size), self.are_sound)

    def which_are_sound(self) -> pl.Series:
        """Return which records have both, and are not all zero."""
        is_bad = self.starts.is_null() | self.durations.is_null() | ((self.starts == 0) & (self.durations == 0))
        return ~is_bad.fill_null(value=True)
