"""Where the ranks that a recorded program spawned stand: in its attempt, unless it trains itself."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from scope.errors import RunError
from scope.run import layout, paths
from scope.run.alive import read_start_ticks
from scope.run.blackbox import BlackBox, BlackBoxIdentity
from scope.run.schema import SCHEMA_VERSION, RankInfo
from scope.run.spawned import Spawned, claim_own_folder, claim_spawned_folder
from scope.run.writer import RankWriter

if TYPE_CHECKING:
    from pathlib import Path

PARENT = 99
"""The process that spawned the ranks; none of this host is asked whether it lives."""


def describe(attempt: int, rank: int, **changes: Any) -> RankInfo:
    """Return what a rank of two tells of itself, which is this process and lives."""
    info = RankInfo(
        schema=SCHEMA_VERSION, run_id="r", attempt=attempt, rank=rank, started_ns=1, host="h", pid=os.getpid(),
        process_start_ticks=read_start_ticks(os.getpid()), world_size=2,
    )  # fmt: skip
    return msgspec.structs.replace(info, **changes)


def write_rank(run: Path, attempt: int, rank: int, **changes: Any) -> Path:
    """Write a rank without a step; return its folder."""
    folder = paths.rank_folder(run, attempt, rank)
    folder.mkdir(parents=True)
    (folder / paths.RANK_FILE).write_bytes(msgspec.json.encode(describe(attempt, rank, **changes)))
    return folder


def write_parent(run: Path, *, num_steps: int = 0) -> Path:
    """Write the program itself, which has ended so many steps and begun one more."""
    folder = write_rank(run, 0, 0, pid=PARENT, world_size=1)
    identity = BlackBoxIdentity(rank=0, attempt=0, world_size=1, pid=PARENT, process_start_ticks=None, wall_offset_ns=0)
    box = BlackBox(folder / paths.BLACK_BOX_FILE, identity)
    box.write_state(layout.STATE.pack(num_steps, num_steps, 1, 1, 1, 0, 0, b"other"))
    box.close()
    return folder


def claim(run: Path, rank: int, *, world_size: int = 2) -> int:
    """Claim the folder of a rank; return its attempt."""
    who = Spawned(rank=rank, world_size=world_size, parent_pid=PARENT)
    attempt, folder = claim_spawned_folder(run, who, attempt=0)
    assert folder == paths.rank_folder(run, attempt, rank)
    assert list(folder.iterdir()) == []
    return attempt


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_ranks_join_the_attempt_of_a_program_without_a_step(tmp_path: Path, order: tuple[int, int]) -> None:
    """Whoever comes first: rank 0 takes the place of the program, whose own files go out of the attempt."""
    write_parent(tmp_path)
    assert [claim(tmp_path, rank) for rank in order] == [0, 0]
    assert paths.list_ranks(tmp_path, 0) == [0, 1]
    aside = paths.displaced_folder(paths.rank_folder(tmp_path, 0, 0), PARENT)
    assert (aside / paths.RANK_FILE).exists()


def test_ranks_of_a_program_that_trains_itself_are_the_next_attempt(tmp_path: Path) -> None:
    """All of them, rank 1 as well, though its place is free; a step is told by black box or by a line."""
    write_parent(tmp_path / "box", num_steps=1)
    (write_parent(tmp_path / "line") / paths.STEPS_FILE).write_text("{}\n")
    for name in ("box", "line"):
        assert [claim(tmp_path / name, rank) for rank in (1, 0)] == [1, 1]


def test_a_program_that_is_rank_0_of_its_own_group_keeps_its_place(tmp_path: Path) -> None:
    """It spawns rank 1 alone, which stands beside it."""
    folder = write_parent(tmp_path)
    assert claim(tmp_path, 1) == 0
    assert (folder / paths.RANK_FILE).exists()


@pytest.mark.parametrize(
    ("former", "attempt"),
    [
        pytest.param({}, 0, id="a living peer"),
        pytest.param({"ended_ns": 5}, 1, id="one that has ended"),
        pytest.param({"process_start_ticks": 0}, 1, id="one that was killed"),
        pytest.param({"world_size": 4}, 1, id="one of another group"),
    ],
)
def test_an_attempt_of_other_ranks_is_passed_over(tmp_path: Path, former: dict[str, Any], attempt: int) -> None:
    """Two groups one after the other are two attempts, also where the second is the larger one."""
    write_rank(tmp_path, 0, 0, **former)
    assert claim(tmp_path, 1) == attempt


def test_one_that_has_just_begun_is_a_peer(tmp_path: Path) -> None:
    """A folder without a `rank.json` is about to be written; its own rank is taken all the same."""
    paths.rank_folder(tmp_path, 0, 0).mkdir(parents=True)
    assert claim(tmp_path, 1) == 0
    assert claim(tmp_path, 0) == 1


def test_a_thousand_attempts_are_enough(tmp_path: Path) -> None:
    """Beyond them it is said what to do."""
    for attempt in range(1000):
        paths.rank_folder(tmp_path, attempt, 0).mkdir(parents=True)
    with pytest.raises(RunError, match="name another run id"):
        claim(tmp_path, 0)


@pytest.mark.parametrize(
    ("former", "attempt"),
    [
        pytest.param({}, 0, id="a tool"),
        pytest.param({"exit_reason": "exception"}, 1, id="one that failed"),
        pytest.param({"exit_reason": None, "ended_ns": None}, 1, id="one that is at work, or was killed"),
        pytest.param({"world_size": 2}, 1, id="a rank"),
        pytest.param({"absent": {"steps": "no optimizer of torch"}}, 1, id="a loop whose steps could not be told"),
    ],
)
def test_a_program_takes_the_place_of_a_tool_alone(tmp_path: Path, former: dict[str, Any], attempt: int) -> None:
    """What merely imported torch before, and ended well, is no attempt; whatever may have trained is."""
    write_rank(tmp_path, 0, 0, **{"ended_ns": 5, "exit_reason": "finished", "world_size": 1, "pid": 7, **former})
    assert claim_own_folder(tmp_path, attempt=0, rank=None) == (attempt, paths.rank_folder(tmp_path, attempt, 0))
    assert len(list(paths.attempt_folder(tmp_path, 0).glob("ranks/.00000-*"))) == (attempt == 0)
    assert not paths.displaced_folder(paths.rank_folder(tmp_path, 0, 0), 7).exists()


@pytest.mark.parametrize(("num_steps", "attempt"), [(0, 0), (1, 1)])
def test_a_rank_that_becomes_another_program_keeps_its_place_unless_it_trained(
    tmp_path: Path, num_steps: int, attempt: int
) -> None:
    """It has the same process id and start, beside other ranks as well; another process of that id has not."""
    for rank in (0, 1):
        folder = write_rank(tmp_path, 0, rank, exit_reason="finished", ended_ns=5)
        (folder / paths.STEPS_FILE).write_text("{}\n" * num_steps)
    assert claim_own_folder(tmp_path, attempt=0, rank=1)[0] == attempt
    writer = RankWriter(paths.rank_folder(tmp_path, attempt, 1), describe(attempt, 1))
    writer.close("finished")
    assert not writer.is_displaced
    write_rank(tmp_path, 5, 1, process_start_ticks=1)
    assert claim_own_folder(tmp_path, attempt=5, rank=1)[0] == 6


def test_a_program_is_an_attempt_beside_one_that_has_made_steps(tmp_path: Path) -> None:
    """By black box or by a line, and beside further ranks, also where all ended well."""
    ended: dict[str, Any] = {"ended_ns": 5, "exit_reason": "finished", "world_size": 1, "pid": 7}
    (write_rank(tmp_path / "line", 0, 0, **ended) / paths.STEPS_FILE).write_text("{}\n")
    write_rank(tmp_path / "two", 0, 0, **ended)
    write_rank(tmp_path / "two", 0, 1, **ended)
    for name in ("line", "two"):
        assert claim_own_folder(tmp_path / name, attempt=0, rank=None)[0] == 1


def test_a_displaced_writer_writes_nothing_into_the_place_that_it_lost(tmp_path: Path) -> None:
    """Neither at a pulse nor at its end; what it wrote before stands where it was put."""
    folder = paths.rank_folder(tmp_path, 0, 0)
    folder.mkdir(parents=True)
    writer = RankWriter(folder, describe(0, 0, world_size=1))
    writer.update_info(script="before")
    writer.flush()
    who = Spawned(rank=0, world_size=2, parent_pid=os.getpid())
    assert claim_spawned_folder(tmp_path, who, attempt=0) == (0, folder)
    writer.update_info(script="after")
    writer.add_event("warning", "after")
    writer.flush()
    assert writer.is_displaced
    writer.close("finished")
    assert list(folder.iterdir()) == []
    aside = paths.displaced_folder(folder, os.getpid())
    assert b'"before"' in (aside / paths.RANK_FILE).read_bytes()
