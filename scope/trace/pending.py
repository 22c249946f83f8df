"""Rows of one raw table that wait for the end of the file, column by column.

A chunk is small, so that its records stay in a core's own cache; a frame of its own for each chunk would cost more
than decoding it.
"""

from __future__ import annotations

import re
import zlib
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, TypeGuard

import polars as pl

from scope.structs import Record
from scope.trace.instants import Microseconds
from scope.trace.raw import RawDevice, RawSpans

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from polars._typing import PolarsDataType

    from scope.trace.columns import Column

_WORTH_SERIES_ROWS: Final = 128
"""A series of fewer costs more than its values."""
_MOST_LISTED_ROWS: Final = 4096
"""Values of a list are objects, of which many would take much memory."""
_NUMBER_IN_TEXT: Final = re.compile(r"-?\d+")
_INT64: Final = range(-(2**63), 2**63)


class Repeated(Record, frozen=True):
    """A column of a chunk that holds the same value in every row: most fields stand in few records."""

    value: int | bool | None
    rows: int


Values = list[Any] | pl.Series | Repeated | Microseconds
"""One column of a chunk: JSON values, or what is already a series, of instants perhaps not yet in nanoseconds."""


class Pending:
    """Rows of one raw table.

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
            if isinstance(added, list) and not is_worth_series:
                _add_few(column, pieces, added)
                continue
            # At once, while its objects are in a core's own cache.
            piece = _compact(column, added) if isinstance(added, list) else added
            if isinstance(piece, Repeated) and pieces and _same_value(pieces[-1], piece):
                pieces[-1] = Repeated(piece.value, pieces[-1].rows + piece.rows)
            else:
                pieces.append(piece)

    def num_nulls(self, column: Column) -> int:
        """Return how many values of a column are absent."""
        found = [_as_series(column, piece) for piece in self._pieces.get(column, ())]
        return sum(piece.null_count() for piece in found)

    def peek(self, columns: Sequence[Column]) -> pl.DataFrame:
        """Return some columns of the rows, of which there is one at least, without forgetting them."""
        found = {column: [_as_series(column, piece) for piece in _joined(self._pieces[column])] for column in columns}
        return pl.DataFrame([pl.concat(pieces).alias(column) for column, pieces in found.items()])

    def take(self) -> pl.DataFrame:
        """Return the rows as a frame, and forget them."""
        taken, self.rows, self._pieces = self._pieces, 0, {}
        columns: list[pl.Series] = []
        while taken:
            # One column after the other is dropped, since all of them twice would be the peak of memory.
            column, pieces = taken.popitem()
            found = [_as_series(column, piece) for piece in _joined(pieces)]
            columns.append((pl.concat(found, rechunk=True) if len(found) > 1 else found[0]).alias(column))
        return pl.DataFrame(columns[::-1])


def _compact(column: Column, values: list[Any]) -> pl.Series | Repeated:
    """Return the values in less space; to see that they are all one number takes less than to make a series of them."""
    first = values[0]
    if first.__class__ is int and first == values[-1] and first in _INT64 and values.count(first) == len(values):
        return Repeated(first, len(values))
    return _series(column, values)


def _add_few(column: Column, pieces: list[Values], added: list[Any]) -> None:
    last = pieces[-1] if pieces else None
    if not isinstance(last, list):
        pieces.append(added)
        return
    last += added
    if len(last) >= _MOST_LISTED_ROWS:
        pieces[-1] = _series(column, last)


def _joined(pieces: list[Values]) -> list[Values]:
    """Return the pieces, each run of microseconds as one."""
    joined: list[Values] = []
    run: list[Microseconds] = []
    for piece in pieces:
        if isinstance(piece, Microseconds):
            run.append(piece)
            continue
        if run:
            joined.append(Microseconds.joined(run))
            run = []
        joined.append(piece)
    return [*joined, Microseconds.joined(run)] if run else joined


def _same_value(piece: Values, added: Repeated) -> TypeGuard[Repeated]:
    return isinstance(piece, Repeated) and piece.value == added.value


def _as_series(column: Column, piece: Values) -> pl.Series:
    if isinstance(piece, Repeated):
        return _single(column.dtype, piece.value).new_from_index(0, piece.rows)
    if isinstance(piece, Microseconds):
        return piece.nanoseconds()
    return _series(column, piece) if isinstance(piece, list) else piece


@lru_cache(maxsize=64)
def _single(dtype: PolarsDataType, value: int | bool | None) -> pl.Series:
    """Return a series of one value; hundreds of pieces of a file repeat the same few."""
    return pl.Series([value], dtype=dtype)


def _series(column: Column, values: list[Any]) -> pl.Series:
    if column == RawSpans.thread:
        return _thread_series(column, values)
    if column == RawDevice.stream:
        return _stream_series(column, values)
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


def _stream_series(name: str, values: Sequence[object]) -> pl.Series:
    """Return the numbers of streams; names, and addresses beyond 64 bits, become numbers that still tell them apart."""
    try:
        return pl.Series(name, values, dtype=pl.Int64)
    except (TypeError, OverflowError):
        return pl.Series(name, [None if value is None else thread_number(value) for value in values], dtype=pl.Int64)


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
