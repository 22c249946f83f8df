"""`launch` where ranks have no place to write to."""

from __future__ import annotations

import os
import signal
import tempfile
from pathlib import Path

import pytest

from scope.errors import RunError
from scope.run.launch import LaunchPlan, launch

NOWHERE = Path("/proc/nowhere")
"""Nobody can make a folder there, whatever rights he has."""


@pytest.fixture
def no_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, str]:
    """An environment in which neither memory nor disk takes a spool."""
    monkeypatch.setattr(tempfile, "tempdir", str(NOWHERE))
    monkeypatch.setenv("SCOPE_REGISTRY", str(tmp_path / "registry"))
    return {**os.environ, "SCOPE_SPOOL": str(NOWHERE)}


def test_a_command_runs_unrecorded_where_nothing_can_be_written(no_disk: dict[str, str], tmp_path: Path) -> None:
    """The command runs with its environment as it was and ends as it ends; why it is unrecorded is said."""
    shell = f'test -z "$SCOPE_RUN_ID" && test "$PYTHONPATH" = "{no_disk.get("PYTHONPATH", "")}" && kill -TERM $$'
    result = launch(LaunchPlan(command=["sh", "-c", shell], run_dir=tmp_path / "run"), no_disk)
    assert result.returncode == -signal.SIGTERM
    assert result.num_ranks == 0
    assert result.unrecorded is not None
    assert result.unrecorded.count("/proc/nowhere") == 2


def test_a_spool_that_was_asked_for_must_be_there(no_disk: dict[str, str], tmp_path: Path) -> None:
    """A folder that was named and cannot be made is a mistake, told before the command is started."""
    started = tmp_path / "started"
    plan = LaunchPlan(command=["touch", str(started)], run_dir=tmp_path / "run", spool=NOWHERE)
    with pytest.raises(RunError, match="name another folder with --spool"):
        launch(plan, no_disk)
    assert not started.exists()
