"""Which ranks of a spool still live, from made-up and real /proc entries."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from scope.run import paths
from scope.run.alive import has_living_rank, read_start_ticks
from scope.run.schema import SCHEMA_VERSION, RankInfo

if TYPE_CHECKING:
    from pathlib import Path


def write_rank(spool: Path, *, attempt: int = 0, rank: int = 0, **facts: Any) -> None:
    """Write the `rank.json` of a rank."""
    known = {"schema": SCHEMA_VERSION, "run_id": "r", "attempt": attempt, "rank": rank, "started_ns": 1, "host": "h"}
    folder = paths.rank_folder(spool, attempt, rank)
    folder.mkdir(parents=True)
    info = msgspec.convert({**known, "pid": 40, "process_start_ticks": 77, "anchors": [], **facts}, RankInfo)
    (folder / paths.RANK_FILE).write_bytes(msgspec.json.encode(info))


def write_process(proc: Path, *, state: str = "S", ticks: int = 77) -> None:
    """Write the `stat` of process 40, whose name is as nasty as names may be."""
    (proc / "40").mkdir(parents=True)
    fields = [state, "1", *["0"] * 17, str(ticks), "0"]
    (proc / "40" / "stat").write_text(f"40 (a ) b (c) {' '.join(fields)}\n")


@pytest.mark.parametrize(
    ("state", "ticks", "facts", "lives"),
    [
        pytest.param("S", 77, {}, True, id="running"),
        pytest.param("Z", 77, {}, False, id="dead-but-not-reaped"),
        pytest.param("S", 78, {}, False, id="another-process-with-its-pid"),
        pytest.param("S", 77, {"ended_ns": 5}, False, id="closed-in-order"),
        pytest.param("S", 77, {"process_start_ticks": None}, False, id="start-unknown"),
    ],
)
def test_a_rank_lives(tmp_path: Path, state: str, ticks: int, facts: dict[str, Any], lives: bool) -> None:
    """A rank lives while the process with its pid and start is there and has not closed its recording."""
    write_process(tmp_path / "proc", state=state, ticks=ticks)
    write_rank(tmp_path / "spool", **facts)
    assert has_living_rank(tmp_path / "spool", proc=tmp_path / "proc") is lives


def test_only_the_last_attempt_counts_and_torn_files_do_not(tmp_path: Path) -> None:
    """Ranks of earlier attempts are not asked, nor is a rank whose file is torn or missing."""
    write_process(tmp_path / "proc")
    write_rank(tmp_path / "spool", attempt=0)
    assert has_living_rank(tmp_path / "spool", proc=tmp_path / "proc")
    write_rank(tmp_path / "spool", attempt=1, pid=41)
    (paths.rank_folder(tmp_path / "spool", 1, 1)).mkdir()
    torn = paths.rank_folder(tmp_path / "spool", 1, 2)
    torn.mkdir()
    (torn / paths.RANK_FILE).write_text("{")
    assert not has_living_rank(tmp_path / "spool", proc=tmp_path / "proc")
    assert not has_living_rank(tmp_path / "nothing", proc=tmp_path / "proc")


def test_start_of_real_processes() -> None:
    """This process has a start; one that has ended and was not reaped has none."""
    assert read_start_ticks(os.getpid())
    child = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert read_start_ticks(child.pid) is None
    child.wait()
