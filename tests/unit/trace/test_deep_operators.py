"""The class of a kernel comes from its innermost telling operator, however far out that is."""

from __future__ import annotations

import json
import tracemalloc
from typing import TYPE_CHECKING

import pytest

from scope.trace import ReadOptions, load_rank
from scope.trace.schema import DeviceEvents, Ops

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("depth", [1, 2, 3, 4, 7, 8, 300])
def test_the_class_comes_from_any_depth(tmp_path: Path, depth: int) -> None:
    """A kernel launched under `depth` operators of unknown kind, within a convolution, is one; else it is not."""
    thread = {"pid": 1, "tid": 1}
    records = [{**thread, "cat": "cpu_op", "name": "aten::convolution", "ts": 0, "dur": 1_000}]
    for base in (0, 2_000):
        for level in range(1, depth + 1):
            span = {"ts": base + level, "dur": 900 - 2 * level}
            records.append({**thread, "cat": "cpu_op", "name": f"my::op{level}", **span})
        number = base + 7
        call = {"ts": base + depth + 1, "dur": 1, "args": {"correlation": number}}
        records.append({**thread, "cat": "cuda_runtime", "name": "cudaLaunchKernel", **call})
        work = {"ts": base + 500, "dur": 3, "args": {"device": 0, "stream": 7, "correlation": number}}
        records.append({"pid": 0, "tid": 7, "cat": "kernel", "name": "some_kernel", **work})
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": [{"ph": "X", **record} for record in records]}))
    trace = load_rank(path)
    assert trace.ops[Ops.depth].max() == depth
    assert trace.device_events[DeviceEvents.kernel_class].to_list() == ["convolution", "other"]


def test_a_call_under_many_operators_of_c10d_keeps_their_names_once(tmp_path: Path) -> None:
    """A broadcast by 2,000 functions inside each other is read without the names around every one, which take 16 MB."""
    depth = 2_000
    records = [
        {"cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": level, "dur": 3 * depth - 2 * level}
        for level, name in enumerate(["c10d::broadcast_", *["c10d::custom"] * (depth - 1)])
    ]
    call = {"name": "cudaLaunchKernel", "ts": depth + 1, "dur": 1, "args": {"correlation": 1}}
    records.append({"cat": "cuda_runtime", "pid": 1, "tid": 1, **call})
    work = {"name": "ncclDevKernel_Generic", "ts": depth + 5, "dur": 3}
    args = {"device": 0, "stream": 7, "correlation": 1}
    records.append({"cat": "kernel", "pid": 0, "tid": 7, "args": args, **work})
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": [{"ph": "X", **record} for record in records]}))
    load_rank(path, options=ReadOptions(use_cache=False))  # what is kept of a first look is not counted
    tracemalloc.start()
    try:
        trace = load_rank(path, options=ReadOptions(use_cache=False))
        largest = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert trace.ops[Ops.depth].max() == depth - 1
    assert trace.collective_calls["operation"].to_list() == ["broadcast"]
    assert largest < 8 << 20
