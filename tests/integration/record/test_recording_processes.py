"""`scope run` on real processes: truth of the phases, faults, endings; training goes on or ends as without Scope."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("torch")

from scope.run import paths
from scope.run.blackbox import read_black_box
from scope.run.listing import list_runs
from scope.run.reader import RankReader, RunReader, read_steps

if TYPE_CHECKING:
    from scope.run.calls import CallRecord
    from scope.run.schema import StepRecord

JOBS = Path(__file__).parent / "training_jobs.py"
RECORD = (sys.executable, "-m", "scope", "run")
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone")


def environment(folder: Path, **more: str) -> dict[str, str]:
    """The environment of a job whose spool and registry lie in the test's folder."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SCOPE_")}
    own = {"SCOPE_SPOOL": str(folder / "spool"), "SCOPE_REGISTRY": str(folder / "registry"), "OMP_NUM_THREADS": "1"}
    return {**kept, **own, "JOB_FOLDER": str(folder), **more}


def run(folder: Path, *command: str, options: tuple[str, ...] = (), **more: str) -> subprocess.CompletedProcess[str]:
    """Run a command under `scope run`, its run directory `folder/run`."""
    full = [*RECORD, "--run-dir", str(folder / "run"), *options, "--", *command]
    return subprocess.run(
        full, env=environment(folder, **more), capture_output=True, text=True, timeout=120, check=False
    )


def rank_folder(folder: Path, rank: int = 0, attempt: int = 0) -> Path:
    """The folder of a rank in the run directory."""
    return paths.rank_folder(folder / "run", attempt, rank)


@pytest.fixture(scope="module")
def truth(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recorded job of two ranks with planted pauses, run once for all its tests."""
    folder = tmp_path_factory.mktemp("truth")
    done = run(
        folder, *TORCHRUN, "--nproc-per-node", "2", str(JOBS), "truth", JOB_CHECKPOINT=str(folder / "checkpoint.pt")
    )
    assert done.returncode == 0, done.stderr
    return folder


def median_ms(steps: list[StepRecord], phase: str) -> float:
    """Median of a phase in milliseconds over the usual steps."""
    usual = [step.phases.get(phase, 0) / 1e6 for step in steps if step.step not in (0, 3, 5)]
    return sorted(usual)[len(usual) // 2]


def test_planted_pauses_stand_in_their_phase_and_rank(truth: Path) -> None:
    """Each pause shows in the phase and rank in which it was planted and not in the other rank's."""
    steps = [read_steps(rank_folder(truth, rank)) for rank in (0, 1)]
    assert [len(each) for each in steps] == [12, 12]
    for each in steps:
        assert all(sum(step.phases.values()) == step.end_ns - step.start_ns for step in each)
    # At least what was planted, and more than the other rank's by most of it: a busy machine delays both alike.
    for phase, rank, planted_ms in (("input", 0, 20), ("forward", 1, 50), ("optimizer", 1, 30), ("backward", 1, 70)):
        assert median_ms(steps[rank], phase) >= planted_ms
        if phase != "backward":  # rank 0's holds its wait for rank 1
            assert median_ms(steps[rank], phase) - median_ms(steps[1 - rank], phase) > 0.6 * planted_ms
    blamed = [sum(median_ms(each, phase) for phase in ("forward", "optimizer")) for each in steps]
    assert blamed[1] - blamed[0] > 0.6 * 80


def test_the_other_rank_waits(truth: Path) -> None:
    """Rank 0 is blocked for about what rank 1 takes longer; its step is as long as rank 1's."""
    steps = [read_steps(rank_folder(truth, rank)) for rank in (0, 1)]
    waits = sorted((step.communication_wait_ns or 0) / 1e6 for step in steps[0][1:])
    assert waits[len(waits) // 2] > 80
    length = [sorted(step.end_ns - step.start_ns for step in each)[6] for each in steps]
    assert 0.8 < length[0] / length[1] < 1.25


def test_a_late_collective_names_itself_its_rank_and_the_wait(truth: Path) -> None:
    """Of three all-reduces that follow a barrier one is late on rank 1, by a second; rank 0 is blocked in that one."""
    calls = [{call.in_bytes: call for call in calls_of(rank_folder(truth, rank))} for rank in (0, 1)]
    lateness = [calls[1][4 * floats].issued_ns - calls[0][4 * floats].issued_ns for floats in (3, 5, 7)]
    blocked = [[(each[4 * floats].blocked_ns or 0) / 1e6 for floats in (3, 5, 7)] for each in calls]
    # A sleep is at least as long as it is asked to be; that rank 0 may be late itself, by less, is the rest.
    assert lateness[1] > 500e6 > max(abs(lateness[0]), abs(lateness[2]))
    assert blocked[0][1] > 500 > max(blocked[0][0], blocked[0][2], *blocked[1])
    for each in calls:
        assert [each[4 * floats].operation for floats in (3, 5, 7)] == ["all_reduce"] * 3
        assert len({each[4 * floats].step for floats in (3, 5, 7)}) == 1
    # Completion of a call is after its last arrival, on both ranks.
    arrived = max(each[20].issued_ns for each in calls)
    assert all((each[20].completed_ns or 0) > arrived for each in calls)


def calls_of(rank: Path) -> list[CallRecord]:
    """The calls of the last step that was recorded."""
    calls = RankReader(rank).new_calls()
    last = max(call.step or 0 for call in calls)
    return [call for call in calls if call.step == last]


def test_checkpoint_and_evaluation_of_the_job(truth: Path) -> None:
    """The checkpoint stands in step 3 of rank 0 with its bytes; the evaluation, its forked workers too, in step 5."""
    steps = read_steps(rank_folder(truth, 0))
    assert [step.step for step in steps if "checkpoint" in step.phases] == [3]
    assert [step.step for step in steps if step.phases.get("evaluation", 0)] == [5]
    assert steps[5].phases["evaluation"] >= 40e6
    (event,) = [event for event in RankReader(rank_folder(truth)).new_events() if event.kind == "checkpoint"]
    assert event.detail["bytes"] == (truth / "checkpoint.pt").stat().st_size > 1_000_000
    assert {step.input_bytes for step in steps} == {4 * 64 * 4}


def test_facts_of_the_ranks(truth: Path) -> None:
    """Each rank says who it is, its group and its ending; the spool is gone once everything was published."""
    for rank in (0, 1):
        info = RankReader(rank_folder(truth, rank)).info()
        assert (info.rank, info.local_rank, info.world_size, info.attempt) == (rank, rank, 2, 0)
        assert info.groups[0].ranks == (0, 1)
        assert info.groups[0].backend == "gloo"
        assert info.environment["OMP_NUM_THREADS"] == "1"
        assert info.script == "training_jobs.py"
        assert info.exit_reason == "finished"
        assert info.device is not None
        assert info.device.kind == "cpu"
        assert info.flops is not None
        assert info.flops.peak_source == "measured matrix product"
    assert RunReader(truth / "run").info().run_id
    assert list((truth / "spool").iterdir()) == []


def test_python_m_and_a_chained_sitecustomize(tmp_path: Path) -> None:
    """`python -m` is recorded, and the user's own sitecustomize still runs."""
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "sitecustomize.py").write_text("import builtins; builtins.USERS_OWN = 41\n")
    (tmp_path / "own" / "job.py").write_text(
        "import sys, training_jobs\n"
        "training_jobs.alone(3)\n"
        "print(USERS_OWN + 1, sys.modules['sitecustomize'].__file__)\n"
    )
    path = f"{tmp_path / 'own'}{os.pathsep}{JOBS.parent}"
    done = run(tmp_path, sys.executable, "-m", "job", PYTHONPATH=path)
    assert done.returncode == 0, done.stderr
    assert f"42 {tmp_path / 'own' / 'sitecustomize.py'}" in done.stdout
    assert len(read_steps(rank_folder(tmp_path))) == 3


def test_nothing_to_record_is_said(tmp_path: Path) -> None:
    """A command without torch runs as ever, and one line says that nothing was recorded."""
    done = run(tmp_path, sys.executable, "-c", "print(5)")
    assert (done.returncode, done.stdout) == (0, "5\n")
    assert "nothing was recorded" in done.stderr
    (entry,), _ = list_runs(tmp_path)
    assert entry.unrecorded is not None
    assert entry.unrecorded.startswith(
        f"the command on {socket.gethostname()} ended with exit code 0 before any process"
    )


def test_a_command_that_cannot_start(tmp_path: Path) -> None:
    """A command that does not exist, or is no program, is one line and the exit code of a shell, no traceback."""
    assert run(tmp_path, "/etc/passwd").returncode == 126
    done = run(tmp_path, "no-such-program-here")
    assert done.returncode == 127
    assert "cannot be started" in done.stderr
    (entry,), _ = list_runs(tmp_path)
    assert "ended with exit code 127 " in str(entry.unrecorded)


def test_a_run_without_ranks_that_is_run_again(tmp_path: Path) -> None:
    """While another command is on its way in the same run directory, nothing is said of the first; its rank stands."""
    assert run(tmp_path, sys.executable, "-c", "raise SystemExit(3)").returncode == 3
    (entry,), _ = list_runs(tmp_path)
    assert "ended with exit code 3 " in str(entry.unrecorded)
    watching = f"""
import json, time
began = time.monotonic()
while json.load(open({str(tmp_path / "run" / "run.json")!r})).get("unrecorded") is not None:
    assert time.monotonic() - began < 60
    time.sleep(0.05)
"""
    done = run(tmp_path, sys.executable, "-c", watching)
    assert done.returncode == 0, done.stderr
    assert run(tmp_path, sys.executable, str(JOBS), "alone").returncode == 0
    (entry,), _ = list_runs(tmp_path)
    assert (entry.unrecorded, entry.ranks) == (None, 1)
    assert "Traceback" not in done.stderr


def test_parameters_are_bit_identical_under_ddp_and_fsdp(tmp_path: Path) -> None:
    """Fifty steps on two ranks with DDP and with FSDP2 end in the same bits, recorded or not."""
    done = subprocess.run(
        [*TORCHRUN, "--nproc-per-node", "2", str(JOBS), "identical"],
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert [done.stdout.count(f"sharded={sharded} same=True") for sharded in (False, True)] == [2, 2]
    for sharded, operations in ((False, {"all_reduce"}), (True, {"all_gather", "reduce_scatter"})):
        for rank in (0, 1):
            steps = read_steps(paths.rank_folder(tmp_path / f"run-{sharded}", 0, rank))
            assert len(steps) == 50
            assert operations <= {total.operation for step in steps for total in step.collectives}


def test_a_spool_that_is_truncated_under_a_rank(tmp_path: Path) -> None:
    """Truncating every file of a live spool neither ends nor stalls the job, and its later steps are kept."""
    command = [*RECORD, "--run-dir", str(tmp_path / "run"), "--", sys.executable, str(JOBS), "alone"]
    process = subprocess.Popen(
        command, env=environment(tmp_path, JOB_PAUSE="0.2"), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 60
    spooled = "*/attempt-000/ranks/00000/"
    while not list((tmp_path / "spool").glob(spooled + "steps.jsonl")) and time.monotonic() < deadline:
        time.sleep(0.05)
    for file in (tmp_path / "spool").glob(spooled + "*"):
        if file.is_file():
            os.truncate(file, 0)
    time.sleep(1.5)
    (run_spool,) = (tmp_path / "spool").iterdir()
    assert read_black_box(paths.rank_folder(run_spool, 0, 0) / paths.BLACK_BOX_FILE).step is not None
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert len(output.split()) == 1
    assert read_steps(rank_folder(tmp_path))[-1].step == 29
