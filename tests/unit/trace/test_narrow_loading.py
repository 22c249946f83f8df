"""Reading only some tables: the same figures as from all of them, and no table that was not read looks empty."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any

import pytest
from polars.testing import assert_frame_equal

from scope.errors import UsageError
from scope.trace import RankTrace, ReadOptions, load, load_rank
from scope.trace.cache import SMALLEST_BYTES
from scope.trace.schema import (
    CollectiveCalls,
    DeviceEvents,
    Launches,
    Memory,
    Ops,
    PythonCalls,
    Steps,
)

if TYPE_CHECKING:
    from pathlib import Path

ON_DEVICE = ReadOptions(tables=(DeviceEvents,), use_cache=False)
GEMM = "ampere_sgemm_128x64_tn"
OPEN = "my_kernel"
"""A name that tells nothing, so that the operator around its launch decides the category."""


def span(category: str, name: str, start: int, length: int, **args: Any) -> dict[str, Any]:
    """Return a record, on a device's stream 7 or on the host's thread 1."""
    is_device = category in ("kernel", "gpu_memcpy")
    where = {"device": 0, "stream": 7} if is_device else {}
    pid, tid = (0, 7) if is_device else (100, 1)
    args = {key.replace("_", " ") if key.startswith("External") else key: value for key, value in args.items()}
    return {
        "ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, "ts": start, "dur": length,
        "args": {**where, **args},
    }  # fmt: skip


def write(folder: Path, *records: dict[str, Any], rank: int = 0) -> Path:
    """Write a trace."""
    path = folder / f"rank{rank}.json"
    document = {"distributedInfo": {"rank": rank, "world_size": 2}, "traceEvents": list(records)}
    path.write_text(json.dumps(document))
    return path


def job(operator: str, **args: Any) -> tuple[dict[str, Any], ...]:
    """Return an operator from 10 to 20 us, and a kernel of an open name that is launched at 12 us."""
    return (
        span("cpu_op", operator, 10, 10, External_id=5),
        span("cpu_op", "aten::mm", 30, 10, External_id=6),
        span("cuda_runtime", "cudaLaunchKernel", args.pop("called", 12), 1, correlation=1),
        span("kernel", OPEN, 100, 10, correlation=1, **args),
    )


def category(trace: RankTrace) -> str:
    """Return the category of the only device event."""
    return trace.device_events[DeviceEvents.category].item()


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        (job("aten::add"), "compute"),
        (job("c10d::allreduce_"), "communication"),
        (job("c10d::allreduce_", called=32), "compute"),
        (job("c10d::allreduce_", called=50), "compute"),
        (job("c10d::allreduce_", called=50, External_id=5), "communication"),
        (job("c10d::allreduce_", called=50, External_id=6), "compute"),
    ],
    ids=["other operator", "around the launch", "beside it", "no operator", "by External id", "another External id"],
)
def test_the_operator_decides_without_being_read(tmp_path: Path, records: tuple[Any, ...], expected: str) -> None:
    """A kernel whose category hangs on its operator has the same one when operators are not asked for."""
    path = write(tmp_path, *records)
    narrow = load_rank(path, options=ON_DEVICE)
    assert category(narrow) == expected == category(load_rank(path))
    assert "ops" in narrow.not_loaded


@pytest.mark.parametrize("is_last", [False, True])
def test_operators_of_communication_stand_anywhere(tmp_path: Path, is_last: bool) -> None:
    """Of a file that is read in several pieces, one may hold the only operator that decides a category."""
    filler = [span("cpu_op", f"operator {number % 7}", 1000 + number * 10, 5) for number in range(25_000)]
    decisive = job("c10d::allreduce_")
    path = write(tmp_path, *filler, *decisive) if is_last else write(tmp_path, *decisive, *filler)
    assert category(load_rank(path, options=ON_DEVICE)) == "communication"


def test_what_was_not_read_refuses(tmp_path: Path) -> None:
    """Any use of a table that was not asked for names it, and says how to get it."""
    trace = load_rank(write(tmp_path, *job("aten::add")), options=ON_DEVICE)
    assert trace.not_loaded == ("ops", "collective_calls", "memory", "syncs", "python_calls")
    for use in (lambda: trace.ops.height, lambda: trace.ops["name"], lambda: len(trace.ops), lambda: list(trace.ops)):
        with pytest.raises(UsageError, match=r"ops was not read .* name Ops among ReadOptions\.tables"):
            use()
    assert {DeviceEvents.op_id, DeviceEvents.kernel_class, DeviceEvents.call_id}.isdisjoint(trace.device_events.columns)
    assert Launches.op_id not in trace.launches.columns
    assert trace.quality.attributed_ratio is None
    assert trace.quality.host_overlaps is None


def test_what_a_table_needs_comes_with_it(tmp_path: Path) -> None:
    """Collective calls bring events, launches and operators; memory without operators says of none."""
    path = write(tmp_path, *job("aten::add"))
    calls = load_rank(path, options=ReadOptions(tables=(CollectiveCalls,)))
    assert calls.not_loaded == ("memory", "syncs", "python_calls")
    assert calls.ops.height == 2
    memory = load_rank(path, options=ReadOptions(tables=(Memory,)))
    assert memory.not_loaded == ("device_events", "ops", "launches", "collective_calls", "syncs", "python_calls")
    assert not memory.is_host_timeline
    assert Memory.op_id not in memory.memory.columns
    assert load_rank(path, options=ReadOptions(tables=(PythonCalls, Ops))).python_calls.height == 0


def test_no_table_of_a_trace(tmp_path: Path) -> None:
    """Something else among the tables is a mistake that lists what there is."""
    with pytest.raises(UsageError, match="is no table of a trace; there are DeviceEvents, Ops"):
        load_rank(write(tmp_path, *job("aten::add")), options=ReadOptions(tables=(str,)))  # pyright: ignore[reportArgumentType]


def test_a_host_timeline_is_read_whole(tmp_path: Path) -> None:
    """Where nothing ran on a device, the timeline is made of host records, so all of them are there."""
    trace = load_rank(write(tmp_path, *job("aten::add")[:2]), options=ON_DEVICE)
    assert trace.is_host_timeline
    assert not trace.not_loaded
    assert trace.ops.height == 2


def test_half_a_trace_never_enters_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A later reading of all tables gets all of them; one of some gets those alone out of the whole entry."""
    monkeypatch.setenv("SCOPE_CACHE_DIR", str(tmp_path / "cache"))
    filler = [span("cpu_op", f"operator {number}", number * 10, 5) for number in range(SMALLEST_BYTES // 50)]
    path = write(tmp_path, *filler, *job("aten::add"))
    some = ReadOptions(tables=(DeviceEvents,))
    assert "ops" in load(path, options=some).ranks[0].not_loaded
    whole = load(path).ranks[0]
    assert not whole.not_loaded
    assert whole.ops.height == len(filler) + 2
    for thread in threading.enumerate():
        if thread.name == "scope-cache":
            thread.join()
    assert len(list((tmp_path / "cache" / "traces").iterdir())) == 1
    narrow = load(path, options=some).ranks[0]
    assert "ops" in narrow.not_loaded
    assert_frame_equal(narrow.launches, load_rank(path, options=some).launches, categorical_as_str=True)


def test_processes_read_the_same_part(tmp_path: Path) -> None:
    """Files that are read side by side come back with the same tables, and the same ones missing."""
    filler = [span("cpu_op", f"operator {number}", number * 10, 5) for number in range(25_000)]
    for rank in range(2):
        write(tmp_path, *filler, *job("aten::add"), rank=rank)
    found = load(tmp_path, options=ON_DEVICE, processes=2)
    for trace in found.ranks:
        alone = load_rank(trace.path, options=ON_DEVICE)
        assert trace.not_loaded == alone.not_loaded
        assert trace.quality.events_read == len(filler) + 4
        assert_frame_equal(trace.device_events, alone.device_events, categorical_as_str=True)
        with pytest.raises(UsageError, match="ops was not read"):
            _ = trace.ops.height


def test_records_that_are_not_kept_are_counted(tmp_path: Path) -> None:
    """Operators that are not asked for count among those read, and nonsense among those lost."""
    path = write(tmp_path, *job("aten::add"), span("cpu_op", "aten::nonsense", 0, 0))
    whole, narrow = load_rank(path), load_rank(path, options=ReadOptions(tables=(Steps,)))
    assert (whole.quality.events_read, whole.quality.events_lost) == (4, 1)
    assert (narrow.quality.events_read, narrow.quality.events_lost) == (4, 1)
