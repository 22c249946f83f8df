"""What ended a run: the first exception or exit code is named, others follow, and whatever they say moves no cursor."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec
import polars as pl
import pytest
from click.testing import CliRunner
from made_boxes import state

from scope.analysis.recorded import RunState, describe_failures, find_failures
from scope.cli.doctor import doctor
from scope.cli.runs import runs
from scope.cli.show import show
from scope.cli.watch import watch
from scope.frames import Run
from scope.frames.schema import Events
from scope.report.standing import standing_words
from scope.run import paths
from scope.run.goodbyes import AFTER_UPDATE, EXIT_CODE, RAISED_EXIT
from scope.run.schema import SCHEMA_VERSION, Detail, EventRecord, GroupInfo, RankInfo, RunInfo

if TYPE_CHECKING:
    from pathlib import Path

S = 1_000_000_000
BEGAN = 1_800_000_000 * S


def write_run(folder: Path, raised: dict[int, tuple[int, str]], *, reason: str = "exception") -> None:
    """Write a run of two ranks that ended for a reason, some with an exception: (second, message) by rank."""
    folder.mkdir(parents=True)
    info = RunInfo(schema=SCHEMA_VERSION, run_id="auto", started_ns=BEGAN, world_size=2)
    (folder / paths.RUN_FILE).write_bytes(msgspec.json.encode(info))
    for rank in range(2):
        own = paths.rank_folder(folder, 0, rank)
        own.mkdir(parents=True)
        known = RankInfo(
            schema=SCHEMA_VERSION, run_id="auto", attempt=0, rank=rank, started_ns=BEGAN, host="h", pid=1,
            ended_ns=BEGAN + 60 * S, exit_reason=reason,
        )  # fmt: skip
        (own / paths.RANK_FILE).write_bytes(msgspec.json.encode(known))
        if rank in raised:
            second, message = raised[rank]
            event = EventRecord(time_ns=BEGAN + second * S, kind="exception", message=message, step=9)
            (own / paths.EVENTS_FILE).write_bytes(msgspec.json.encode(event) + b"\n")


def test_the_first_exception_by_instant_is_the_cause_everywhere(tmp_path: Path) -> None:
    """Rank 0 follows rank 1 by 4 s: show and doctor name rank 1, type and message; the list says that it crashed."""
    folder = tmp_path / "a"
    write_run(folder, {0: (14, "RuntimeError: Connection closed by peer"), 1: (10, "ValueError: bad \x1b[31m4711")})
    sentence = r"rank 1 raised ValueError: bad \x1b[31m4711 in step 9; rank 0 followed 4.0 s later"
    shown = CliRunner().invoke(show, [str(folder)]).output
    assert sentence in shown
    done = CliRunner().invoke(doctor, [str(folder)])
    checked = done.output
    assert done.exit_code == 1
    assert f"CRITICAL {sentence}" in checked
    assert "Nothing is wrong" not in checked
    assert "  crashed  " in CliRunner().invoke(runs, ["list", str(tmp_path)]).output


def test_an_exception_after_an_update_is_in_no_step_for_certain(tmp_path: Path) -> None:
    """The step had its update: whether the program was at its end or in the next one nobody knows, and that is said."""
    folder = tmp_path / "a"
    write_run(folder, {1: (10, "RuntimeError: loss is nan")})
    path = paths.rank_folder(folder, 0, 1) / paths.EVENTS_FILE
    event = msgspec.json.decode(path.read_bytes(), type=EventRecord)
    path.write_bytes(msgspec.json.encode(msgspec.structs.replace(event, detail={AFTER_UPDATE: True})) + b"\n")
    shown = CliRunner().invoke(show, [str(folder)]).output
    assert "  rank 1 raised RuntimeError: loss is nan after the update of step 9\n" in shown


def test_a_rank_that_was_killed_leads_and_not_its_victims(tmp_path: Path) -> None:
    """Rank 1 has no end on record and no sign of life since 2001; rank 0 raised when its connection broke."""
    folder = tmp_path / "a"
    write_run(folder, {0: (14, "RuntimeError: Connection reset by peer")})
    killed = RankInfo(schema=SCHEMA_VERSION, run_id="auto", attempt=0, rank=1, started_ns=10**18, host="h", pid=1)
    (paths.rank_folder(folder, 0, 1) / paths.RANK_FILE).write_bytes(msgspec.json.encode(killed))
    lines = CliRunner().invoke(show, [str(folder)]).output.splitlines()
    assert lines[1:3] == [
        "  rank 1 was killed or aborted before others raised an exception",
        "  rank 0 raised RuntimeError: Connection reset by peer in step 9",
    ]


def test_a_mismatch_leads_and_not_the_rank_that_it_aborted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks issued as many calls, but other ones, then rank 0 raised and rank 1 was aborted: show and doctor agree."""
    folder = tmp_path / "a"
    write_run(folder, {0: (14, "RuntimeError: Connection reset by peer")})
    groups = (GroupInfo(group=0, name="0", ranks=(0, 1)),)
    for rank in range(2):
        path = paths.rank_folder(folder, 0, rank) / paths.RANK_FILE
        changes = {"groups": groups} | ({"ended_ns": None, "exit_reason": None, "started_ns": 10**18} if rank else {})
        known = msgspec.json.decode(path.read_bytes(), type=RankInfo)
        path.write_bytes(msgspec.json.encode(msgspec.structs.replace(known, **changes)))
    boxes = {rank: state(rank, {0: (7, rank)}) for rank in range(2)}
    monkeypatch.setattr(Run, "black_boxes", lambda _, **__: boxes)
    mismatch = (
        "ranks 0-1 issued different collectives in call 7 of group default_pg or before: "
        "rank 0 all_reduce (float32), rank 1 all_reduce (float32)"
    )
    killed = "rank 1 was killed or aborted before others raised an exception"
    raised = "rank 0 raised RuntimeError: Connection reset by peer in step 9"
    lines = CliRunner().invoke(show, [str(folder)]).output.splitlines()
    assert lines[1:4] == [f"  {mismatch}", f"  {killed}", f"  {raised}"]
    lines = CliRunner().invoke(doctor, [str(folder)]).output.splitlines()
    found = [line.removeprefix("CRITICAL ").rpartition("  [")[0] for line in lines if line.startswith("CRITICAL ")]
    assert found == [mismatch, killed, raised]
    events = "attempt-000/ranks/00000/events.jsonl"
    assert f"         do: Read its last output, and {events} in the run directory." in lines


@pytest.mark.parametrize(
    ("reason", "word"),
    [
        ("finished", "finished"),
        ("terminated by signal 15", "killed"),
        ("interrupted", "interrupted"),
        ("exception", "crashed"),
        ("exited with code 3", "failed"),
    ],
)
def test_each_way_to_end_has_its_word(tmp_path: Path, reason: str, word: str) -> None:
    """The list of runs tells them apart."""
    write_run(tmp_path / "a", {}, reason=reason)
    assert f"  {word}  " in CliRunner().invoke(runs, ["list", str(tmp_path)]).output


@pytest.mark.parametrize(
    ("returncode", "reason", "word", "line"),
    [
        (0, "finished", "finished", "finished at"),
        (3, "finished", "failed", "failed (the command exited with code 3) at"),
        (-9, "finished", "killed", "killed (the command was ended by signal 9 (SIGKILL)) at"),
        (1, "exception", "crashed", "crashed (exception) at"),
        (-9, "exception", "crashed", "crashed (exception, the command was ended by signal 9 (SIGKILL)) at"),
        (130, "interrupted", "interrupted", "interrupted at"),
    ],
)
def test_how_the_command_ended_is_told_where_ranks_do_not(
    tmp_path: Path, returncode: int, reason: str, word: str, line: str
) -> None:
    """Ranks whose parent was killed may end in order; an exit code of a launcher adds nothing to what its ranks say."""
    write_run(tmp_path / "a", {}, reason=reason)
    for rank in range(2):
        path = paths.rank_folder(tmp_path / "a", 0, rank) / paths.RANK_FILE
        known = msgspec.json.decode(path.read_bytes(), type=RankInfo)
        path.write_bytes(msgspec.json.encode(msgspec.structs.replace(known, command_returncode=returncode)))
    assert f"  {word}  " in CliRunner().invoke(runs, ["list", str(tmp_path)]).output
    assert CliRunner().invoke(show, [str(tmp_path / "a")]).output.startswith(f"run auto: {line} ")
    assert CliRunner().invoke(watch, ["--once", str(tmp_path / "a")]).output.splitlines()[-1].startswith(line)


@pytest.mark.parametrize(
    ("returncode", "is_told"),
    [(0, False), (3, True), (-9, True), (-15, False), (-2, False), (143, False), (124, False)],
)
def test_a_command_that_fails_though_its_ranks_end_in_order_is_a_finding(
    tmp_path: Path, returncode: int, *, is_told: bool
) -> None:
    """What people and schedulers end jobs with is none."""
    write_run(tmp_path / "a", {}, reason="finished")
    for rank in range(2):
        path = paths.rank_folder(tmp_path / "a", 0, rank) / paths.RANK_FILE
        known = msgspec.json.decode(path.read_bytes(), type=RankInfo)
        path.write_bytes(msgspec.json.encode(msgspec.structs.replace(known, command_returncode=returncode)))
    done = CliRunner().invoke(watch, ["--once", str(tmp_path / "a")])
    assert done.exit_code == is_told
    ended = {3: "the command exited with code 3", -9: "the command was ended by signal 9 (SIGKILL)"}
    expected = f"critical crash: {ended.get(returncode)}, though its ranks ended in order."
    assert done.output.startswith(expected) == is_told
    assert ("CRITICAL" in CliRunner().invoke(doctor, [str(tmp_path / "a")]).output) == is_told


def test_a_command_that_fails_while_a_rank_may_have_is_a_finding_of_that_rank(tmp_path: Path) -> None:
    """Rank 1 raised SystemExit by itself: that may be why the command failed, which is then not said to be in order."""
    write_run(tmp_path / "a", {}, reason="finished")
    for rank, absent in enumerate(({}, {EXIT_CODE: RAISED_EXIT})):
        path = paths.rank_folder(tmp_path / "a", 0, rank) / paths.RANK_FILE
        known = msgspec.json.decode(path.read_bytes(), type=RankInfo)
        path.write_bytes(msgspec.json.encode(msgspec.structs.replace(known, command_returncode=1, absent=absent)))
    done = CliRunner().invoke(watch, ["--once", str(tmp_path / "a")])
    expected = "the command exited with code 1; the exit code of rank 1 is not known: it raised SystemExit."
    assert done.output.startswith(f"critical crash: {expected}")


def test_an_exit_after_an_update_is_in_no_step_for_certain(tmp_path: Path) -> None:
    """As an exception there: all updates of the program may be complete."""
    folder = tmp_path / "a"
    write_run(folder, {}, reason="exited with code 3")
    details: tuple[dict[str, Detail], ...] = ({AFTER_UPDATE: True}, {})
    for rank, detail in enumerate(details):
        end = EventRecord(time_ns=BEGAN, kind="attempt_end", message="recording ended: ", step=9, detail=detail)
        path = paths.rank_folder(folder, 0, rank) / paths.EVENTS_FILE
        path.write_bytes(msgspec.json.encode(end) + b"\n")
    shown = CliRunner().invoke(show, [str(folder)]).output
    assert "  rank 0 exited with code 3 after the update of step 9; rank 1 followed 0.0 s later\n" in shown


def test_a_rank_that_ended_in_order_before_others_raised_is_told(tmp_path: Path) -> None:
    """Rank 1 was at the end of its data at second 5, and rank 0, left alone, raised 9 s later: both are told."""
    folder = tmp_path / "a"
    write_run(folder, {0: (14, "RuntimeError: Connection closed by peer")})
    own = paths.rank_folder(folder, 0, 1) / paths.RANK_FILE
    known = msgspec.json.decode(own.read_bytes(), type=RankInfo)
    own.write_bytes(msgspec.json.encode(msgspec.structs.replace(known, exit_reason="finished", ended_ns=BEGAN + 5 * S)))
    sentence = (
        "rank 0 raised RuntimeError: Connection closed by peer in step 9 (rank 1 had ended in order 9.0 s before)"
    )
    assert f"\n  {sentence}\n" in CliRunner().invoke(show, [str(folder)]).output


def test_a_rank_that_exits_with_a_code_is_the_cause_of_what_follows(tmp_path: Path) -> None:
    """Rank 1 exits with code 3 at second 5 of step 4, and rank 0 raises 9 s later: that is one crash, told once."""
    folder = tmp_path / "a"
    write_run(folder, {0: (14, "RuntimeError: Connection closed by peer")})
    own = paths.rank_folder(folder, 0, 1)
    known = msgspec.json.decode((own / paths.RANK_FILE).read_bytes(), type=RankInfo)
    exited = msgspec.structs.replace(known, exit_reason="exited with code 3", ended_ns=BEGAN + 5 * S)
    (own / paths.RANK_FILE).write_bytes(msgspec.json.encode(exited))
    event = EventRecord(
        time_ns=BEGAN + 5 * S, kind="attempt_end", message="recording ended: exited with code 3", step=4
    )
    (own / paths.EVENTS_FILE).write_bytes(msgspec.json.encode(event) + b"\n")
    sentence = "rank 1 exited with code 3 in step 4; rank 0 followed 9.0 s later"
    shown = CliRunner().invoke(show, [str(folder)]).output
    assert shown.count("exited with code 3 in step") == shown.count(f"\n  {sentence}\n") == 1
    done = CliRunner().invoke(watch, ["--once", str(folder)])
    assert done.exit_code == 1
    assert done.output.startswith(f"critical crash: {sentence}.")


def test_a_rank_that_raised_tells_more_than_ranks_that_fell_silent() -> None:
    """The launcher kills the others: the run crashed, and did not merely end without a goodbye."""
    silent = RunState(standing="ended without a goodbye", last_step_ns=None, last_sign_ns=1, open_ranks=(0,))
    assert silent.outcome == "ended without a goodbye"
    crashed = RunState(
        standing="ended without a goodbye", last_step_ns=None, last_sign_ns=1, exit_reasons=("exception",)
    )
    assert crashed.outcome == "crashed"
    failed = RunState(
        standing="ended without a goodbye", last_step_ns=None, last_sign_ns=S, exit_reasons=("exited with code 3",)
    )
    assert failed.outcome == "failed"
    words = standing_words(replace(failed, command_returncodes=(1,)), now_ns=9 * S)
    assert words == (
        "failed, and some ranks ended without a goodbye at 1970-01-01 00:00:01 UTC (last sign of life); "
        "the command exited with code 1; no step has ended yet"
    )


def test_what_was_asked_for_is_no_failure_and_what_is_long_is_cut() -> None:
    """Ctrl-C is none, another attempt neither; of 500 characters 200 remain."""
    rows = [
        {"attempt": attempt, "rank": rank, "time_ns": rank, "kind": "exception", "message": message, "detail": "{}"}
        for attempt, rank, message in ((0, 0, "KeyboardInterrupt: "), (1, 2, "E: x"), (0, 3, "E: " + "y" * 497))
    ]
    events = pl.DataFrame(rows, schema=Events.schema())
    (only,) = find_failures(events, attempt=0)
    assert only.rank == 3
    assert describe_failures([only]) == f"rank 3 raised E: {'y' * 196}…"
    assert describe_failures([]) is None
