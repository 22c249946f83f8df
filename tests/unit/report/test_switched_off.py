"""Hooks that raised are told by `scope show`: what they would have recorded is missing from its figures."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from click.testing import CliRunner

from scope.cli.show import show
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
            (own / paths.EVENTS_FILE).write_text(json.dumps({**event, "step": step}) + "\n")
    said = CliRunner().invoke(show, [str(tmp_path)]).output
    line = "not recorded from step 3 on: c10d::x raised and was switched off: E (ranks 0-2)"
    assert said.count("c10d::x") == 1
    assert line in said
    found = json.loads(CliRunner().invoke(show, [str(tmp_path), "--json"]).output)["switched_off"]
    assert found == [{"what": "c10d::x raised and was switched off: E", "ranks": [0, 1, 2], "step": 3}]
