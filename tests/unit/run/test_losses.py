"""What a rank wrote before it closed its recording, and is not there any more, is told and counted."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import msgspec
import pytest
from click.testing import CliRunner

from scope.cli.doctor import doctor
from scope.cli.show import show
from scope.frames import open_run
from scope.run import paths
from scope.run.calls import CallShape
from scope.run.files import AppendFile
from scope.run.layout import CALL_BYTES, SEGMENT_HEADER_BYTES
from scope.run.publish import Publisher
from scope.run.schema import OPERATIONS, SCHEMA_VERSION, RankInfo, RunInfo, StepRecord
from scope.run.writer import RankWriter, StepDraft, WriterBudget

if TYPE_CHECKING:
    from pathlib import Path

NUM_STEPS = 5
NUM_CALLS = 3
NUM_LOOSE = 4
NUM_RECORDS = NUM_LOOSE + NUM_STEPS * NUM_CALLS
EVERY_CALL = WriterBudget(max_calls_per_s=10**12)


def make_rank(run: Path, *, spool: Path | None = None, budget: WriterBudget = EVERY_CALL) -> RankWriter:
    """Record calls outside of steps and some steps, and return the writer, which is not closed."""
    now_ns = time.time_ns()
    document = RunInfo(schema=SCHEMA_VERSION, run_id="r", started_ns=now_ns, world_size=1)
    run.mkdir(exist_ok=True)
    (run / paths.RUN_FILE).write_bytes(msgspec.json.encode(document))
    info = RankInfo(
        schema=SCHEMA_VERSION, run_id="r", attempt=0, rank=0, started_ns=now_ns, host="h", pid=os.getpid(),
        spool=None if spool is None else str(spool),
    )  # fmt: skip
    writer = RankWriter(paths.rank_folder(run, 0, 0), info, budget=budget)
    writer.start()
    issue(writer, NUM_LOOSE)
    writer.add_loose_calls(writer.calls.next_step(0))
    for step in range(NUM_STEPS):
        issue(writer, NUM_CALLS)
        add_step(writer, step)
    writer.add_event("warning", "the first of them")
    writer.add_event("warning", "the last of them")
    return writer


def issue(writer: RankWriter, num_calls: int) -> None:
    """Issue and complete calls."""
    shape = CallShape(0, OPERATIONS.index("all_reduce"), 0, 1, 64, 64, word=16)
    for at in range(num_calls):
        writer.calls.complete(writer.calls.issue(shape, 0, at + 1), at + 5)


def add_step(writer: RankWriter, step: int) -> None:
    """End a step of a second."""
    start_ns, length_ns = (step + 1) * 10**9, 10**9
    record = StepRecord(step=step, start_ns=start_ns, end_ns=start_ns + length_ns, phases={"forward": length_ns})
    writer.add_step(StepDraft(record=record, calls=writer.calls.next_step(step + 1)))


def find_segment(run: Path) -> Path:
    """Return the one segment of calls."""
    (segment,) = (paths.rank_folder(run, 0, 0) / paths.CALLS_FOLDER).iterdir()
    return segment


def forget_counts(run: Path) -> None:
    """Make the recording one that does not say how much it wrote."""
    path = paths.rank_folder(run, 0, 0) / paths.RANK_FILE
    info = msgspec.json.decode(path.read_bytes(), type=RankInfo)
    older = msgspec.structs.replace(info, written_bytes={}, num_call_records=None)
    path.write_bytes(msgspec.json.encode(older))


def look(run: Path) -> tuple[int, list[str]]:
    """Return how many calls are read, and the words on what is missing without the folder of the rank."""
    opened = open_run(run)
    height = opened.collectives().height
    return height, [problem.removeprefix(f"{paths.rank_folder(run, 0, 0)}/") for problem in opened.problems]


def test_a_whole_recording_lacks_nothing(tmp_path: Path) -> None:
    """Not by the counts of its rank, and not by its steps where it has none."""
    make_rank(tmp_path).close("finished")
    assert look(tmp_path) == (NUM_RECORDS, [])
    forget_counts(tmp_path)
    assert look(tmp_path) == (NUM_RECORDS, [])


@pytest.mark.parametrize("num_bytes", [None, 0, 63, SEGMENT_HEADER_BYTES, -CALL_BYTES, -1])
def test_lost_calls_are_counted(tmp_path: Path, num_bytes: int | None) -> None:
    """Of a segment that is gone, empty, cut between records or within one: as many as were issued and are not read."""
    make_rank(tmp_path).close("finished")
    segment = find_segment(tmp_path)
    if num_bytes is None:
        segment.unlink()
    else:
        os.truncate(segment, num_bytes if num_bytes >= 0 else segment.stat().st_size + num_bytes)
    num_left, (*others, problem) = look(tmp_path)
    assert problem == (
        f"calls: {num_left} of {NUM_RECORDS} records of calls are left that its rank wrote: segments are cut or gone"
    )
    assert num_left == (NUM_RECORDS - 1 if (num_bytes or 0) < 0 else 0)
    assert all("is not a segment of calls" in other for other in others)


@pytest.mark.parametrize("num_kept", [0, 7, None])
@pytest.mark.parametrize("name", [paths.STEPS_FILE, paths.EVENTS_FILE])
def test_a_file_of_lines_that_is_cut_is_told(tmp_path: Path, name: str, num_kept: int | None) -> None:
    """Empty, cut within a line, or behind one: `scope show` says how much is left of how much."""
    make_rank(tmp_path).close("finished")
    path = paths.rank_folder(tmp_path, 0, 0) / name
    content = path.read_bytes()
    kept = content.index(b"\n") + 1 if num_kept is None else num_kept
    path.write_bytes(content[:kept])
    words = f"{name}: is cut: {kept} of the {len(content):,} bytes are left that its rank wrote"
    assert look(tmp_path)[1] == [words]
    shown = CliRunner().invoke(show, [str(tmp_path)])
    assert words in shown.stderr
    document = msgspec.json.decode(CliRunner().invoke(show, [str(tmp_path), "--json"]).stdout)
    assert [problem.endswith(words) for problem in document["problems"]] == [True]


def test_lines_that_others_added_later_are_no_loss(tmp_path: Path) -> None:
    """Whoever publishes a run may tell its events more than its rank did."""
    make_rank(tmp_path).close("finished")
    folder = paths.rank_folder(tmp_path, 0, 0)
    line = (folder / paths.EVENTS_FILE).read_bytes().splitlines(keepends=True)[0]
    with (folder / paths.EVENTS_FILE).open("ab") as file:
        file.write(line)
    assert look(tmp_path)[1] == []


def test_a_torn_tail_is_normal_until_the_recording_is_closed(tmp_path: Path) -> None:
    """While a rank lives, and where it was killed, whoever wrote down its end: nothing is said of half a line."""
    writer = make_rank(tmp_path)
    writer.flush()
    folder = paths.rank_folder(tmp_path, 0, 0)
    for name in (paths.STEPS_FILE, paths.EVENTS_FILE):
        path = folder / name
        path.write_bytes(path.read_bytes()[:-9])
    assert look(tmp_path)[1] == []
    killed = msgspec.structs.replace(writer.info, ended_ns=5, exit_reason="terminated by signal 15")
    (folder / paths.RANK_FILE).write_bytes(msgspec.json.encode(killed))
    assert look(tmp_path)[1] == []
    writer.enabled = False


def test_recordings_without_counts_are_judged_by_their_lines_and_steps(tmp_path: Path) -> None:
    """Half a line, an empty file, and fewer calls than the steps say, which do not know those outside of them."""
    make_rank(tmp_path).close("finished")
    forget_counts(tmp_path)
    folder = paths.rank_folder(tmp_path, 0, 0)
    os.truncate(find_segment(tmp_path), 0)
    os.truncate(folder / paths.EVENTS_FILE, 0)
    assert look(tmp_path)[1] == [
        "events.jsonl: is cut: its rank closed its recording, but it is empty",
        f"calls: 0 of at least {NUM_STEPS * NUM_CALLS} records of calls are left that its rank wrote: segments are cut "
        "or gone",
    ]
    os.truncate(folder / paths.STEPS_FILE, 9)
    (problem, *_) = look(tmp_path)[1]
    assert problem == "steps.jsonl: is cut: its rank closed its recording, but the last line has no end"


def test_half_a_record_of_a_recording_without_counts_is_one_lost(tmp_path: Path) -> None:
    """A segment of a rank that closed its recording ends with a whole record."""
    make_rank(tmp_path).close("finished")
    forget_counts(tmp_path)
    segment = find_segment(tmp_path)
    os.truncate(segment, segment.stat().st_size - 1)
    assert look(tmp_path)[1] == [
        f"calls: {NUM_RECORDS - 1} of at least {NUM_RECORDS} records of calls are left that its rank wrote: segments "
        "are cut or gone"
    ]


def test_what_is_on_its_way_from_the_spool_is_no_loss_yet(tmp_path: Path) -> None:
    """A rank that just ended may be published a little later; once its spool is gone, nothing comes any more."""
    spool = tmp_path / "spool"
    run = tmp_path / "run"
    spool.mkdir()
    make_rank(run, spool=spool).close("finished")
    content = find_segment(run).read_bytes()
    os.truncate(find_segment(run), 0)
    opened = open_run(run)
    opened.events()
    assert opened.problems == []
    spool.rmdir()
    opened.events()
    assert len(opened.problems) == 1
    find_segment(run).write_bytes(content)
    opened.events()
    assert opened.problems == []


@pytest.mark.parametrize("has_counts", [True, False])
def test_segments_deleted_for_room_are_no_loss(tmp_path: Path, *, has_counts: bool) -> None:
    """A rank that keeps to its budget deletes its oldest calls."""
    budget = WriterBudget(max_bytes=4_000, max_calls_per_s=10**12, segment_bytes=CALL_BYTES)
    writer = make_rank(tmp_path, budget=budget)
    for step in range(NUM_STEPS, 10 * NUM_STEPS):
        issue(writer, NUM_CALLS)
        add_step(writer, step)
        writer.flush()
    writer.close("finished")
    if not has_counts:
        forget_counts(tmp_path)
    num_left, problems = look(tmp_path)
    assert 0 < num_left < 9 * NUM_STEPS * NUM_CALLS
    assert [problem for problem in problems if problem.startswith("calls")] == []


def test_a_disk_that_is_full_for_a_while_costs_no_record_that_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records of earlier steps stay in the segment that another write did not fit into."""
    writer = make_rank(tmp_path)
    writer.flush()
    with monkeypatch.context() as patch:
        patch.setattr(AppendFile, "append", lambda *_: False)
        issue(writer, NUM_CALLS)
        add_step(writer, NUM_STEPS)
        writer.flush()
    writer.close("finished")
    assert look(tmp_path) == (NUM_RECORDS, [])


def test_doctor_tells_of_lost_calls(tmp_path: Path) -> None:
    """A whole recording has nothing missing; where its segment is cut, all of its calls are told as lost."""
    run = tmp_path / "run"
    make_rank(run).close("finished")
    told = f"0 of {NUM_RECORDS} records of calls are left"
    assert told not in CliRunner().invoke(doctor, [str(run), "--json"]).stdout
    os.truncate(find_segment(run), 0)
    assert told in CliRunner().invoke(doctor, [str(run), "--json"]).stdout


@pytest.mark.parametrize("gap", [False, True])
def test_calls_beyond_the_budget_of_who_published_them_are_told_as_that(tmp_path: Path, *, gap: bool) -> None:
    """A budget has room for the newest three segments of a rank: so it is told, but not where one between is gone."""
    spool, run = tmp_path / "spool", tmp_path / "run"
    writer = make_rank(spool, budget=WriterBudget(max_calls_per_s=10**12, segment_bytes=CALL_BYTES))
    for step in range(NUM_STEPS, NUM_STEPS + 7):
        writer.flush()
        issue(writer, NUM_CALLS)
        add_step(writer, step)
    writer.close("finished")
    of_rank = NUM_RECORDS + 7 * NUM_CALLS
    num_bytes = 3 * (SEGMENT_HEADER_BYTES + NUM_CALLS * CALL_BYTES)
    assert Publisher(spool, run, max_run_bytes=num_bytes * 4 // 3 + 4).publish_last()
    segments = sorted((paths.rank_folder(run, 0, 0) / paths.CALLS_FOLDER).iterdir())
    assert len(segments) == 3
    if gap:
        segments[1].unlink()
    num_left = (2 if gap else 3) * NUM_CALLS
    why = "segments are cut or gone"
    if not gap:
        why = "the oldest are gone, which a budget (--max-run-bytes) below that of its rank takes away"
    assert look(run) == (
        num_left, [f"calls: {num_left} of {of_rank} records of calls are left that its rank wrote: {why}"]
    )  # fmt: skip
