"""What is drawn of memory over time."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import scope
from scope.report.page_figures import memory_samples

if TYPE_CHECKING:
    from pathlib import Path


def test_memory_of_the_host_is_what_was_allocated_while_recording(tmp_path: Path) -> None:
    """A device has lines of allocated and reserved bytes; the host one line that says what torch counts of it."""
    instant = {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "pid": 1, "tid": 1, "s": "t"}
    sizes = {"Bytes": 5, "Addr": 7, "Total Reserved": 100}
    places = {"Device Type": 1, "Device Id": 0, "Total Allocated": 20}, {"Device Type": 0, "Total Allocated": 5}
    records = [{**instant, "ts": at, "args": {**sizes, **place}} for at, place in enumerate(places, start=1)]
    kernel = {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 1, "dur": 1}
    records.append({**kernel, "args": {"device": 0, "stream": 7}})
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"distributedInfo": {"rank": 0, "world_size": 1}, "traceEvents": records}))
    drawn = memory_samples(scope.analyze(scope.load(path))).rows()
    assert {(name, value) for name, _, value in drawn} == {
        ("rank 0 device 0 allocated", 20.0),
        ("rank 0 device 0 reserved", 100.0),
        ("rank 0 host, allocated since the recording began", 5.0),
    }
