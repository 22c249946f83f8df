"""A launch into a run directory that holds a run already says so, and whether that run goes on."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from scope.run import paths
from scope.run.alive import read_start_ticks
from scope.run.earlier import describe_earlier
from scope.run.schema import SCHEMA_VERSION, RankInfo

S = 1_000_000_000
NOW = 1_000 * S


def write_rank(run: Path, rank: int, **facts: Any) -> None:
    """Write a rank of attempt 2."""
    folder = paths.rank_folder(run, 2, rank)
    folder.mkdir(parents=True)
    known: dict[str, Any] = {"started_ns": NOW - 60 * S, "host": "h", "pid": 1, **facts}
    info = RankInfo(schema=SCHEMA_VERSION, run_id="r", attempt=2, rank=rank, **known)
    (folder / paths.RANK_FILE).write_bytes(msgspec.json.encode(info))


def test_a_new_run_has_nothing_to_say(tmp_path: Path) -> None:
    """Neither a folder that is not there nor an empty one is an existing run."""
    assert describe_earlier(tmp_path / "none") is None
    assert describe_earlier(tmp_path) is None


@pytest.mark.parametrize(
    "facts", [pytest.param({"ended_ns": NOW - S}, id="ended"), pytest.param({}, id="silent for a minute elsewhere")]
)
def test_a_run_that_has_ended_gets_another_attempt(tmp_path: Path, facts: dict[str, Any]) -> None:
    """The number of the attempt is said, and how to choose another folder."""
    write_rank(tmp_path, 0, **facts)
    expected = f"{tmp_path} is an existing run: this becomes attempt 3 of it (--run-dir names another folder)"
    assert describe_earlier(tmp_path, now_ns=NOW) == expected


def test_ranks_that_still_train_are_counted(tmp_path: Path) -> None:
    """One lives on this host though it is silent, one of another host began 5 s ago, one has ended."""
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    own = {"pid": os.getpid(), "process_start_ticks": read_start_ticks(os.getpid()), "boot_id": boot_id}
    write_rank(tmp_path, 0, **own)
    write_rank(tmp_path, 1, started_ns=NOW - 5 * S)
    write_rank(tmp_path, 2, ended_ns=NOW - S)
    told = describe_earlier(tmp_path, now_ns=NOW)
    assert told is not None
    assert "becomes attempt 3 of it, though 2 ranks of attempt 2 seem to train still, and both then share" in told
