"""`scope run --preflight` under torchrun: ranks whose NCCL variables differ stop before their first process group."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("torch")

SCRIPT = """
import os, sys
import torch
import torch.distributed as dist
if os.environ["RANK"] == "1" and sys.argv[1] == "differ":
    os.environ["NCCL_ALGO"] = "Tree"
dist.init_process_group("gloo")
dist.barrier()
print("trained", flush=True)
dist.destroy_process_group()
"""


@pytest.mark.parametrize(
    ("kind", "options", "trains"),
    [("same", ["--preflight"], True), ("differ", ["--preflight"], False), ("differ", [], True)],
)
def test_differing_ranks_stop_before_they_hang(kind: str, options: list[str], trains: bool, tmp_path: Path) -> None:
    """Only when it was asked for, and only when they differ; the message names variable, values and ranks."""
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script), kind]
    command = [sys.executable, "-m", "scope", "run", *options, "--run-dir", str(tmp_path / "run"), "--", *launch]
    environment = {
        **os.environ,
        "NCCL_ALGO": "Ring",
        "OMP_NUM_THREADS": "1",
        "SCOPE_REGISTRY": str(tmp_path / "registry"),
    }
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=180)
    assert (done.returncode == 0) is trains, done.stderr[-3_000:]
    assert done.stdout.count("trained") == (2 if trains else 0)
    if not trains:
        assert "NCCL_ALGO is 'Ring' on ranks 0 and 'Tree' on ranks 1" in done.stderr
