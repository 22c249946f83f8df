"""Goodput of a job that was killed and resumed from a checkpoint, with real processes and against its raw files."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("torch")

from exporters import training_series as series
from exporters.training import TrainingCollector
from scope.frames import open_run
from scope.report.run_state import describe_run, render_run
from scope.run.naming import label_run

if TYPE_CHECKING:
    from conftest import Recording

JOB = Path(__file__).parent / "resuming_job.py"


def raw_steps(recording: Recording, attempt: int) -> dict[int, int]:
    """Return the length of each step of an attempt by its number, from the lines as they stand in the file."""
    lines = (recording.rank(attempt=attempt) / "steps.jsonl").read_text().splitlines()
    return {each["step"]: each["end_ns"] - each["start_ns"] for each in map(json.loads, lines)}


def test_what_a_restart_cost(recording: Recording) -> None:
    """Killed in its thirteenth update and resumed from the tenth, a job lost two steps and not twelve."""
    command = (sys.executable, str(JOB), str(recording.folder))
    process = recording.start(*command)
    with recording.end_afterwards(process):
        process.communicate(timeout=120)
    recording.finish(*command)
    killed, resumed = raw_steps(recording, 0), raw_steps(recording, 1)
    assert list(killed) == list(range(12))
    assert list(resumed) == list(range(10, 16))
    kept_ns = sum(length for step, length in killed.items() if step < 10) + sum(resumed.values())

    opened = open_run(recording.run)
    state = describe_run(opened)
    ended_ns = json.loads((recording.rank(attempt=1) / "rank.json").read_text())["ended_ns"]
    wall_ns = ended_ns - opened.info().started_ns
    assert state["summary"]["goodput_ratio"] == pytest.approx(kept_ns / wall_ns)
    assert state["summary"]["num_lost_steps"] == 2
    # Whether the thirteenth had its update nothing tells.
    assert "\n  at least 2 steps of earlier attempts lost: attempt 1 began at step 10\n" in render_run(state)

    collector = TrainingCollector((str(recording.run),), lambda *_: None, registry=recording.folder / "none")
    collector.read()
    assert collector.series().get(series.GOODPUT, (label_run(opened.info()), "0")) == pytest.approx(kept_ns / wall_ns)
