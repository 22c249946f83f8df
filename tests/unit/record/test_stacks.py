"""Stacks of all threads, on request and when a step stands still."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("torch")

from scope.record import CaptureSettings, Recorder
from scope.record.stacks import StackDumps
from scope.run import paths
from scope.run.reader import RankReader

if TYPE_CHECKING:
    from pathlib import Path

S = 1_000_000_000


def stand_in_a_function_of_ones_own(begun: threading.Event, end: threading.Event) -> None:
    """Wait, as a thread that hangs does."""
    begun.set()
    end.wait()


def test_a_request_tells_what_every_thread_does(tmp_path: Path) -> None:
    """A file in the rank's folder asks for an event with the stacks, a waiting thread's function among them."""
    begun, end = threading.Event(), threading.Event()
    thread = threading.Thread(target=stand_in_a_function_of_ones_own, args=(begun, end))
    thread.start()
    begun.wait()
    try:
        with Recorder(run_dir=tmp_path, run_id="r", capture=CaptureSettings(reasons=frozenset())) as recorder:
            assert recorder.folder is not None
            assert recorder.session is not None
            folder = recorder.folder
            (folder / paths.STACKS_REQUEST_FILE).touch()
            recorder.session.writer.flush()
            recorder.session.writer.flush()
    finally:
        end.set()
        thread.join()
    (event,) = [event for event in RankReader(folder).new_events() if event.kind == "stack_dump"]
    assert event.detail["reason"] == "requested"
    stacks = str(event.detail["stacks"])
    assert "in stand_in_a_function_of_ones_own" in stacks
    assert "in test_a_request_tells_what_every_thread_does" in stacks
    assert not (folder / paths.STACKS_REQUEST_FILE).exists()


def test_a_step_that_stands_still_is_told_once(tmp_path: Path) -> None:
    """A step of over a minute, and over ten times the longest before it, gives one event; the next one may again."""
    told: list[tuple[int, str]] = []

    def add_event(kind: str, message: str, **details: Any) -> None:
        assert kind == "stack_dump"
        assert "test_a_step_that_stands_still_is_told_once" in details["stacks"]
        told.append((details["step"], message))

    clock = SimpleNamespace(step=-1, step_start_ns=0, phase="backward")
    session: Any = SimpleNamespace(clock=clock, writer=SimpleNamespace(folder=tmp_path, add_event=add_event))
    now = 5 * S
    dumps = StackDumps(session, now=lambda: now)
    dumps.poll()
    for step, length in enumerate((1, 20, 2)):
        clock.step = session.step = step
        clock.step_start_ns = now
        dumps.poll()
        now += length * S
    clock.step, clock.step_start_ns, session.step = 3, now, 3
    start = now
    for after in (0, 61, 200, 201, 300):
        now = start + after * S
        dumps.poll()
    clock.step, clock.step_start_ns, session.step = 4, now, 4
    # The longest is that of step 3 now.
    for after in (0, 2_999, 3_001):
        now = clock.step_start_ns + after * S
        dumps.poll()
    assert told == [
        (3, "stacks of all threads: the step has lasted 201 s"),
        (4, "stacks of all threads: the step has lasted 3001 s"),
    ]
