"""Hooks that raised are told by `scope show`: what they would have recorded is missing from its figures."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import polars as pl
from click.testing import CliRunner

from scope.cli.show import show
from scope.frames.schema import Events
from scope.report.switched_off import find_switched_off, switched_off_lines
from scope.run import paths

if TYPE_CHECKING:
    from pathlib import Path

S = 1_000_000_000
BEGAN = 1_700_000_000 * S


def test_a_hook_that_was_switched_off_is_told_once_with_its_ranks(tmp_path: Path) -> None:
    """Three of four ranks say the same of one hook, from step 5, 3 and 4 on: one line, from the first of these."""
    run = {"schema": "1.0", "run_id": "r", "started_ns": BEGAN, "world_size": 4}
    (tmp_path / paths.RUN_FILE).write_text(json.dumps(run))
    for rank, step in enumerate((5, 3, 4, None)):
        own = paths.rank_folder(tmp_path, 0, rank)
        own.mkdir(parents=True)
        info = {**run, "attempt": 0, "rank": rank, "host": "h", "pid": 1, "ended_ns": BEGAN + S}
        (own / paths.RANK_FILE).write_text(json.dumps({**info, "exit_reason": "finished"}))
        if step is not None:
            event = {"time_ns": BEGAN, "kind": "hook_disabled", "message": "c10d::x raised and was switched off: E"}
            event["detail"] = {"hook": "c10d::x"}
            (own / paths.EVENTS_FILE).write_text(json.dumps({**event, "step": step}) + "\n")
    said = CliRunner().invoke(show, [str(tmp_path)]).output
    line = "not recorded from step 3 on: collectives (ranks 0-2), since c10d::x raised and was switched off: E\n"
    assert said.count("c10d::x") == 1
    assert line in said
    found = json.loads(CliRunner().invoke(show, [str(tmp_path), "--json"]).output)["switched_off"]
    what = "c10d::x raised and was switched off: E"
    assert found == [{"hook": "c10d::x", "what": what, "num_reasons": 1, "ranks": [0, 1, 2], "step": 3}]


def _told(rank: int, hook: str, why: str, step: int | None) -> dict[str, Any]:
    message = f"{hook} raised and was switched off: {why}"
    known = {"attempt": 0, "time_ns": BEGAN, "kind": "hook_disabled", "phase": None, "duration_ns": None}
    return {**known, "rank": rank, "message": message, "step": step, "detail": json.dumps({"hook": hook})}


def test_a_hook_that_gives_each_rank_a_reason_of_its_own_is_one_line() -> None:
    """An address in it differs by rank; one that had no step yet lacks all of them; each line says what is missing."""
    told = [
        _told(0, "memory", "TypeError: <X at 0x7f01>", 4),
        _told(1, "memory", "TypeError: <X at 0x7f02>", None),
        _told(2, "memory", "TypeError: <X at 0x7f03>", 7),
        _told(2, "garbage collection", "TypeError: E", 9),
    ]
    events = pl.DataFrame(told, schema=Events.schema())
    assert [*switched_off_lines(find_switched_off(events, attempt=0))] == [
        "not recorded: memory (ranks 0-2), since memory raised and was switched off: TypeError: <X at 0x7f01> "
        "(and 2 other reasons)",
        "not recorded from step 9 on: pauses of the garbage collector (rank 2), since garbage collection raised and "
        "was switched off: TypeError: E",
    ]
