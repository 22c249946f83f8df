"""Hand-made traces for reports: a few records a trace, written as the profiler writes them."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from scope.report.build import Choices, compute_results
from scope.trace import load

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from scope.report.results import Results

H100 = {
    "id": 0,
    "name": "NVIDIA H100 80GB HBM3",
    "totalGlobalMem": 85_045_870_592,
    "computeMajor": 9,
    "computeMinor": 0,
    "numSms": 132,
}


@dataclass
class TraceBuilder:
    """Collects records; instants and lengths are in microseconds, as in the file."""

    rank: int = 0
    world_size: int = 1
    records: list[dict[str, Any]] = field(default_factory=list)
    correlation: int = 0
    device: dict[str, Any] | None = field(default_factory=lambda: H100)
    """What the trace names as its GPU; None where it names none."""

    def host(self, category: str, name: str, start: float, length: float, **args: Any) -> None:
        """Add a range of the training thread."""
        self.records.append(
            {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": 1, "ts": start, "dur": length, "args": args}
        )

    def step(self, number: int, start: float, length: float) -> None:
        """Add a profiler step."""
        self.host("user_annotation", f"ProfilerStep#{number}", start, length)

    def launch(self, name: str, call: float, start: float, length: float, *, stream: int = 7, **args: Any) -> None:
        """Add a launching call and the device event that it launched."""
        self.correlation += 1
        self.host("cuda_runtime", "cudaLaunchKernel", call, 2, correlation=self.correlation)
        given = {"device": 0, "stream": stream, "correlation": self.correlation, **args}
        self.records.append(
            {
                "ph": "X",
                "cat": "kernel",
                "name": name,
                "pid": 0,
                "tid": stream,
                "ts": start,
                "dur": length,
                "args": given,
            }
        )

    def write(self, folder: Path) -> Path:
        """Write the trace and return its path."""
        document = {
            "schemaVersion": 1,
            "deviceProperties": [] if self.device is None else [self.device],
            "distributedInfo": {"backend": "nccl", "rank": self.rank, "world_size": self.world_size},
            "traceEvents": self.records,
        }
        path = folder / f"rank{self.rank}.json"
        path.write_text(json.dumps(document))
        return path


@pytest.fixture
def builder() -> TraceBuilder:
    """Return an empty trace of rank 0 of 1."""
    return TraceBuilder()


@pytest.fixture
def results_of(tmp_path: Path) -> Callable[..., Results]:
    """Return a function that writes hand-made traces, reads and analyses them."""

    def compute(*builders: TraceBuilder, choices: Choices | None = None) -> Results:
        paths = [each.write(tmp_path) for each in builders]
        return compute_results(load([str(path) for path in paths]), choices)

    return compute


def busy_step(builder: TraceBuilder, *, start: float = 0, number: int = 1, kernels: int = 10) -> None:
    """Add a step of 1,000 us whose kernels of 100 us run back to back, each launched long before."""
    builder.step(number, start, 1000)
    for index in range(kernels):
        builder.launch("gemm_kernel", start + 1 + index * 3, start + 100 + index * 100, 100)
