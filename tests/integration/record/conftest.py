"""How tests start jobs under `scope run`, and where they find what was recorded."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from scope.run import paths

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

JOBS = Path(__file__).parent / "training_jobs.py"
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone")


@dataclass(frozen=True)
class Recording:
    """A job's folder: spool, registry and run directory lie in it.

    Attributes:
        folder: The folder.
        name: The run directory in it.
    """

    folder: Path
    name: str = "run"

    @property
    def run(self) -> Path:
        """The run directory."""
        return self.folder / self.name

    @property
    def alone(self) -> tuple[str, ...]:
        """The command of the job `alone`."""
        return (sys.executable, str(JOBS), "alone")

    @property
    def spools(self) -> Path:
        """The folder of the spools."""
        return self.folder / "spool"

    def start(self, *command: str, options: tuple[str, ...] = (), **more: str) -> subprocess.Popen[str]:
        """Start a command under `scope run` and return at once."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("SCOPE_")}
        own = {"SCOPE_SPOOL": str(self.spools), "SCOPE_REGISTRY": str(self.folder / "registry")}
        return subprocess.Popen(
            [sys.executable, "-m", "scope", "run", "--run-dir", str(self.run), *options, "--", *command],
            env={**kept, **own, "OMP_NUM_THREADS": "1", "JOB_FOLDER": str(self.folder), **more},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def finish(self, *command: str, options: tuple[str, ...] = (), **more: str) -> str:
        """Run a command that has to succeed under `scope run`; return what it said on standard error."""
        process = self.start(*command, options=options, **more)
        with self.end_afterwards(process):
            _, said = process.communicate(timeout=200)
        assert process.returncode == 0, said
        return said

    def rank(self, rank: int = 0, attempt: int = 0) -> Path:
        """The folder of a rank in the run directory."""
        return paths.rank_folder(self.run, attempt, rank)

    def spooled(self, pattern: str) -> list[Path]:
        """Return files of ranks in the spools."""
        return sorted(self.spools.glob(f"*/attempt-*/ranks/*/{pattern}"))

    @staticmethod
    @contextlib.contextmanager
    def end_afterwards(process: subprocess.Popen[str]) -> Iterator[None]:
        """Leave nothing running of what a test has started, however the test ends."""
        try:
            yield
        finally:
            for pid in [*Recording.find_tree(process.pid), process.pid] if process.poll() is None else []:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.communicate()

    @staticmethod
    def find_tree(pid: int) -> list[int]:
        """Return the processes below one."""
        below: list[int] = []
        for child in Recording.find_children(pid, ""):
            below += [child, *Recording.find_tree(child)]
        return below

    @staticmethod
    def wait_until(condition: Callable[[], object], *, seconds: float = 90.0) -> None:
        """Wait until something holds, and fail where it does not in time."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, "waited in vain"
            time.sleep(0.05)

    @staticmethod
    def find_children(pid: int, word: str) -> list[int]:
        """Return the children of a process whose command line holds a word."""
        try:
            children = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
            return [child for child in children if word in Path(f"/proc/{child}/cmdline").read_text()]
        except FileNotFoundError:  # one has ended meanwhile
            return []


@pytest.fixture(scope="session")
def new_recording() -> type[Recording]:
    """What makes a job's folder out of a path."""
    return Recording


@pytest.fixture
def recording(tmp_path: Path) -> Recording:
    """A job's folder."""
    return Recording(tmp_path)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    """The job `checkpoints` on two ranks, with windows on anomaly by rank 1 alone, run once for all its tests."""
    recording = Recording(tmp_path_factory.mktemp("saved"))
    recording.finish(
        *TORCHRUN,
        *("--nproc-per-node", "2", str(JOBS), "checkpoints"),
        options=("--capture", "anomaly", "--capture-ranks", "1", "--capture-stack"),
        SCOPE_CAPTURE_BUDGET="1",
        SCOPE_CAPTURE_SHAPES="0",
        SCOPE_CAPTURE_STEPS="1",
    )
    return recording
