"""Tables and lines for a terminal: narrow ones too, with colour only where it is wanted, with names made inert."""

from __future__ import annotations

import os
import re
import shutil
import sys
import textwrap
from typing import TYPE_CHECKING, Final

from scope.report.inert import capped, kernel_title, shortened, shortened_words, visible
from scope.report.table import format_cell

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import TextIO

    from rich.console import Console as RichConsole

    from scope.report.table import Cell, ReportColumn, ReportTable

_WIDTH_OF_A_PIPE: Final = 120
"""Columns when the output is not a terminal: a file or a pager has no width of its own."""
_LEAST_WIDTH: Final = 20
_SHORTEST_NAME: Final = 18
_COLUMN_GAP: Final = 2
_LONGEST_CELL: Final = 4_096
_IN_WORDS: Final = frozenset({"group"})
"""Columns of names that people gave: what is left of a word of these says nothing."""
"""Characters of a name that may find room in a line; to look at more would take long."""
_ONE_CELL_EACH: Final = re.compile("[ -~\xa0-\xac\xae-\u02ff\u2010-\u2027\u2190-\u21ff\u2500-\u25ff]*")
"""Characters that all take one cell of a terminal; of others rich knows the width."""


class Console:
    """Where text for people goes; `make_console` makes one.

    A file and a pipe get plain lines, without loading rich; on a terminal rich draws the styles that it can show.

    Args:
        file: Where to write.
        width: Columns that a line may take.
        styled: Draws styled text; None for plain lines.
    """

    def __init__(self, file: TextIO, *, width: int, styled: RichConsole | None = None) -> None:
        self.width = width
        self._file = file
        self._styled = styled

    def print(self, text: str = "", *, style: str = "") -> None:
        """Print one line as it is, however long."""
        self.print_parts([(text, style)])

    def print_parts(self, parts: Sequence[tuple[str, str]]) -> None:
        """Print one line of texts, each with its style."""
        if self._styled is None:
            self._file.write("".join(text for text, _ in parts).rstrip() + "\n")
            return
        from rich.text import Text

        self._styled.print(Text.assemble(*parts), soft_wrap=True)

    def print_wrapped(self, text: str, *, style: str = "", indent: int = 0, hanging: int = 0) -> None:
        """Print names and words in as many lines as they take, with every unprintable character written out.

        A name that would fill the screen is cut in its middle, which is said; `--json` and `--csv` hold all of it.

        Args:
            text: What to print.
            style: Of all lines.
            indent: Columns before the first line.
            hanging: Columns before the others.
        """
        lines = textwrap.wrap(
            capped(visible(text)),
            width=max(_LEAST_WIDTH, self.width),
            initial_indent=" " * indent,
            subsequent_indent=" " * hanging,
            break_on_hyphens=False,
        )
        for line in lines or [""]:
            self.print(line, style=style)


def make_console(file: TextIO | None = None, *, width: int | None = None) -> Console:
    """Return a console that honours `NO_COLOR`, `FORCE_COLOR` and `COLUMNS`.

    Args:
        file: Where to write; None for standard output.
        width: Columns; None for those of the terminal.
    """
    out = sys.stdout if file is None else file
    if not (out.isatty() or os.environ.get("FORCE_COLOR")):
        columns = os.environ.get("COLUMNS", "")
        return Console(out, width=width or (int(columns) if columns.isdecimal() else 0) or _WIDTH_OF_A_PIPE)
    from rich.console import Console as RichConsole

    chosen = width or shutil.get_terminal_size().columns
    styled = RichConsole(file=out, width=chosen, markup=False, emoji=False, highlight=False)
    return Console(out, width=chosen, styled=styled)


def print_table(table: ReportTable, console: Console, *, notes: bool = True, shows_all: str = "--limit 0") -> None:
    """Print a table as wide as the console allows, then what it leaves out.

    Columns that find no room are left out from the right, and named; names are shortened in their middle.

    Args:
        table: What to print.
        console: Where to.
        notes: Print also why cells are absent, and the notes of the table.
        shows_all: What shows the rows that are left out: an option of the command that prints, or another command.
    """
    console.print_wrapped(table.title, style="bold")
    if table.rows:
        texts = [_row_texts(table.columns, row) for row in table.rows]
        widths = fitting_widths(table.columns, texts, width=console.width)
        console.print(_line((column.heading for column in table.columns), table.columns, widths), style="dim")
        for row in texts:
            console.print(_line(row, table.columns, widths))
        for remark in _remarks(table, num_shown=len(widths), shows_all=shows_all):
            console.print_wrapped(remark, style="dim")
    if notes:
        for note in (*table.reasons(), *table.notes):
            console.print_wrapped(note, style="dim")


def fitting_widths(columns: Sequence[ReportColumn], texts: Sequence[Sequence[str]], *, width: int) -> list[int]:
    """Return the width of each column that fits; fewer than there are columns when the rest finds no room.

    Numbers are never cut. The text columns share what remains, none below its heading or a legible length.
    """
    natural = [
        max(_num_cells(column.heading), *(_num_cells(row[index]) for row in texts))
        for index, column in enumerate(columns)
    ]
    least = [
        min(size, max(_SHORTEST_NAME, _num_cells(column.heading))) if column.unit == "text" else size
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
    return [visible(_cell_text(cell, column)) for column, cell in zip(columns, row, strict=True)]


def _cell_text(cell: Cell, column: ReportColumn) -> str:
    if isinstance(cell, str):
        return kernel_title(shortened(cell, length=_LONGEST_CELL))
    return format_cell(cell, column.unit)


def _line(texts: Iterable[str], columns: Sequence[ReportColumn], widths: Sequence[int]) -> str:
    """Return one line of a table: names to the left of their columns, numbers to the right."""
    cells = [_fitted(text, size, column) for text, column, size in zip(texts, columns, widths, strict=False)]
    return (" " * _COLUMN_GAP).join(cells)


def _fitted(text: str, size: int, column: ReportColumn) -> str:
    """Return a text that takes exactly so many cells."""
    short = (shortened_words if column.key in _IN_WORDS else shortened)(text, length=size)
    if _num_cells(short) > size:
        from rich.cells import set_cell_size

        short = f"{set_cell_size(short, size - 1)}…"
    space = " " * (size - _num_cells(short))
    return short + space if column.unit == "text" else space + short


def _num_cells(text: str) -> int:
    """Return how many cells of a terminal a text takes."""
    if _ONE_CELL_EACH.fullmatch(text):
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def _remarks(table: ReportTable, *, num_shown: int, shows_all: str) -> list[str]:
    remarks: list[str] = []
    left_out = table.say_left_out()
    if left_out is not None:
        remarks.append(f"{left_out}; {shows_all} shows all.")
    hidden = [column.heading for column in table.columns[num_shown:]]
    if hidden:
        remarks.append(f"No room for: {', '.join(hidden)} (a wider terminal, --csv or --json shows them).")
    return remarks
