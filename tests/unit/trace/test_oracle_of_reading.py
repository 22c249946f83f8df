"""Every record of every shared trace against a slow reader that shares no code with the product.

The oracle is `json.loads` with `Decimal` numbers and plain lists.
"""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest

from scope.trace import load_rank
from scope.trace.schema import DeviceEvents, Launches, Memory, Ops

if TYPE_CHECKING:
    from pathlib import Path

    from scope.trace import RankTrace

DEVICE = {"kernel", "gpu_memcpy", "gpu_memset", "Kernel", "Memcpy", "Memset"}
HOST_CALLS = {"cuda_runtime", "cuda_driver", "Runtime"}
OLD_RANGE = re.compile(r"ProfilerStep#|enumerate\(DataLoader\)#|Optimizer\.")


class Oracle:
    """One trace, read slowly."""

    def __init__(self, path: Path) -> None:
        with gzip.open(path) as file:
            document = json.loads(file.read(), parse_float=Decimal, strict=False)
        self.base = int(document.get("baseTimeNanoseconds", 0))
        self.records: list[dict[str, Any]] = document["traceEvents"]
        self.spans = [record for record in self.records if record["ph"] == "X"]

    def nanoseconds(self, value: Decimal | int) -> int:
        """Return exact nanoseconds; the traces have no more than three decimals."""
        exact = Decimal(value) * 1000
        assert exact == int(exact)
        return int(exact)

    def bounds(self, record: dict[str, Any]) -> tuple[int, int]:
        """Return start and end in nanoseconds since the epoch."""
        start = self.nanoseconds(record["ts"]) + self.base
        return start, start + max(0, self.nanoseconds(record["dur"]))

    def device_events(self) -> Counter[tuple[Any, ...]]:
        """Return what the table of device events must hold."""
        found: Counter[tuple[Any, ...]] = Counter()
        for record in self.spans:
            if record["cat"] not in DEVICE:
                continue
            args = record["args"]
            size = args.get("bytes") if record["cat"].lower() not in ("kernel",) else None
            found[
                *self.bounds(record), args["device"], args["stream"], record["name"], args.get("correlation"), size
            ] += 1
        return found

    def host(self, categories: set[str]) -> Counter[tuple[Any, ...]]:
        """Return what a table of host spans must hold."""
        return Counter(
            (*self.bounds(record), int(record["tid"]), record["name"])
            for record in self.spans
            if record["cat"] in categories and not (record["cat"] == "Operator" and OLD_RANGE.match(record["name"]))
        )


@pytest.fixture(scope="module")
def both(shared_trace: Path) -> tuple[RankTrace, Oracle]:
    """One trace read by the product and by the oracle."""
    return load_rank(shared_trace), Oracle(shared_trace)


def _rows(frame: pl.DataFrame, *columns: str) -> Counter[tuple[Any, ...]]:
    texts = [pl.col(column).cast(pl.String) if frame[column].dtype == pl.Categorical else column for column in columns]
    return Counter(frame.select(texts).rows())


def test_device_events(both: tuple[RankTrace, Oracle]) -> None:
    """Start, end, device, stream, name, correlation and bytes of all device events are the file's."""
    trace, oracle = both
    columns = (
        DeviceEvents.start_ns,
        DeviceEvents.end_ns,
        DeviceEvents.device,
        DeviceEvents.stream,
        DeviceEvents.name,
        DeviceEvents.correlation,
        DeviceEvents.copy_bytes,
    )
    assert _rows(trace.device_events, *columns) == oracle.device_events()


def test_operators_and_calls(both: tuple[RankTrace, Oracle]) -> None:
    """Start, end, thread and name of all operators and runtime calls are the file's."""
    trace, oracle = both
    assert _rows(trace.ops, Ops.start_ns, Ops.end_ns, Ops.thread, Ops.name) == oracle.host({"cpu_op", "Operator"})
    assert _rows(trace.launches, Launches.start_ns, Launches.end_ns, Launches.thread, Launches.name) == oracle.host(
        HOST_CALLS
    )


def test_memory(both: tuple[RankTrace, Oracle]) -> None:
    """Instant, address and size of all allocations are the file's."""
    trace, oracle = both
    expected = Counter(
        (oracle.nanoseconds(r["ts"]) + oracle.base, r["args"]["Addr"], r["args"]["Bytes"])
        for r in oracle.records
        if r["name"] == "[memory]"
    )
    assert _rows(trace.memory, Memory.time_ns, Memory.address, Memory.size_bytes) == expected


def test_nothing_is_lost(both: tuple[RankTrace, Oracle]) -> None:
    """All records of a sound file are read, none is lost or repaired, and lengths of 0 are counted."""
    trace, oracle = both
    quality = trace.quality
    assert (quality.events_read, quality.events_lost, quality.events_repaired) == (len(oracle.records), 0, 0)
    assert not quality.truncated
    zero = sum(start == end for start, end, *_ in oracle.device_events().elements())
    assert quality.zero_length == zero


def test_launches_of_device_events(both: tuple[RankTrace, Oracle]) -> None:
    """An event's launch bears its correlation, and an event has none only if no call in the file bears it."""
    trace, _ = both
    calls = trace.launches[Launches.correlation].to_list()
    known = {number for number in calls if number is not None}
    for correlation, launch in trace.device_events.select(DeviceEvents.correlation, DeviceEvents.launch_id).rows():
        assert (calls[launch] == correlation) if launch is not None else correlation not in known


def test_operators_around_launches(both: tuple[RankTrace, Oracle]) -> None:
    """A call's operator is the one that began last among those of its thread that had begun and not ended."""
    trace, _ = both
    ops = trace.ops.select(Ops.thread, Ops.start_ns, Ops.end_ns).rows()
    by_thread: dict[int, list[tuple[int, int, int]]] = {}
    for row, (thread, start, end) in enumerate(ops):
        by_thread.setdefault(thread, []).append((start, end, row))
    launches = trace.launches.select(Launches.thread, Launches.start_ns, Launches.op_id).rows()
    for thread, start, op in launches[:: max(1, len(launches) // 200)]:
        running = [row for begin, end, row in by_thread.get(thread, []) if begin <= start < end]
        if running:
            latest = max(ops[row][1] for row in running)
            assert op is not None
            assert ops[op][1] == latest
            assert ops[op][1] <= start < ops[op][2]
            shortest = min(ops[row][2] for row in running if ops[row][1] == latest)
            assert ops[op][2] == shortest


def test_parents_contain_their_children(both: tuple[RankTrace, Oracle]) -> None:
    """An operator's parent is of its thread and holds all of it; leaves are those that are nobody's parent."""
    trace, _ = both
    rows = trace.ops.select(Ops.thread, Ops.start_ns, Ops.end_ns, Ops.parent_id, Ops.depth, Ops.is_leaf).rows()
    parents = {row[3] for row in rows}
    for number, (thread, start, end, parent, depth, is_leaf) in enumerate(rows):
        assert is_leaf == (number not in parents)
        if parent is None:
            assert depth == 0
            continue
        assert rows[parent][0] == thread
        assert rows[parent][1] <= start
        assert end <= rows[parent][2]
        assert depth == rows[parent][4] + 1
