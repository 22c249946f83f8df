"""From the microseconds of a trace to integer nanoseconds, exactly.

A 64-bit float resolves a quarter of a microsecond at 1.7e15 us (an instant since the epoch), so a float is trusted
only below 2**43 us, where half its spacing is under half a nanosecond and rounding returns what was written.
"""

from __future__ import annotations

from decimal import ROUND_HALF_EVEN, Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any, Final

import polars as pl
from msgspec.structs import replace

from scope.structs import Record
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
_NEAR_US: Final = 1


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


class Microseconds(Record, frozen=True):
    """Numbers as they stand in a trace, each of them exact: to make nanoseconds of those of a file at once is quicker.

    Attributes:
        values: 64-bit integers or floats.
    """

    values: pl.Series

    @classmethod
    def of(cls, values: Sequence[int | float | None]) -> Microseconds:
        """Return a column of JSON numbers.

        Raises:
            InexactError: A float is too large to be exact, or a number is beyond 64 bits of nanoseconds.
        """
        if not values or values[0].__class__ is not float:
            try:
                whole = pl.Series(values, dtype=pl.Int64)
            except (TypeError, OverflowError):
                pass
            else:
                _check_range(whole, LARGEST_NS // NS_PER_US)
                return cls(whole)
        micro = pl.Series(values, dtype=pl.Float64, strict=False)
        _check_range(micro, EXACT_FLOAT_LIMIT_US)
        return cls(micro)

    @classmethod
    def joined(cls, pieces: Sequence[Microseconds]) -> Microseconds:
        """Return columns as one; whole numbers in range are exact as floats too, should one hold floats."""
        found = [piece.values for piece in pieces]
        if len({values.dtype for values in found}) > 1:
            found = [values.cast(pl.Float64) for values in found]
        return cls(pl.concat(found, rechunk=True))

    def nanoseconds(self) -> pl.Series:
        """Return the column in nanoseconds."""
        if self.values.dtype == pl.Int64:
            return self.values * NS_PER_US
        # Arithmetic of series alone, since an expression would cost more than the numbers of a chunk.
        whole = self.values.cast(pl.Int64)
        parts = (self.values - whole) * float(NS_PER_US)
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
    return Microseconds.of(values).nanoseconds()


class Instants(Record, frozen=True):
    """Starts and lengths of some records."""

    starts: pl.Series
    durations: pl.Series
    are_sound: bool
    """None is absent, and none is 0 and of length 0."""
    are_micro: bool = False
    """Both are `Microseconds` as yet."""

    @classmethod
    def of(cls, groups: Iterable[list[Any]], *, exact: bool) -> Instants:
        """Return those of groups of decoded records, one group after the other; nanoseconds unless they are sound.

        Raises:
            InexactError: They must be read as texts.
        """
        groups = tuple(groups)
        starts = [event.ts for events in groups for event in events]
        durations = [event.dur for events in groups for event in events]
        if exact:
            return cls._in_ns(instants_of(starts, exact=True), instants_of(durations, exact=True))
        micro = Microseconds.of(starts), Microseconds.of(durations)
        found = cls(micro[0].values, micro[1].values, are_sound=True, are_micro=True)
        earliest: Any = found.starts.min()
        num_nulls = found.starts.null_count() + found.durations.null_count()
        if not num_nulls and (earliest is None or earliest * NS_PER_US >= 1):
            return found
        return cls._in_ns(*found.in_ns())

    @classmethod
    def _in_ns(cls, starts: pl.Series, durations: pl.Series) -> Instants:
        earliest: Any = starts.min()
        num_nulls = starts.null_count() + durations.null_count()
        return cls(starts, durations, are_sound=not num_nulls and (earliest is None or earliest > 0))

    def piece(self, first: int, size: int) -> Instants:
        """Return those of a run of the records."""
        return replace(self, starts=self.starts.slice(first, size), durations=self.durations.slice(first, size))

    def where(self, wanted: pl.Series) -> Instants:
        """Return those of the records that are wanted."""
        return replace(self, starts=self.starts.filter(wanted), durations=self.durations.filter(wanted))

    def which_are_sound(self) -> pl.Series:
        """Return which records have both, and are not all zero."""
        is_bad = self.starts.is_null() | self.durations.is_null() | ((self.starts == 0) & (self.durations == 0))
        return ~is_bad.fill_null(value=True)

    def in_ns(self) -> tuple[pl.Series, pl.Series]:
        """Return both in nanoseconds."""
        if not self.are_micro:
            return self.starts, self.durations
        return Microseconds(self.starts).nanoseconds(), Microseconds(self.durations).nanoseconds()

    def columns(self) -> tuple[pl.Series | Microseconds, pl.Series | Microseconds]:
        """Return both as columns that know what they hold."""
        if not self.are_micro:
            return self.starts, self.durations
        return Microseconds(self.starts), Microseconds(self.durations)


class LastEnd:
    """Finds the end of the record that ends last, in nanoseconds only when somebody asks: few files need it."""

    def __init__(self) -> None:
        self._candidates: list[tuple[float, Instants]] = []
        """Largest end in microseconds, and the records: all that come near the largest, since sums of floats are not
        exact to the nanosecond."""

    def note(self, spans: Instants) -> None:
        """Take records that are sound."""
        end: Any = (spans.starts + spans.durations).max()
        if end is None:
            return
        end = end if spans.are_micro else end / NS_PER_US
        if all(known <= end + _NEAR_US for known, _ in self._candidates):
            near = [(known, each) for known, each in self._candidates if known >= end - _NEAR_US]
            self._candidates = [*near, (end, spans)]

    def ns(self) -> int | None:
        """Return the end, without the base of the file."""
        found: list[Any] = []
        for _, spans in self._candidates:
            starts, durations = spans.in_ns()
            found.append((starts + durations).max())
        return max(found, default=None)
