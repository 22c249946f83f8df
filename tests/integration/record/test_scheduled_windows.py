"""Profiler windows on a schedule in a real process: what they cost stays within the share that was given."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("torch")

from scope.run.reader import RankReader, read_steps
from scope.units import NS_PER_S

if TYPE_CHECKING:
    from conftest import Recording

BUDGET = 0.4
NUM_STEPS = 450
FIRST_COST_NS = 2 * NS_PER_S
"""What a window is taken to cost before one has been measured."""


def test_scheduled_windows_keep_to_their_budget(recording: Recording) -> None:
    """At 40 % the first comes after 5 s; each next one when the cost of the last is 40 % of the rest, or less.

    What steps of windows, and those in which they are written, took beyond usual ones is what the program felt.
    """
    recording.finish(
        *recording.alone,
        options=("--capture", "schedule"),
        SCOPE_CAPTURE_BUDGET=str(BUDGET),
        JOB_STEPS=str(NUM_STEPS),
        JOB_PAUSE="0.02",
    )
    reader = RankReader(recording.rank())
    began_ns = reader.info().started_ns
    windows = sorted((trace.info for trace in reader.traces()), key=lambda info: info.first_step)
    assert windows
    assert {info.reason for info in windows} == {"schedule"}
    # The job's end cuts a window that begins in its last step.
    assert [info.num_steps for info in windows] == [min(2, NUM_STEPS - info.first_step) for info in windows]
    assert windows[0].start_ns - began_ns >= FIRST_COST_NS / BUDGET
    for before, after in pairwise(windows):
        assert after.first_step - before.first_step >= 20
        assert after.start_ns - before.end_ns >= before.cost_ns / BUDGET
    last = windows[-1]
    assert sum(info.cost_ns for info in windows[:-1]) <= BUDGET * (last.start_ns - began_ns)

    steps = read_steps(recording.rank())
    assert len(steps) == NUM_STEPS
    lengths = sorted(step.end_ns - step.start_ns for step in steps if step.disturbed is None)
    usual_ns = lengths[len(lengths) // 2]
    slow = [step for step in steps if step.disturbed == "capture" and step.step < last.first_step]
    assert len(slow) == 3 * (len(windows) - 1)  # two steps of the window, and the one in which it is written
    felt_ns = sum(step.end_ns - step.start_ns - usual_ns for step in slow)
    assert felt_ns <= BUDGET * (last.start_ns - began_ns)
