"""However a job is started it does the same with and without recording, and all of it that trains is recorded."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("torch")

from scope.run import paths
from scope.run.reader import read_rank_info, read_steps

if TYPE_CHECKING:
    from conftest import Recording

JOBS = Path(__file__).parent / "started_jobs.py"
WRITTEN = ("rank0", "rank1", "before", "after")


def test_a_script_that_launches_ranks_and_then_a_program_that_becomes_another(
    recording: Recording, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Exit code, output and parameters are those of the job alone; launcher and tool are no attempts."""
    script = recording.folder / "train.sh"
    tool = f'"{sys.executable}" -c "import torch"'
    script.write_text(
        f'#!/bin/sh\n{tool}\n"{sys.executable}" "{JOBS}" launch && "{sys.executable}" "{JOBS}" again\nexit $?\n'
    )
    script.chmod(0o755)
    alone = tmp_path_factory.mktemp("alone")
    plain = subprocess.run(
        [script], cwd=alone, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False,
        timeout=200,
    )  # fmt: skip
    process = recording.start("sh", "-c", f'cd "{recording.folder}" && "{script}"')
    with recording.end_afterwards(process):
        output, said = process.communicate(timeout=200)
    own = [line for line in said.splitlines() if line.startswith("scope: ")]
    assert (process.returncode, output) == (plain.returncode, plain.stdout)
    assert [line for line in said.splitlines() if line not in own] == plain.stderr.splitlines()
    assert (process.returncode, len(own)) == (7, 1)
    for name in WRITTEN:
        assert (recording.folder / name).read_text() == (alone / name).read_text()
    places = [
        (attempt, rank)
        for attempt in paths.list_attempts(recording.run)
        for rank in paths.list_ranks(recording.run, attempt)
    ]
    assert places == [(0, 0), (0, 1), (1, 0), (2, 0)]
    for attempt, rank in places:
        folder = recording.rank(rank, attempt)
        assert len(read_steps(folder)) == 5
        assert read_rank_info(folder).exit_reason == ("exited with code 7" if attempt == 2 else "finished")
        assert read_rank_info(folder).world_size == (1 if attempt else 2)


def check_two_ranks(recording: Recording) -> None:
    """Both ranks are there, in one attempt, with all that they did."""
    assert paths.list_attempts(recording.run) == [0]
    assert paths.list_ranks(recording.run, 0) == [0, 1]
    for number in range(2):
        info = read_rank_info(recording.rank(number))
        assert (info.rank, info.world_size, info.exit_reason) == (number, 2, "finished")
        assert len(read_steps(recording.rank(number))) == 5


def test_tasks_of_slurm_are_ranks_of_one_run(recording: Recording) -> None:
    """`srun scope run`: one `scope run` a task, which Slurm alone has numbered (the variables of Slurm 22.05)."""
    processes = [
        recording.start(
            "sh", "-c", f'cd "{recording.folder}" && exec "{sys.executable}" "{JOBS}" task',
            SLURM_JOB_ID="7", SLURM_STEP_ID="0", SLURM_NTASKS="2", SLURM_STEP_NUM_TASKS="2",
            SLURM_PROCID=str(number), SLURM_LOCALID=str(number),
        )
        for number in range(2)
    ]  # fmt: skip
    for process in processes:
        with recording.end_afterwards(process):
            said = process.communicate(timeout=200)[1]
        assert (process.returncode, "1 rank was recorded" in said) == (0, True), said
    check_two_ranks(recording)
    assert [read_rank_info(recording.rank(number)).local_rank for number in range(2)] == [0, 1]


def test_processes_that_know_their_number_on_the_node_are_recorded(recording: Recording) -> None:
    """As Lightning starts them: the second is no rank before it joins the process group of the first."""
    said = recording.finish("sh", "-c", f'cd "{recording.folder}" && "{sys.executable}" "{JOBS}" numbered')
    assert "2 ranks were recorded" in said
    check_two_ranks(recording)


def test_what_a_command_leaves_in_the_background_is_recorded(recording: Recording) -> None:
    """It has not imported torch when the command ends, and `scope run`, which says so, does not wait for it."""
    program = f'cd "{recording.folder}" && "{sys.executable}" "{JOBS}" after'
    said = recording.finish("sh", "-c", f"(sleep 2; {program}) > /dev/null 2>&1 &")
    assert said.startswith("scope: no rank has begun yet; what the command left in the background is recorded in ")
    rank = recording.rank() / paths.RANK_FILE
    recording.wait_until(lambda: rank.exists() and read_rank_info(rank.parent).ended_ns)
    assert len(read_steps(rank.parent)) == 5
    recording.wait_until(lambda: not list(recording.spools.iterdir()))


def test_a_program_that_trains_in_another_thread_is_told_of_it(recording: Recording) -> None:
    """No step is seen of a thread that did not import torch, and that is said instead of other reasons."""
    program = (
        "import threading, torch\n"
        "def train():\n"
        "    optimizer = torch.optim.SGD([weight := torch.ones(2, requires_grad=True)], lr=0.1)\n"
        "    weight.sum().backward()\n"
        "    optimizer.step()\n"
        "thread = threading.Thread(target=train)\n"
        "thread.start()\n"
        "thread.join()\n"
    )
    said = recording.finish(sys.executable, "-c", program)
    assert "scope: no step was seen: training ran in another thread than the one that imported torch" in said
    assert "os.fork()" not in said
    assert "another thread" in read_rank_info(recording.rank()).absent["steps"]


def test_a_program_that_trains_in_a_forked_child_is_told_of_it(recording: Recording) -> None:
    """No step is seen of what `os.fork()` makes after torch was imported, and that is said."""
    program = (
        "import os, torch\n"
        "if os.fork(): os.wait()\n"
        "else:\n"
        "    optimizer = torch.optim.SGD([weight := torch.ones(2, requires_grad=True)], lr=0.1)\n"
        "    weight.sum().backward()\n"
        "    optimizer.step()\n"
    )
    said = recording.finish(sys.executable, "-c", program)
    assert "scope: no step was seen: " in said
    assert "os.fork()" in said
