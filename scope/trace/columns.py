"""What a table is made of: columns that are strings and know their type, unit and null rule."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Self

import polars as pl

if TYPE_CHECKING:
    from collections.abc import Iterator

    from polars._typing import PolarsDataType


class Column(str):
    """The name of a column, which is usable wherever polars wants a name.

    Attributes:
        dtype: The polars type.
        nullable: Whether a value may be absent; absent means unknown, never 0.
        meaning: One sentence; says the unit where the name does not.
    """

    __slots__ = ("dtype", "meaning", "nullable")

    dtype: PolarsDataType
    nullable: bool
    meaning: str

    def __new__(cls, name: str, dtype: PolarsDataType, meaning: str, *, nullable: bool = False) -> Self:
        """Return a column called `name`."""
        column = super().__new__(cls, name)
        column.dtype = dtype
        column.nullable = nullable
        column.meaning = meaning
        return column


class Table:
    """A declared table; its subclasses hold one `Column` per column and are never instantiated."""

    @classmethod
    def columns(cls) -> Iterator[Column]:
        """Yield the columns in their declared order."""
        return iter(_columns_of(cls))

    @classmethod
    def schema(cls) -> pl.Schema:
        """Return the names and types for polars."""
        return pl.Schema({str(column): column.dtype for column in cls.columns()})

    @classmethod
    def empty(cls) -> pl.DataFrame:
        """Return a frame with the declared columns and no rows."""
        return _empty_of(cls).clone()

    @classmethod
    def check(cls, frame: pl.DataFrame) -> pl.DataFrame:
        """Return `frame` when its columns, types and nulls are as declared.

        Raises:
            AssertionError: They are not, which is a defect of the code that made the frame.
        """
        assert frame.schema == cls.schema(), f"{cls.__name__}: {frame.schema} is not {cls.schema()}"
        for column in cls.columns():
            assert column.nullable or frame[column].null_count() == 0, f"{cls.__name__}.{column} holds nulls"
        return frame


@cache
def _columns_of(table: type[Table]) -> tuple[Column, ...]:
    return tuple(value for value in vars(table).values() if isinstance(value, Column))


@cache
def _empty_of(table: type[Table]) -> pl.DataFrame:
    """To make it takes as long as reading a small table, and most traces lack several."""
    return pl.DataFrame(schema=table.schema())
