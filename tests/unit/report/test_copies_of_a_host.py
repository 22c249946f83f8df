"""A host timeline knows nothing of copies: people see them as absent, and the parts that programs get still sum."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from scope.report.build import compute_results
from scope.report.document import to_document
from scope.report.page import render_page
from scope.report.rows import to_csv, to_records
from scope.report.sections.breakdown import breakdown_table, rank_steps_table, steps_table
from scope.report.summary import print_summary
from scope.report.table import Filler, format_cell
from scope.report.text import make_console
from scope.trace import ReadOptions, load

if TYPE_CHECKING:
    from scope.report.results import Results
    from scope.report.table import ReportTable

_FOLDER = Path(__file__).parents[3] / "sample_traces" / "gloo-2-ranks-healthy"
_COPIES = ("exposed_memory_ns", "memory_ns", "peer_copy_ns")
_PARTS = ("compute_ns", "exposed_communication_ns", "exposed_memory_ns", "idle_ns")


@pytest.fixture(scope="module")
def results() -> Results:
    """Two ranks that trained on CPUs."""
    return compute_results(load([str(_FOLDER)], options=ReadOptions(use_cache=False), processes=1))


def _tables(results: Results) -> list[ReportTable]:
    analysis = results.analysis
    return [breakdown_table(analysis), rank_steps_table(analysis), steps_table(analysis)]


def test_people_see_no_copies_and_why(results: Results) -> None:
    """Every cell about copies is a dash with the reason, in all tables of where the time went."""
    for table in _tables(results):
        places = [place for place, column in enumerate(table.columns) if column.key in _COPIES]
        assert len(places) == 3
        assert table.rows
        assert {format_cell(row[place], "ns") for row in table.rows for place in places} == {"–"}
        assert any("host timeline" in reason for reason in table.reasons())


def test_the_summary_and_the_page_show_no_copies(results: Results) -> None:
    """The bar and the tile of exposed copies hold a dash and no 0."""
    out = io.StringIO()
    print_summary(results, (), make_console(out, width=100))
    (line,) = [line for line in out.getvalue().splitlines() if line.startswith("  exposed copies")]
    assert line.split() == ["exposed", "copies", "–"]
    assert 'exposed copies<b>–</b><span class="dim">not known</span>' in render_page(results, ())


def test_parts_that_programs_get_sum_to_the_window(results: Results) -> None:
    """In JSON and CSV the part of copies is the integer 0, so that the four parts sum to the window."""
    made = to_document(results, ())
    records = [*made["ranks"], *made["steps"], *made["rank_steps"], made["total"]]
    records += [each for table in _tables(results) for each in to_records(table)]
    for each in records:
        assert type(each["exposed_memory_ns"]) is int
        assert sum(each[part] for part in _PARTS) == each["window_ns"]
    rows = list(csv.DictReader(io.StringIO(to_csv(breakdown_table(results.analysis)))))
    assert [row["exposed_memory_ns"] for row in rows] == ["0"] * 3


def test_a_filler_is_its_number() -> None:
    """A part that was not measured adds up like any number and is shown as absent."""
    assert 5 + Filler(0, "why") == 5
    assert format_cell(Filler(7, "why"), "ns") == "–"
