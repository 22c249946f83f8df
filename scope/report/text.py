"""Tables and lines for a terminal: narrow ones too, with colour only where it is wanted, with names made inert."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from scope.report.inert import kernel_title, shortened, visible
from scope.report.table import format_cell

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TextIO

    from scope.report.table import Cell, ReportColumn, ReportTable

_WIDTH_OF_A_PIPE: Final = 120
"""Columns when the output is not a terminal: a file or a pager has no width of its own."""
_SHORTEST_NAME: Final = 18
_COLUMN_GAP: Final = 2


def make_console(file: TextIO | None = None, *, width: int | None = None) -> Console:
    """Return a console that honours `NO_COLOR` and `COLUMNS`, and reads no markup, emoji code or highlight."""
    console = Console(file=file, width=width, markup=False, emoji=False, highlight=False, soft_wrap=False)
    if width is None and not console.is_terminal and "COLUMNS" not in console._environ:  # pyright: ignore[reportPrivateUsage]
        console.width = _WIDTH_OF_A_PIPE
    return console


def print_table(table: ReportTable, console: Console, *, notes: bool = True) -> None:
    """Print a table as wide as the console allows, then what it leaves out.

    Columns that find no room are left out from the right, and named; names are shortened in their middle.
    """
    console.print(Text(visible(table.title), style="bold"))
    if table.rows:
        texts = [_row_texts(table.columns, row) for row in table.rows]
        widths = fitting_widths(table.columns, texts, width=console.width)
        console.print(_rich_table(table.columns[: len(widths)], texts, widths))
        for line in _remarks(table, num_shown=len(widths)):
            console.print(Text(line, style="dim"))
    if notes:
        for line in (*table.reasons(), *table.notes):
            console.print(Text(visible(line), style="dim"))


def fitting_widths(columns: Sequence[ReportColumn], texts: Sequence[Sequence[str]], *, width: int) -> list[int]:
    """Return the width of each column that fits; fewer than there are columns when the rest finds no room.

    Numbers are never cut. The text columns share what remains, none below its heading or a legible length.
    """
    natural = [
        max(cell_len(column.heading), *(cell_len(row[index]) for row in texts)) for index, column in enumerate(columns)
    ]
    least = [
        min(size, max(_SHORTEST_NAME, cell_len(column.heading))) if column.unit == "text" else size
        for column, size in zip(columns, natural, strict=True)
    ]
    num_fitting = len(columns)
    while num_fitting > 1 and sum(least[:num_fitting]) + _COLUMN_GAP * (num_fitting - 1) > width:
        num_fitting -= 1
    widths = least[:num_fitting]
    spare = width - sum(widths) - _COLUMN_GAP * (num_fitting - 1)
    for index in range(num_fitting):
        added = max(0, min(spare, natural[index] - widths[index]))
        widths[index] += added
        spare -= added
    return widths


def _row_texts(columns: Sequence[ReportColumn], row: Sequence[Cell]) -> list[str]:
    return [
        visible(kernel_title(cell) if isinstance(cell, str) else format_cell(cell, column.unit))
        for column, cell in zip(columns, row, strict=True)
    ]


def _rich_table(columns: Sequence[ReportColumn], texts: Sequence[Sequence[str]], widths: Sequence[int]) -> Table:
    drawn = Table(box=None, padding=(0, _COLUMN_GAP, 0, 0), pad_edge=False, header_style="dim", expand=False)
    for column, size in zip(columns, widths, strict=True):
        is_text = column.unit == "text"
        drawn.add_column(Text(column.heading), justify="left" if is_text else "right", no_wrap=True, width=size)
    for row in texts:
        drawn.add_row(*(Text(shortened(cell, length=size)) for cell, size in zip(row, widths, strict=False)))
    return drawn


def _remarks(table: ReportTable, *, num_shown: int) -> list[str]:
    remarks: list[str] = []
    if table.num_rows > len(table.rows):
        remarks.append(f"{len(table.rows):,} of {table.num_rows:,} rows; --limit 0 shows all.")
    hidden = [column.heading for column in table.columns[num_shown:]]
    if hidden:
        remarks.append(f"No room for: {', '.join(hidden)} (a wider terminal, --csv or --json shows them).")
    return remarks
