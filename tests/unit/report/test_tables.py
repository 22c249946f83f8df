"""Tables: every face shows the same values, and an absent value keeps its reason."""

from __future__ import annotations

import csv
import io
import json

import pytest

from scope.report.rows import record_schema, to_csv, to_records
from scope.report.sections.base import column, unit_of
from scope.report.table import Absent, ReportTable, format_cell
from scope.report.text import fitting_widths, make_console, print_table

COLUMNS = (
    column("name", "kernel", "Its name."),
    column("total_ns", "total", "Time."),
    column("busbw_bytes_per_s", "busbw", "Bandwidth."),
    column("overlap_ratio", "overlap", "Overlap."),
    column("is_cut", "cut", "Whether it is cut."),
    column("num_calls", "calls", "How many."),
)
ROWS = (
    ("gemm", 1_234_567, 120e9, 0.5, False, 12),
    ("=cmd()", 5, Absent("no size"), Absent("no communication"), True, 1_234_567),
)
TABLE = ReportTable(name="t", title="Things", columns=COLUMNS, rows=ROWS, num_rows=2, notes=("A note.",))


def _printed(table: ReportTable, *, width: int) -> list[str]:
    out = io.StringIO()
    print_table(table, make_console(out, width=width))
    return out.getvalue().splitlines()


def test_text_shows_units_that_people_read() -> None:
    """The whole table, byte for byte."""
    assert [line.rstrip() for line in _printed(TABLE, width=100)] == [
        "Things",
        "kernel     total     busbw  overlap  cut      calls",
        "gemm    1.235 ms  120 GB/s   50.0 %   no         12",
        "=cmd()      5 ns         –        –  yes  1,234,567",
        "busbw: no size",
        "overlap: no communication",
        "A note.",
    ]


@pytest.mark.parametrize("width", [20, 34, 48, 80, 200])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    """Columns that find no room are left out from the right and named."""
    lines = _printed(TABLE, width=width)
    table = lines[1:4]
    assert all(len(line.rstrip()) <= width for line in table)
    if width == 34:
        assert any(line.startswith("No room for:") for line in lines)


def test_groups_are_cut_between_words_and_kernels_are_not() -> None:
    """What is left of a word says nothing, but both ends of a kernel's name tell its family and its types."""
    columns = (column("name", "kernel", "Its name."), column("group", "group", "Its name and ranks."))
    table = ReportTable(
        name="t",
        title="Things",
        columns=columns,
        rows=(("long copy of it", "data parallel replicas [0-7]"),),
        num_rows=1,
    )
    assert _printed(table, width=38)[2].rstrip() == "long copy of it  data… [0-7]"
    assert _printed(table, width=60)[2].rstrip() == "long copy of it  data parallel replicas [0-7]"
    other = ReportTable(
        name="t", title="Things", columns=columns[:1], rows=(("data parallel replicas [0-7]",),), num_rows=1
    )
    assert _printed(other, width=21)[2].rstrip() == "data paral…icas [0-7]"


def test_numbers_are_never_cut() -> None:
    """Only text columns shrink; a number has its full width or no column."""
    texts = [["a" * 60, "1,234,567"], ["b", "1"]]
    columns = (COLUMNS[0], COLUMNS[5])
    assert fitting_widths(columns, texts, width=40) == [29, 9]
    assert fitting_widths(columns, texts, width=25) == [25]


def test_json_has_plain_numbers_and_reasons() -> None:
    """Null stands for what is absent, and the reason under its key."""
    first, second = to_records(TABLE)
    assert first == {
        "name": "gemm", "total_ns": 1_234_567, "busbw_bytes_per_s": 120e9, "overlap_ratio": 0.5, "is_cut": False,
        "num_calls": 12, "absent": {},
    }  # fmt: skip
    assert second["busbw_bytes_per_s"] is None
    assert second["absent"] == {"busbw_bytes_per_s": "no size", "overlap_ratio": "no communication"}
    assert json.loads(json.dumps([first, second])) == [first, second]


def test_csv_has_plain_numbers_reasons_and_no_formula() -> None:
    """The cells read back; an absent cell is empty and the last column says why."""
    rows = list(csv.DictReader(io.StringIO(to_csv(TABLE))))
    assert rows[0]["total_ns"] == "1234567"
    assert rows[1]["name"] == "'=cmd()"
    assert rows[1]["busbw_bytes_per_s"] == ""
    assert rows[1]["absent"] == "busbw_bytes_per_s: no size; overlap_ratio: no communication"
    assert rows[1]["is_cut"] == "true"


def test_schema_of_a_record_names_types_and_meanings() -> None:
    """Integers are integers, ratios numbers; every value may be null and every key must be there."""
    schema = record_schema(COLUMNS)
    assert schema["properties"]["total_ns"] == {"type": ["integer", "null"], "description": "Time."}
    assert schema["properties"]["overlap_ratio"]["type"] == ["number", "null"]
    assert schema["required"] == [*(each.key for each in COLUMNS), "absent"]


@pytest.mark.parametrize(
    ("key", "unit"),
    [
        ("wait_ns", "ns"),
        ("algbw_bytes_per_s", "bytes_per_s"),
        ("message_bytes", "bytes"),
        ("ceiling_flop_per_s", "flop_per_s"),
        ("intensity_flop_per_byte", "flop_per_byte"),
        ("attained_ratio", "ratio"),
        ("num_calls", "count"),
        ("is_cut", "flag"),
        ("operation", "text"),
    ],
)
def test_the_unit_follows_from_the_key(key: str, unit: str) -> None:
    """A key bears its unit."""
    assert unit_of(key) == unit


@pytest.mark.parametrize(("limit", "kept"), [(1, "ax"), (2, "abx"), (3, "abcx"), (0, "x"), (None, "abcx")])
def test_totals_are_neither_cut_nor_counted(limit: int | None, kept: str) -> None:
    """Of three rows and their total as many rows as asked for stand above the total, and are counted without it."""
    columns = (column("name", "rank", "The rank."),)
    rows = tuple((name,) for name in "abcx")
    table = ReportTable(name="t", title="T", columns=columns, rows=rows, num_rows=4, num_totals=1).limited(limit)
    assert "".join(str(name) for (name,) in table.rows) == kept
    assert table.say_left_out() == (None if kept == "abcx" else f"{len(kept) - 1} of 3 rows")


def test_a_limited_table_says_how_many_rows_there_are() -> None:
    """Cutting rows keeps their number, and the text says so."""
    limited = TABLE.limited(1)
    assert (len(limited.rows), limited.num_rows) == (1, 2)
    assert any(line.startswith("1 of 2 rows") for line in _printed(limited, width=100))
    assert TABLE.limited(None) is TABLE


@pytest.mark.parametrize(
    ("cell", "unit", "text"),
    [
        (1_500_000, "ns", "1.5 ms"),
        (0, "ns", "0 ns"),
        (24_500_000_000, "bytes", "24.5 GB"),
        (0.123, "ratio", "12.3 %"),
        (989.4e12, "flop_per_s", "989.4 TFLOP/s"),
        (295.0, "flop_per_byte", "295 FLOP/B"),
        (True, "flag", "yes"),
        (12345, "count", "12,345"),
        (1009, "id", "1009"),
        (Absent("x"), "ns", "–"),
    ],
)
def test_cells_are_formatted_by_their_unit(cell: object, unit: str, text: str) -> None:
    """Each unit has one form for people."""
    assert format_cell(cell, unit) == text  # pyright: ignore[reportArgumentType]
