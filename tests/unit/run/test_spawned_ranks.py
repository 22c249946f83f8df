"""A program that only spawned its ranks is no attempt of its own; every other attempt without a step is one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from scope.frames import open_run
from scope.run import layout, paths
from scope.run.blackbox import BlackBox, BlackBoxIdentity
from scope.run.listing import list_runs
from scope.run.reader import RunReader
from scope.run.schema import SCHEMA_VERSION, RankInfo, RunInfo, StepRecord

if TYPE_CHECKING:
    from pathlib import Path

S = 1_000_000_000
BEGAN = 1_700_000_000 * S


def write_rank(run: Path, attempt: int, rank: int, *, num_steps: int = 0, **changes: Any) -> Path:
    """Write a rank of one launch with so many steps of a second; return its folder."""
    folder = paths.rank_folder(run, attempt, rank)
    folder.mkdir(parents=True)
    info = RankInfo(
        schema=SCHEMA_VERSION, run_id="r", attempt=attempt, rank=rank, started_ns=BEGAN, host="h", pid=100 + rank,
        boot_id="b", world_size=2, spool=f"/dev/shm/s/r-1/attempt-{attempt:03d}/ranks/{rank:05d}",
    )  # fmt: skip
    (folder / paths.RANK_FILE).write_bytes(msgspec.json.encode(msgspec.structs.replace(info, **changes)))
    steps = (
        StepRecord(step=step, start_ns=BEGAN + step * S, end_ns=BEGAN + (step + 1) * S, phases={"other": S})
        for step in range(num_steps)
    )
    (folder / paths.STEPS_FILE).write_bytes(b"".join(msgspec.json.encode(step) + b"\n" for step in steps))
    return folder


def write_run(run: Path, **parent: Any) -> Path:
    """Write a parent, changed as asked for, and two ranks that began 10 s after it, while it lived."""
    run.mkdir()
    known = RunInfo(schema=SCHEMA_VERSION, run_id="r", started_ns=BEGAN)
    (run / paths.RUN_FILE).write_bytes(msgspec.json.encode(known))
    facts: dict[str, Any] = {"world_size": 1, "pid": 99, "ended_ns": BEGAN + 30 * S, "exit_reason": "finished"}
    write_rank(run, 0, 0, **{**facts, **parent})
    for rank in range(2):
        write_rank(run, 1, rank, num_steps=3, started_ns=BEGAN + 10 * S)
    return run


def test_a_program_that_only_spawned_its_ranks_is_no_attempt(tmp_path: Path) -> None:
    """The list counts one attempt, and tables hold its two ranks alone."""
    (tmp_path / "runs").mkdir()
    run = write_run(tmp_path / "runs" / "a")
    assert RunReader(run).attempts() == [1]
    (entry,) = list_runs(tmp_path / "runs")[0]
    assert (entry.attempts, entry.ranks) == (1, 2)
    assert [(info.attempt, info.rank) for info in open_run(run).rank_infos] == [(1, 0), (1, 1)]


@pytest.mark.parametrize(
    "parent",
    [
        pytest.param({"num_steps": 1}, id="it made a step"),
        pytest.param({"ended_ns": BEGAN + 10 * S}, id="it had ended: a restart"),
        pytest.param({"ended_ns": None}, id="nobody knows how long it lived"),
        pytest.param({"world_size": 2}, id="a rank of more"),
        pytest.param({"boot_id": "c"}, id="another host"),
        pytest.param({"spool": "/dev/shm/s/r-2/attempt-000/ranks/00000"}, id="another launch of the run directory"),
        pytest.param({"spool": None}, id="no spool is known"),
    ],
)
def test_every_other_attempt_without_a_step_is_one(tmp_path: Path, parent: dict[str, Any]) -> None:
    """Ranks that failed before their first step, and another launch, are attempts."""
    assert RunReader(write_run(tmp_path / "run", **parent)).attempts() == [0, 1]


def test_a_parent_that_lives_is_known_by_its_heart(tmp_path: Path) -> None:
    """Its last beat, 5 s before its ranks began, does not tell; one after does, to a reader that follows the run."""
    run = write_run(tmp_path / "run", ended_ns=None, exit_reason=None)
    identity = BlackBoxIdentity(rank=0, attempt=0, world_size=1, pid=99, process_start_ticks=None, wall_offset_ns=0)
    box = BlackBox(paths.rank_folder(run, 0, 0) / paths.BLACK_BOX_FILE, identity)
    reader = RunReader(run)
    for second, attempts in ((5, [0, 1]), (11, [1])):
        beat_ns = BEGAN + second * S
        box.write_state(layout.STATE.pack(0, 0, beat_ns, beat_ns, beat_ns, 0, 0, b"startup"))
        assert reader.attempts() == attempts
    box.close()


def test_an_attempt_of_two_ranks_and_one_that_cannot_be_read_stay(tmp_path: Path) -> None:
    """Two ranks are no parent; what is torn is for whoever reads it to be told of."""
    run = write_run(tmp_path / "run")
    torn = paths.rank_folder(run, 0, 0) / paths.RANK_FILE
    torn.write_bytes(b"{")
    assert RunReader(run).attempts() == [0, 1]
    write_rank(run, 0, 1)
    assert RunReader(run).attempts() == [0, 1]
