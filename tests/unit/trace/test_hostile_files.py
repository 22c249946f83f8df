"""Files that are no plain trace of one rank: pipes, links to themselves, merged files, contradictory metadata."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest

from scope.errors import TraceError
from scope.trace import ReadOptions, load
from scope.trace.schema import CollectiveCalls, DeviceEvents, Ops

if TYPE_CHECKING:
    from pathlib import Path

UNCACHED = ReadOptions(use_cache=False)


def call(process: int, start: float, correlation: int) -> dict[str, Any]:
    """Return a launch of 2 us on thread 100 of a process."""
    record: dict[str, Any] = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": process, "tid": 100}
    return record | {"ts": start, "dur": 2, "args": {"correlation": correlation}}


def kernel(device: int, start: float, correlation: int) -> dict[str, Any]:
    """Return a kernel of 10 us."""
    on = {"device": device, "stream": 7, "correlation": correlation}
    return {"ph": "X", "cat": "kernel", "name": "k", "pid": device, "tid": 7, "ts": start, "dur": 10, "args": on}


def write(folder: Path, records: list[dict[str, Any]], *, rank: int = 0, world_size: int = 1) -> Path:
    """Write a trace."""
    path = folder / "trace.json"
    info = {"rank": rank, "world_size": world_size}
    path.write_text(json.dumps({"distributedInfo": info, "traceEvents": records}))
    return path


def test_a_pipe_is_refused_without_waiting_for_a_writer(tmp_path: Path) -> None:
    """A named pipe that nobody writes is an error at once."""
    path = tmp_path / "trace.json"
    os.mkfifo(path)
    with pytest.raises(TraceError, match="no regular file"):
        load(path, options=UNCACHED)


@pytest.mark.parametrize("device", ["/dev/zero", "/dev/null"])
def test_a_device_is_refused(device: str) -> None:
    """A file without an end, and one without a content, are no traces."""
    with pytest.raises(TraceError, match=device):
        load(device, options=UNCACHED)


def test_a_link_to_itself_is_no_file(tmp_path: Path) -> None:
    """A loop of links is an error that names the path."""
    (tmp_path / "one.json").symlink_to(tmp_path / "two.json")
    (tmp_path / "two.json").symlink_to(tmp_path / "one.json")
    with pytest.raises(TraceError, match=r"one\.json"):
        load(tmp_path / "one.json", options=UNCACHED)


def test_a_world_of_absurd_size_is_unknown(tmp_path: Path) -> None:
    """A world size of which a list of missing ranks would fill the memory is not believed."""
    job = load(write(tmp_path, [kernel(0, 10, 1)], rank=5, world_size=2**40), options=UNCACHED)
    assert (job.world_size, job.missing_ranks) == (None, ())


def test_a_rank_beyond_its_world_is_said(tmp_path: Path) -> None:
    """A file that claims rank 9 of 2 is read, and the contradiction is said."""
    job = load(write(tmp_path, [kernel(0, 10, 1)], rank=9, world_size=2), options=UNCACHED)
    assert any("rank 9 of 2" in warning for warning in job.warnings)


def test_a_file_merged_from_two_processes_is_said(tmp_path: Path) -> None:
    """Correlations that come again link to the call just before each event, and the mixture is said."""
    records = [call(100, 10, 1), kernel(0, 50, 1), call(200, 1010, 1), kernel(1, 1050, 1)]
    job = load(write(tmp_path, records), options=UNCACHED)
    assert job.ranks[0].num_processes == 2
    assert any("2 processes" in warning for warning in job.warnings)
    assert job.ranks[0].device_events[DeviceEvents.launch_id].to_list() == [0, 1]


def test_one_process_is_no_mixture(tmp_path: Path) -> None:
    """The usual file, whose calls one process makes, is not warned of; its devices' ids are no processes."""
    records = [call(100, 10, 1), kernel(0, 50, 1), call(100, 60, 2), kernel(1, 70, 2)]
    job = load(write(tmp_path, records), options=UNCACHED)
    assert job.ranks[0].num_processes == 1
    assert job.warnings == ()


def test_reused_numbers_link_to_the_latest_call(tmp_path: Path) -> None:
    """Numbers that wrap around within one process link to the call that began last before the event."""
    records = [call(100, 10, 1), kernel(0, 50, 1), call(100, 500, 1), kernel(0, 600, 1)]
    job = load(write(tmp_path, records), options=UNCACHED)
    assert job.ranks[0].device_events[DeviceEvents.launch_id].to_list() == [0, 1]


def test_operators_nested_beyond_pythons_stack(tmp_path: Path) -> None:
    """A collective launched below 5,000 operators is still found, in the outermost of them."""
    host = {"ph": "X", "cat": "cpu_op", "pid": 100, "tid": 100}
    nested = [host | {"name": "op", "ts": i, "dur": 20_000 - 2 * i} for i in range(1, 5_001)]
    nested[0]["name"] = "c10d::allreduce_"
    nccl = kernel(0, 30_000, 1) | {"name": "ncclDevKernel_Generic"}
    trace = load(write(tmp_path, [*nested, call(100, 6_000, 1), nccl]), options=UNCACHED).ranks[0]
    assert trace.ops[Ops.depth].max() == 4_999
    assert trace.collective_calls[CollectiveCalls.operation].to_list() == ["all_reduce"]


@pytest.mark.parametrize("first", [0, 3])
def test_two_lists_of_events_are_refused(tmp_path: Path, first: int) -> None:
    """Readers of JSON take the last of two equal keys: half an answer is none. The same word deeper down is no list."""
    records = [kernel(0, 10.0 * place, place) for place in range(3)]
    text = f'{{"traceEvents":{json.dumps(records[:first])},"x":{{"traceEvents":[1]}}'
    path = tmp_path / "trace.json"
    path.write_text(text + f',"traceEvents":{json.dumps(records)}}}')
    with pytest.raises(TraceError, match="two lists of events"):
        load(path, options=UNCACHED)
    path.write_text(text + ',"y":"\\"traceEvents\\":["}')
    assert load(path, options=UNCACHED).ranks[0].quality.events_read == first
