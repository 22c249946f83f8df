"""Steps of linking that cost nothing when there is nothing to do.

A method of a series that polars runs as an expression takes a sixth of a millisecond however short the series is, and
a job may have a thousand small files. These stand for `gather`, `fill_null` and `clip`.
"""

from __future__ import annotations

from typing import Any, Final

import polars as pl

_FALSE: Final = pl.Series([False])


def taken(values: pl.Series, rows: pl.Series) -> pl.Series:
    """Return the values at rows, null where the row is null."""
    return values[rows.cast(pl.UInt32)]


def is_true(mask: pl.Series) -> pl.Series:
    """Return a mask in which null counts as false.

    Examples:
        >>> is_true(pl.Series([True, None, False])).to_list()
        [True, False, False]
    """
    return mask.zip_with(mask, _FALSE) if mask.null_count() else mask


def not_negative(lengths: pl.Series) -> pl.Series:
    """Return lengths of which those below 0 are 0."""
    shortest: Any = lengths.min()
    return lengths.clip(lower_bound=0) if shortest is not None and shortest < 0 else lengths


def at_most(values: pl.Series, limit: int) -> pl.Series:
    """Return values of which those above the limit are the limit."""
    largest: Any = values.max()
    return values.clip(upper_bound=limit) if largest is not None and largest > limit else values
