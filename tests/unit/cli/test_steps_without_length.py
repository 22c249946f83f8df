"""A run whose clock stood still: all of its steps begin and end at one instant."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from scope.run import paths

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Done

S = 1_000_000_000
BEGAN = 1_700_000_000 * S


def test_a_run_whose_steps_have_no_length_has_no_speed(tmp_path: Path, scope: Callable[..., Done]) -> None:
    """Nothing is divided by the sum of five lengths of 0: what is not known is absent, with the reason."""
    own = paths.rank_folder(tmp_path, 0, 0)
    own.mkdir(parents=True)
    run = {"schema": "1.0", "run_id": "r", "started_ns": BEGAN, "world_size": 1}
    (tmp_path / paths.RUN_FILE).write_text(json.dumps(run))
    rank = {**run, "attempt": 0, "rank": 0, "host": "h", "pid": 1, "ended_ns": BEGAN + S, "exit_reason": "finished"}
    (own / paths.RANK_FILE).write_text(json.dumps(rank))
    step = {"kind": "step", "start_ns": BEGAN, "end_ns": BEGAN, "phases": {}}
    (own / paths.STEPS_FILE).write_text("".join(json.dumps({**step, "step": number}) + "\n" for number in range(5)))
    reason = "the newest steps have a length of 0"
    shown = scope("show", tmp_path)
    assert (shown.code, reason in shown.out) == (0, True)
    speed = json.loads(scope("show", tmp_path, "--json").out)["summary"]["speed"]
    assert speed["steps_per_s"] is None
    assert speed["absent"]["steps_per_s"].startswith(reason)
    assert scope("watch", tmp_path, "--once").code == 0
