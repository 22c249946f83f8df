"""No launch takes the attempt of another, and all `scope run` of one launch take the same."""

from __future__ import annotations

import os
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import msgspec
import pytest

from scope.run import identity, launch, paths
from scope.run.attempts import Launch, ask_for_attempt, choose_attempt, describe_launch
from scope.run.removal import remove_run_files
from scope.run.schema import SCHEMA_VERSION, RankInfo

if TYPE_CHECKING:
    from pathlib import Path

ALONE = Launch(None, "task", has_peers=False)
UNNAMED = Launch(None, "task", has_peers=True)
STEP = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"}


def task(number: int, **more: str) -> Launch:
    """Return a task of a step of Slurm."""
    return describe_launch({**STEP, "SLURM_PROCID": str(number), **more}, ["python", "train.py"])


def publish(run: Path, attempt: int, *, host: str = "elsewhere", age_s: float = 0, ended: bool = False) -> None:
    """Write what a rank of an attempt has published."""
    folder = paths.rank_folder(run, attempt, 0)
    folder.mkdir(parents=True)
    began = time.time_ns() - int(age_s * 1e9)
    info = RankInfo(
        schema=SCHEMA_VERSION, run_id="r", attempt=attempt, rank=0, started_ns=began, host=host, pid=1,
        ended_ns=began + 1 if ended else None,
    )  # fmt: skip
    (folder / paths.RANK_FILE).write_bytes(msgspec.json.encode(info))
    os.utime(folder.parent, ns=(began, began))


def test_tasks_of_a_step_share_an_attempt_behind_those_that_were(tmp_path: Path) -> None:
    """Also one that comes when the others have published theirs; 32 at once do."""
    publish(tmp_path, 0)
    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(lambda number: choose_attempt(tmp_path, task(number)), range(32))) == {1}
    publish(tmp_path, 1)
    assert choose_attempt(tmp_path, task(32)) == 1


def test_another_launch_of_the_same_run_takes_the_next_attempt(tmp_path: Path) -> None:
    """Another step, the same job that Slurm has started again, and a task that runs `scope run` a second time."""
    assert [choose_attempt(tmp_path, task(number)) for number in (0, 1)] == [0, 0]
    publish(tmp_path, 0)
    assert choose_attempt(tmp_path, task(0, SLURM_STEP_ID="1")) == 1
    publish(tmp_path, 1)
    assert choose_attempt(tmp_path, task(0, SLURM_RESTART_COUNT="1")) == 2
    assert [choose_attempt(tmp_path, task(number)) for number in (0, 1)] == [1, 1]


def test_what_another_host_has_taken_is_none_of_a_launch(tmp_path: Path) -> None:
    """Though its name ends like that of the launch."""
    (tmp_path / f"{paths.RESERVATION}004-node-7-0-0").mkdir()
    assert choose_attempt(tmp_path, task(0)) == 0


def test_open_mpi_names_its_jobs(tmp_path: Path) -> None:
    """The variables of PMIx, which Open MPI and Slurm's plugin for it set."""
    ranks = [
        {"PMIX_NAMESPACE": "1905262593", "PMIX_RANK": str(number), "OMPI_COMM_WORLD_RANK": str(number)}
        for number in range(2)
    ]
    assert [choose_attempt(tmp_path, describe_launch(rank, [])) for rank in (*ranks, *ranks)] == [0, 0, 1, 1]


@pytest.mark.parametrize(
    ("published", "attempt"),
    [
        pytest.param({}, 3, id="a-moment-ago-elsewhere"),
        pytest.param({"host": socket.gethostname()}, 4, id="on-this-host"),
        pytest.param({"ended": True}, 4, id="that-has-ended"),
        pytest.param({"age_s": 3600}, 4, id="an-hour-ago"),
    ],
)
def test_nodes_without_a_common_name_join_what_has_just_begun(
    tmp_path: Path, published: dict[str, float], attempt: int
) -> None:
    """The attempt that is there is that of the other nodes, or an earlier one."""
    publish(tmp_path, 3, **published)  # pyright: ignore[reportArgumentType] - a table of keywords
    assert choose_attempt(tmp_path, UNNAMED) == attempt
    assert choose_attempt(tmp_path / "empty", UNNAMED) == 0


@pytest.mark.parametrize("launched", [ALONE, UNNAMED, task(0)])
def test_a_process_of_its_own_gives_the_same_answer(tmp_path: Path, launched: Launch) -> None:
    """It is asked where the run directory may hang."""
    for folder in ("one", "other"):
        publish(tmp_path / folder, 4, age_s=3600)
    assert ask_for_attempt(tmp_path / "one", launched, answer_s=60) == choose_attempt(tmp_path / "other", launched) == 5


def test_a_run_directory_that_hangs_holds_up_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No answer, or none that makes sense, is none."""
    for name, does in (("hangs", "exec sleep 600"), ("fails", "echo no; exit 1")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{does}\n")
        (tmp_path / name).chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(tmp_path / name))
        assert ask_for_attempt(tmp_path, ALONE, answer_s=0.2 if name == "hangs" else 60) is None


@pytest.mark.parametrize("answers", [True, False])
def test_launches_into_a_network_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answers: bool) -> None:
    """The second is told the attempt behind that of the first; where nothing answers that is said."""
    monkeypatch.setattr(paths, "is_network_path", lambda path: path == tmp_path / "run")  # pyright: ignore
    if not answers:
        monkeypatch.setattr(launch, "ask_for_attempt", lambda *_: None)
    said: list[str] = []
    own = {"SCOPE_SPOOL": str(tmp_path / "spool"), "SCOPE_REGISTRY": str(tmp_path / "registry")}
    own["SLURM_RESTART_COUNT"] = "2"
    for number in range(2):
        command = ["sh", "-c", f'echo "$SCOPE_FIRST_ATTEMPT" > "{tmp_path}/told{number}"']
        launch.launch(
            launch.LaunchPlan(command=command, run_dir=tmp_path / "run"), {**os.environ, **own}, tell=said.append
        )
        publish(tmp_path / "run", number)
    told = [(tmp_path / f"told{number}").read_text().strip() for number in range(2)]
    assert told == (["0", "1"] if answers else ["2", "2"])
    assert len([line for line in said if "does not answer: this launch is taken for attempt 2" in line]) == 2 * (
        not answers
    )


def test_what_took_an_attempt_is_deleted_with_the_run(tmp_path: Path) -> None:
    """And nothing else that somebody has laid there."""
    run = tmp_path / "run"
    run.mkdir()
    for launched in (ALONE, task(0), task(1)):
        choose_attempt(run, launched)
    kept = next(run.glob(f"{paths.RESERVATION}*-7-0-0"))
    (kept / "mine").write_text("")
    assert remove_run_files(run) == [kept.name]
    assert [path.name for path in kept.iterdir() if path.is_file()] == ["mine"]
    (kept / "mine").unlink()
    assert remove_run_files(run) == []
    assert not run.exists()


def test_restarts_that_slurm_counts_are_counted_once() -> None:
    """By the folder, where `scope run` has looked into it; by Slurm's number where nobody has."""
    restarted = {"SLURM_RESTART_COUNT": "2"}
    assert identity.read_attempt(restarted) == 2
    assert identity.read_attempt({**restarted, "SCOPE_FIRST_ATTEMPT": "3"}) == 3
    assert identity.read_attempt({**restarted, "SCOPE_FIRST_ATTEMPT": "3", "TORCHELASTIC_RESTART_COUNT": "1"}) == 4
