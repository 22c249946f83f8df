"""Codes of one file back to names and texts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

from scope.trace.eager import taken

if TYPE_CHECKING:
    from collections.abc import Callable

    from scope.trace.columns import Column
    from scope.trace.reader import ReadTrace


class Texts:
    """Codes of one file back to names; codes of absent texts become null."""

    def __init__(self, read: ReadTrace) -> None:
        self.names: list[str] = [name or "" for name in read.collected.names.texts()]
        self.texts: list[str | None] = read.collected.texts.texts()
        self._names = pl.DataFrame({"names": self.names}, schema={"names": pl.Categorical()}).to_series()
        self._texts = pl.DataFrame({"texts": self.texts}, schema={"texts": pl.Categorical()}).to_series()

    def name_column(self, codes: pl.Series, column: Column) -> pl.Series:
        """Return names for codes."""
        return taken(self._names, codes).alias(column)

    def text_column(self, codes: pl.Series, column: Column) -> pl.Series:
        """Return texts for codes."""
        return taken(self._texts, codes).alias(column)

    def of_names(self, codes: pl.Series, compute: Callable[[str], Any], dtype: Any) -> pl.Series:
        """Return what `compute` makes of each name, computed once a name."""
        return _mapped(codes, lambda code: compute(self.names[code]), dtype)

    def of_texts(self, codes: pl.Series, compute: Callable[[str | None], Any], dtype: Any) -> pl.Series:
        """Return what `compute` makes of each text, computed once a text."""
        return _mapped(codes, lambda code: compute(self.texts[code]), dtype)


def _mapped(codes: pl.Series, compute: Callable[[int], Any], dtype: Any) -> pl.Series:
    present = codes.unique().sort()
    values = pl.Series([], dtype=dtype)
    if len(present):
        values = values.extend_constant(None, int(present[-1]) + 1)
        values = values.scatter(present, pl.Series([compute(code) for code in present.to_list()], dtype=dtype))
    return taken(values, codes)
