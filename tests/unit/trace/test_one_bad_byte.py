"""One bad byte costs one record, wherever it stands, and nothing behind it goes uncounted."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest

from scope.errors import TraceError
from scope.trace import load_rank, reader, sources
from scope.trace.schema import DeviceEvents
from scope.trace.sources import Limits, Source

if TYPE_CHECKING:
    from pathlib import Path


def kernel(index: int, name: str = "gemm", **args: Any) -> dict[str, Any]:
    """Return the record of a kernel of 5 us that starts at 10 us times `index`."""
    place = {"device": 0, "stream": 7, "correlation": index, "grid": [8, 1, 1]}
    lane = {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7}
    return {**lane, "ts": 10 * index, "dur": 5, "args": place | args}


RECORDS = [
    {"ph": "M", "name": "thread_name", "pid": 1, "tid": 1, "args": {"name": "main"}},
    kernel(1),
    kernel(2, list=[{"a": 1}, {"b": [2]}]),
    {"ph": "f", "id": 5, "pid": 0, "tid": 7, "ts": 20, "cat": "ac2g", "name": "ac2g", "bp": "e"},
    {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 3, "dur": 2},
    kernel(4),
    kernel(5),
]
BEFORE = {"schemaVersion": 1, "distributedInfo": {"rank": 3}}
BEHIND = {"displayTimeUnit": "ms", "baseTimeNanoseconds": 1_767_189_312_000_000_000}
DEVICES = {"deviceProperties": [{"id": 0}, {"id": 1}, {"id": 2}], **BEHIND}


@pytest.fixture(params=[512 << 10, 200])
def chunk_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read in one chunk, and in many of two records or so."""
    monkeypatch.setattr(reader, "_CHUNK_BYTES", request.param)
    monkeypatch.setattr(sources, "BLOCK_BYTES", request.param)


def write(path: Path, document: object) -> bytes:
    """Write compact JSON; return its bytes."""
    text = json.dumps(document, separators=(",", ":")).encode()
    path.write_bytes(text)
    return text


@pytest.mark.usefixtures("chunk_bytes")
@pytest.mark.parametrize("bad", [b"]", b"}"])
@pytest.mark.parametrize("behind", [{}, BEHIND])
def test_any_byte_of_the_events_costs_no_more_than_itself(tmp_path: Path, bad: bytes, behind: dict[str, Any]) -> None:
    """Whichever byte of the list is replaced, all other records are read, and what was read and lost adds up."""
    path = tmp_path / "trace.json"
    text = write(path, {**BEFORE, "traceEvents": RECORDS, **behind})
    first = text.index(b"[", text.index(b"traceEvents")) + 1
    last = text.index(b'],"display') if behind else len(text) - len(b"]}")
    for place in range(first, last + 1):
        path.write_bytes(text[:place] + bad + text[place + 1 :])
        found = reader.read_trace(Source(path, limits=Limits())).collected
        assert found.events_read >= len(RECORDS) - 1, place
        assert abs(found.events_read + found.events_lost - len(RECORDS)) <= 1, place


@pytest.mark.usefixtures("chunk_bytes")
@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'}},{"ph"', b'}}]{"ph"'),
        (b'}},{"ph"', b'}}],{"ph"'),
        (b'}},{"ph"', b'}}],"ph"'),
        (b',"args"', b'}],"args"'),
    ],
)
def test_a_bracket_among_events_does_not_end_them(tmp_path: Path, old: bytes, new: bytes) -> None:
    """A bracket that an event follows, or the rest of one, is damage; what stands behind the true end is read too."""
    path = tmp_path / "trace.json"
    records = [kernel(index) for index in range(1, 41)]
    text = write(path, {**BEFORE, "traceEvents": records, **BEHIND})
    place = -1
    for _ in range(len(records) - 1):
        place = text.index(old, place + 1)
        path.write_bytes(text[:place] + new + text[place + len(old) :])
        found = reader.read_trace(Source(path, limits=Limits()))
        assert found.collected.events_read >= len(records) - 1, place
        assert abs(found.collected.events_read + found.collected.events_lost - len(records)) <= 1, place
        assert found.collected.events_lost + found.collected.events_repaired >= 1, place


@pytest.mark.usefixtures("chunk_bytes")
@pytest.mark.parametrize("stray", [b"]}", b"]}}", b'], "x":1}', b"]}]}"])
def test_brackets_behind_an_event_do_not_end_them(tmp_path: Path, stray: bytes) -> None:
    """Also where a chunk ends with them, so that only what follows in the file can tell."""
    path = tmp_path / "trace.json"
    records = [kernel(index) for index in range(1, 41)]
    text = write(path, {**BEFORE, "traceEvents": records, **BEHIND})
    place = -1
    for _ in range(len(records) - 1):
        place = text.index(b'},{"ph"', place + 1)
        path.write_bytes(text[: place + 1] + stray + text[place + 1 :])
        found = reader.read_trace(Source(path, limits=Limits()))
        assert found.collected.events_read == len(records), place
        assert found.collected.events_lost + found.collected.events_repaired >= 1, place
        assert found.metadata["distributedInfo"] == {"rank": 3}, place


@pytest.mark.usefixtures("chunk_bytes")
@pytest.mark.parametrize(
    "behind",
    [
        {"pad": "y" * 40_000, "legend": {"ph": "phase"}},
        {"pad": "y" * 40_000, "legend": [{"ph": "phase"}, {"ph": "X", "name": "q", "ts": 1, "dur": 2}]},
        {"samples": [{"a": 1}] * 9_000, "legend": {"ph": "phase"}},
        {"args": {"x": 1}, "pad": "y" * 40_000},
        {"pid": 4, "pad": "y" * 100_000},
    ],
    ids=["phase", "events", "samples", "args", "pid"],
)
def test_a_sound_file_is_read_whatever_it_says_behind_the_events(tmp_path: Path, behind: dict[str, Any]) -> None:
    """Keys that look like those of events are no damage where the file is good JSON to its end."""
    path = tmp_path / "trace.json"
    write(path, {"traceEvents": RECORDS, **behind, "distributedInfo": {"rank": 3}})
    found = reader.read_trace(Source(path, limits=Limits()))
    counts = found.collected.events_read, found.collected.events_lost, found.collected.events_repaired
    assert counts == (len(RECORDS), 0, 0)
    assert found.metadata["distributedInfo"] == {"rank": 3}
    assert not found.is_truncated


@pytest.mark.parametrize("between", [b"", b"\n"])
def test_two_traces_in_one_file_are_refused(tmp_path: Path, between: bytes) -> None:
    """Of two files that were joined one would be dropped without a word."""
    path = tmp_path / "trace.json"
    text = write(path, {**BEFORE, "traceEvents": RECORDS, **BEHIND})
    path.write_bytes(text + between + text)
    with pytest.raises(TraceError, match=r"trace\.json: holds two traces one behind the other"):
        reader.read_trace(Source(path, limits=Limits()))


def test_a_broken_event_leaves_what_the_file_says_behind_the_events(tmp_path: Path) -> None:
    """Objects among the other keys of a file are no events, also where an event is broken."""
    path = tmp_path / "trace.json"
    text = write(path, {"traceEvents": RECORDS, **DEVICES})
    path.write_bytes(text.replace(b'"ts":40', b'"ts":4x'))
    found = reader.read_trace(Source(path, limits=Limits()))
    assert (found.collected.events_read, found.collected.events_lost) == (len(RECORDS) - 1, 1)
    assert not found.is_truncated
    assert {key: found.metadata[key] for key in DEVICES} == DEVICES


@pytest.mark.usefixtures("chunk_bytes")
def test_a_name_is_the_same_wherever_a_chunk_ends(tmp_path: Path) -> None:
    """What looks like the end of an event inside a name keeps its blanks where a chunk ends there."""
    path = tmp_path / "trace.json"
    write(path, {"traceEvents": [kernel(index, "f<{a},  {b} , {c}>") for index in range(1, 200)]})
    trace = load_rank(path)
    assert trace.quality.events_read == 199
    assert set(trace.device_events[DeviceEvents.name].cast(pl.String)) == {"f<{a},  {b} , {c}>"}
