"""Tables of reports in the browser: numbers that sort as numbers, and text that does nothing."""

from __future__ import annotations

import polars as pl

from dashboards.numbers import number_columns, readable_columns
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


def shown(name: str, values: list[float | None]) -> tuple[list[object], str]:
    """Return the values and the heading of a column of this name."""
    found = readable_columns(pl.DataFrame({name: values}))
    return found.cells[name].to_list(), found.columns[name].label


def test_names_of_columns_become_headings_with_units() -> None:
    """46,034,000,000 bytes stand as 46.034 GB, 6,708,000 ns as 6.708 ms, 0.25 as 25 %, and a count loses its prefix."""
    assert shown("reserved_peak_bytes", [46_034_000_000, None]) == ([46.034, None], "reserved peak (GB)")
    assert shown("busy_ns", [6_708_000, 0]) == ([6.708, 0.0], "busy (ms)")
    assert shown("rate_bytes_per_s", [450e9]) == ([450.0], "rate (GB/s)")
    assert shown("share_ratio", [0.25]) == ([25.0], "share (%)")
    assert shown("num_calls", [3]) == ([3], "calls")
    assert shown("slowest_rank", [5]) == ([5], "slowest rank")


def test_instants_become_utc() -> None:
    """1,790,000,000.25 s after 1970 is 2026-09-21 14:13:20.250 UTC; a length of a year stays a length."""
    assert shown("end_ns", [1_790_000_000_250_000_000]) == (["2026-09-21 14:13:20.250"], "end (UTC)")
    assert shown("wait_ns", [365 * 86_400 * 10**9])[1] == "wait (s)"


def test_columns_without_a_value_are_named_and_not_shown() -> None:
    """A quantity that no row knows is said once below the table; an empty table keeps its columns."""
    found = readable_columns(pl.DataFrame({"rank": [0, 1], "resident_peak_bytes": [None, None]}))
    assert (found.cells.columns, found.unknown) == (["rank"], ("resident peak",))
    assert readable_columns(pl.DataFrame(schema={"rank": pl.Int64})).cells.columns == ["rank"]
