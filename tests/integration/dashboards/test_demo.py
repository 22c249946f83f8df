"""The demo, run for real: it trains, records, serves, checks what its dashboard shows, and leaves no process behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import psutil
import pytest

from dashboards.sources.catalogue import find_sources

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("torch")

TIMEOUT_S = 240


def left_over(folder: Path) -> list[str]:
    """Return the command lines of processes that name a folder."""
    found: list[str] = []
    for process in psutil.process_iter():
        try:
            command = " ".join(process.cmdline())
        except psutil.Error:
            continue
        if str(folder) in command and process.pid != os.getpid():
            found.append(command)
    return found


def test_the_demo_checks_itself_and_ends(tmp_path: Path) -> None:
    """Two ranks and twelve steps; its window and the synthetic run are there to be opened afterwards."""
    folder = tmp_path / "demo"
    command = [sys.executable, "-m", "scope", "demo", "--once", "--steps", "12", "--ranks", "2", "--port", "0"]
    done = subprocess.run(
        [*command, "--folder", str(folder)], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 ranks and 12 steps on all its pages" in done.stdout
    kinds = [(source.kind, source.run_id is not None) for source in find_sources([str(folder / "runs")])]
    assert kinds == [("run", False), ("trace", True), ("run", False), ("trace", True)]
    assert left_over(folder) == []


def test_a_kill_ends_all_children(tmp_path: Path) -> None:
    """SIGTERM ends the demo, its training, exporter, Prometheus and dashboard."""
    folder = tmp_path / "demo"
    command = [sys.executable, "-m", "scope", "demo", "--steps", "10000", "--ranks", "2", "--port", "0"]
    demo = subprocess.Popen([*command, "--folder", str(folder)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + TIMEOUT_S / 2
        while not (folder / "exporter.log").exists() and time.monotonic() < deadline:
            time.sleep(0.2)
        assert len(left_over(folder)) > 1
        demo.send_signal(signal.SIGTERM)
        assert demo.wait(60) == 128 + signal.SIGTERM
    finally:
        if demo.poll() is None:
            demo.kill()
    assert left_over(folder) == []
