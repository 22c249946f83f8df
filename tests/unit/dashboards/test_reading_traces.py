"""Traces are read beside the page, which says how far reading has come, once for all visitors."""

from __future__ import annotations

import json
import os
import threading
from typing import TYPE_CHECKING, Any

import pytest

from dashboards import say
from dashboards.sources.catalogue import find_sources
from dashboards.sources.traces import Reading, load_job
from scope.errors import InputError, TraceError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

LONG_S = 30.0


def test_the_page_says_how_far_reading_has_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of three files is read: a third, in words too; the job is returned once the reader ends."""
    may_end, job = threading.Event(), object()
    told: list[tuple[float, str]] = []

    def read(files: Sequence[str], *, progress: Callable[[int, int, str], None]) -> Any:
        progress(1, len(files), files[0])
        assert may_end.wait(LONG_S)
        return job

    def show(ratio: float, words: str) -> None:
        told.append((ratio, words))
        may_end.set()

    monkeypatch.setattr(say, "progress", show)
    assert Reading(["a", "b", "c"], read=read).job() is job
    ratio, words = told[0]
    assert ratio == pytest.approx(1 / 3)
    assert words.startswith("Reading traces: 1 of 3 files, ")


def test_what_a_reader_raises_reaches_every_visitor() -> None:
    """Two who wait for one reading both get its error."""
    calls: list[int] = []

    def read(files: Sequence[str], *, progress: Callable[[int, int, str], None]) -> Any:
        calls.append(len(files))
        message = "it is none"
        raise TraceError(message)

    reading = Reading(["a"], read=read)
    for _ in range(2):
        with pytest.raises(TraceError, match="it is none"):
            reading.job()
    assert calls == [1]


def test_a_trace_that_failed_is_read_again(tmp_path: Path) -> None:
    """Once the file is mended, in the same size and at the same time, the next visitor sees it."""
    event = {"ph": "X", "name": "a", "ts": 1, "dur": 1, "cat": "kernel"}
    text = json.dumps({"distributedInfo": {"rank": 3}, "traceEvents": [event]})
    file = tmp_path / "trace.json"
    file.write_text("x" * len(text))
    (source,) = find_sources([str(file)])
    status = file.stat()
    with pytest.raises((TraceError, InputError)):
        load_job(source)
    file.write_text(text)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert [rank.rank for rank in load_job(source).job.ranks] == [3]
