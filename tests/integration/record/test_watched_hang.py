"""A job that really hangs, goes on and is killed, as `scope watch`, `scope doctor` and the exporter tell of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("torch")

from exporters.training import TrainingCollector
from exporters.training_series import VERDICT
from scope.run.naming import label_run
from scope.run.reader import RunReader, read_rank_info

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Recording

JOB = """
import os, pathlib, time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
gate = pathlib.Path(os.environ["JOB_FOLDER"], "gate")
for step in range(10**6):
    if step == 20 and dist.get_rank() == 1:
        gate.touch()
    while dist.get_rank() == 1 and gate.exists():
        time.sleep(0.05)
    optimizer.zero_grad()
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()
    time.sleep(0.02)
"""


class Watch:
    """`scope watch` on a run, in a process of its own.

    Args:
        run: The run directory.
        output: File that takes what it says.
    """

    def __init__(self, run: Path, output: Path) -> None:
        self._output = output
        with output.open("wb") as stream:
            command = [sys.executable, "-m", "scope", "watch", str(run), "--every", "0.5", "--json"]
            environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
            self.process = subprocess.Popen(command, stdout=stream, text=True, env=environment)

    def told(self, kind: str, *, over: bool = False) -> list[dict[str, Any]]:
        """Return the findings of a kind, or their ends, so far."""
        lines = [json.loads(line) for line in self._output.read_text().splitlines() if line.endswith("}")]
        return [line for line in lines if line["kind"] == kind and (line.get("resolved_ns") is not None) is over]


def scope(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a command of Scope."""
    command = [sys.executable, "-m", "scope", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def relayed(collector: TrainingCollector, label: str, rank: int, kind: str) -> float | None:
    """Return what the exporter shows of a finding."""
    collector.read()
    return collector.series().get(VERDICT, (label, str(rank), kind, "critical"))


def test_a_hang_is_told_ends_and_a_killed_rank_is_told(recording: Recording, tmp_path: Path) -> None:
    """Rank 1 stands before its step: all name it; it goes on and that is over; it is killed and the run has crashed."""
    script = tmp_path / "train.py"
    script.write_text(JOB)
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script))
    process = recording.start(*torchrun)
    collector = TrainingCollector((str(recording.run),), lambda *_: None, registry=tmp_path / "registry")
    with recording.end_afterwards(process):
        recording.wait_until((tmp_path / "gate").exists)
        recording.wait_until((recording.run / "run.json").exists)
        watch = Watch(recording.run, tmp_path / "watch.jsonl")
        with recording.end_afterwards(watch.process):
            recording.wait_until(lambda: watch.told("hang"))
            (hang,) = watch.told("hang")
            assert (hang["ranks"], hang["severity"]) == ([1], "critical")
            assert hang["summary"].startswith("rank 1 has not arrived at all_reduce ")
            said = scope("doctor", recording.run, "--preflight")
            assert said.returncode == 1, said
            assert f"CRITICAL {hang['summary']}  [hang]\n         where: rank 1\n" in said.stdout
            once = scope("watch", recording.run, "--once")
            assert once.returncode == 1, once
            assert f"critical hang: {hang['summary']}." in once.stdout
            label = label_run(RunReader(recording.run).info())
            # What is found reaches the spool, which the exporter reads, within a second or two.
            recording.wait_until(lambda: relayed(collector, label, 1, "hang") == 1)

            (tmp_path / "gate").unlink()
            recording.wait_until(lambda: watch.told("hang", over=True))
            recording.wait_until(lambda: relayed(collector, label, 1, "hang") is None)
            assert scope("watch", recording.run, "--once").returncode == 0

            os.kill(read_rank_info(recording.rank(1)).pid, signal.SIGKILL)
            process.wait(60)
            recording.wait_until(lambda: watch.told("crash"))
            assert 1 in watch.told("crash")[0]["ranks"]
            watch.process.send_signal(signal.SIGINT)
            assert watch.process.wait(20) == 130
    # The spool, which tells at once that the killed rank left no end, may be gone: then five seconds of silence tell.
    end = "ended without a goodbye"
    recording.wait_until(lambda: end in scope("show", recording.run).stdout.splitlines()[0])
