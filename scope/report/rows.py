"""A table for programs: JSON records and CSV, with plain numbers in the units that the keys name."""

from __future__ import annotations

import csv
import io
import math
from typing import TYPE_CHECKING, Any, Final

from scope.report.inert import csv_text
from scope.report.table import Absent, Filler

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scope.report.table import Cell, ReportColumn, ReportTable, Unit

ABSENT_KEY: Final = "absent"
TABLE_KEY: Final = "table"
"""Column of a CSV of several tables that names the table of each row."""

_JSON_TYPES: Final[dict[Unit, str]] = {
    "text": "string",
    "flag": "boolean",
    "id": "integer",
    "count": "integer",
    "ns": "integer",
    "bytes": "integer",
    "flop": "number",
    "number": "number",
    "bytes_per_s": "number",
    "flop_per_s": "number",
    "flop_per_byte": "number",
    "ratio": "number",
}


def to_records(table: ReportTable) -> list[dict[str, Any]]:
    """Return one record a row; an absent value is null, and `absent` of the record holds its reason.

    Examples:
        `[{"rank": 0, "overlap_ratio": None, "absent": {"overlap_ratio": "no communication in this window"}}]`
    """
    return [record(table.columns, row) for row in table.rows]


def record(columns: Sequence[ReportColumn], row: Sequence[Cell]) -> dict[str, Any]:
    """Return one row as a record."""
    values: dict[str, Any] = {}
    absent: dict[str, str] = {}
    for column, cell in zip(columns, row, strict=True):
        if isinstance(cell, Absent):
            values[column.key] = None
            absent[column.key] = cell.reason
        else:
            # NaN and infinity are no JSON; a figure that is neither finite nor absent is a defect of its analysis.
            assert not isinstance(cell, float) or math.isfinite(cell), f"{column.key} is {cell}"
            values[column.key] = int(cell) if isinstance(cell, Filler) else cell
    return {**values, ABSENT_KEY: absent}


def to_csv(table: ReportTable) -> str:
    r"""Return the table as CSV with a header; the column `absent` at the end says why cells are empty.

    Text that a spreadsheet would run as a formula gets an apostrophe in front.
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*(column.key for column in table.columns), ABSENT_KEY])
    for row in table.rows:
        writer.writerow([*(_csv_cell(cell) for cell in row), _csv_reasons(table.columns, row)])
    return out.getvalue()


def to_csv_of_several(tables: Sequence[ReportTable]) -> str:
    """Return several tables as one CSV with one header, the tables one after the other.

    The first column, `table`, names the table of a row; the others are the columns of all of them, each once, as
    columns of one key have one unit. A cell whose column the table of its row does not have is empty, and `absent` says
    nothing of it.
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    keys = list(dict.fromkeys(column.key for table in tables for column in table.columns))
    writer.writerow([TABLE_KEY, *keys, ABSENT_KEY])
    for table in tables:
        for row in table.rows:
            cells = {column.key: _csv_cell(cell) for column, cell in zip(table.columns, row, strict=True)}
            reasons = _csv_reasons(table.columns, row)
            writer.writerow([csv_text(table.name), *(cells.get(key, "") for key in keys), reasons])
    return out.getvalue()


def _csv_reasons(columns: Sequence[ReportColumn], row: Sequence[Cell]) -> str:
    pairs = zip(columns, row, strict=True)
    return csv_text("; ".join(f"{column.key}: {cell.reason}" for column, cell in pairs if isinstance(cell, Absent)))


def record_schema(columns: Sequence[ReportColumn]) -> dict[str, Any]:
    """Return the JSON schema of a record with these columns; every value may be null."""
    properties: dict[str, Any] = {
        column.key: {"type": [_JSON_TYPES[column.unit], "null"], "description": column.meaning} for column in columns
    }
    properties[ABSENT_KEY] = {
        "type": "object",
        "description": "Reason by key, for exactly the values of this record that are null.",
        "additionalProperties": {"type": "string"},
    }
    return {
        "type": "object",
        "properties": properties,
        "required": [*properties],
        "additionalProperties": False,
    }


def _csv_cell(cell: Cell) -> str | int | float:
    if isinstance(cell, Absent):
        return ""
    if isinstance(cell, bool):
        return "true" if cell else "false"
    if isinstance(cell, Filler):
        return int(cell)
    return csv_text(cell) if isinstance(cell, str) else cell
