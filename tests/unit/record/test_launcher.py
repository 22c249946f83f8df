"""Which processes `scope run` records: ranks and the direct child; never launchers or workers."""

from __future__ import annotations

import importlib.util
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
    ("environment", "arguments", "parent", "recorded"),
    [
        pytest.param({}, ["python", "train.py"], 10, False, id="outside"),
        pytest.param(RUN, ["python", "train.py"], 10, True, id="direct-child"),
        pytest.param(RUN, ["python", "-m", "package.train"], 10, True, id="direct-child-module"),
        pytest.param(RUN, ["python", "tool.py"], 99, False, id="some-other-child"),
        pytest.param(RUN, ["python", "/bin/torchrun", "train.py"], 10, False, id="torchrun"),
        pytest.param(RUN, ["python", "-m", "torch.distributed.run", "train.py"], 10, False, id="module-launcher"),
        pytest.param(RUN, ["python", "/bin/accelerate", "launch", "train.py"], 10, False, id="accelerate"),
        pytest.param(RANK, ["python", "-u", "train.py"], 50, True, id="rank"),
        pytest.param({**RANK, "SCOPE_RECORDING_PID": "7"}, ["python", "train.py"], 7, False, id="child-of-a-rank"),
        pytest.param({**RANK, "SCOPE_RECORDING_PID": "8"}, ["python", "train.py"], 50, True, id="the-rank-itself"),
        pytest.param(RANK, ["python", "-c", "from x", "--multiprocessing-fork"], 50, False, id="spawned-worker"),
        pytest.param(RUN, ["python", "-c", f"{FORK_SERVER}; main(5)"], 10, False, id="fork-server"),
        pytest.param(RUN, ["python", "train.py", "forkserver"], 10, True, id="a-word-of-the-program"),
    ],
)
def test_who_is_recorded(
    launcher: ModuleType, environment: dict[str, str], arguments: list[str], parent: int, recorded: bool
) -> None:
    """Environment, command line and parent decide."""
    assert launcher.is_recorded(environment, arguments, pid=8, parent=parent) is recorded


def write_process(proc: Path, pid: int, name: str, parent: int) -> None:
    """Write the `stat` of a process."""
    (proc / str(pid)).mkdir()
    (proc / str(pid) / "stat").write_text(f"{pid} ({name}) S {parent} 1 1 0\n")


def test_shells_between_are_passed_over(launcher: ModuleType, tmp_path: Path) -> None:
    """The parent is the first ancestor that is no shell; a name with parentheses, a loop and a gap are no trouble."""
    for pid, name, parent in ((20, "bash", 15), (15, "timeout", 10), (10, "python3", 1), (30, "a) S (b", 10)):
        write_process(tmp_path, pid, name, parent)
    write_process(tmp_path, 40, "sh", 40)
    assert launcher.find_parent(20, str(tmp_path)) == 10
    assert launcher.find_parent(10, str(tmp_path)) == 10
    assert launcher.find_parent(30, str(tmp_path)) == 30
    assert launcher.find_parent(40, str(tmp_path)) == 40
    assert launcher.find_parent(99, str(tmp_path)) == 99


def test_who_waits_for_a_process_group(launcher: ModuleType) -> None:
    """Only what `multiprocessing` spawned in a recorded program without a launcher."""
    spawned = ["python", "-c", "from multiprocessing.spawn import spawn_main", "--multiprocessing-fork"]
    assert launcher.is_spawned({"SCOPE_SPAWN_ATTEMPT": "1"}, spawned)
    assert launcher.is_spawned({"SCOPE_SPAWN_ATTEMPT": "1"}, ["python", "-c", f"{FORK_SERVER}; main(5)"])
    assert not launcher.is_spawned({}, spawned)
    assert not launcher.is_spawned({"SCOPE_SPAWN_ATTEMPT": "1"}, ["python", "tool.py"])
