"""File systems that are full, read-only, missing or silent: the job ends as ever, and what was recorded is read.

Each stands in a mount namespace of its own, of which nothing is left.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("torch")

from scope.run import paths
from scope.run.blackbox import read_black_box
from scope.run.reader import RankReader, read_steps

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Recording

HERE = Path(__file__).parent
STEPS = 30
MOUNTS = {
    "no_shared_memory": """
        mkdir dev && mount -t tmpfs none dev
        for each in null zero random urandom; do touch dev/$each; mount --bind /dev/$each dev/$each; done
        mount --rbind dev /dev""",
    "full_memory": "mkdir spool && mount -t tmpfs -o size=4k none spool && ! cat /dev/zero > spool/fill",
    "little_memory": "mkdir spool && mount -t tmpfs -o size=160k none spool",
    "full_run_directory": "mkdir run && mount -t tmpfs -o size=64k none run",
    "read_only_run_directory": "mkdir run && mount --bind run run && mount -o remount,ro,bind run",
    "run_directory_that_hangs": "mkdir run",
}
LEAVES_THE_SPOOL = ("full_run_directory", "read_only_run_directory", "run_directory_that_hangs")


@dataclass(frozen=True)
class Outcome:
    """How a job ended, and where its record may be."""

    recording: Recording
    returncode: int
    output: str
    said: str

    def rank(self) -> Path:
        """The folder of its rank: in the run directory, else in a spool in the test's folder."""
        published = self.recording.rank()
        found = [published] if published.is_dir() else [*self.recording.folder.glob("*/**/attempt-000/ranks/00000")]
        assert found, self.said
        return found[0]


def run_in(kind: str, recording: Recording) -> Outcome:
    """Run the job beside one kind of file system."""
    folder = recording.folder
    (folder / "tmp").mkdir(parents=True)
    last = [sys.executable, str(HERE / "hanging_mount.py"), "run", "--"] if kind == "run_directory_that_hangs" else []
    # What stays when the namespace goes is copied: the run directory of some is a mount.
    shell = f'cd {folder} && {{ {MOUNTS[kind]}; }} && "$@"; code=$?; [ -d spool ] && cp -r spool left; exit $code'
    own = {"SCOPE_REGISTRY": str(folder / "registry"), "OMP_NUM_THREADS": "1", "JOB_PAUSE": "0.05"}
    own |= {"TMPDIR": str(folder / "tmp")} | ({} if kind == "no_shared_memory" else {"SCOPE_SPOOL": "spool"})
    record = (sys.executable, "-m", "scope", "run", "--run-dir", "run", "--")
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", shell, "sh", *last, *record, *recording.alone],
        env={**os.environ, **own},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return Outcome(recording, done.returncode, done.stdout, done.stderr)


def stop_the_publisher(recording: Recording) -> Outcome:
    """Run the job while the process that publishes it is stopped."""
    recording.folder.mkdir()
    process = recording.start(*recording.alone, JOB_PAUSE="0.05")
    publishers: list[int] = []
    with recording.end_afterwards(process):
        try:
            # Before a rank has written anything, which takes the import of torch.
            recording.wait_until(lambda: recording.find_children(process.pid, "scope.run.publish"))
            publishers += recording.find_children(process.pid, "scope.run.publish")
            for pid in publishers:
                os.kill(pid, signal.SIGSTOP)
            output, said = process.communicate(timeout=200)
        finally:
            for pid in publishers:
                os.kill(pid, signal.SIGKILL)
    return Outcome(recording, process.returncode, output, said)


def may_mount() -> bool:
    """Whether this container lets us make mount namespaces and mounts in them."""
    command = ["unshare", "--mount", "sh", "-c", "mount -t tmpfs none /mnt"]
    return shutil.which("unshare") is not None and subprocess.run(command, capture_output=True).returncode == 0


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory, new_recording: type[Recording]) -> dict[str, Outcome]:
    """Every job, run once; some at a time, for two of them wait 20 s for somebody who does not answer."""
    folder = tmp_path_factory.mktemp("storage")
    jobs: dict[str, Callable[[Recording], Outcome]] = {"stopped_publisher": stop_the_publisher}
    if may_mount():
        kinds = [kind for kind in reversed(MOUNTS) if "hangs" not in kind or os.access("/dev/fuse", os.W_OK)]
        jobs |= {kind: partial(run_in, kind) for kind in kinds}
    with ThreadPoolExecutor(3) as pool:
        return dict(zip(jobs, pool.map(lambda kind: jobs[kind](new_recording(folder / kind)), jobs), strict=True))


def outcome_of(outcomes: dict[str, Outcome], kind: str) -> Outcome:
    """One of the jobs; skips where it could not be run."""
    if kind not in outcomes:
        pytest.skip("needs the right to mount file systems, and /dev/fuse for the one that hangs")
    return outcomes[kind]


@pytest.mark.parametrize("kind", [*MOUNTS, "stopped_publisher"])
def test_the_job_ends_as_ever(outcomes: dict[str, Outcome], kind: str) -> None:
    """Exit code and output are those of a job whose record found room, and no error is a traceback."""
    outcome = outcome_of(outcomes, kind)
    assert outcome.returncode == 0, outcome.said
    assert float(outcome.output)
    assert outcome.output == outcomes["stopped_publisher"].output
    assert "Traceback" not in outcome.said
    assert outcome.said.splitlines()[-1].startswith("scope: ")


@pytest.mark.parametrize("kind", [*LEAVES_THE_SPOOL, "stopped_publisher", "no_shared_memory", "full_memory"])
def test_the_whole_record_is_somewhere(outcomes: dict[str, Outcome], kind: str) -> None:
    """All steps are in the run directory, or in the spool, which is said."""
    outcome = outcome_of(outcomes, kind)
    left = kind in (*LEAVES_THE_SPOOL, "stopped_publisher")
    assert ("not all of it could be published" in outcome.said) == left
    assert outcome.recording.rank().is_dir() != left
    assert [step.step for step in read_steps(outcome.rank())] == list(range(STEPS))
    assert read_black_box(outcome.rank() / paths.BLACK_BOX_FILE).closed
    assert RankReader(outcome.rank()).info().exit_reason == "finished"


def test_memory_that_runs_full_costs_records_only(outcomes: dict[str, Outcome]) -> None:
    """Where memory has too little room the black box, allocated whole or not at all, raises no SIGBUS."""
    outcome = outcome_of(outcomes, "little_memory")
    assert RankReader(outcome.rank()).info().rank == 0
    assert [step.step for step in read_steps(outcome.rank())] == list(range(STEPS))
