"""Codes of one file back to names and texts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import polars as pl

from scope.trace.eager import taken

if TYPE_CHECKING:
    from collections.abc import Callable

    from scope.trace.columns import Column
    from scope.trace.reader import ReadTrace

_FEW: Final = 1024


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
    # An expression, however short, takes longer than a few numbers one by one.
    present: set[int] = set((codes if len(codes) < _FEW else codes.unique()).to_list())
    values: list[Any] = [None] * (max(present, default=-1) + 1)
    for code in present:
        values[code] = compute(code)
    return taken(pl.Series(values, dtype=dtype), codes)
