"""Which processes `scope run` records: ranks and the direct child; never launchers or workers."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import scope

if TYPE_CHECKING:
    from types import ModuleType

FILE = Path(scope.__file__).parent / "record" / "launcher" / "sitecustomize.py"
RUN = {"SCOPE_RUN_ID": "r", "SCOPE_PARENT_PID": "10"}
FORK_SERVER = "from multiprocessing.forkserver import main"
RANK = {**RUN, "RANK": "1", "WORLD_SIZE": "2"}
STARTED = {**RANK, "SCOPE_RECORDING_PID": "7", "SCOPE_SPAWN_ATTEMPT": "0"}


@pytest.fixture(scope="module")
def launcher() -> ModuleType:
    """The launcher's module; outside `scope run` it changes nothing."""
    before = list(sys.meta_path)
    spec = importlib.util.spec_from_file_location("scope_launcher_under_test", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert sys.meta_path == before
    return module


@pytest.mark.parametrize(
    ("environment", "arguments", "direct", "recorded"),
    [
        pytest.param({}, ["python", "train.py"], True, False, id="outside"),
        pytest.param(RUN, ["python", "train.py"], True, True, id="direct-child"),
        pytest.param(RUN, ["python", "-m", "package.train"], True, True, id="direct-child-module"),
        pytest.param(RUN, ["python", "tool.py"], False, False, id="some-other-child"),
        pytest.param(RUN, ["python", "/bin/torchrun", "train.py"], True, False, id="torchrun"),
        pytest.param(RUN, ["python", "-m", "torch.distributed.run", "train.py"], True, False, id="module-launcher"),
        pytest.param(RUN, ["python", "/bin/accelerate", "launch", "train.py"], True, False, id="accelerate"),
        pytest.param(RANK, ["python", "-u", "train.py"], False, True, id="rank"),
        pytest.param({**RANK, "SCOPE_RECORDING_PID": "7"}, ["python", "train.py"], False, False, id="child-of-a-rank"),
        pytest.param({**RANK, "SCOPE_RECORDING_PID": "8"}, ["python", "train.py"], False, True, id="the-rank-itself"),
        pytest.param(RANK, ["python", "-c", "from x", "--multiprocessing-fork"], False, False, id="spawned-worker"),
        pytest.param(STARTED, ["python", "train.py"], False, True, id="a-rank-that-a-program-started"),
        pytest.param({**STARTED, "WORLD_SIZE": "1"}, ["python", "tool.py"], True, False, id="a-tool-of-a-rank-alone"),
        pytest.param(STARTED, ["python", "/torch/compile_worker/__main__.py"], False, False, id="a-compile-worker"),
        pytest.param(RUN, ["python", "-c", f"{FORK_SERVER}; main(5)"], True, False, id="fork-server"),
        pytest.param(RUN, ["python", "train.py", "forkserver"], True, True, id="a-word-of-the-program"),
    ],
)
def test_who_is_recorded(
    launcher: ModuleType, environment: dict[str, str], arguments: list[str], direct: bool, recorded: bool
) -> None:
    """Environment, command line and ancestors decide."""
    assert launcher.is_recorded(environment, arguments, pid=8, direct=lambda: direct) is recorded


def write_process(proc: Path, pid: int, name: str, parent: int) -> None:
    """Write the `stat` of a process."""
    (proc / str(pid)).mkdir()
    (proc / str(pid) / "stat").write_text(f"{pid} ({name}) S {parent} 1 1 0\n")


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """Write a table of processes of this namespace: `scope run` is 10, in a shell that init started."""
    (tmp_path / "self").symlink_to(str(os.getpid()))
    for pid, name, parent in ((5, "bash", 1), (10, "scope", 5), (20, "bash", 15), (15, "timeout", 10)):
        write_process(tmp_path, pid, name, parent)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "parent", "direct"),
    [
        pytest.param("scope", 5, True, id="scope-run-itself"),
        pytest.param("sh", 20, True, id="shells"),
        pytest.param("python3.12", 20, True, id="a-launcher-in-python-under-shells"),
        pytest.param("accelerate", 10, True, id="a-launcher-by-its-name"),
        pytest.param("mpirun.openmpi", 10, True, id="mpirun"),
        pytest.param("slurmstepd", 1, True, id="a-task-of-slurm"),
        pytest.param("raylet", 10, False, id="some-other-program"),
        pytest.param("a) S (b", 10, False, id="parentheses-in-a-name"),
        pytest.param("sh", 10_000, False, id="one-that-has-gone"),
        pytest.param("sh", 30, False, id="a-loop"),
        pytest.param("systemd", 1, True, id="left-in-the-background"),
        pytest.param("sh", 0, True, id="the-first-process-of-a-namespace"),
    ],
)
def test_what_starts_a_process_is_passed_over(
    launcher: ModuleType, proc: Path, name: str, parent: int, direct: bool
) -> None:
    """A process is direct when all that stands between it and `scope run` only started it."""
    write_process(proc, 30, name, parent)
    assert launcher.is_direct(10 if name == "scope" else 30, "10", str(proc)) is direct


def test_a_script_is_known_by_what_runs_it(launcher: ModuleType, proc: Path) -> None:
    """The kernel names a script after itself."""
    write_process(proc, 30, "train.sh", 10)
    assert not launcher.is_direct(30, "10", str(proc))
    (proc / "30" / "exe").symlink_to("/usr/bin/bash")
    assert launcher.is_direct(30, "10", str(proc))


def test_what_cannot_be_seen_is_no_hindrance(launcher: ModuleType, proc: Path) -> None:
    """Without a /proc, or with that of another namespace, a number stands for nobody."""
    write_process(proc, 30, "raylet", 10)
    assert not launcher.is_direct(30, "10", str(proc))
    (proc / "self").unlink()
    assert launcher.is_direct(30, "10", str(proc))
    (proc / "self").symlink_to(str(os.getpid() + 1))
    assert launcher.is_direct(30, "10", str(proc))


def test_who_waits_for_a_process_group(launcher: ModuleType) -> None:
    """Only what `multiprocessing` spawned in a recorded program without a launcher."""
    spawned = ["python", "-c", "from multiprocessing.spawn import spawn_main", "--multiprocessing-fork"]
    assert launcher.is_spawned({"SCOPE_SPAWN_ATTEMPT": "1"}, spawned)
    assert launcher.is_spawned({"SCOPE_SPAWN_ATTEMPT": "1"}, ["python", "-c", f"{FORK_SERVER}; main(5)"])
    assert not launcher.is_spawned({}, spawned)
    assert not launcher.is_spawned({"SCOPE_SPAWN_ATTEMPT": "1"}, ["python", "tool.py"])


@pytest.mark.parametrize(
    ("environment", "waits"),
    [
        pytest.param({}, False, id="alone"),
        pytest.param({"LOCAL_RANK": "1", "WORLD_SIZE": "2"}, True, id="a-number-on-the-node"),
        pytest.param({"LOCAL_RANK": "1", "WORLD_SIZE": "2", "RANK": "5"}, False, id="a-rank"),
        pytest.param({"LOCAL_RANK": "0", "WORLD_SIZE": "1"}, False, id="one-of-one"),
        pytest.param({"LOCAL_RANK": "0"}, False, id="of-nobody-knows-how-many"),
        pytest.param({"NODE_RANK": "1"}, True, id="the-first-of-the-second-node"),
        pytest.param({"NODE_RANK": "0"}, False, id="the-first-of-the-first-node"),
    ],
)
def test_who_learns_its_rank_from_the_process_group(
    launcher: ModuleType, environment: dict[str, str], waits: bool
) -> None:
    """Those that Lightning starts, below a recorded process, and its first process on a further node."""
    assert launcher.joins_later(environment) is waits
    below = {**environment, "SCOPE_RUN_ID": "r", "SCOPE_RECORDING_PID": "7", "SCOPE_SPAWN_ATTEMPT": "0"}
    assert launcher.is_spawned(below, ["python", "train.py"]) is waits
    assert not launcher.is_spawned(below, ["python", "compile_worker/__main__.py"])
    assert not launcher.is_spawned({**environment, "SCOPE_RUN_ID": "r"}, ["python", "train.py"])
    ranked = {**environment, "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}
    assert not launcher.joins_later(ranked)
    assert launcher.joins_later({**ranked, "SCOPE_RECORDING_PID": "7"}) is waits
