"""Runs the `scope` command in this process, and hand-made traces for it."""

from __future__ import annotations

import gc
import json
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from scope.cli.main import run as run_command

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@dataclass(frozen=True)
class Done:
    """What a command did."""

    code: int
    out: str
    err: str


@pytest.fixture
def scope(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> Callable[..., Done]:
    """Return a function that runs `scope ARGS...` with a cache of its own and 100 columns."""
    monkeypatch.setenv("SCOPE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("NO_COLOR", "1")

    def run(*arguments: object) -> Done:
        monkeypatch.setattr(sys, "argv", ["scope", *(str(argument) for argument in arguments)])
        capfd.readouterr()
        code = run_command()
        gc.enable()
        sys.stdout.flush()
        out, err = capfd.readouterr()
        return Done(code, out, err)

    return run


@pytest.fixture
def trace(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes a trace of two kernels of 400 and 500 us with a gap of 100 us in a step."""

    def write(
        name: str = "rank0.json", *, kernel: str = "gemm_kernel", rank: int | None = 0, extra: list[Any] | None = None
    ) -> Path:
        records: list[dict[str, Any]] = [
            {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#3", "pid": 1, "tid": 1, "ts": 1, "dur": 1200}
        ]
        for number, (start, length) in enumerate(((100, 400), (600, 500)), start=1):
            link = {"correlation": number}
            call = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "args": link}
            event = {"ph": "X", "cat": "kernel", "name": kernel, "pid": 0, "tid": 7}
            records += [
                {**call, "ts": 10 * number, "dur": 2},
                {**event, "ts": start, "dur": length, "args": {"device": 0, "stream": 7, **link}},
            ]
        document: dict[str, Any] = {"schemaVersion": 1, "traceEvents": [*records, *(extra or [])]}
        if rank is not None:
            document["distributedInfo"] = {"backend": "nccl", "rank": rank, "world_size": 1}
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(document))
        return path

    return write
