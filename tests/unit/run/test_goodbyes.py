"""Ends of recordings of which only the events tell: no room for a black box, nor for a new `rank.json`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from scope.frames import open_run
from scope.report.run_state import describe_run, render_run
from scope.run import paths
from scope.run.files import FOLDER_MODE
from scope.run.reader import RankReader
from scope.run.schema import SCHEMA_VERSION, EventRecord, RankInfo, RunInfo, StepRecord

if TYPE_CHECKING:
    from pathlib import Path

S = 1_000_000_000
BEGAN = time.time_ns() - 100 * S
START = EventRecord(time_ns=BEGAN, kind="attempt_start", message="training began")
END = EventRecord(
    time_ns=BEGAN + 19 * S, kind="attempt_end", message="recording ended: finished", step=18, detail={"num_steps": 19}
)


def write_run(run: Path, *events: EventRecord) -> Path:
    """Write rank 0 with the steps 0 to 3, no black box, no end in `rank.json` and some events; return its folder."""
    own = paths.rank_folder(run, 0, 0)
    own.mkdir(mode=FOLDER_MODE, parents=True)
    info = RunInfo(schema=SCHEMA_VERSION, run_id="r", started_ns=BEGAN, world_size=1)
    (run / paths.RUN_FILE).write_bytes(msgspec.json.encode(info))
    rank = RankInfo(
        schema=SCHEMA_VERSION, run_id="r", attempt=0, rank=0, started_ns=BEGAN, host="elsewhere", pid=1, world_size=1
    )
    (own / paths.RANK_FILE).write_bytes(msgspec.json.encode(rank))
    steps = [
        StepRecord(step=step, start_ns=BEGAN + step * S, end_ns=BEGAN + (step + 1) * S, phases={"other": S})
        for step in range(4)
    ]
    (own / paths.STEPS_FILE).write_bytes(b"".join(msgspec.json.encode(step) + b"\n" for step in steps))
    (own / paths.EVENTS_FILE).write_bytes(b"".join(msgspec.json.encode(event) + b"\n" for event in events))
    return own


def test_an_end_that_only_the_events_tell_is_an_end(tmp_path: Path) -> None:
    """The run has finished when its last event says, of what comes before or after and is no end none is told."""
    warning = EventRecord(time_ns=BEGAN, kind="warning", message="recording ended: no")
    own = write_run(tmp_path, START, END, warning)
    info = RankReader(own).info()
    assert (info.ended_ns, info.exit_reason) == (BEGAN + 19 * S, "finished")
    state = describe_run(open_run(tmp_path))
    assert state["state"]["standing"] == "finished"
    assert (state["summary"]["num_unwritten_steps"], state["summary"]["unwritten_ranks"]) == (15, (0,))
    assert "15 steps of rank 0, by its own count, of which no record can be read" in render_run(state)


def test_an_end_of_an_earlier_version_counts_no_steps(tmp_path: Path) -> None:
    """Its line, byte for byte as it was written then, ends the rank, and the steps with a record are all that count."""
    own = write_run(tmp_path, START)
    line = b'{"time_ns":%d,"kind":"attempt_end","message":"recording ended: finished","step":3}\n' % END.time_ns
    with (own / paths.EVENTS_FILE).open("ab") as file:
        file.write(line)
    assert RankReader(own).info().exit_reason == "finished"
    state = describe_run(open_run(tmp_path))
    assert state["state"]["standing"] == "finished"
    assert (state["summary"]["num_steps"], state["summary"]["last_step"]) == (4, 3)
    assert (state["summary"]["num_unwritten_steps"], state["summary"]["unwritten_ranks"]) == (0, ())
    assert "of which no record can be read" not in render_run(state)


@pytest.mark.parametrize("number", [None, "19", -1, True, 2**40, 19.5, 4, 3])
def test_steps_are_counted_by_a_number_alone(tmp_path: Path, number: Any) -> None:
    """An end without a number of steps, or with one that cannot be, or of no more than have records, tells of none."""
    write_run(tmp_path, START, msgspec.structs.replace(END, detail={} if number is None else {"num_steps": number}))
    assert describe_run(open_run(tmp_path))["summary"]["num_unwritten_steps"] == 0


@pytest.mark.parametrize("events", [(START,), (END, START), ()], ids=["begun", "begun-anew", "no-events"])
def test_without_an_end_in_the_last_recording_there_is_none(tmp_path: Path, events: tuple[EventRecord, ...]) -> None:
    """A rank that began again lives on."""
    assert RankReader(write_run(tmp_path, *events)).info().ended_ns is None


def test_bad_lines_and_links_tell_of_no_end(tmp_path: Path) -> None:
    """A torn line costs itself alone, and a link is not followed."""
    own = write_run(tmp_path, START, END)
    file = own / paths.EVENTS_FILE
    file.write_bytes(file.read_bytes() + b"\xff{\n" + b"[" * 3000)
    assert RankReader(own).info().ended_ns == END.time_ns
    file.rename(tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    assert RankReader(own).info().ended_ns is None


def test_where_there_is_a_black_box_it_tells(tmp_path: Path) -> None:
    """Its room was taken at the start: it says itself whether the recording was closed."""
    own = write_run(tmp_path, START, END)
    (own / paths.BLACK_BOX_FILE).touch()
    assert RankReader(own).info().ended_ns is None


def test_a_run_that_is_followed_learns_of_the_end(tmp_path: Path) -> None:
    """Though its `rank.json` stays as it is."""
    own = write_run(tmp_path, START)
    run = open_run(tmp_path)
    assert [info.ended_ns for info in run.rank_infos] == [None]
    with (own / paths.EVENTS_FILE).open("ab") as file:
        file.write(msgspec.json.encode(END) + b"\n")
    assert [info.ended_ns for info in run.rank_infos] == [END.time_ns]
