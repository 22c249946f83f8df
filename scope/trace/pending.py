"""Rows that wait until there are enough of them to be worth a frame.

A chunk is small, so that its records stay in a core's own cache; a frame of its own for each chunk would cost more
than decoding it.
"""

from __future__ import annotations

import re
import zlib
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from scope.trace.raw import RawSpans

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from scope.trace.columns import Column

ENOUGH_ROWS: Final = 4096
_WORTH_SERIES_ROWS: Final = 128
"""A series of fewer costs more than its values."""
_NUMBER_IN_TEXT: Final = re.compile(r"-?\d+")
_INT64: Final = range(-(2**63), 2**63)

Values = list[Any] | pl.Series
"""One column of a chunk: JSON values, or what is already a series."""


class Pending:
    """Rows of one raw table that stand in no frame yet.

    Attributes:
        rows: How many.
    """

    def __init__(self) -> None:
        self.rows = 0
        self._pieces: dict[Column, list[Values]] = {}

    def add(self, rows: int, values: Mapping[Column, Values]) -> None:
        """Take the rows of a chunk; each call brings the same columns."""
        self.rows += rows
        is_worth_series = rows >= _WORTH_SERIES_ROWS
        for column, added in values.items():
            pieces = self._pieces.setdefault(column, [])
            if isinstance(added, pl.Series):
                pieces.append(added)
            elif is_worth_series:
                # At once, while its objects are in a core's own cache.
                pieces.append(_series(column, added))
            elif pieces and isinstance(last := pieces[-1], list):
                last += added
            else:
                pieces.append(added)

    def take(self) -> pl.DataFrame:
        """Return the rows as a frame, and forget them."""
        columns = [
            pl.concat([_series(column, piece) if isinstance(piece, list) else piece for piece in pieces]).alias(column)
            for column, pieces in self._pieces.items()
        ]
        self.rows, self._pieces = 0, {}
        return pl.DataFrame(columns)


def _series(column: Column, values: list[Any]) -> pl.Series:
    if column == RawSpans.thread:
        return _thread_series(column, values)
    if column.dtype == pl.Int64:
        return int_series(column, values)
    return pl.Series(column, values, dtype=column.dtype)


def int_series(name: str, values: Sequence[object]) -> pl.Series:
    """Return whole numbers, null where a JSON value stands for none that fits 64 bits."""
    try:
        return pl.Series(name, values, dtype=pl.Int64)
    except (TypeError, OverflowError):
        return pl.Series(name, [_number(value) for value in values], dtype=pl.Int64)


def thread_number(tid: object) -> int:
    """Return the number of a thread; a name without a number still tells threads apart."""
    number = _number(tid)
    return number if number is not None else -2 - zlib.crc32(str(tid).encode(errors="replace"))


def _thread_series(name: str, values: Sequence[object]) -> pl.Series:
    try:
        series = pl.Series(name, values, dtype=pl.Int64)
        if series.null_count() == 0:
            return series
    except (TypeError, OverflowError):
        pass
    return pl.Series(name, [thread_number(value) for value in values], dtype=pl.Int64)


def _number(value: object) -> int | None:
    """Return the whole number that a JSON value stands for, or None."""
    if isinstance(value, str):
        try:
            number = int(value, 0)
        except ValueError:
            match = _NUMBER_IN_TEXT.search(value[:64])
            number = int(match[0]) if match and len(match[0]) < 20 else None
    else:
        number = value if isinstance(value, int) else None
    return number if number is not None and number in _INT64 else None
