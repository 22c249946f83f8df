"""What `scope compare --json` says of how far two runs match."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def _write(path: Path, kernels: list[tuple[str, int]]) -> Path:
    """Write a trace of one step with kernels one after the other, each launched in time; lengths in us."""
    records: list[dict[str, Any]] = [
        {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#1", "pid": 9, "tid": 9, "ts": 0, "dur": 500}
    ]
    at = 100
    for number, (name, length) in enumerate(kernels, start=1):
        link = {"correlation": number}
        call = {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 9, "tid": 9, "ts": 10 * number, "dur": 2}
        place = {"cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": at, "dur": length}
        records += [
            {"ph": "X", **call, "args": link},
            {"ph": "X", **place, "args": {"device": 0, "stream": 7, **link}},
        ]
        at += length
    path.write_text(json.dumps({"traceEvents": records}))
    return path


def test_json_holds_the_match_rates(scope: Callable[..., Any], tmp_path: Path) -> None:
    """40 + 40 of 100 + 100 us lie in the one kernel that both runs have; their class is the same."""
    before = _write(tmp_path / "before.json", [("gemm_a", 40), ("gemm_b", 60)])
    after = _write(tmp_path / "after.json", [("gemm_a", 40), ("gemm_c", 60)])
    done = scope("compare", before, after, "--json", "--no-cache")
    assert done.code == 0, done.err
    (step,) = json.loads(done.out)["step"]
    assert step["kernels_match_ratio"] == pytest.approx(0.4)
    assert step["classes_match_ratio"] == 1.0
    assert step["phases_match_ratio"] is None
    assert step["absent"]["phases_match_ratio"]


def test_what_neither_run_has_is_named(scope: Callable[..., Any], tmp_path: Path) -> None:
    """Runs without operators and phases say on stderr which tables are empty, and no times of nothing."""
    before = _write(tmp_path / "before.json", [("gemm_a", 40)])
    after = _write(tmp_path / "after.json", [("gemm_a", 50)])
    done = scope("compare", before, after, "--json", "--no-cache")
    assert "0 ns" not in done.err
    assert "Phases: none in either run." in done.err
    text = scope("compare", before, after, "--no-cache").out
    assert "Kernels: 40 us before, 50 us after." in text
    assert "Changed most: gemm_a, 10 us longer per rank and step." in " ".join(text.split())
