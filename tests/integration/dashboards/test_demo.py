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
from scope.run.reader import RunReader

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
    # On a busy machine the request may reach the two ranks in different steps: two windows then.
    assert kinds in (
        [("run", False), ("trace", True), ("run", False), ("trace", True)],
        [("run", False), ("trace", True), ("trace", True), ("run", False), ("trace", True)],
    )
    assert left_over(folder) == []


def inherit_no_interrupt() -> None:
    """Do what a script's shell does to what it starts with `&`."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 128 + signal.SIGTERM), (signal.SIGINT, 0)])
def test_a_signal_ends_all_children(tmp_path: Path, number: int, code: int) -> None:
    """SIGTERM and Ctrl-C end the demo, its training, exporter, Prometheus and dashboard, in a background too."""
    folder = tmp_path / "demo"
    command = [sys.executable, "-m", "scope", "demo", "--steps", "10000", "--ranks", "2", "--port", "0"]
    demo = subprocess.Popen(
        [*command, "--folder", str(folder)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=inherit_no_interrupt,
    )
    try:
        deadline = time.monotonic() + TIMEOUT_S / 2
        while len(list(folder.glob("runs/demo/attempt-000/ranks/*/steps.jsonl"))) < 2 and time.monotonic() < deadline:
            time.sleep(0.2)
        assert len(left_over(folder)) > 1
        demo.send_signal(number)
        assert demo.wait(60) == code
    finally:
        if demo.poll() is None:
            demo.kill()
    assert left_over(folder) == []
    ranks = [rank.info() for rank in RunReader(folder / "runs" / "demo").ranks()]
    assert [info.exit_reason for info in ranks] == ["terminated by signal 15"] * 2
    assert (folder / "registry").is_dir()
