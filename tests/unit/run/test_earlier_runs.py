"""A launch into a run directory that holds a run already says so, and whether that run goes on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from scope.run import paths
from scope.run.alive import read_start_ticks
from scope.run.earlier import claim_run, describe_earlier
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


def test_launches_at_once_get_a_folder_each_and_leave_none_behind(tmp_path: Path) -> None:
    """The second and third are told where they are recorded; a name that is there already is nobody's to take."""
    run = tmp_path / "first"
    (tmp_path / "first-2").write_text("of somebody else")
    with claim_run(run) as first, claim_run(run) as second, claim_run(tmp_path / "x" / ".." / "first") as third:
        assert (first, second.run, third.run) == ((run, None), tmp_path / "first-3", tmp_path / "first-4")
        said = f"{run} is recorded by another launch that goes on: this one is recorded in {second.run}"
        assert second.message == said
        (second.run / paths.RUN_FILE).write_text("{}")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["first-2", "first-3"]
    assert [path.name for path in second.run.iterdir()] == [paths.RUN_FILE]


def test_a_launch_goes_on_with_the_run_once_the_other_is_over(tmp_path: Path) -> None:
    """Its launcher was killed in the middle, and its ranks have ended: what it held is free at once."""
    program = (
        "import os, pathlib, sys\nfrom scope.run.earlier import claim_run\n"
        "with claim_run(pathlib.Path(sys.argv[1])):\n    print(flush=True)\n    os.kill(os.getpid(), 9)\n"
    )
    killed = subprocess.run([sys.executable, "-c", program, tmp_path / "r"], capture_output=True, check=False)
    assert (killed.returncode, killed.stdout) == (-9, b"\n")
    write_rank(tmp_path / "r", 0, ended_ns=NOW - S)
    with claim_run(tmp_path / "r") as claim:
        assert claim.run == tmp_path / "r"
        assert claim.message is not None
        assert "becomes attempt 3 of it" in claim.message


def test_a_rank_whose_launcher_is_gone_keeps_its_folder(tmp_path: Path) -> None:
    """It lives on this host and has not ended; what cannot be known is no hindrance."""
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    own = {"pid": os.getpid(), "process_start_ticks": read_start_ticks(os.getpid()), "boot_id": boot_id}
    write_rank(tmp_path / "r", 0, **own)
    with claim_run(tmp_path / "r") as claim:
        assert claim.run == tmp_path / "r-2"
    write_rank(tmp_path / "elsewhere", 0)
    with claim_run(tmp_path / "elsewhere") as claim:
        assert claim.run == tmp_path / "elsewhere"


def test_a_folder_that_cannot_be_written_is_nobodys() -> None:
    """The launch goes on with it, as it would have, and its end says what could not be published."""
    with claim_run(Path("/proc/nowhere")) as claim:
        assert claim == (Path("/proc/nowhere"), None)
