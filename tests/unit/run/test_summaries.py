"""Summaries of captured windows are made by a process of their own, and their absence hurts nobody."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from scope.run.summaries import Summaries, summary_path

if TYPE_CHECKING:
    from pathlib import Path

TRACE = {
    "schemaVersion": 1,
    "distributedInfo": {"rank": 0, "world_size": 1},
    "traceEvents": [
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 10.0, "dur": 5.0, "args": {}},
        {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#3", "pid": 1, "tid": 1, "ts": 5.0, "dur": 20.0},
    ],
}


def test_a_window_gets_the_report_of_scope_analyze(tmp_path: Path) -> None:
    """The summary is the JSON report of the trace; a trace that cannot be read has none, and no half of one stays."""
    good, bad = tmp_path / "rank0-step3.json", tmp_path / "rank0-step9.json"
    good.write_text(json.dumps(TRACE))
    bad.write_text("no trace at all")
    summaries = Summaries()
    for trace in (good, bad, tmp_path / "gone" / "rank0-step1.json"):
        summaries.add(trace)
    assert summaries.busy
    summaries.close(wait_s=120.0)
    assert not summaries.busy
    assert summaries.num_failed == 2
    report = json.loads(summary_path(good).read_bytes())
    assert report["schema"] == "scope.report/1"
    assert sorted(path.name for path in tmp_path.iterdir()) == [good.name, "rank0-step3.summary.json", bad.name]


def test_without_polars_nothing_is_made(tmp_path: Path) -> None:
    """An interpreter without the `trace` extra starts no process."""
    summaries = Summaries(available=False)
    summaries.add(tmp_path / "rank0-step3.json")
    assert not summaries.busy


def test_a_summary_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    """At the end of a run nobody waits for a summary longer than was said; nothing of it stays."""
    trace = tmp_path / "rank0-step3.json"
    trace.write_text(json.dumps(TRACE))
    summaries = Summaries()
    summaries.add(trace)
    summaries.poll()
    summaries.close(wait_s=0.0)
    assert not summaries.busy
    assert list(tmp_path.iterdir()) == [trace]
