"""The quick way through a chunk and the one that takes everything give the same tables."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest

from scope.testing import scenarios
from scope.trace import ReadOptions, load_rank, reader
from scope.trace.narrowing import TABLE_NAMES
from scope.trace.schema import CollectiveCalls

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from scope.testing.scenarios import Scenario
    from scope.trace import RankTrace

SPAN: dict[str, Any] = {"ph": "X", "pid": 1, "tid": 1, "dur": 5}
LAUNCH = SPAN | {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 10, "args": {"correlation": 1}}
KERNEL = SPAN | {"cat": "kernel", "name": "gemm", "ts": 20, "args": {"device": 0, "stream": 7, "correlation": 1}}
OP = SPAN | {"cat": "cpu_op", "name": "aten::mm", "ts": 8, "dur": 20, "args": {"Input Dims": [[2, 3], [3, 4]]}}
ALLOCATION = {
    "ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "pid": 1, "tid": 1, "ts": 9,
    "args": {"Addr": 1, "Bytes": 8, "Device Type": 1, "Device Id": 0},
}  # fmt: skip
USUAL = [LAUNCH, KERNEL, OP, ALLOCATION]
ODD: dict[str, dict[str, Any]] = {
    "begin of a span": {"ph": "B", "cat": "cpu_op", "name": "aten::add", "pid": 1, "tid": 1, "ts": 3},
    "instant of an operator's category": {"ph": "i", "cat": "cpu_op", "name": "[memory]", "tid": 1, "ts": 3},
    "span of an arrow's category": SPAN | {"cat": "ac2g", "name": "odd", "ts": 30},
    "no category": {"ph": "M", "name": "thread_name", "pid": 1, "tid": 1, "args": {"name": "main"}},
    "unknown category": SPAN | {"cat": "of_tomorrow", "name": "odd", "ts": 30},
    "no arguments": SPAN | {"cat": "cpu_op", "name": "aten::add", "ts": 30},
    "null for arguments": SPAN | {"cat": "cpu_op", "name": "aten::add", "ts": 30, "args": None},
    "a wrong type": SPAN
    | {"cat": "kernel", "name": "k", "ts": 30, "args": {"correlation": "7", "stream": 7, "device": 0}},
    "a huge number": SPAN | {"cat": "cpu_op", "name": "aten::add", "ts": 30, "args": {"External id": 2**70}},
    "no times": {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "args": {"device": 0, "stream": 7}},
    "a run of the garbage collector": SPAN
    | {"cat": "python_function", "name": "Python GC", "ts": 30, "args": {"Ev Idx": 164}},
    "old operator": SPAN | {"cat": "Operator", "name": "## forward ##", "ts": 30},
    "a zero byte in a text": OP | {"ts": 40, "args": {"Concrete Inputs": ["a\0b", "", "[]"]}},
}


def contents(trace: RankTrace) -> dict[str, list[dict[str, Any]]]:
    """Return all rows of all tables, with texts for codes."""
    return {name: getattr(trace, name).rows(named=True) for name in TABLE_NAMES}


def read_both(path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[RankTrace, RankTrace]:
    """Return what the quick way makes of a file, and what is made without it."""
    options = ReadOptions(python_calls=True)
    quick = load_rank(path, options=options)
    with monkeypatch.context() as patch:
        patch.setattr(reader, "_MOST_UNTYPED", 0)
        return quick, load_rank(path, options=options)


@pytest.mark.parametrize("kind", ODD)
def test_an_odd_record_is_read_as_without_the_quick_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Whatever the quick way does not take, what stands beside it in its chunk is read all the same."""
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps({"traceEvents": [*USUAL, ODD[kind]]}))
    quick, slow = read_both(path, monkeypatch)
    assert contents(quick) == contents(slow)
    assert quick.quality == slow.quality
    assert (quick.threads, quick.num_processes) == (slow.threads, slow.num_processes)
    assert quick.launches.height == 1
    assert quick.memory.height == 1
    assert quick.device_events.height >= 1


def test_the_usual_records_go_the_quick_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without odd records no chunk is decoded twice, and one odd chunk sends back only itself."""
    chunks: list[str] = []
    monkeypatch.setattr(reader, "_CHUNK_BYTES", 20_000)
    for way in ("add_typed", "add"):
        taken: Callable[..., Any] = getattr(reader.Collector, way)

        def noted(*args: Any, way: str = way, taken: Callable[..., Any] = taken, **options: Any) -> Any:
            chunks.append(way)
            return taken(*args, **options)

        monkeypatch.setattr(reader.Collector, way, noted)
    monkeypatch.setattr("scope.trace.sources.BLOCK_BYTES", 10_000)
    path = tmp_path / "rank0.json"
    frames = [ODD["a run of the garbage collector"], SPAN | {"cat": "python_function", "name": "a.py(1): f", "ts": 30}]
    events = [*USUAL * 500, ODD["unknown category"], *USUAL * 500, *frames * 5, *USUAL * 500]
    path.write_text(json.dumps({"traceEvents": events}))
    trace = load_rank(path)
    assert trace.quality.events_read == 6011
    assert trace.annotations["name"].to_list().count("Python GC") == 5
    assert chunks.count("add") == 1
    assert chunks.count("add_typed") > 10


def test_runs_of_the_garbage_collector_are_known_however_json_spells_them(tmp_path: Path) -> None:
    """JSON may escape any character of a name."""
    path = tmp_path / "rank0.json"
    text = json.dumps({"traceEvents": [*USUAL, ODD["a run of the garbage collector"]]})
    path.write_text(text.replace("Python GC", "Python\\u0020GC"))
    assert load_rank(path).annotations["name"].to_list() == ["Python GC"]


@pytest.mark.parametrize(
    "scenario",
    [scenarios.coalesced_calls, scenarios.send_and_receive, scenarios.uneven_all_to_all, scenarios.elided_groups],
)
def test_collectives_are_read_as_without_the_quick_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scenario: Callable[[], Scenario]
) -> None:
    """What records say of their collectives survives the chunk that they stood in."""
    path = scenario().write(tmp_path)[0]
    quick, slow = read_both(path, monkeypatch)
    assert contents(quick) == contents(slow)
    assert quick.collective_calls.height > 0


@pytest.mark.parametrize("odd", [{}, {"Seq": "ninth"}], ids=["usual", "a wrong type"])
def test_a_collective_after_many_chunks_without_one_is_read_in_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, odd: dict[str, Any]
) -> None:
    """The first collective of a file makes its own chunk, and those behind it, tell all of theirs."""
    said = {"Collective name": "allreduce", "dtype": "Float", "In msg nelems": 10, "Group size": 2, "Seq": 4}
    launch = LAUNCH | {"ts": 50, "args": {"correlation": 9}}
    kernel = KERNEL | {"name": "ncclDevKernel_AllReduce", "ts": 60, "args": KERNEL["args"] | said | {"correlation": 9}}
    later = kernel | {"ts": 70, "args": kernel["args"] | {"Seq": 5} | odd}
    monkeypatch.setattr(reader, "_CHUNK_BYTES", 20_000)
    monkeypatch.setattr("scope.trace.sources.BLOCK_BYTES", 10_000)
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps({"traceEvents": [*USUAL * 300, launch, kernel, *USUAL * 300, later]}))
    quick, slow = read_both(path, monkeypatch)
    assert contents(quick) == contents(slow)
    assert quick.quality == slow.quality
    calls = quick.collective_calls
    assert calls[CollectiveCalls.sequence].to_list() == [4, 5 if not odd else None]
    assert calls[CollectiveCalls.in_elements].to_list() == [10, 10]


def test_real_traces_are_read_as_without_the_quick_way(shared_traces: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every table of real traces of several makers and years is the same by both ways."""
    for name in ("hta/a100_nccl_metadata_rank0of2", "hta/mi250_minitoy", "hta/sampled_rank-0", "hta/a100_alexnet"):
        quick, slow = read_both(shared_traces / f"{name}.json.gz", monkeypatch)
        for table in TABLE_NAMES:
            texts = pl.selectors.categorical().cast(pl.String)
            assert getattr(quick, table).with_columns(texts).equals(getattr(slow, table).with_columns(texts)), name
        assert quick.quality == slow.quality
