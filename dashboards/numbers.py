"""Tables of reports as the browser sorts them: numbers in one unit a column, and nulls for what is absent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from scope.report.inert import csv_text
from scope.report.table import Absent, format_cell

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scope.report.table import Cell, ReportTable, Unit

_SCALES: Final[dict[Unit, tuple[tuple[float, str], ...]]] = {
    "ns": ((1e9, "s"), (1e6, "ms"), (1e3, "us"), (1, "ns")),
    "bytes": ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1, "B")),
    "bytes_per_s": ((1e12, "TB/s"), (1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s"), (1, "B/s")),
    "flop": ((1e15, "PFLOP"), (1e12, "TFLOP"), (1e9, "GFLOP"), (1e6, "MFLOP"), (1, "FLOP")),
    "flop_per_s": ((1e15, "PFLOP/s"), (1e12, "TFLOP/s"), (1e9, "GFLOP/s"), (1e6, "MFLOP/s"), (1, "FLOP/s")),
    "flop_per_byte": ((1, "FLOP/B"),),
    "ratio": ((0.01, "%"),),
}
"""By unit: what a value is divided by to be in the unit of that name, the largest first."""
_SIGNIFICANT: Final = "%.4g"
_FORMATS: Final[dict[Unit, str]] = {"id": "%d", "count": "localized"}


@dataclass(frozen=True, kw_only=True, slots=True)
class NumberColumn:
    """How a column of numbers is shown.

    Attributes:
        label: Heading with the unit.
        format: As `st.column_config.NumberColumn` takes it.
    """

    label: str
    format: str


def number_columns(table: ReportTable) -> tuple[pl.DataFrame, dict[str, NumberColumn]]:
    """Return a table's cells by key, and how its columns of numbers are shown.

    A column that holds texts or flags is text, made inert; in all others absent values are null.
    """
    columns: dict[str, pl.Series] = {}
    shown: dict[str, NumberColumn] = {}
    for place, column in enumerate(table.columns):
        cells = [row[place] for row in table.rows]
        numbers = _numbers(cells)
        if numbers is None:
            texts = [csv_text(format_cell(cell, column.unit)) for cell in cells]
            columns[column.key] = pl.Series(texts, dtype=pl.String)
            continue
        divisor, unit = _scale(numbers, column.unit)
        # Integers that are shown as they are stay exact: ids may lie beyond what a float holds.
        scaled = numbers if divisor == 1 else [None if value is None else value / divisor for value in numbers]
        columns[column.key] = pl.Series(scaled, strict=False)
        label = f"{column.heading} ({unit})" if unit else column.heading
        shown[column.key] = NumberColumn(label=label, format=_FORMATS.get(column.unit, _SIGNIFICANT))
    return pl.DataFrame(columns), shown


def _numbers(cells: Sequence[Cell]) -> list[int | float | None] | None:
    """Return the cells as numbers, None when one of them is no number, or none is."""
    found: list[Any] = []
    for cell in cells:
        if isinstance(cell, (str, bool)):
            return None
        found.append(None if isinstance(cell, Absent) else cell)
    return found if any(value is not None for value in found) else None


def _scale(numbers: Sequence[float | None], unit: Unit) -> tuple[float, str]:
    """Return the divisor and the name of the unit that suits the largest value."""
    scales = _SCALES.get(unit)
    if scales is None:
        return 1, ""
    largest = max(abs(value) for value in numbers if value is not None)
    return next((scale for scale in scales if largest >= scale[0]), scales[-1])
