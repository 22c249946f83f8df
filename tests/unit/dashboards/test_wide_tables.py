"""Tables on a page: names longer than a screen, rows wider than one, and cells that are not known."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from dashboards.tables import upright
from scope.report.table import Absent, ReportColumn, ReportTable

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from streamlit.testing.v1 import AppTest

LONG_NAME = 3_000_000


def write_trace(folder: Path) -> Path:
    """Write a trace of two kernels whose names are 3 MB long."""
    events = [
        {"ph": "X", "cat": "kernel", "name": f"{'k' * LONG_NAME}{place}", "pid": 0, "tid": 7, "ts": 100 * place}
        | {"dur": 50, "args": {"stream": 7, "device": 0, "correlation": place + 1}}
        for place in range(1, 3)
    ]
    folder.mkdir()
    (folder / "trace.json").write_text(json.dumps({"distributedInfo": {"rank": 0}, "traceEvents": events}))
    return folder


def test_a_name_of_megabytes_is_cut_on_the_page(tmp_path: Path, open_app: Callable[..., AppTest]) -> None:
    """Both kernels stand in the table, each with the beginning of its name and a sign that it goes on."""
    app = open_app("kernels", write_trace(tmp_path / "traces"))
    assert not app.exception
    names = app.dataframe[0].value["key"]
    assert len(names) == 2
    assert all(name.startswith("kkk") and name.endswith("…") and len(name) == 501 for name in names)


def test_a_row_wider_than_a_screen_is_shown_upright() -> None:
    """One figure a line, in its unit, with its meaning; what is not known is a dash, and nothing begins a formula."""
    columns = [
        ReportColumn(key="length_ns", heading="length", unit="ns", meaning="How long."),
        ReportColumn(key="share_ratio", heading="share", unit="ratio", meaning="Of all."),
        ReportColumn(key="excess_ns", heading="excess", unit="ns", meaning="How much longer."),
        ReportColumn(key="name", heading="name", unit="text", meaning="What it is."),
    ]
    row = (1_500_000, Absent("nobody knows"), -4_000, "=1+1")
    table = ReportTable(name="one", title="One", columns=tuple(columns), rows=(row,), num_rows=1)
    assert upright(table).rows() == [
        ("length", "1.5 ms", "How long."),
        ("share", "–", "Of all."),
        ("excess", "-4 us", "How much longer."),
        ("name", "'=1+1", "What it is."),
    ]


def test_findings_of_traces_stand_before_the_table(open_app: Callable[..., AppTest], tmp_path: Path) -> None:
    """The table of all ranks is folded, so that the first screen says what was found."""
    app = open_app("overview", write_trace(tmp_path / "traces"))
    assert not app.exception
    assert "Findings" in [each.value for each in app.subheader]
    assert not app.dataframe


def test_the_window_of_many_ranks_has_a_short_name(open_app: Callable[..., AppTest], tmp_path: Path) -> None:
    """Eight neighbours are a range, and the link on the overview does not repeat the run."""
    from scope.testing.demo import write_demo_run

    write_demo_run(tmp_path / "eight")
    app = open_app("overview", tmp_path / "eight")
    (link,) = app.get("page_link")
    assert link.proto.label == "window of step 10, ranks 0-7"
