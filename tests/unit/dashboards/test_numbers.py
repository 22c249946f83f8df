"""Tables of reports in the browser: numbers that sort as numbers, and text that does nothing."""

from __future__ import annotations

from dashboards.numbers import number_columns
from scope.report.table import Absent, Cell, ReportColumn, ReportTable, Unit


def column_of(unit: Unit, *cells: Cell) -> tuple[list[object], str, str | None]:
    """Return the values, heading and format of a column of these cells."""
    column = ReportColumn(key="key", heading="Figure", unit=unit, meaning="A figure.")
    table = ReportTable(
        name="t", title="T", columns=(column,), rows=tuple((cell,) for cell in cells), num_rows=len(cells)
    )
    frame, shown = number_columns(table)
    number = shown.get("key")
    return frame["key"].to_list(), number.label if number else column.heading, number.format if number else None


def test_the_largest_value_decides_the_unit_of_a_column() -> None:
    """9 us and 12 ms stand in milliseconds and sort as 0.009 < 12; as text "9 us" would come last."""
    assert column_of("ns", 12_000_000, 9_000)[:2] == ([12.0, 0.009], "Figure (ms)")
    assert column_of("bytes_per_s", 450e9)[:2] == ([450.0], "Figure (GB/s)")
    assert column_of("ratio", 0.5, 1.25)[:2] == ([50.0, 125.0], "Figure (%)")


def test_what_is_absent_is_null_and_never_zero() -> None:
    """A missing value leaves a hole; a column without any value keeps the mark."""
    assert column_of("ns", 0, Absent("unknown"))[:2] == ([0, None], "Figure (ns)")
    assert column_of("ns", Absent("unknown"))[0] == ["–"]


def test_integers_stay_exact() -> None:
    """An id beyond 2**53 is not rounded; whole numbers and fractions may stand in one column."""
    assert column_of("id", 2**60 + 1) == ([2**60 + 1], "Figure", "%d")
    assert column_of("number", 1, 2.5)[0] == [1.0, 2.5]


def test_texts_are_inert_and_make_the_column_text() -> None:
    """A name that a spreadsheet would compute is text, and one text among numbers makes all of them text."""
    assert column_of("text", "=1+1")[0] == ["'=1+1"]
    values, _, number_format = column_of("id", 3, "all")
    assert values == ["3", "all"]
    assert number_format is None
    assert column_of("flag", True, False)[0] == ["yes", "no"]
