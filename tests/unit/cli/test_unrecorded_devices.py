"""A job on devices whose file holds the launches and none of the kernels."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.mark.parametrize("call", ["cudaLaunchKernel", "hipGraphLaunch"])
def test_launches_without_kernels_are_no_training_on_cpus(scope: Callable[..., Any], tmp_path: Path, call: str) -> None:
    """Operators that only launched are not taken for compute: there is no breakdown, and how to record one is said.

    Profiles of the CPU's activities alone look like that, and those with hardware counters.
    """
    thread = {"ph": "X", "pid": 9, "tid": 9}
    records = [
        {**thread, "cat": "user_annotation", "name": "ProfilerStep#1", "ts": 0, "dur": 500},
        {**thread, "cat": "cpu_op", "name": "aten::mm", "ts": 10, "dur": 40, "args": {"External id": 1}},
        {**thread, "cat": "cuda_runtime", "name": call, "ts": 20, "dur": 10, "args": {"correlation": 1}},
        {"ph": "X", "pid": 0, "tid": 0, "cat": "cuda_profiler_range", "name": "gemm", "ts": 30, "dur": 300,
         "args": {"dram__bytes_read.sum": 200_000_000}},
    ]  # fmt: skip
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps({"distributedInfo": {"rank": 0, "world_size": 1}, "traceEvents": records}))
    done = scope("analyze", path, "--json", "--no-cache")
    assert done.code == 0, done.err
    document = json.loads(done.out)
    (rank,) = document["ranks"]
    assert rank["is_host_timeline"] is False
    assert rank["compute_ns"] is None
    assert "no device events" in rank["absent"]["compute_ns"]
    (finding,) = document["findings"]
    assert finding["kind"] == "trace_too_poor"
    assert "device events" in finding["title"]
    assert "ProfilerActivity.CUDA" in finding["action"]
