"""Tables of reports as the browser sorts them: numbers in one unit a column, and nulls for what is absent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from scope.report.inert import csv_text
from scope.report.table import Absent, Filler, format_cell

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
_SUFFIXES: Final[dict[str, Unit]] = {
    "_bytes_per_s": "bytes_per_s",
    "_flop_per_s": "flop_per_s",
    "_flop_per_byte": "flop_per_byte",
    "_bytes": "bytes",
    "_ns": "ns",
    "_ratio": "ratio",
}
"""What the end of a column's name says of its unit, the longest first."""
_FIRST_INSTANT_NS: Final = 10**17
"""Lengths of time are shorter than three years, instants since 1970 are later."""
_SIGNIFICANT: Final = "%.4g"
_FORMATS: Final[dict[Unit, str]] = {"id": "%d", "count": "localized"}


@dataclass(frozen=True, kw_only=True, slots=True)
class NumberColumn:
    """How a column of numbers is shown.

    Attributes:
        label: Heading with the unit.
        format: As `st.column_config.NumberColumn` takes it; empty for a column of texts.
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
            texts = [shown_text(cell, column.unit) for cell in cells]
            columns[column.key] = pl.Series(texts, dtype=pl.String)
            continue
        divisor, unit = _scale(numbers, column.unit)
        # Integers that are shown as they are stay exact: ids may lie beyond what a float holds.
        scaled = numbers if divisor == 1 else [None if value is None else value / divisor for value in numbers]
        columns[column.key] = pl.Series(scaled, strict=False)
        label = f"{column.heading} ({unit})" if unit else column.heading
        shown[column.key] = NumberColumn(label=label, format=_FORMATS.get(column.unit, _SIGNIFICANT))
    return pl.DataFrame(columns), shown


def shown_text(cell: Cell, unit: Unit) -> str:
    """Return a cell as the page shows it.

    A name that would begin a formula is guarded, since the browser can save the table for a spreadsheet; a figure such
    as `-4 us` is none.
    """
    text = format_cell(cell, unit)
    return csv_text(text) if isinstance(cell, str) else text


def _numbers(cells: Sequence[Cell]) -> list[int | float | None] | None:
    """Return the cells as numbers, None when one of them is no number, or none is."""
    found: list[Any] = []
    for cell in cells:
        if isinstance(cell, (str, bool)):
            return None
        found.append(None if isinstance(cell, Absent | Filler) else cell)
    return found if any(value is not None for value in found) else None


def _scale(numbers: Sequence[float | None], unit: Unit) -> tuple[float, str]:
    """Return the divisor and the name of the unit that suits the largest value."""
    scales = _SCALES.get(unit)
    if scales is None:
        return 1, ""
    largest = max(abs(value) for value in numbers if value is not None)
    return next((scale for scale in scales if largest >= scale[0]), scales[-1])


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadableTable:
    """A table as people read it.

    Attributes:
        cells: Its columns that hold anything, numbers in one unit a column.
        columns: How its columns are shown, by name; a column of texts has no format.
        unknown: Headings of the columns that hold nothing at all.
    """

    cells: pl.DataFrame
    columns: dict[str, NumberColumn]
    unknown: tuple[str, ...]


def readable_columns(table: pl.DataFrame) -> ReadableTable:
    """Return a table in the units that suit its values, which its names tell: `busy_ns` becomes `busy (ms)`.

    Instants become UTC; columns without a value are left out and named.

    Args:
        table: Its texts are inert already.
    """
    cells: list[pl.Series] = []
    columns: dict[str, NumberColumn] = {}
    unknown: list[str] = []
    for column in table.iter_columns():
        heading, unit = _heading_and_unit(column.name)
        if table.height and column.null_count() == table.height:
            unknown.append(heading)
        elif not column.dtype.is_numeric() or unit is None or column.is_empty():
            cells.append(column)
            columns[column.name] = NumberColumn(label=heading, format="")
        elif unit == "ns" and _holds_instants(column):
            instants = pl.from_epoch(column, time_unit="ns").dt.strftime("%Y-%m-%d %H:%M:%S%.3f")
            cells.append(instants.alias(column.name))
            columns[column.name] = NumberColumn(label=f"{heading} (UTC)", format="")
        else:
            divisor, name = _scale(column.to_list(), unit)
            scaled = [None if value is None else value / divisor for value in column]
            cells.append(column if divisor == 1 else pl.Series(column.name, scaled))
            label = f"{heading} ({name})" if name else heading
            columns[column.name] = NumberColumn(label=label, format=_FORMATS.get(unit, _SIGNIFICANT))
    return ReadableTable(cells=pl.DataFrame(cells), columns=columns, unknown=tuple(unknown))


def _holds_instants(column: pl.Series) -> bool:
    largest = column.max()
    return isinstance(largest, int) and largest > _FIRST_INSTANT_NS


def _heading_and_unit(name: str) -> tuple[str, Unit | None]:
    """Return what a column's name says in words, and its unit; None for one that the name does not tell."""
    if name.startswith("num_"):
        return name.removeprefix("num_").replace("_", " "), "count"
    suffix = next((suffix for suffix in _SUFFIXES if name.endswith(suffix)), None)
    if suffix is None:
        return name.replace("_", " "), None
    return name.removesuffix(suffix).replace("_", " "), _SUFFIXES[suffix]
