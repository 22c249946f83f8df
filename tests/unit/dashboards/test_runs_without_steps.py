"""Runs with little to show: nothing was recorded, an attempt that has just begun, stages that nobody can compare."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

from scope.run.endings import record_nothing
from scope.testing.layout import Layout
from scope.testing.runs import SyntheticRun

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from streamlit.testing.v1 import AppTest


def said(app: AppTest) -> str:
    """Return all sentences of a page."""
    assert not app.exception
    return "\n".join(str(each.value) for each in (*app.info, *app.caption, *app.markdown, *app.success, *app.error))


def test_a_command_that_recorded_nothing_is_told_with_its_end(tmp_path: Path, open_app: Callable[..., AppTest]) -> None:
    """In place of a wait for ranks that never come."""
    run = tmp_path / "nothing"
    run.mkdir()
    (run / "run.json").write_text(json.dumps({"schema": "1.0", "run_id": "nothing", "started_ns": 1}))
    assert "No rank has begun to record yet" in said(open_app("overview", run))
    assert record_nothing(run, 3, host="node7")
    words = said(open_app("overview", run))
    assert "Nothing was recorded: the command on node7 ended with exit code 3" in words
    assert "No rank has begun" not in words


def test_an_attempt_that_has_just_begun_does_not_hang(run_folder: Path, open_app: Callable[..., AppTest]) -> None:
    """The steps of the attempt before ended long ago; the new one has been there for a moment, and says so."""
    first = run_folder / "attempt-000" / "ranks" / "00000" / "rank.json"
    info = json.loads(first.read_text()) | {"attempt": 1, "started_ns": time.time_ns()}
    del info["ended_ns"]
    folder = run_folder / "attempt-001" / "ranks" / "00000"
    folder.mkdir(parents=True)
    (folder / "rank.json").write_text(json.dumps(info))
    words = said(open_app("overview", run_folder))
    assert "running; no step of attempt 1 has ended yet; the last of the attempts before ended" in words
    assert "NO STEP" not in words


def test_stages_without_replicas_are_not_called_fine(tmp_path: Path, open_app: Callable[..., AppTest]) -> None:
    """Each rank of the pipeline is alone at its place, so nobody is said to work as long as its peers."""
    SyntheticRun(layout=Layout(pp=2), num_steps=20).write(tmp_path / "pipeline")
    words = said(open_app("ranks", tmp_path / "pipeline"))
    assert "Ranks are not compared: each is alone at its place of the device mesh" in words
    assert "No rank works notably longer" not in words
