"""From the microseconds of a trace to integer nanoseconds, exactly.

A 64-bit float resolves a quarter of a microsecond at 1.7e15 us (an instant since the epoch), so a float is trusted
only below 2**43 us, where half its spacing is under half a nanosecond and rounding returns what was written.
"""

from __future__ import annotations

from decimal import ROUND_HALF_EVEN, Decimal, InvalidOperation
from typing import TYPE_CHECKING, Final

import polars as pl

from scope.units import NS_PER_US

if TYPE_CHECKING:
    from collections.abc import Sequence

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
