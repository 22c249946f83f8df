"""Tables of one step, and memory by step: each command's figures against hand-made traces."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def two_steps(tmp_path: Path) -> Path:
    """Return a trace of two steps: kernels of 10 and of 2 x 20 us, a copy and a blocking call in the second alone."""
    records: list[dict[str, Any]] = []

    def add(cat: str, name: str, ts: int, dur: int, **args: Any) -> None:
        pid, tid = (0, 7) if cat in {"kernel", "gpu_memcpy"} else (1, 1)
        records.append(
            {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args}
        )

    def launched(cat: str, name: str, ts: int, dur: int, number: int, **args: Any) -> None:
        add("cuda_runtime", "cudaLaunchKernel" if cat == "kernel" else "cudaMemcpyAsync", ts - 5, 2, correlation=number)
        add(cat, name, ts, dur, device=0, stream=7, correlation=number, **args)

    for step, start in ((4, 1_000), (5, 2_000)):
        add("user_annotation", f"ProfilerStep#{step}", start, 900)
    launched("kernel", "first", 1_100, 10, 1)
    launched("kernel", "second", 2_100, 20, 2)
    launched("kernel", "second", 2_200, 20, 3)
    launched("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", 2_300, 30, 4, bytes=64)
    add("cuda_runtime", "cudaDeviceSynchronize", 2_400, 50, correlation=9)
    for ts, change, total in ((1_050, 300, 300), (2_050, 900, 1_200), (2_060, -900, 300)):
        memory = {"Device Type": 1, "Device Id": 0, "Addr": 64 + total, "Bytes": change, "Total Allocated": total}
        instant = {"ph": "i", "s": "t", "cat": "cpu_instant_event", "name": "[memory]", "pid": 1, "tid": 1, "ts": ts}
        records.append({**instant, "args": {**memory, "Total Reserved": 4_096}})
    path = tmp_path / "steps.json"
    path.write_text(json.dumps({"traceEvents": records, "distributedInfo": {"rank": 0, "world_size": 1}}))
    return path


@pytest.mark.parametrize(
    ("command", "key", "expected"),
    [
        ("kernels", "num_events", {4: {"first": 1}, 5: {"second": 2, "Memcpy HtoD (Pageable -> Device)": 1}}),
        ("launches", "num_calls", {4: {"cudaLaunchKernel": 1}, 5: {"cudaLaunchKernel": 2, "cudaMemcpyAsync": 1}}),
        ("copies", "total_bytes", {4: {}, 5: {"Memcpy HtoD (Pageable -> Device)": 64}}),
        ("syncs", "num_calls", {4: {}, 5: {"cudaDeviceSynchronize": 1}}),
    ],
)
def test_tables_of_one_step(
    scope: Callable[..., Any], two_steps: Path, command: str, key: str, expected: dict[int, dict[str, int]]
) -> None:
    """`--step` counts what started in that step, and the title says so."""
    for step, rows in expected.items():
        made = json.loads(scope(command, two_steps, "--step", step, "--json").out)
        assert {row.get("key") or row["name"]: row[key] for row in made} == rows
        assert f" of step {step}\n" in scope(command, two_steps, "--step", step).out


def test_a_step_that_no_trace_holds(scope: Callable[..., Any], two_steps: Path) -> None:
    """The message names the steps that there are."""
    done = scope("kernels", two_steps, "--step", 6)
    assert (done.code, done.out) == (2, "")
    assert "no rank has a step 6; the traces hold 4, 5" in done.err


def test_memory_of_every_step(scope: Callable[..., Any], two_steps: Path) -> None:
    """The peak of a step is that of its own events."""
    made = json.loads(scope("memory", two_steps, "--steps", "--json").out)
    keys = ("label", "device", "number", "peak_allocated_bytes", "peak_reserved_bytes", "growth_bytes", "num_events")
    assert [tuple(row[key] for key in keys) for row in made] == [
        ("rank 0", "0", 4, 300, 4_096, 300, 1),
        ("rank 0", "0", 5, 1_200, 4_096, 0, 2),
    ]
    assert scope("memory", two_steps, "--steps", "--holders").code == 2


def test_memory_by_step_says_what_is_missing(scope: Callable[..., Any], two_steps: Path) -> None:
    """Without steps, and without memory, the empty table says what to record."""
    text = two_steps.read_text()
    two_steps.write_text(text.replace("ProfilerStep#", "range "))
    assert "call profiler.step()" in scope("memory", two_steps, "--steps").out
    two_steps.write_text(text.replace("[memory]", "[other]"))
    assert "profile_memory=True" in scope("memory", two_steps, "--steps").out
