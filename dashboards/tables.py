"""How tables stand on a page: in readable units, cut where nobody reads on, and whole for whoever downloads them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import streamlit as st

from dashboards import say
from dashboards.numbers import number_columns, readable_columns, shown_text
from scope.report.inert import csv_text
from scope.report.rows import to_csv
from scope.report.table import Absent, format_cell

if TYPE_CHECKING:
    from collections.abc import Callable

    import polars as pl

    from scope.report.table import ReportColumn, ReportTable

_MAX_TABLE_ROWS: Final = 5_000
_MOST_SHOWN: Final = 500
_MOST_BYTES: Final = 4 * _MOST_SHOWN
_MANY_COLUMNS: Final = 6
_FEW_COLUMNS: Final = 3
_LONG_NAME: Final = 30
_NAME_WIDTH: Final = 230


def fold(label: str, draw: Callable[[], None], *, key: str) -> None:
    """Offer something to unfold; it is drawn, and sent to the browser, only while it is open.

    Args:
        label: Fixed words.
        draw: Draws what is inside.
        key: Name on the page; keeps it open while the page is refreshed.
    """
    place = say.expander(label, key=f"{key} fold", on_change="rerun")
    if place.open:
        with place:
            draw()


def show_table(table: pl.DataFrame, *, key: str) -> None:
    """Show the first rows of a table in readable units, and offer all of them, in the units of their names, as CSV."""
    readable = readable_columns(_inert(table.head(_MAX_TABLE_ROWS)))
    columns = {
        name: say.number_column(column.label, format=column.format) if column.format else say.column(column.label)
        for name, column in readable.columns.items()
    }
    _draw_cells(readable.cells, columns, key=key)
    if readable.unknown:
        say.caption(f"Not known here: {', '.join(readable.unknown)}.")
    if table.height > _MAX_TABLE_ROWS:
        say.caption(f"The first {_MAX_TABLE_ROWS:,} of {table.height:,} rows; the download has all.")
    say.download_button(
        "Download CSV",
        lambda: csv_of(table),
        file_name=f"{key}.csv".replace(" ", "-"),
        key=f"{key} download",
        mime="text/csv",
    )


def show_report_table(table: ReportTable, *, key: str) -> None:
    """Show a table of a report: the meaning of each column is its help, notes and reasons stand below."""
    if not table.rows:
        say.info("Nothing of this kind is in the trace.", icon=":material/inbox:")
    elif len(table.rows) == 1 and len(table.columns) > _MANY_COLUMNS:
        _draw_cells(upright(table), {}, key=key)
    else:
        _draw_report(table, key=key)
    for note in (*table.notes, *table.reasons()):
        say.caption(note)
    if table.rows:
        say.download_button(
            "Download CSV", lambda: to_csv(table), file_name=f"{table.name}.csv", key=f"{key} download", mime="text/csv"
        )


def upright(table: ReportTable) -> pl.DataFrame:
    """Return the one row of a table that is wider than a screen as a column, with what each figure means."""
    import polars as pl

    (row,) = table.rows
    return pl.DataFrame(
        {
            "figure": [csv_text(column.heading) for column in table.columns],
            "value": [shown_text(cell, each.unit) for cell, each in zip(row, table.columns, strict=True)],
            "meaning": [csv_text(column.meaning) for column in table.columns],
        }
    )


def _draw_report(table: ReportTable, *, key: str) -> None:
    cells, numbers = number_columns(table.limited(_MAX_TABLE_ROWS))
    same = same_columns(table)
    cells = cells.drop(column.key for column in same)
    columns: dict[str, Any] = {}
    for column in table.columns:
        number = numbers.get(column.key)
        columns[column.key] = (
            say.text_column(column.heading, help=column.meaning, width=_width(cells, column.key))
            if number is None
            else say.number_column(number.label, help=column.meaning, format=number.format)
        )
    _draw_cells(cells, columns, key=key)
    if same:
        first = table.rows[0]
        texts = [f"{each.heading} {format_cell(first[table.columns.index(each)], each.unit)}" for each in same]
        say.caption(f"The same in every row: {', '.join(texts)}.")


def _draw_cells(cells: pl.DataFrame, columns: dict[str, Any], *, key: str) -> None:
    """Draw a table; a cell that is not known is a dash, and no name is longer than anybody reads on a screen."""
    import polars as pl

    text = pl.selectors.string()
    cut = pl.when(text.str.len_bytes() > _MOST_BYTES).then(text.str.slice(0, _MOST_SHOWN) + "…").otherwise(text)
    st.dataframe(
        cells.with_columns(cut.name.keep()),
        width="stretch",
        hide_index=True,
        column_config=columns,
        key=f"{key} table",
        placeholder="–",
    )


def same_columns(table: ReportTable) -> list[ReportColumn]:
    """Return the columns that a wide table says in a sentence, since all its rows hold one value there.

    The first column and those of cells that are not known stay, as do all columns of a table that a screen can show.
    """
    if len(table.columns) <= _MANY_COLUMNS or len(table.rows) < 2:
        return []
    return [
        column
        for place, column in enumerate(table.columns)
        if place and len({row[place] for row in table.rows}) == 1 and not isinstance(table.rows[0][place], Absent)
    ]


def _width(cells: pl.DataFrame, key: str) -> int | None:
    """Return the pixels that a column of long names may take beside several others; None for what it needs."""
    if key not in cells.columns or cells.width <= _FEW_COLUMNS:
        return None
    longest = cells[key].str.len_chars().max()
    return _NAME_WIDTH if isinstance(longest, int) and longest > _LONG_NAME else None


def csv_of(table: pl.DataFrame) -> str:
    """Return a table as CSV in which no cell and no heading, which a server's label may be, begins a formula."""
    return _inert(table).rename(csv_text).write_csv()


def _inert(table: pl.DataFrame) -> pl.DataFrame:
    import polars as pl

    texts = pl.selectors.string() | pl.selectors.categorical() | pl.selectors.enum()
    lists = pl.selectors.list()
    return table.with_columns(
        texts.cast(pl.String).map_elements(csv_text, return_dtype=pl.String),
        lists.map_elements(lambda values: str(values.to_list()), return_dtype=pl.String),
    )
