"""Records that no profiler should write, and some that few do: what is lost is counted, what is kept is told apart."""

from __future__ import annotations

import itertools
import json
import re
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest
import zstandard

from scope.errors import LimitError
from scope.trace import Limits, ReadOptions, load, load_rank, reader
from scope.trace.schema import DeviceEvents, Launches, Ops, Steps

if TYPE_CHECKING:
    from pathlib import Path

    from scope.trace import RankTrace

KERNEL = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 1.5, "dur": 2}


def kernel(**args: Any) -> dict[str, Any]:
    """Return a kernel's record with some arguments."""
    return {**KERNEL, "args": {"device": 0, "stream": 7, "correlation": 1, **args}}


def read(folder: Path, *records: object) -> RankTrace:
    """Read a trace whose list of events holds some values."""
    path = folder / "trace.json"
    path.write_text(json.dumps({"traceEvents": records, "distributedInfo": {"rank": 3, "world_size": 4}}))
    return load_rank(path)


@pytest.mark.parametrize("junk", [[5], [None], ["a"], [[]], [{}], [5, 6], [True, None], ["}, {"], [[{"ph": "X"}]]])
def test_junk_at_the_end_is_lost_and_nothing_else(tmp_path: Path, junk: list[object]) -> None:
    """Values that are no events are counted; the file is whole, and what stands behind the events is read."""
    trace = read(tmp_path, kernel(), *junk)
    assert (trace.quality.events_read, trace.quality.events_lost) == (1, len(junk))
    assert not trace.quality.truncated
    assert trace.rank == 3


def test_junk_between_events(tmp_path: Path) -> None:
    """Junk between events costs itself alone, at the beginning too."""
    trace = read(tmp_path, 5, kernel(), None, kernel(correlation=2))
    assert (trace.quality.events_read, trace.quality.events_lost, trace.quality.events_repaired) == (2, 2, 0)
    assert trace.device_events[DeviceEvents.correlation].to_list() == [1, 2]


def test_one_odd_type_is_one_repair(tmp_path: Path) -> None:
    """A number where a name should be mends one record; the others are not said to be repaired."""
    trace = read(tmp_path, kernel(), {**kernel(), "name": 5})
    assert (trace.quality.events_read, trace.quality.events_lost, trace.quality.events_repaired) == (2, 0, 1)
    assert sorted(trace.device_events[DeviceEvents.name].to_list()) == ["5", "k"]


@pytest.mark.parametrize("device", [10**23, 2**32, "9" * 23, -1, -5], ids=str)
def test_a_device_without_a_usable_number_is_not_the_host(tmp_path: Path, device: object) -> None:
    """An id beyond 32 or 64 bits, or below 0, is a device of its own: neither the host (-1) nor another device."""
    trace = read(tmp_path, kernel(), kernel(device=device, correlation=2))
    found = dict(trace.device_events.select(DeviceEvents.correlation, DeviceEvents.device).iter_rows())
    assert found[1] == 0
    assert found[2] < -1


@pytest.mark.parametrize("streams", [("compute", "comm"), (2**64 - 1, 2**64 - 2), (7, "comm")])
def test_streams_of_any_name_are_told_apart(tmp_path: Path, streams: tuple[object, object]) -> None:
    """Streams of names or addresses beyond 64 bits are two, so that no event runs into one of the other's."""
    one, other = ({**kernel(stream=stream), "dur": 5, "tid": stream} for stream in streams)
    trace = read(tmp_path, one, {**other, "ts": 3}, {**one, "ts": 8})
    first, second, third = trace.device_events[DeviceEvents.stream].to_list()
    assert first == third != second
    assert trace.quality.slices_overrun == 0


def test_devices_beyond_32_bits_are_told_apart(tmp_path: Path) -> None:
    """Two large ids are two devices."""
    trace = read(tmp_path, kernel(device=2**40), kernel(device=2**40 + 1))
    assert trace.device_events[DeviceEvents.device].n_unique() == 2


def test_a_file_of_numbers_that_are_none_is_read_chunk_by_chunk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`inf` in every record costs that value alone, wherever chunks end; names that hold the word keep it."""
    monkeypatch.setattr(reader, "_CHUNK_BYTES", 1 << 10)
    records = [
        {**kernel(**{"blocks per SM": "VALUE", "warps per SM": "VALUE"}), "name": "k<a, inf, nan>", "ts": 10 * number}
        for number in range(1, 101)
    ]
    text = json.dumps({"traceEvents": [kernel(), *records, kernel(**{"est. achieved occupancy %": "VALUE"})], "x": 1})
    values = itertools.cycle(["inf", "-nan", "NaN", "-Infinity", "nan(ind)"])
    parts = text.split('"VALUE"')
    text = parts[0] + "".join(next(values) + part for part in parts[1:])
    path = tmp_path / "rank0.json"
    path.write_text(text)
    monkeypatch.setattr(reader, "salvage", None)
    trace = load_rank(path)
    assert trace.device_events.height == 102
    names = trace.device_events[DeviceEvents.name].cast(pl.String).value_counts(sort=True).rows()
    assert names == [("k<a, inf, nan>", 100), ("k", 2)]
    assert (trace.quality.events_read, trace.quality.events_repaired, trace.quality.events_lost) == (102, 101, 0)
    assert trace.quality.truncated is False
    assert trace.device_events[DeviceEvents.occupancy_ratio].null_count() == 102


def test_hardware_counters_are_said_not_to_be_read(tmp_path: Path) -> None:
    """Ranges of hardware counters never occupy the device, and the user hears that their values are not used."""
    path = tmp_path / "rank0.json"
    counters = {"smsp__inst_executed.sum": 12.0, "dram__bytes_read.sum": 3.0}
    ranges = [
        {**KERNEL, "cat": "cuda_profiler_range", "name": f"range {number}", "args": counters} for number in (1, 2)
    ]
    path.write_text(json.dumps({"traceEvents": [kernel(), *ranges]}))
    job = load(path, options=ReadOptions(use_cache=False))
    assert job.ranks[0].device_events.height == 1
    assert job.warnings == (
        f"{path}: holds 2 ranges of hardware counters (cuda_profiler_range), whose values are not read",
    )
    assert load(_without_counters(tmp_path), options=ReadOptions(use_cache=False)).warnings == ()


@pytest.mark.parametrize(
    ("records", "said"),
    [
        ([{"name": "MatMulV2", "args": {"Task Type": "AI_CORE"}}, {"name": "hcom_allReduce_"}], "2 records.*: none\\)"),
        ([{"name": "k(int*)", "cat": "hsa"}], "1 record of.*: 'hsa'\\)"),
        ([{"name": "k", "cat": f"c{number}"} for number in range(5)], "5 records.*: 'c0', 'c1', 'c2', ...\\)"),
    ],
)
def test_traces_of_other_profilers_are_said_to_be_none(
    tmp_path: Path, records: list[dict[str, object]], said: str
) -> None:
    """Where nothing ran on a device, records that may have are not left out in silence; beside kernels they may be."""
    spans = [{"ph": "X", "pid": 3, "tid": 2, "ts": "17.5", "dur": 20.5} | each for each in records]
    operator = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1, "dur": 5}
    path = tmp_path / "rank0.json"
    for events in (spans, [operator, *spans]):
        path.write_text(json.dumps(events))
        (warning,) = load(path, options=ReadOptions(use_cache=False)).warnings
        assert re.search(f"no device events, but {said}", warning)
    path.write_text(json.dumps([kernel(), *spans]))
    assert load(path, options=ReadOptions(use_cache=False)).warnings == ()


def _without_counters(folder: Path) -> Path:
    path = folder / "rank1.json"
    path.write_text(json.dumps({"traceEvents": [kernel()]}))
    return path


def test_marks_of_several_threads_are_one_step(tmp_path: Path) -> None:
    """Where each thread marks its steps, a step counts once; a number that comes again later is another step."""
    mark = {"ph": "X", "pid": 1, "cat": "user_annotation", "dur": 990}
    trace = read(
        tmp_path,
        *({**mark, "name": f"ProfilerStep#{step}", "tid": 1, "ts": 1000 * step} for step in range(3)),
        *({**mark, "name": f"ProfilerStep#{step}", "tid": 2, "ts": 1000 * step + 20} for step in range(3)),
        {**mark, "name": "ProfilerStep#1", "tid": 1, "ts": 9000},
        {**mark, "name": "ProfilerStep#1", "tid": 1, "ts": 9000},
        *({**KERNEL, "ts": 1000 * step + 500} for step in range(3)),
    )
    steps = trace.steps.select(Steps.number, Steps.start_ns, Steps.end_ns, Steps.thread).rows()
    first = [(step, 1_000_000 * step, 1_000_000 * step + 990_000, 1) for step in range(3)]
    assert steps == [*first, (1, 9_000_000, 9_990_000, 1)]


@pytest.mark.parametrize("stray", [(0, 5), (500, 5), (995, 20), (3, 5)])
def test_a_short_mark_of_another_thread_hides_no_step(stray: tuple[int, int], tmp_path: Path) -> None:
    """It is no step, however early it begins or how far it reaches beyond the step of the thread that trains."""
    mark = {"ph": "X", "pid": 1, "cat": "user_annotation", "name": "ProfilerStep#5"}
    trace = read(
        tmp_path,
        {**mark, "tid": 77, "ts": stray[0], "dur": stray[1]},
        {**mark, "tid": 1, "ts": 3, "dur": 1000},
        {**mark, "name": "ProfilerStep#6", "tid": 1, "ts": 1003, "dur": 1000},
        *({**KERNEL, "ts": 1000 * step + 500} for step in range(2)),
    )
    steps = trace.steps.select(Steps.step_id, Steps.number, Steps.thread, Steps.start_ns, Steps.end_ns).rows()
    assert steps == [(0, 5, 1, 3_000, 1_003_000), (1, 6, 1, 1_003_000, 2_003_000)]


def test_steps_that_several_threads_mark_do_not_overlap(tmp_path: Path) -> None:
    """Which mark of a step is longer changes from step to step; those of one thread are taken for all."""
    mark = {"ph": "X", "pid": 1, "cat": "user_annotation"}
    lengths = [(990, 995), (990, 985), (990, 995), (990, 985)]
    trace = read(
        tmp_path,
        *(
            {**mark, "name": f"ProfilerStep#{step}", "tid": thread, "ts": 1000 * step + offset, "dur": length}
            for step, both in enumerate(lengths)
            for thread, offset, length in ((1, 0, both[0] + (step == 0)), (2, 20, both[1]))
        ),
        *({**KERNEL, "ts": 1000 * step + 500} for step in range(4)),
    )
    assert set(trace.steps[Steps.thread]) == {1}
    assert trace.steps[Steps.start_ns].to_list() == [1_000_000 * step for step in range(4)]


def test_a_launch_outside_every_step(tmp_path: Path) -> None:
    """Where no operator, call or event lies in a step, each is of no step."""
    host = {"ph": "X", "pid": 1, "tid": 1}
    trace = read(
        tmp_path,
        {**host, "cat": "user_annotation", "name": "ProfilerStep#3", "ts": 100, "dur": 10},
        {**host, "cat": "cpu_op", "name": "aten::mm", "ts": 1, "dur": 9},
        {**host, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 3, "dur": 1, "args": {"correlation": 5}},
        {**KERNEL, "ts": 300, "name": "ncclDevKernel_AllReduce", "args": {"device": 0, "stream": 7, "correlation": 5}},
    )
    assert trace.quality.steps_found == 1
    for frame, column in (
        (trace.ops, Ops.step_id),
        (trace.launches, Launches.step_id),
        (trace.device_events, DeviceEvents.step_id),
        (trace.collective_calls, DeviceEvents.step_id),
    ):
        assert frame[column].to_list() == [None]


def test_a_zstandard_bomb_stops_at_its_cap(tmp_path: Path) -> None:
    """Both caps hold for zstandard too, and the error names the file and says how to raise the cap."""
    path = tmp_path / "bomb.json.zst"
    path.write_bytes(zstandard.compress(b'{"traceEvents": [' + b" " * (64 << 20)))
    assert path.stat().st_size < 1 << 20
    with pytest.raises(LimitError, match=r"bomb\.json\.zst: unpacks to more than 600 times.*SCOPE_MAX_TRACE_RATIO"):
        load_rank(path)
    with pytest.raises(LimitError, match=r"bomb\.json\.zst: unpacks to more than .*SCOPE_MAX_TRACE_BYTES"):
        load_rank(path, options=ReadOptions(limits=Limits(max_bytes=1 << 20)))
