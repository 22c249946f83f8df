"""A table that every face of the report prints: what each column means, and why a value is missing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, Self, TypeAlias

from scope.structs import Record
from scope.units import (
    format_bandwidth,
    format_bytes,
    format_duration,
    format_flop_rate,
    format_ratio,
)

if TYPE_CHECKING:
    from collections.abc import Callable

Unit: TypeAlias = Literal[
    "text",
    "flag",
    "id",
    "count",
    "number",
    "ns",
    "bytes",
    "bytes_per_s",
    "flop",
    "flop_per_s",
    "flop_per_byte",
    "ratio",
]
"""What the values of a column are: it decides how a person sees them. JSON and CSV always hold the plain number."""


class Absent(Record, frozen=True):
    """A value that is not known, with the reason; never shown as 0."""

    reason: str


class Filler(int):
    """A part of a whole that was not measured, and counts with its value so that the parts sum.

    Programs get the number; a person sees it as absent, with the reason.
    """

    reason: str

    def __new__(cls, value: int, reason: str) -> Self:
        """Return the number `value` that is shown as absent for a reason."""
        number = super().__new__(cls, value)
        number.reason = reason
        return number


Cell: TypeAlias = str | int | float | bool | Absent
"""One value of a table."""

ABSENT_MARK: Final = "–"


class ReportColumn(Record, frozen=True, kw_only=True):
    """A column of a report's table."""

    key: str
    """Name in JSON and CSV; bears its unit."""
    heading: str
    """Name for people."""
    unit: Unit
    meaning: str
    """One sentence: the definition of the figure."""


class ReportTable(Record, frozen=True, kw_only=True):
    """Rows for people, spreadsheets and programs.

    Attributes:
        name: Short name, the command that prints it.
        title: Heading for people.
        columns: What each cell of a row is.
        rows: The cells, one tuple a row, as long as `columns`.
        num_rows: Rows there are, when `rows` holds only the first of them.
        notes: Sentences that a reader of the figures must know: what was left out, what they rest on.
        num_totals: How many of the last rows sum up the others: they are shown whatever is left out, and count as none.
    """

    name: str
    title: str
    columns: tuple[ReportColumn, ...]
    rows: tuple[tuple[Cell, ...], ...]
    num_rows: int
    notes: tuple[str, ...] = ()
    num_totals: int = 0

    def __post_init__(self) -> None:
        """Check that every row has one cell a column."""
        assert all(len(row) == len(self.columns) for row in self.rows), f"{self.name}: a row has the wrong length"
        assert self.num_rows >= len(self.rows), f"{self.name}: more rows than there are"

    def limited(self, limit: int | None) -> ReportTable:
        """Return the table with its first `limit` rows and its totals, all of them when it is None."""
        num_single = len(self.rows) - self.num_totals
        if limit is None or limit >= num_single:
            return self
        return ReportTable(
            name=self.name,
            title=self.title,
            columns=self.columns,
            rows=(*self.rows[:limit], *self.rows[num_single:]),
            num_rows=self.num_rows,
            notes=self.notes,
            num_totals=self.num_totals,
        )

    def say_left_out(self) -> str | None:
        """Return how many rows are there of how many, totals not counted: `8 of 16 rows`; None where all are."""
        if self.num_rows <= len(self.rows):
            return None
        return f"{len(self.rows) - self.num_totals:,} of {self.num_rows - self.num_totals:,} rows"

    def reasons(self) -> tuple[str, ...]:
        """Return why values are absent, each reason once with the headings that it concerns."""
        headings: dict[str, list[str]] = {}
        for row in self.rows:
            for column, cell in zip(self.columns, row, strict=True):
                if isinstance(cell, Absent | Filler):
                    found = headings.setdefault(cell.reason, [])
                    if column.heading not in found:
                        found.append(column.heading)
        return tuple(f"{', '.join(found)}: {reason}" for reason, found in headings.items())


def format_cell(cell: Cell, unit: Unit) -> str:
    """Return a cell for people: a length of time in the unit that suits it, a ratio as a percentage.

    Text is returned as it is; each face makes it inert in its own way.

    Examples:
        >>> format_cell(1_500_000, "ns")
        '1.5 ms'
        >>> format_cell(Absent("no communication"), "ratio")
        '–'
        >>> format_cell(1234567, "count")
        '1,234,567'
    """
    if isinstance(cell, Absent | Filler):
        return ABSENT_MARK
    if isinstance(cell, str):
        return cell
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    return _format_number(cell, unit)


def _format_number(value: float, unit: Unit) -> str:
    formatter = _FORMATTERS.get(unit)
    if formatter is not None:
        return formatter(value)
    if unit == "id":
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def _format_flops(flops: float) -> str:
    return format_flop_rate(flops).removesuffix("/s")


def _format_intensity(flop_per_byte: float) -> str:
    return f"{flop_per_byte:.3g} FLOP/B"


def _format_rounded_duration(duration_ns: float) -> str:
    return format_duration(round(duration_ns))


_FORMATTERS: Final[dict[Unit, Callable[[float], str]]] = {
    "ns": _format_rounded_duration,
    "bytes": format_bytes,
    "bytes_per_s": format_bandwidth,
    "flop": _format_flops,
    "flop_per_s": format_flop_rate,
    "flop_per_byte": _format_intensity,
    "ratio": format_ratio,
}
