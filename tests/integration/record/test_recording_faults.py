"""Faults around a recorded job: it goes on and ends as without Scope, and what was recorded can be read."""

from __future__ import annotations

import os
import shutil
import signal
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("torch")

from scope.run.blackbox import read_black_box
from scope.run.reader import RankReader, RunReader, read_steps

if TYPE_CHECKING:
    from conftest import Recording


def test_two_runs_on_one_host_and_one_is_deleted(recording: Recording) -> None:
    """Two jobs record at the same time into folders of their own; one whose run directory goes is published anew."""
    other = replace(recording, name="other")
    kept, deleted = recording.start(*recording.alone, JOB_PAUSE="0.15"), other.start(*recording.alone, JOB_PAUSE="0.15")
    with recording.end_afterwards(kept), recording.end_afterwards(deleted):
        recording.wait_until(lambda: (other.rank() / "steps.jsonl").exists())
        shutil.rmtree(other.run)
        outputs = [process.communicate(timeout=120) for process in (kept, deleted)]
    assert (kept.returncode, deleted.returncode) == (0, 0), outputs
    assert outputs[0][0] == outputs[1][0]
    infos = [RunReader(each.run).info() for each in (recording, other)]
    assert all(info.run_id for info in infos)
    assert [len(read_steps(each.rank())) for each in (recording, other)] == [30, 30]
    assert [RankReader(each.rank()).info().exit_reason for each in (recording, other)] == ["finished"] * 2
    assert list(recording.spools.iterdir()) == []


def test_a_killed_launcher_leaves_job_and_record_running(recording: Recording) -> None:
    """After SIGKILL of `scope run` the job trains to its end, and all of it is published before the spool goes."""
    process = recording.start(*recording.alone, JOB_PAUSE="0.15")
    with recording.end_afterwards(process):
        recording.wait_until(lambda: recording.spooled("steps.jsonl"))
        publishers = recording.find_children(process.pid, "scope.run.publish")
        process.kill()
        output, _ = process.communicate(timeout=60)
        recording.wait_until(lambda: not list(recording.spools.iterdir()))
    assert (process.returncode, len(publishers)) == (-signal.SIGKILL, 1)
    assert float(output)
    assert len(read_steps(recording.rank())) == 30
    assert read_black_box(recording.rank() / "blackbox.bin").closed
    recording.wait_until(lambda: not any(os.path.exists(f"/proc/{pid}/exe") for pid in publishers))  # noqa: PTH110


def test_a_publisher_that_dies_is_replaced(recording: Recording) -> None:
    """A publisher that is killed costs no step, and what it left is published at the end."""
    process = recording.start(*recording.alone, JOB_PAUSE="0.02")
    with recording.end_afterwards(process):
        recording.wait_until(lambda: recording.spooled("blackbox.bin"))
        (publisher,) = recording.find_children(process.pid, "scope.run.publish")
        os.kill(publisher, signal.SIGKILL)
        output, said = process.communicate(timeout=120)
    assert process.returncode == 0, said
    assert float(output)
    assert len(read_steps(recording.rank())) == 30
    assert list(recording.spools.iterdir()) == []
