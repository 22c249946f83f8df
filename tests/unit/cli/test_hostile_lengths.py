"""Names without an end and with control characters, in every place of a run: no command prints them as they are."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

from scope.run import paths

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Done

S = 1_000_000_000
BEGAN = 1_700_000_000 * S
ACTS = "\x1b]0;title\x07[/b]"
LONG = ACTS + "A" * 300_000
MANY = ACTS + "b " * 150_000
"""As long, of words that are short by themselves."""


def write_run(folder: Path) -> Path:
    """Write a run of two ranks in which whatever may be a name is one of these."""
    folder.mkdir()
    info = {"schema": "1.0", "run_id": LONG, "started_ns": BEGAN, "world_size": 2, "tags": {LONG: MANY}}
    (folder / paths.RUN_FILE).write_text(json.dumps(info))
    group = {"group": 0, "name": LONG, "ranks": [0, 1], "backend": LONG, "mesh_axis": LONG, "description": LONG}
    total = {"group": 0, "operation": "all_reduce", "num_calls": 1, "in_bytes": 10, "out_bytes": 10}
    for rank in range(2):
        own = paths.rank_folder(folder, 0, rank)
        own.mkdir(parents=True)
        known = {"schema": "1.0", "run_id": LONG, "attempt": 0, "rank": rank, "started_ns": BEGAN, "host": LONG}
        known |= {"pid": 1, "world_size": 2, "ended_ns": BEGAN + 9 * S, "exit_reason": MANY, "script": LONG}
        known |= {"groups": [group], "absent": {"steps": LONG}, "flops": {"absent": {"mfu": MANY}}}
        (own / paths.RANK_FILE).write_text(json.dumps(known))
        step = {
            "kind": "step",
            "step": 0,
            "start_ns": BEGAN,
            "end_ns": BEGAN + S,
            "phases": {LONG: S // 2, MANY: S // 2},
        }
        (own / paths.STEPS_FILE).write_text(json.dumps(step | {"collectives": [total]}) + "\n")
        events = [
            {"time_ns": BEGAN + S, "kind": kind, "message": LONG, "step": 0, "phase": LONG}
            for kind in ("exception", "warning")
        ]
        (own / paths.EVENTS_FILE).write_text("".join(json.dumps(event) + "\n" for event in events))
    verdict = {"time_ns": BEGAN, "attempt": 0, "kind": LONG, "severity": "critical", "summary": MANY, "ranks": [0]}
    (folder / paths.VERDICTS_FILE).write_text(json.dumps(verdict | {"group": LONG, "action": LONG}) + "\n")
    (folder / paths.RUN_FILE).with_name("attempt-001").symlink_to(folder)
    return folder


@pytest.mark.parametrize(
    "command", [("show",), ("watch", "--once"), ("doctor",), ("runs", "list"), ("runs", "tag")], ids=" ".join
)
def test_no_command_prints_a_name_without_an_end(
    tmp_path: Path, scope: Callable[..., Done], command: tuple[str, ...]
) -> None:
    """No character acts, no line is longer than a screen or six, and what was cut is said."""
    run = write_run(tmp_path / "run")
    done = scope(*command, run, *(["a=1"] if command == ("runs", "tag") else []))
    said = done.out + done.err
    assert r"\x1b]0;title\x07" in done.out
    assert "characters left out]" in done.out
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", said)
    assert max(map(len, said.splitlines())) < 30_000


def test_json_holds_names_whole(tmp_path: Path, scope: Callable[..., Done]) -> None:
    """A program that reads the document gets what stands in the files."""
    told = json.loads(scope("show", write_run(tmp_path / "run"), "--json").out)
    assert told["run_id"] == LONG
    assert set(told["custom_phases_ns"]) == {LONG, MANY}
