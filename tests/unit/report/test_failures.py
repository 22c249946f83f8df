"""Exceptions that ended a run: the first is named, the others follow, and whatever they say moves no cursor."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import polars as pl
import pytest
from click.testing import CliRunner

from scope.analysis.recorded import RunState, describe_failures, find_failures
from scope.cli.doctor import doctor
from scope.cli.runs import runs
from scope.cli.show import show
from scope.frames.schema import Events
from scope.run import paths
from scope.run.schema import SCHEMA_VERSION, EventRecord, RankInfo, RunInfo

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


def test_a_rank_that_was_killed_leads_and_not_its_victims(tmp_path: Path) -> None:
    """Rank 1 has no end on record and no sign of life since 2001; rank 0 raised when its connection broke."""
    folder = tmp_path / "a"
    write_run(folder, {0: (14, "RuntimeError: Connection reset by peer")})
    killed = RankInfo(schema=SCHEMA_VERSION, run_id="auto", attempt=0, rank=1, started_ns=10**18, host="h", pid=1)
    (paths.rank_folder(folder, 0, 1) / paths.RANK_FILE).write_bytes(msgspec.json.encode(killed))
    lines = CliRunner().invoke(show, [str(folder)]).output.splitlines()
    assert lines[1:3] == [
        "  rank 1 ended without a goodbye before others raised",
        "  rank 0 raised RuntimeError: Connection reset by peer in step 9",
    ]


@pytest.mark.parametrize(
    ("reason", "word"),
    [
        ("finished", "finished"),
        ("terminated by signal 15", "killed"),
        ("interrupted", "interrupted"),
        ("exception", "crashed"),
    ],
)
def test_each_way_to_end_has_its_word(tmp_path: Path, reason: str, word: str) -> None:
    """The list of runs tells them apart."""
    write_run(tmp_path / "a", {}, reason=reason)
    assert f"  {word}  " in CliRunner().invoke(runs, ["list", str(tmp_path)]).output


def test_a_rank_that_raised_tells_more_than_ranks_that_fell_silent() -> None:
    """The launcher kills the others: the run crashed, and did not merely end without a goodbye."""
    silent = RunState(standing="ended without a goodbye", last_step_ns=None, last_sign_ns=1, open_ranks=(0,))
    assert silent.outcome == "ended without a goodbye"
    crashed = RunState(
        standing="ended without a goodbye", last_step_ns=None, last_sign_ns=1, exit_reasons=("exception",)
    )
    assert crashed.outcome == "crashed"


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
