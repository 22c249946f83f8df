"""Breakdown and overlap of every real trace equal a brute force over its raw JSON, which shares no code with Scope."""

from __future__ import annotations

import gzip
import itertools
import json
import re
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest

from scope.analysis import analyze
from scope.trace import load_rank
from scope.trace.model import Job

if TYPE_CHECKING:
    from pathlib import Path

    from scope.analysis.breakdown import Breakdown

FIGURES = (
    "compute_ns",
    "exposed_communication_ns",
    "exposed_memory_ns",
    "idle_ns",
    "communication_ns",
    "memory_ns",
    "overlap_ns",
)
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

STEP = re.compile(r"ProfilerStep#\d+")
LAUNCHING = {"cuda_runtime", "cuda_driver", "runtime", "hip_runtime"}


@dataclass(frozen=True)
class Event:
    """Something that occupied a device."""

    start: int
    end: int
    kind: str
    stream: int
    step: int | None
    """Which step launched it, by the order of the steps."""


@dataclass(frozen=True)
class Raw:
    """What one file holds, read without Scope."""

    devices: dict[int, list[Event]]
    num_steps: int


def nanoseconds(value: str | int) -> int:
    """Return a time of the trace, which is in microseconds, in nanoseconds."""
    return int(Decimal(value) * 1000)


def read_raw(path: Path) -> Raw:
    """Return what occupied each device, with the step that launched it by the correlation of its call."""
    document = json.loads(gzip.decompress(path.read_bytes()), parse_float=str, strict=False)
    base = int(document.get("baseTimeNanoseconds", 0))
    records: dict[str, list[dict[str, Any]]] = {}
    for record in document["traceEvents"]:
        if record.get("ph") == "X":
            records.setdefault(str(record.get("cat")).lower(), []).append(record)
    spans = [
        (base + nanoseconds(record["ts"]), base + nanoseconds(record["ts"]) + nanoseconds(record["dur"]))
        for category in ("user_annotation", "operator", "cpu_op")
        for record in records.get(category, [])
        if STEP.fullmatch(record["name"])
    ]
    steps = sorted(spans)
    calls: dict[int, int] = {}
    for category in LAUNCHING:
        for record in records.get(category, []):
            if "correlation" in record.get("args", {}):
                calls.setdefault(record["args"]["correlation"], base + nanoseconds(record["ts"]))
    devices: dict[int, list[Event]] = {}
    for category in DEVICE_CATEGORIES:
        for record in records.get(category, []):
            arguments = record["args"]
            start = base + nanoseconds(record["ts"])
            kind = "memory" if "mem" in category else "compute"
            if kind == "compute" and COMMUNICATION.search(record["name"]):
                kind = "communication"
            call = calls.get(arguments.get("correlation"), -1)
            event = Event(
                start=start,
                end=start + max(nanoseconds(record["dur"]), 0),
                kind=kind,
                stream=int(arguments["stream"]),
                step=next((index for index, (begin, end) in enumerate(steps) if begin <= call < end), None),
            )
            devices.setdefault(int(arguments["device"]), []).append(event)
    return Raw(devices=devices, num_steps=len(steps))


def measure(events: list[Event], start: int, end: int) -> dict[str, int]:
    """Walk over all instants of a window at which something begins or ends and count what runs between them."""
    changes: dict[int, list[tuple[str, int]]] = {start: [], end: []}
    for event in events:
        begin, finish = max(event.start, start), min(event.end, end)
        if begin < finish:
            changes.setdefault(begin, []).append((event.kind, 1))
            changes.setdefault(finish, []).append((event.kind, -1))
    running: dict[str, int] = dict.fromkeys(("compute", "communication", "memory"), 0)
    found: dict[str, int] = dict.fromkeys(FIGURES, 0)
    instants = sorted(changes)
    for now, following in itertools.pairwise(instants):
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
    return {**found, "window_ns": end - start}


def window(events: list[Event]) -> tuple[int, int]:
    """Return the first start and the largest end."""
    return min(event.start for event in events), max(event.end for event in events)


def covered(events: list[Event]) -> int:
    """Return how many nanoseconds some event covers."""
    total, reach = 0, 0
    for event in sorted(events, key=lambda each: each.start):
        total += max(event.end - max(event.start, reach), 0)
        reach = max(reach, event.end)
    return total


def step_windows(events: list[Event], num_steps: int) -> dict[int, tuple[int, int]]:
    """Return where each step's window lies that has one."""
    compute = [event for event in events if event.kind == "compute"]
    streams = sorted({event.stream for event in compute})
    if not streams:
        return {}
    main = max(streams, key=lambda stream: (covered([e for e in compute if e.stream == stream]), -stream))
    begins = {
        step: min(event.start for event in compute if event.stream == main and event.step == step)
        for step in range(num_steps)
        if any(event.stream == main and event.step == step for event in compute)
    }
    order = sorted(begins, key=lambda step: (begins[step], step))
    ends = [begins[step] for step in order[1:]]
    if order:
        ends.append(max(event.end for event in events if event.step == order[-1]))
    return {step: (begins[step], end) for step, end in zip(order, ends, strict=True)}


def figures_of(breakdown: Breakdown | None) -> dict[str, int] | None:
    """Return the lengths that the brute force knows."""
    return None if breakdown is None else {name: getattr(breakdown, name) for name in (*FIGURES, "window_ns")}


@pytest.mark.parametrize("name", FILES)
def test_breakdown_equals_brute_force_to_the_nanosecond(shared_traces: Path, name: str) -> None:
    """Every part of every device's window and steps, and the overlap, are those of a walk over the raw events."""
    (path,) = shared_traces.glob(name)
    raw = read_raw(path)
    analysis = analyze(Job(ranks=(load_rank(path),), world_size=None)).check()
    (rank,) = analysis.ranks
    assert {each.device for each in rank.devices} == raw.devices.keys()
    for device in rank.devices:
        events = raw.devices[device.device]
        assert figures_of(device.whole.breakdown) == measure(events, *window(events))
        windows = step_windows(events, raw.num_steps)
        for step, part in enumerate(device.steps):
            mine = [event for event in events if event.step == step]
            assert figures_of(part.breakdown) == (measure(events, *windows[step]) if step in windows else None)
            assert figures_of(part.launched) == (measure(mine, *window(mine)) if mine else None)
        assert device.whole.idle is None or device.whole.idle.idle_ns == measure(events, *window(events))["idle_ns"]
