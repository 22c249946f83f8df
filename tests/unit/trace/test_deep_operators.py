"""The class of a kernel comes from its innermost telling operator, however far out that is."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from scope.trace import load_rank
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
