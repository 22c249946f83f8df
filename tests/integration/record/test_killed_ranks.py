"""Ranks that are stopped, and killed at a random moment: their black boxes beside what they said themselves."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

pytest.importorskip("torch")

import struct

from scope.run import paths
from scope.run.blackbox import BlackBoxState, read_black_box
from scope.run.reader import RankReader, RunReader, read_steps

if TYPE_CHECKING:
    from conftest import Recording

SCRIPT = Path(__file__).parent / "diary_job.py"
# As the job writes it.
ENTRY = struct.Struct("<iiii")
PHASES = ("forward", "backward", "optimizer")
SIZES = [4 * 16 * 16, 4 * 16] * 2
"""Bytes of the gradients, in the order in which a step reduces them."""


class Entry(NamedTuple):
    """The last entry of a rank's diary."""

    step: int
    phase: str
    begun: int
    over: int


class Killed(NamedTuple):
    """A rank that was killed."""

    attempt: int
    rank: int
    box: BlackBoxState
    entry: Entry


class Story(NamedTuple):
    """What the test has seen of the job."""

    recording: Recording
    returncode: int
    said: str
    stopped: dict[str, Any]
    killed: list[Killed]


def read_entry(folder: Path, attempt: int, rank: int) -> Entry | None:
    """Read the last entry of a diary."""
    try:
        raw = (folder / f"diary-{attempt}-{rank}").read_bytes()
    except FileNotFoundError:
        return None
    if len(raw) < ENTRY.size:
        return None
    step, phase, begun, over = ENTRY.unpack_from(raw)
    return Entry(step, PHASES[phase], begun, over)


def wait_for_step(recording: Recording, attempt: int, rank: int, step: int) -> Entry:
    """Wait until a rank has come to a step."""
    recording.wait_until(
        lambda: (entry := read_entry(recording.folder, attempt, rank)) is not None and entry.step >= step
    )
    entry = read_entry(recording.folder, attempt, rank)
    assert entry is not None
    return entry


def stop_and_go(recording: Recording, boxes: list[Path], pid: int) -> dict[str, Any]:
    """Stop rank 1 until rank 0 has shown three more signs of life, then let it go on."""
    os.kill(pid, signal.SIGSTOP)
    try:
        time.sleep(0.1)  # what was under way when it was stopped
        first = [read_black_box(box) for box in boxes]
        pulses: set[int | None] = set()

        def rank_0_lives() -> bool:
            pulses.add(read_black_box(boxes[0]).pulse_ns)
            return len(pulses) > 3

        recording.wait_until(rank_0_lives)
        last = [read_black_box(box) for box in boxes]
    finally:
        os.kill(pid, signal.SIGCONT)
    before = wait_for_step(recording, 0, 1, 0)
    return {"first": first, "last": last, "after": wait_for_step(recording, 0, 1, before.step + 5), "before": before}


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory, new_recording: type[Recording]) -> Story:
    """Rank 1 is stopped for a while and then killed, rank 0 of the next attempt is killed, and the third one ends."""
    recording = new_recording(tmp_path_factory.mktemp("killed"))
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    process = recording.start(*launch, "--max-restarts", "2", str(SCRIPT), str(recording.folder))
    killed: list[Killed] = []
    stopped: dict[str, Any] = {}
    with recording.end_afterwards(process):
        for attempt, rank in ((0, 1), (1, 0)):
            for each in (0, 1):
                wait_for_step(recording, attempt, each, 10)
            pids = [int((recording.folder / f"pid-{attempt}-{each}").read_text()) for each in (0, 1)]
            (spool,) = recording.spools.iterdir()
            boxes = [paths.rank_folder(spool, attempt, each) / paths.BLACK_BOX_FILE for each in (0, 1)]
            if not stopped:
                stopped = stop_and_go(recording, boxes, pids[1])
            time.sleep(random.uniform(0.0, 0.5))
            os.kill(pids[rank], signal.SIGKILL)
            with contextlib.suppress(FileNotFoundError):
                while Path(f"/proc/{pids[rank]}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX":
                    time.sleep(0.001)
            entry = read_entry(recording.folder, attempt, rank)
            assert entry is not None
            killed.append(Killed(attempt, rank, read_black_box(boxes[rank]), entry))
        _, said = process.communicate(timeout=200)
    return Story(recording, process.returncode, said, stopped, killed)


def test_a_black_box_tells_where_its_rank_was_killed(story: Story) -> None:
    """Step, phase, number of collectives and the last of them are those of the rank's own diary at that moment."""
    assert [(each.attempt, each.rank) for each in story.killed] == [(0, 1), (1, 0)]
    for _, _, box, entry in story.killed:
        # The diary notes a phase after it began; the next one may have begun without its entry.
        follows = {"forward": "backward", "backward": "optimizer", "optimizer": "forward"}[entry.phase]
        next_step = entry.step + (entry.phase == "optimizer")
        assert (box.step, box.phase) in {
            (entry.step, entry.phase),
            (entry.step, "other"),
            (next_step, follows),
        }, entry
        (group,) = box.groups
        assert entry.over <= group.enqueued <= entry.begun + 1
        assert entry.over - 1 <= group.completed <= group.enqueued
        assert (group.operation, group.dtype) == ("all_reduce", "float32")
        last = box.calls[-1]
        assert (last.operation, last.sequence) == ("all_reduce", group.enqueued)
        assert [call.in_bytes for call in box.calls[-8:]] == [SIZES[(call.sequence - 1) % 4] for call in box.calls[-8:]]
        assert last.step is not None
        assert last.step == (last.sequence - 1) // 4
        assert not box.closed


def test_a_stopped_rank_is_told_from_one_that_waits_for_it(story: Story) -> None:
    """Both signs of life of a stopped rank stand still; those of the one that waits go on, and its call waits."""
    (first_0, first_1), (last_0, last_1) = story.stopped["first"], story.stopped["last"]
    assert (last_1.pulse_ns, last_1.beat_ns) == (first_1.pulse_ns, first_1.beat_ns)
    assert last_0.pulse_ns - first_0.pulse_ns > 1e9
    (waits,), (stopped,) = last_0.groups, last_1.groups
    assert waits.enqueued == waits.completed + 1
    assert stopped.completed < waits.enqueued
    assert story.stopped["after"].step >= story.stopped["before"].step + 5


def test_every_attempt_stands_beside_the_others(story: Story) -> None:
    """The job is restarted as without Scope; killed ranks have no ending, and the last attempt ends."""
    assert story.returncode == 0, story.said
    run = story.recording.run
    assert RunReader(run).attempts() == [0, 1, 2]
    reasons = {
        (attempt, rank): RankReader(story.recording.rank(rank, attempt)).info().exit_reason
        for attempt in range(3)
        for rank in range(2)
    }
    assert (reasons[0, 1], reasons[1, 0]) == (None, None)
    assert [reasons[2, rank] for rank in (0, 1)] == ["finished"] * 2
    for each in story.killed:
        published = read_black_box(story.recording.rank(each.rank, each.attempt) / paths.BLACK_BOX_FILE)
        assert (published.step, published.phase, published.groups) == (each.box.step, each.box.phase, each.box.groups)
        steps = read_steps(story.recording.rank(each.rank, each.attempt))
        assert [step.step for step in steps] == list(range(len(steps)))
        # Steps are written once a second; the first attempt lived for some, the second may not have.
        assert len(steps) >= (10 if each.attempt == 0 else 0)
    assert [len(read_steps(story.recording.rank(rank, 2))) for rank in (0, 1)] == [5, 5]
    assert list(story.recording.spools.iterdir()) == []
