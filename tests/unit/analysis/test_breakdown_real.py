"""Breakdown and overlap of every real trace equal a brute force over its raw JSON, which shares no code with Scope."""

from __future__ import annotations

import gzip
import json
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from scope.analysis import analyze
from scope.analysis.options import Options
from scope.trace import load_rank
from scope.trace.model import Job

DEVICE_CATEGORIES = {"kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset"}
COMMUNICATION = re.compile(r"nccl|rccl", re.IGNORECASE)
FILES = [
    "hta/a100_alexnet.json.gz",
    "hta/a100_event_sync_multi_stream.json.gz",
    "hta/a100_nccl_metadata_rank0of2.json.gz",
    "hta/a100_train_rank3of8.json.gz",
    "hta/mi250_minitoy.json.gz",
    "hta/sampled_rank-0.json.gz",
    "hta/sampled_rank-1.json.gz",
    "hta/triton_example.json.gz",
    "hta/v100_ns_resolution.json.gz",
    "hta/v100_train_rank1of2.json.gz",
    "kineto/v100_resnet50_dataloader_bound.json.gz",
    *(f"param/dlrm_v100_8ranks/worker{rank}_*" for rank in range(8)),
    "tracelens/h100_bert_small.json.gz",
    "tracelens/h100_owlv2.json.gz",
    "tracelens/h100_vit_nsfw.json.gz",
    "tracelens/mi210_gpu_only.json.gz",
    "tracelens/mi300_bert_small.json.gz",
    "tracelens/mi300_hipgraph_decode.json.gz",
    "tracelens/mi300_torch_compile_triton.json.gz",
]

Event = tuple[int, int, str]


def nanoseconds(value: str | int) -> int:
    """Return a time of the trace, which is in microseconds, in nanoseconds."""
    return int(Decimal(value) * 1000)


def read_devices(path: Path) -> dict[int, list[Event]]:
    """Return start, end and kind of everything that occupied each device."""
    document = json.loads(gzip.decompress(path.read_bytes()), parse_float=str, strict=False)
    records: list[dict[str, Any]] = document["traceEvents"] if isinstance(document, dict) else document
    base = int(document.get("baseTimeNanoseconds", 0)) if isinstance(document, dict) else 0
    devices: dict[int, list[Event]] = {}
    for record in records:
        category = str(record.get("cat", "")).lower()
        if record.get("ph") != "X" or category not in DEVICE_CATEGORIES:
            continue
        start = base + nanoseconds(record["ts"])
        length = max(nanoseconds(record["dur"]), 0)
        kind = "memory" if "mem" in category else "compute"
        if kind == "compute" and COMMUNICATION.search(record["name"]):
            kind = "communication"
        devices.setdefault(int(record["args"]["device"]), []).append((start, start + length, kind))
    return devices


def measure(events: list[Event]) -> dict[str, int]:
    """Walk over all instants at which something begins or ends and count what runs between them."""
    start, end = min(event[0] for event in events), max(event[1] for event in events)
    changes: dict[int, list[tuple[str, int]]] = {}
    for begin, finish, kind in events:
        changes.setdefault(begin, []).append((kind, 1))
        changes.setdefault(finish, []).append((kind, -1))
    running = dict.fromkeys(("compute", "communication", "memory"), 0)
    found = dict.fromkeys(
        (
            "compute_ns",
            "exposed_communication_ns",
            "exposed_memory_ns",
            "idle_ns",
            "communication_ns",
            "memory_ns",
            "overlap_ns",
        ),
        0,
    )
    instants = sorted(changes)
    for now, following in zip(instants, instants[1:], strict=False):
        for kind, change in changes[now]:
            running[kind] += change
        length = following - now
        compute, communication, memory = (running[kind] > 0 for kind in ("compute", "communication", "memory"))
        found["communication_ns"] += length * communication
        found["memory_ns"] += length * memory
        if compute:
            found["compute_ns"] += length
            found["overlap_ns"] += length * communication
        elif communication:
            found["exposed_communication_ns"] += length
        elif memory:
            found["exposed_memory_ns"] += length
        else:
            found["idle_ns"] += length
    return {"window_ns": end - start, **found}


@pytest.mark.parametrize("name", FILES)
def test_breakdown_equals_brute_force_to_the_nanosecond(shared_traces: Path, name: str) -> None:
    """Every part of every device's window, and the overlap, are those of a walk over the raw events."""
    (path,) = shared_traces.glob(name)
    expected = {device: measure(events) for device, events in read_devices(path).items()}
    trace = load_rank(path)
    assert expected
    analysis = analyze(Job(ranks=(trace,), world_size=None), options=Options(critical_path=False)).check()
    found = {each.device: each.whole.breakdown for each in analysis.ranks[0].devices}
    assert found.keys() == expected.keys()
    for device, figures in expected.items():
        breakdown = found[device]
        assert breakdown is not None
        assert {name: getattr(breakdown, name) for name in figures} == figures
