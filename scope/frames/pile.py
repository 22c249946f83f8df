"""A table that grows while a run goes on: rows come in as they are read, the whole is put together when asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import polars as pl

from scope.frames.schema import Ranks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scope.trace.columns import Table

BATCH_ROWS: Final = 20_000
"""Rows that wait as Python objects, some 3 kB each, until they become columns."""


class Pile:
    """Rows of many ranks, in the order of attempt, rank and one column more.

    One frame holds all: thousands of small frames, one a rank, would cost far more memory than what they hold.
    """

    def __init__(self, table: type[Table], *, sort_by: str) -> None:
        self._table = table
        self._order = (Ranks.attempt, Ranks.rank, sort_by)
        self._whole = table.empty()
        self._parts: list[pl.DataFrame] = []
        self._rows: list[dict[str, Any]] = []

    def add(self, rows: Sequence[dict[str, Any]]) -> None:
        """Add rows by the names of the columns; a column that is left out is null."""
        self._rows.extend(rows)
        if len(self._rows) >= BATCH_ROWS:
            self._flush()

    def put_back(self, frame: pl.DataFrame) -> None:
        """Add rows that `whole` has returned before."""
        self._parts.append(self._table.check(frame))

    def forget(self, *, attempt: int, rank: int) -> None:
        """Drop the rows of one rank: its file was replaced and is read again from its start."""
        others = ~((pl.col(Ranks.attempt) == attempt) & (pl.col(Ranks.rank) == rank))
        self._whole = self.whole().filter(others)

    def whole(self) -> pl.DataFrame:
        """Return all rows, sorted; the same frame as before when none was added."""
        self._flush()
        if self._parts:
            joined = pl.concat([self._whole, *self._parts], rechunk=True)
            self._parts.clear()
            self._whole = self._table.check(joined.sort(self._order, maintain_order=True))
        return self._whole

    def _flush(self) -> None:
        if self._rows:
            self._parts.append(pl.DataFrame(self._rows, schema=self._table.schema(), orient="row"))
            self._rows.clear()
