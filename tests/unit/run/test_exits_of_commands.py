"""What the launcher saw of its command's end stands in the ranks that cannot tell it themselves."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from scope.run import layout, paths
from scope.run.alive import read_start_ticks
from scope.run.blackbox import BlackBox, BlackBoxIdentity
from scope.run.endings import CommandEnd, record_endings, record_exits
from scope.run.reader import RankReader, read_rank_info
from scope.run.schema import SCHEMA_VERSION, EventRecord, RankInfo
from scope.units import NS_PER_S

if TYPE_CHECKING:
    from pathlib import Path

COMMAND = 4_000_001
ANOTHER = 4_000_002
"""Process ids beyond the largest that Linux gives."""
TOLD = EventRecord(time_ns=77, kind="attempt_end", message="recording ended: exited with code 5", step=3)
DONE: dict[str, Any] = {"ended_ns": 50, "exit_reason": "finished"}


def write_rank(spool: Path, attempt: int, rank: int, *events: EventRecord, **facts: Any) -> Path:
    """Write what one process told of itself, and return its folder."""
    folder = paths.rank_folder(spool, attempt, rank)
    folder.mkdir(parents=True)
    known: dict[str, Any] = {"schema": SCHEMA_VERSION, "run_id": "r", "started_ns": 1, "host": "h", "pid": ANOTHER}
    info = RankInfo(attempt=attempt, rank=rank, **{**known, **facts})
    (folder / paths.RANK_FILE).write_bytes(msgspec.json.encode(info))
    lines = b"".join(msgspec.json.encode(event) + b"\n" for event in events)
    (folder / paths.EVENTS_FILE).write_bytes(lines)
    return folder


@pytest.mark.parametrize(
    ("facts", "returncode", "reason"),
    [
        pytest.param({"pid": COMMAND}, 3, "exited with code 3", id="left at once"),
        pytest.param({"pid": COMMAND}, 0, "finished", id="left at once, and well"),
        pytest.param({"pid": COMMAND, **DONE}, 3, "exited with code 3", id="could not know its code"),
        pytest.param({"pid": COMMAND, **DONE, "exit_reason": "exited with code 3"}, 0, "finished", id="was mistaken"),
        pytest.param({"pid": COMMAND, **DONE, "exit_reason": "exception"}, 1, "exception", id="raised"),
        pytest.param({"pid": COMMAND, **DONE, "exit_reason": "interrupted"}, 130, "interrupted", id="Ctrl-C"),
        pytest.param({"pid": COMMAND}, -9, None, id="killed: it said no goodbye"),
        pytest.param({"pid": COMMAND, **DONE}, -9, "finished", id="killed behind its end"),
        pytest.param({**DONE}, 3, "finished", id="another process"),
        pytest.param({}, 3, None, id="another process without a goodbye"),
    ],
)
def test_what_the_launcher_saw_is_noted(tmp_path: Path, facts: dict[str, Any], returncode: int, reason: str) -> None:
    """Every rank has the end of the command; the command's own process ends with the code that the launcher saw."""
    folder = write_rank(tmp_path, 0, 0, **facts)
    record_exits(tmp_path, CommandEnd(returncode, COMMAND))
    info = read_rank_info(folder)
    assert (info.command_returncode, info.exit_reason) == (returncode, reason)
    assert (info.ended_ns is None) == (reason is None)
    told = [event.message for event in RankReader(folder).new_events()]
    is_new = "ended_ns" not in facts and reason is not None
    assert told == ([f"recording ended: {reason}"] if is_new else [])


def test_a_code_that_the_program_could_not_know_is_known_of_the_command(tmp_path: Path) -> None:
    """The launcher saw that of its own command, and not those of other processes."""
    facts = {**DONE, "absent": {"exit_code": "it raised SystemExit", "device": "none"}}
    own, other = write_rank(tmp_path, 0, 0, pid=COMMAND, **facts), write_rank(tmp_path, 0, 1, **facts)
    record_exits(tmp_path, CommandEnd(3, COMMAND))
    assert read_rank_info(own).absent == {"device": "none"}
    assert read_rank_info(own).exit_reason == "exited with code 3"
    assert read_rank_info(other).absent == facts["absent"]


def test_an_exit_that_only_the_events_tell_is_noted_of_every_attempt(tmp_path: Path) -> None:
    """A rank that left by `os._exit` ended then; the end of the command is that of the last attempt alone."""
    folders = [write_rank(tmp_path, attempt, 1, TOLD) for attempt in range(2)]
    record_exits(tmp_path, CommandEnd(1, COMMAND))
    found = [read_rank_info(folder) for folder in folders]
    assert [(info.ended_ns, info.exit_reason) for info in found] == [(77, "exited with code 5")] * 2
    assert [info.command_returncode for info in found] == [None, 1]


def test_a_launcher_that_was_killed_saw_nothing(tmp_path: Path) -> None:
    """What ranks told themselves is noted all the same, and of others nothing is."""
    told, silent = write_rank(tmp_path, 0, 0, TOLD), write_rank(tmp_path, 0, 1)
    before = (silent / paths.RANK_FILE).read_bytes()
    record_exits(tmp_path, None)
    assert read_rank_info(told).exit_reason == "exited with code 5"
    assert (silent / paths.RANK_FILE).read_bytes() == before


def test_a_rank_whose_process_outlives_its_recording_has_the_end_of_the_command(tmp_path: Path) -> None:
    """It closed its recording, and is being torn down: it writes no more."""
    folder = write_rank(tmp_path, 0, 0, pid=os.getpid(), process_start_ticks=read_start_ticks(os.getpid()), **DONE)
    record_exits(tmp_path, CommandEnd(-9, COMMAND))
    assert (read_rank_info(folder).command_returncode, read_rank_info(folder).exit_reason) == (-9, "finished")


def test_a_rank_that_lives_on_is_left_alone(tmp_path: Path) -> None:
    """The command may leave ranks in the background, which write their own record."""
    folder = write_rank(tmp_path, 0, 0, pid=os.getpid(), process_start_ticks=read_start_ticks(os.getpid()))
    torn = write_rank(tmp_path, 0, 1)
    (torn / paths.RANK_FILE).write_bytes(b'{"schema')
    record_exits(tmp_path, CommandEnd(3, COMMAND))
    assert read_rank_info(folder).command_returncode is None
    assert (torn / paths.RANK_FILE).read_bytes() == b'{"schema'


SENT_NS = 100 * NS_PER_S
"""When the job was sent a signal, by the monotonic clock."""


def write_box(folder: Path, worked_ns: int) -> None:
    """Write the black box of a rank that began its last phase then, by the monotonic clock."""
    who = BlackBoxIdentity(
        rank=0, attempt=0, world_size=1, pid=1, process_start_ticks=None, wall_offset_ns=1_000 * NS_PER_S
    )
    box = BlackBox(folder / paths.BLACK_BOX_FILE, who)
    box.write_state(layout.STATE.pack(0, 0, worked_ns, worked_ns, worked_ns, 0, 0, b"forward"))
    box.close()


@pytest.mark.parametrize(
    ("facts", "worked_s", "returncode", "is_by_it"),
    [
        pytest.param({"pid": COMMAND}, None, -15, True, id="ended the command"),
        pytest.param({"pid": COMMAND}, 100.1, -15, True, id="ended the command at once"),
        pytest.param({"pid": COMMAND}, 100.1, -9, False, id="another signal ended the command"),
        pytest.param({"pid": COMMAND}, 106.0, -9, False, id="was handled, and another ended the command later"),
        pytest.param({}, 99.0, 1, True, id="a rank of a launcher"),
        pytest.param({}, 102.9, 1, True, id="a rank whose launcher was slow"),
        pytest.param({}, 103.1, 1, False, id="a rank that worked on"),
        pytest.param({}, None, 1, True, id="a rank without a black box"),
        pytest.param({"pid": COMMAND, **DONE}, None, -15, False, id="ended by itself"),
    ],
)
def test_a_signal_ends_only_what_ends_of_it(
    tmp_path: Path, facts: dict[str, Any], worked_s: float | None, returncode: int, is_by_it: bool
) -> None:
    """The exit code tells of the command's process, and of others whether they worked on for long after the signal."""
    folder = write_rank(tmp_path, 0, 0, **facts)
    if worked_s is not None:
        write_box(folder, int(worked_s * NS_PER_S))
    command = CommandEnd(returncode, COMMAND)
    assert record_endings(tmp_path, 15, sent_ns=SENT_NS, command=command) == is_by_it
    info = read_rank_info(folder)
    assert (info.exit_reason == "terminated by signal 15") == is_by_it
    assert [event.message for event in RankReader(folder).new_events()] == [
        "recording ended: terminated by signal 15"
    ] * is_by_it
