"""A short soak of the recorder's hooks on four gloo ranks; `make soak` runs the long one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

ROOT = Path(__file__).parents[3]
SECONDS = 20


@pytest.mark.slow
def test_nothing_hangs_and_memory_stays_flat() -> None:
    """Twenty seconds of blocking, asynchronous, functional, sent and dropped calls end in time, and no hook fails."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "bench" / "soak.py"), str(SECONDS)],
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "memory flat" in done.stdout
    assert done.stdout.count("'disabled': {}") == 4
