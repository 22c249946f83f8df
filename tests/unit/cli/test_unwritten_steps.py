"""Steps and records that never reached the disk: the black box knows of them, and `scope show` and `watch` say so."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import msgspec
import pytest

from scope.run import layout, paths
from scope.run.blackbox import BlackBox, BlackBoxIdentity
from scope.run.goodbyes import OTHER_THREAD
from scope.run.schema import SCHEMA_VERSION, EventRecord, RankInfo, RunInfo, StepRecord

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Done

S = 1_000_000_000
BEGAN = 1_700_000_000 * S


def write_run(folder: Path, *, num_written: int, num_steps: int, num_dropped: int, reason: str | None) -> Path:
    """Write one rank with steps of 1 s: the black box counts more than stand in the file; each of those lost one."""
    own = paths.rank_folder(folder, 0, 0)
    own.mkdir(parents=True)
    info = RunInfo(schema=SCHEMA_VERSION, run_id="r", started_ns=BEGAN, world_size=1)
    (folder / paths.RUN_FILE).write_bytes(msgspec.json.encode(info))
    end_ns = BEGAN + max(num_written, num_steps) * S
    rank = RankInfo(
        schema=SCHEMA_VERSION, run_id="r", attempt=0, rank=0, started_ns=BEGAN, host="elsewhere", pid=1, world_size=1,
        ended_ns=end_ns if reason else None, exit_reason=reason,
    )  # fmt: skip
    (own / paths.RANK_FILE).write_bytes(msgspec.json.encode(rank))
    steps = (
        StepRecord(
            step=step, start_ns=BEGAN + step * S, end_ns=BEGAN + (step + 1) * S, phases={"other": S}, num_dropped=1
        )
        for step in range(num_written)
    )
    (own / paths.STEPS_FILE).write_bytes(b"".join(msgspec.json.encode(step) + b"\n" for step in steps))
    identity = BlackBoxIdentity(rank=0, attempt=0, world_size=1, pid=1, process_start_ticks=None, wall_offset_ns=0)
    box = BlackBox(own / paths.BLACK_BOX_FILE, identity)
    box.write_state(layout.STATE.pack(num_steps, num_steps, end_ns, end_ns, end_ns, S, 0, b"forward"))
    box.write_pulse(layout.PULSE.pack(end_ns, 1, num_dropped, layout.PULSE_CLOSED if reason else 0, 0, -1))
    box.close()
    return folder


@pytest.mark.parametrize(
    ("num_written", "reason", "progress", "unwritten"),
    [
        pytest.param(0, None, "no step yet, 0 steps", "9 steps of rank 0, by its own count", id="killed-at-once"),
        pytest.param(3, "finished", "last step 2, 3 steps", "6 steps of rank 0, by its own count", id="full-disk"),
        pytest.param(8, "finished", "last step 7, 8 steps", "1 step of rank 0, by its own count", id="one"),
    ],
)
def test_steps_without_a_record_are_counted(
    tmp_path: Path, scope: Callable[..., Done], num_written: int, reason: str | None, progress: str, unwritten: str
) -> None:
    """Of nine steps those without a record are told beside those with one; dropped are 20, whatever the records say."""
    run = write_run(tmp_path / "r", num_written=num_written, num_steps=9, num_dropped=20, reason=reason)
    done = scope("show", run)
    assert progress in done.out
    assert f"{unwritten}, of which no record can be read" in done.out
    assert "20 records dropped" in done.out
    state = json.loads(scope("show", run, "--json").out)
    summary = state["summary"]
    # Steps without a record were made: those with one are the least that was kept.
    has_goodput = summary["goodput_ratio"] is not None
    assert has_goodput == (num_written > 0)
    assert ("goodput at least " in done.out) == has_goodput
    assert ("no goodput: none of the steps that ended has a record" in done.out) != has_goodput
    assert state["goodput_at_least_reason"].partition(" step")[0] == str(9 - num_written)
    assert (summary["num_unwritten_steps"], summary["unwritten_ranks"]) == (9 - num_written, [0])
    assert summary["num_dropped"] == 20


def test_doctor_warns_of_dropped_records(tmp_path: Path, scope: Callable[..., Done]) -> None:
    """The larger count holds, of the black box or of the steps; a rank that dropped nothing is no finding."""
    for name, counted, expected in (("box", 20, "20 records dropped"), ("steps", 0, "3 records dropped")):
        run = write_run(tmp_path / name, num_written=3, num_steps=3, num_dropped=counted, reason="finished")
        assert expected in scope("doctor", run).out
    none = write_run(tmp_path / "none", num_written=0, num_steps=0, num_dropped=0, reason="finished")
    assert " dropped" not in scope("doctor", none).out


def test_nothing_is_said_where_all_is_written(tmp_path: Path, scope: Callable[..., Done]) -> None:
    """The last step ends where the recording does, and the black box may count one fewer than was written."""
    run = write_run(tmp_path / "r", num_written=9, num_steps=8, num_dropped=9, reason="finished")
    done = scope("show", run)
    assert "by its own count" not in done.out
    assert ", goodput " in done.out
    assert "at least" not in done.out
    assert "9 records dropped" in done.out


def test_the_age_of_the_last_step_is_known_without_its_record(tmp_path: Path, scope: Callable[..., Done]) -> None:
    """`scope watch` and `scope show` take the end of the last step from the black box where no record tells."""
    run = write_run(tmp_path / "r", num_written=0, num_steps=9, num_dropped=0, reason="finished")
    for command in (("watch", run, "--once"), ("show", run)):
        out = scope(*command).out
        assert "the last step ended" in out
        assert "no step has ended yet" not in out


@pytest.mark.parametrize("num_foreign", [2, 9])
def test_watch_tells_what_cannot_be_read(tmp_path: Path, scope: Callable[..., Done], num_foreign: int) -> None:
    """Lines that are no records are told on standard error, as by `scope show`, with `--json` as well."""
    run = write_run(tmp_path / "r", num_written=3, num_steps=3, num_dropped=0, reason="finished")
    file = paths.rank_folder(run, 0, 0) / paths.STEPS_FILE
    sound = scope("watch", run, "--once")
    assert sound.err == ""
    with file.open("ab") as stream:
        stream.write(b"".join(b'{"foreign": %d}\n' % number for number in range(num_foreign)))
    shown = scope("show", run).err
    assert str(file) in shown
    for options in ((), ("--json",)):
        done = scope("watch", run, "--once", *options)
        assert done.err.splitlines()[:5] == shown.splitlines()[:5]
        assert done.code == 0


@pytest.mark.parametrize("num_bytes", [4096, 6656])
@pytest.mark.parametrize("command", [("show",), ("show", "--json"), ("watch", "--once"), ("doctor",)])
def test_a_black_box_that_was_cut_is_named(
    tmp_path: Path, scope: Callable[..., Done], num_bytes: int, command: tuple[str, ...]
) -> None:
    """Its header still tells where the rank stood, but not its last calls; a whole one is not named."""
    run = write_run(tmp_path / "r", num_written=9, num_steps=9, num_dropped=0, reason=None)
    name, *options = command
    box = paths.rank_folder(run, 0, 0) / paths.BLACK_BOX_FILE
    assert "is cut" not in (whole := scope(name, run, *options)).out + whole.err
    os.truncate(box, num_bytes)
    done = scope(name, run, *options)
    said = done.out + done.err
    # In a document it stands beside the line on standard error.
    times = 1 + ("--json" in options)
    assert said.count(f"{paths.BLACK_BOX_FILE}: is cut: {num_bytes} of 69632 bytes are left") == times


def test_training_in_a_thread_that_is_not_measured_is_told(tmp_path: Path, scope: Callable[..., Done]) -> None:
    """All nine steps are on record, and goodput is at least theirs, since there was more; else nothing is said."""
    run = write_run(tmp_path / "r", num_written=9, num_steps=9, num_dropped=0, reason="finished")
    words = "also trained in another thread than the one that imported torch"
    assert words not in scope("show", run).out
    assert "goodput 100.0 %" in scope("show", run).out
    event = EventRecord(time_ns=BEGAN, kind="warning", message="an optimizer", detail={OTHER_THREAD: True})
    path = paths.rank_folder(run, 0, 0) / paths.EVENTS_FILE
    path.write_bytes(msgspec.json.encode(event) + b"\n")
    shown = scope("show", run).out
    assert f"  rank 0 {words}: that is in no step and no figure\n" in shown
    assert "goodput at least 100.0 %" in shown
    state = json.loads(scope("show", run, "--json").out)
    assert state["summary"]["other_thread_ranks"] == [0]
    assert state["goodput_at_least_reason"] == "rank 0 also trained in a thread that is not measured"
