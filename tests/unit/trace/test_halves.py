"""Records that stand in two halves, their begin and their end."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest

from scope.trace import load_rank, reader
from scope.trace.schema import DeviceEvents, Ops

if TYPE_CHECKING:
    from pathlib import Path

    from scope.trace import RankTrace

ON_DEVICE = {"cat": "kernel", "pid": 0, "args": {"device": 0, "stream": 7}}


def begin(name: str, at: float | str, *, thread: int = 7, **more: Any) -> dict[str, Any]:
    """Return the first half of a record."""
    return {"ph": "B", "name": name, "pid": 1, "tid": thread, "ts": at, "cat": "cpu_op"} | more


def end(at: float | str, *, thread: int = 7, process: int = 1) -> dict[str, Any]:
    """Return the second half, which names nothing."""
    return {"ph": "E", "pid": process, "tid": thread, "ts": at}


def read(folder: Path, records: list[dict[str, Any]], **metadata: Any) -> RankTrace:
    """Write a trace and read it."""
    path = folder / "rank0.json"
    path.write_text(json.dumps({"traceEvents": records, **metadata}))
    return load_rank(path)


def spans(trace: RankTrace) -> list[tuple[str, int, int]]:
    """Return name, start and end of the operators in the order of their starts."""
    columns = trace.ops.select(pl.col(Ops.name).cast(pl.String), Ops.start_ns, Ops.end_ns)
    return [(name, start, stop) for name, start, stop in columns.rows()]


def counts(trace: RankTrace) -> tuple[int, int]:
    """Return how many records were read and lost."""
    return trace.quality.events_read, trace.quality.events_lost


def test_an_end_belongs_to_the_last_begin_of_its_thread(tmp_path: Path) -> None:
    """Halves nest on a thread, threads don't disturb each other, and all of it is read."""
    records = [
        begin("outer", 10),
        begin("other", 11, thread=8),
        begin("inner", 12),
        end(15),
        end(30, thread=8),
        begin("second", 16),
        end(18),
        end(20),
    ]
    trace = read(tmp_path, records)
    assert spans(trace) == [
        ("outer", 10_000, 20_000),
        ("other", 11_000, 30_000),
        ("inner", 12_000, 15_000),
        ("second", 16_000, 18_000),
    ]
    assert trace.ops[Ops.parent_id].to_list() == [None, None, 0, 0]
    assert counts(trace) == (8, 0)


def test_halves_occupy_a_device_as_whole_records_do(tmp_path: Path) -> None:
    """A kernel in two halves has the arguments of its begin, beside one in a whole."""
    whole = {"ph": "X", "name": "ncclDevKernel_AllReduce_Sum_f32_RING_LL", "tid": 9, "ts": 25, "dur": 10}
    records = [begin("gemm", 10, **ON_DEVICE), end(30, process=0), whole | ON_DEVICE]
    events = read(tmp_path, records).device_events
    rows = events.select(DeviceEvents.stream, DeviceEvents.category, DeviceEvents.start_ns, DeviceEvents.end_ns).rows()
    assert rows == [(7, "compute", 10_000, 30_000), (7, "communication", 25_000, 35_000)]


def test_lengths_are_exact_since_the_epoch(tmp_path: Path) -> None:
    """Instants that no float holds to the nanosecond differ by what stands in the file."""
    records = [begin("gemm", "1712867402348256.123"), end("1712867402348257.124"), begin("next", 1), end(0.5)]
    trace = read(tmp_path, records)
    assert spans(trace) == [
        ("next", 1_000, 1_000),
        ("gemm", 1_712_867_402_348_256_123, 1_712_867_402_348_257_124),
    ]


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        ([end(5), begin("kept", 10), end(20)], (2, 1)),
        ([begin("kept", 10), end(20), begin("open", 30)], (2, 1)),
        ([begin("kept", 10), end(20), end(25, thread=8), end(26, process=2), begin("open", 30)], (2, 3)),
        ([begin("kept", 10), end(20), begin("no instant", "soon"), end(30)], (3, 1)),
    ],
)
def test_halves_without_the_other_are_lost_and_counted(
    tmp_path: Path, records: list[dict[str, Any]], expected: tuple[int, int]
) -> None:
    """An end without a begin, a begin without an end and one without an instant cost themselves alone."""
    trace = read(tmp_path, records)
    assert spans(trace) == [("kept", 10_000, 20_000)]
    assert counts(trace) == expected


def test_halves_in_different_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of a record may come chunks after its begin, and in a chunk with a bad byte."""
    monkeypatch.setattr(reader, "_CHUNK_BYTES", 1 << 10)
    steps = [half for step in range(100) for half in (begin(f"op{step}", 10 + step), end(10.5 + step))]
    path = tmp_path / "rank0.json"
    text = json.dumps({"traceEvents": [begin("whole", 1), *steps, end(500)]})
    path.write_text(text.replace("op50", "op\x0150"))
    trace = load_rank(path)
    assert trace.ops.height == 101
    assert spans(trace)[0] == ("whole", 1_000, 500_000)
    assert spans(trace)[51][1:] == (60_000, 60_500)
    assert counts(trace) == (202, 0)
    assert trace.quality.events_repaired == 1


@pytest.mark.parametrize("extra", [{}, {"ts": 1_800_000_000_000_000.5}])
def test_asynchronous_records_are_counted_and_stand_in_no_table(tmp_path: Path, extra: dict[str, Any]) -> None:
    """`b`, `n` and `e` belong to no thread: they are read, counted, and make no operator."""
    kernel = {"ph": "X", "name": "k", "ts": 5, "dur": 2, **ON_DEVICE} | extra
    work = [{"ph": phase, "cat": "cpu_op", "id": 1, "name": "request", "pid": 1, "tid": 7, "ts": 3} for phase in "bne"]
    trace = read(tmp_path, [kernel, *work, *work])
    assert (trace.quality.asynchronous, trace.quality.events_read, trace.quality.events_lost) == (6, 7, 0)
    assert trace.ops.is_empty()
    assert trace.device_events.height == 1
    assert read(tmp_path, [kernel, begin("op", 1), end(2)]).quality.asynchronous == 0
