"""Recompute found in traces that torch records of both kinds of activation checkpointing."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from scope.analysis.options import Options
from scope.analysis.recompute import compute_recompute
from scope.analysis.windows import build_timeline
from scope.trace import load_rank

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("torch")

_TRAIN = """
import sys, torch
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import checkpoint

kind, path = sys.argv[1:]
block = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64), torch.nn.Sigmoid())
head = torch.nn.Linear(64, 1)
batch = torch.randn(32, 64, requires_grad=True)
with profile(activities=[ProfilerActivity.CPU]) as recording:
    hidden = block(batch) if kind == "none" else checkpoint(block, batch, use_reentrant=kind == "reentrant")
    head(hidden).sum().backward()
recording.export_chrome_trace(path)
"""


@pytest.mark.parametrize(("kind", "num_ops"), [("none", 0), ("reentrant", 4), ("hooks", 4)])
def test_checkpointed_block_is_recomputed_once(tmp_path: Path, kind: str, num_ops: int) -> None:
    """A block of four modules is run again by backward when it is checkpointed, and not otherwise."""
    path = tmp_path / "rank0.json"
    subprocess.run([sys.executable, "-c", _TRAIN, kind, str(path)], check=True, timeout=120, capture_output=True)
    found = compute_recompute(build_timeline(load_rank(path), options=Options())).check()
    assert found.num_ops == num_ops
    assert found.recompute_ratio is not None
    assert (found.recompute_ratio > 0) == (num_ops > 0)
    assert found.recompute_ratio < 0.5
