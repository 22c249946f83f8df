"""Launches, copies, memory and a host timeline of real traces, against sums over their raw JSON."""

from __future__ import annotations

import gzip
import json
from collections import Counter, defaultdict
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest

from scope.analysis import analyze
from scope.trace import load_rank
from scope.trace.model import Job

if TYPE_CHECKING:
    from pathlib import Path

    from scope.analysis.job import RankAnalysis


def read(path: Path) -> list[dict[str, Any]]:
    """Return the records of a trace; times stay text, so that no digit is lost."""
    document = json.loads(gzip.decompress(path.read_bytes()), parse_float=str, strict=False)
    return [record for record in document["traceEvents"] if record.get("cat")]


def ns(value: str | int) -> int:
    """Return microseconds as nanoseconds."""
    return int(Decimal(value) * 1000)


def rank_of(path: Path) -> RankAnalysis:
    """Return the analysis of one file."""
    return analyze(Job(ranks=(load_rank(path),), world_size=None)).check().ranks[0]


@pytest.mark.parametrize("name", ["hta/a100_nccl_metadata_rank0of2.json.gz", "tracelens/mi300_bert_small.json.gz"])
def test_launches_and_copies_equal_sums_over_raw_records(shared_traces: Path, name: str) -> None:
    """Delays by call, and lengths and bytes by copy, are those of the raw records joined by correlation."""
    path = shared_traces / name
    records = read(path)
    calls = {
        record["args"]["correlation"]: record
        for record in records
        if record["cat"] in ("cuda_runtime", "cuda_driver") and "correlation" in record["args"]
    }
    delays: dict[str, list[int]] = defaultdict(list)
    copies: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for record in records:
        if record["cat"] in ("kernel", "gpu_memcpy", "gpu_memset"):
            call = calls[record["args"]["correlation"]]
            delays[call["name"]].append(ns(record["ts"]) - ns(call["ts"]))
        if record["cat"] in ("gpu_memcpy", "gpu_memset"):
            copies[record["name"]].append((ns(record["dur"]), record["args"].get("bytes", 0)))
    rank = rank_of(path)
    found = {row["name"]: row for row in rank.launches.iter_rows(named=True) if row["num_device_events"]}
    assert found.keys() == delays.keys()
    for call_name, values in delays.items():
        row, ordered = found[call_name], sorted(values)
        assert (row["num_device_events"], row["total_delay_ns"]) == (len(values), sum(values))
        assert (row["min_delay_ns"], row["max_delay_ns"]) == (ordered[0], ordered[-1])
        assert row["median_delay_ns"] == ordered[(len(ordered) - 1) // 2]
    rows = {row["name"]: row for row in rank.copies.iter_rows(named=True)}
    assert rows.keys() == copies.keys()
    for copy_name, values in copies.items():
        assert rows[copy_name]["num_copies"] == len(values)
        assert rows[copy_name]["total_ns"] == sum(length for length, _ in values)
        assert (rows[copy_name]["total_bytes"] or 0) == sum(size for _, size in values)


@pytest.mark.parametrize("name", ["tracelens/h100_bert_small.json.gz", "tracelens/h100_owlv2.json.gz"])
def test_memory_peaks_equal_a_replay_of_raw_records(shared_traces: Path, name: str) -> None:
    """Replaying the allocations block by block gives the peak and what of it the recording saw allocated.

    The host's peak is that of what it saw, since the host's total counts from the start of the recording.
    """
    path = shared_traces / name
    events: dict[tuple[int, int], list[dict[str, Any]]] = defaultdict(list)
    for record in read(path):
        if record["name"] == "[memory]":
            events[record["args"]["Device Type"], record["args"]["Device Id"]].append(record)
    rank = rank_of(path)
    assert {(peak.device_type, peak.device) for peak in rank.memory} == events.keys()
    for peak in rank.memory:
        assert peak.device is not None
        live: Counter[int] = Counter()
        best, held, used = None, 0, 0
        for record in sorted(events[peak.device_type, peak.device], key=lambda each: ns(each["ts"])):
            size, address = record["args"]["Bytes"], record["args"]["Addr"]
            if size > 0:
                live[address] = size
            else:
                live.pop(address, None)
            used += size
            total = used if peak.device_type == 0 else record["args"]["Total Allocated"]
            if best is None or total > best:
                best, held = total, sum(live.values())
        assert peak.peak_allocated_bytes == (None if peak.device_type == 0 else best)
        assert (peak.seen_bytes, peak.holders["held_bytes"].sum()) == (held, held)


def test_a_host_timeline_equals_its_raw_ranges(shared_traces: Path) -> None:
    """Of a CPU-only rank the communication is the union of gloo's ranges and the compute its step's operators."""
    path = shared_traces / "hta" / "cpu_only_rank34of300.json.gz"
    lengths: dict[str, int] = {}
    for prefix in ("gloo:", "aten::"):
        reach = covered = 0
        found = [record for record in read(path) if record["name"].startswith(prefix)]
        for start, length in sorted((ns(record["ts"]), ns(record["dur"])) for record in found):
            covered += max(start + length - max(start, reach), 0)
            reach = max(reach, start + length)
        lengths[prefix] = covered
    rank = rank_of(path)
    assert rank.is_host_timeline
    assert rank.breakdown is not None
    assert rank.breakdown.communication_ns == lengths["gloo:"]
    assert rank.breakdown.compute_ns == lengths["aten::"]
    assert rank.absent["queue"] == "a host timeline has no launches"
