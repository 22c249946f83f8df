"""`launch`: where ranks have no place to write to, what the command inherits, and launches at the same time."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from scope.errors import RunError
from scope.run import identity, paths
from scope.run.launch import LaunchPlan, launch

if TYPE_CHECKING:
    from collections.abc import Callable

SCOPE_RUN = (sys.executable, "-P", "-m", "scope", "run")
TELL_ATTEMPT = "printenv SCOPE_FIRST_ATTEMPT"

NOWHERE = Path("/proc/nowhere")
"""Nobody can make a folder there, whatever rights he has."""


@pytest.fixture
def no_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, str]:
    """An environment in which neither memory nor disk takes a spool."""
    monkeypatch.setattr(tempfile, "tempdir", str(NOWHERE))
    monkeypatch.setenv("SCOPE_REGISTRY", str(tmp_path / "registry"))
    return {**os.environ, "SCOPE_SPOOL": str(NOWHERE)}


def test_a_command_runs_unrecorded_where_nothing_can_be_written(no_disk: dict[str, str], tmp_path: Path) -> None:
    """The command runs with its environment as it was and ends as it ends; why it is unrecorded is said."""
    shell = f'test -z "$SCOPE_RUN_ID" && test "$PYTHONPATH" = "{no_disk.get("PYTHONPATH", "")}" && kill -TERM $$'
    result = launch(LaunchPlan(command=["sh", "-c", shell], run_dir=tmp_path / "run"), no_disk)
    assert result.returncode == -signal.SIGTERM
    assert result.num_ranks == 0
    assert result.unrecorded is not None
    assert result.unrecorded.count("/proc/nowhere") == 2


@pytest.mark.parametrize(
    ("content", "command"),
    [
        (b'echo "$0" "$@"; exit 3\n', "./own-script"),
        (b'echo "$0" "$@"; exit 3\n', "own-script"),
        (b"", "./own-script"),
        (b"\x7fELF\2\1\1\0\0", "./own-script"),
        (b"#!/nowhere\n", "./own-script"),
        (None, "''"),
        (None, "./own-script"),
    ],
)
def test_a_command_is_started_as_a_shell_starts_it(tmp_path: Path, content: bytes | None, command: str) -> None:
    """A script without `#!` runs, and what cannot be run ends with the same code: that of `bash` is the oracle."""
    if content is not None:
        (tmp_path / "own-script").write_bytes(content)
        (tmp_path / "own-script").chmod(0o755)
    own = {"SCOPE_SPOOL": str(tmp_path / "spool"), "SCOPE_REGISTRY": str(tmp_path / "registry")}
    environment = {**outside(), **own, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    plain, scoped = (
        subprocess.run(
            ["bash", "-c", f"{start} {command} 1 'a b'"],
            cwd=tmp_path, env=environment, capture_output=True, timeout=60, check=False,
        )
        for start in ("", shlex.join([*SCOPE_RUN, "--"]))
    )  # fmt: skip
    assert (scoped.returncode, scoped.stdout) == (plain.returncode, plain.stdout)


@pytest.mark.parametrize("options", [(), ("--run-dir", "run"), ("--run-id", "r")])
def test_a_command_runs_in_a_working_directory_that_was_deleted(tmp_path: Path, options: tuple[str, ...]) -> None:
    """It ends with its own exit code, and why there is no record of it is said: a run directory would be in nowhere."""
    gone = tmp_path / "gone"
    gone.mkdir()
    shell = shlex.join([*SCOPE_RUN, *options, "--", "sh", "-c", "echo ran; exit 3"])
    own = {"SCOPE_SPOOL": str(tmp_path / "spool"), "SCOPE_REGISTRY": str(tmp_path / "registry")}
    command = ["sh", "-c", f"rmdir ../gone; exec {shell}"]
    ended = subprocess.run(
        command, cwd=gone, env={**outside(), **own}, text=True, capture_output=True, timeout=60, check=False
    )
    assert (ended.returncode, ended.stdout) == (3, "ran\n")
    said = [line for line in ended.stderr.splitlines() if line.startswith("scope: ")]  # the shell has words of its own
    assert said == [
        "scope: the command ran unrecorded: the working directory was deleted; name a run directory by its whole path: "
        "--run-dir"
    ]


def test_a_spool_that_was_asked_for_must_be_there(no_disk: dict[str, str], tmp_path: Path) -> None:
    """A folder that was named and cannot be made is a mistake, told before the command is started."""
    started = tmp_path / "started"
    plan = LaunchPlan(command=["touch", str(started)], run_dir=tmp_path / "run", spool=NOWHERE)
    with pytest.raises(RunError, match="name another folder with --spool"):
        launch(plan, no_disk)
    assert not started.exists()


def start(folder: Path, *command: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a command under `scope run`, its run directory `folder/run`."""
    own = {"SCOPE_SPOOL": str(folder / "spool"), "SCOPE_REGISTRY": str(folder / "registry")}
    return subprocess.run(
        [*SCOPE_RUN, "--run-dir", str(folder / "run"), "--", *command],
        env={**outside(), **own},
        text=True,
        timeout=60,
        check=False,
        **{"capture_output": True, **options},
    )


def outside() -> dict[str, str]:
    """The environment without what would make this process part of a launch."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("SCOPE_", "SLURM_"))}


@pytest.mark.parametrize(
    ("options", "variable", "expected"),
    [((), "", 256 << 20), ((), "3MB", 3_000_000), (("--max-run-bytes", "2MB"), "3MB", 2_000_000)],
)
def test_the_budget_of_a_rank_is_an_option_or_a_variable(
    tmp_path: Path, options: tuple[str, ...], variable: str, expected: int
) -> None:
    """Ranks get it in bytes; the option wins."""
    own = {"SCOPE_SPOOL": str(tmp_path / "spool"), "SCOPE_REGISTRY": str(tmp_path / "registry")}
    done = subprocess.run(
        [*SCOPE_RUN, "--run-dir", str(tmp_path / "run"), *options, "--", "printenv", "SCOPE_MAX_RUN_BYTES"],
        env={**outside(), **own, "SCOPE_MAX_RUN_BYTES": variable},
        text=True,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.stdout == f"{expected}\n"


def test_the_command_has_what_its_caller_opened_for_it(tmp_path: Path) -> None:
    """A descriptor that the caller passes on is read by the command, and none of ours is open in it."""
    reading, writing = os.pipe()
    os.write(writing, b"given by the caller\n")
    os.close(writing)
    shell = f"cat /dev/fd/{reading}; ls /proc/self/fd"
    done = start(tmp_path, "sh", "-c", shell, pass_fds=(reading,))
    os.close(reading)
    assert done.returncode == 0, done.stderr
    given, *numbers = done.stdout.splitlines()
    assert given == "given by the caller"
    # One more is that of the folder which `ls` lists.
    assert set(map(int, numbers)) == {0, 1, 2, reading, min({3, 4} - {reading})}


def test_a_caller_that_ignores_the_ends_of_children(tmp_path: Path) -> None:
    """The exit code is the command's own, and the command ignores SIGCHLD as its caller does."""

    def ignore() -> None:
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)

    assert start(tmp_path, "sh", "-c", "exit 7", preexec_fn=ignore).returncode == 7
    for before, is_ignored in ((ignore, True), (None, False)):
        done = start(tmp_path, "grep", "SigIgn", "/proc/self/status", preexec_fn=before)
        assert bool(int(done.stdout.split()[1], 16) & 1 << (signal.SIGCHLD - 1)) == is_ignored


@pytest.mark.parametrize("shell", ["exit 4", "sleep 1 > /dev/null 2>&1 & exit 4"])
def test_nothing_is_left_of_a_run_without_ranks_that_cannot_be_written(tmp_path: Path, shell: str) -> None:
    """Why it cannot be is told beside that nothing was recorded; spool and entry are gone with the last process."""
    (tmp_path / "run").symlink_to(tmp_path / "nowhere" / "run")
    done = start(tmp_path, "sh", "-c", shell)
    assert done.returncode == 4
    *told, last = done.stderr.splitlines()
    if "sleep" in shell:
        assert "no rank has begun yet" in last
    else:
        assert last.startswith("scope: nothing was recorded")
        assert f"'{tmp_path / 'run'}'" in " ".join(told)
    deadline = time.monotonic() + 60
    while [*(tmp_path / "spool").iterdir(), *(tmp_path / "registry").iterdir()]:
        assert "sleep" in shell
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.parametrize("ignored", [(), (signal.SIGPIPE, signal.SIGXFSZ)])
def test_a_shell_that_ignores_what_python_ignores(tmp_path: Path, ignored: tuple[int, ...]) -> None:
    """The command begins with SIGPIPE and SIGXFSZ as its shell has them, and not as Python does."""
    before = f"trap '' {' '.join(map(str, map(int, ignored)))};" if ignored else ""
    command = shlex.join([*SCOPE_RUN, "--run-dir", str(tmp_path / "run")])
    done = subprocess.run(
        ["sh", "-c", f"{before} {command} -- grep SigIgn /proc/self/status; exit $?"],
        env={**outside(), "SCOPE_SPOOL": str(tmp_path / "spool"), "SCOPE_REGISTRY": str(tmp_path / "registry")},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    found = int(done.stdout.split()[1], 16)
    assert {number for number in (signal.SIGPIPE, signal.SIGXFSZ) if found & 1 << (number - 1)} == set(ignored)


@pytest.mark.parametrize(("shell", "code"), [("exit 0", 0), ("kill -TERM $$", -signal.SIGTERM)])
def test_what_cannot_be_said_changes_no_exit_code(tmp_path: Path, shell: str, code: int) -> None:
    """Standard error is full, or its reader is gone: the command ended as it ended."""
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        assert start(tmp_path, "sh", "-c", shell, capture_output=False, stderr=full).returncode == code
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w", encoding="utf-8") as closed:  # noqa: PTH123 - a descriptor
        assert start(tmp_path, "sh", "-c", shell, capture_output=False, stderr=closed).returncode == code


def test_a_signal_behind_the_end_of_the_command_changes_no_exit_code(tmp_path: Path) -> None:
    """What is still to be published is published, and the code is that of the command."""
    own = {"SCOPE_SPOOL": str(tmp_path / "spool"), "SCOPE_REGISTRY": str(tmp_path / "registry")}
    command = [*SCOPE_RUN, "--run-dir", str(tmp_path / "run"), "--", "sh", "-c", "read line; exit 3"]
    with subprocess.Popen(command, env={**outside(), **own}, stdin=subprocess.PIPE, start_new_session=True) as started:
        publisher = wait_for_child(started.pid, b"scope.run.publish")
        wait_for_child(started.pid, b"read line")
        os.kill(publisher, signal.SIGSTOP)
        assert started.stdin is not None
        started.stdin.close()
        until(lambda: children_of(started.pid) == [publisher])
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
            os.killpg(started.pid, number)
        os.kill(publisher, signal.SIGCONT)
        assert started.wait(60) == 3
    assert not list((tmp_path / "spool").iterdir())


def wait_for_child(launcher: int, word: bytes) -> int:
    """Return the child of a launcher whose command holds a word, once it has the signals that it begins with."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for child in children_of(launcher):
            with contextlib.suppress(OSError):
                if word in Path(f"/proc/{child}/cmdline").read_bytes():
                    return child
        time.sleep(0.01)
    raise AssertionError(word)


def until(is_so: Callable[[], bool]) -> None:
    """Return once something is so."""
    deadline = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def children_of(pid: int) -> list[int]:
    """Return the children of a process of one thread or more."""
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return sorted(int(child) for task in tasks for child in task.read_text(encoding="utf-8").split())


def test_a_command_runs_where_nobody_can_publish(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without a publisher the command runs and ends as it ends; what it left, and why it is there, is told."""
    monkeypatch.setattr(sys, "executable", "/etc/passwd")
    monkeypatch.setenv("SCOPE_REGISTRY", str(tmp_path / "registry"))
    shell = 'mkdir -p "$SCOPE_SPOOL_RUN/attempt-000/ranks/00000"; exit 3'
    plan = LaunchPlan(command=["sh", "-c", shell], run_dir=tmp_path / "run", spool=tmp_path / "spool")
    result = launch(plan, outside())
    assert (result.returncode, result.num_ranks) == (3, 1)
    assert result.unpublished is not None
    assert paths.list_ranks(result.unpublished, 0) == [0]
    (problem,) = result.problems
    assert problem.startswith("/etc/passwd: cannot be started to publish the run")
    result = launch(dataclasses.replace(plan, command=["true"], spool=tmp_path / "other"), outside())
    assert (result.num_ranks, result.unpublished, len(result.problems)) == (0, None, 1)
    assert not list((tmp_path / "other").iterdir())


def test_two_launches_of_one_run_directory_at_once(tmp_path: Path) -> None:
    """Each has an attempt of its own, though the other has published nothing yet; nothing is left of that after."""
    inner = f'{shlex.join([*SCOPE_RUN, "--run-dir", str(tmp_path / "run")])} -- sh -c "{TELL_ATTEMPT}"'
    done = start(tmp_path, "sh", "-c", f"{TELL_ATTEMPT}; {inner}")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["0", "1"]
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["run.json"]


def test_launchers_of_one_launch_share_an_attempt(tmp_path: Path) -> None:
    """One `scope run` a node or task takes no attempt for itself."""
    inner = f'{shlex.join([*SCOPE_RUN, "--run-dir", str(tmp_path / "run")])} -- sh -c "{TELL_ATTEMPT}" sh --nnodes=2'
    done = start(tmp_path, "sh", "-c", f"{TELL_ATTEMPT}; {inner}", "sh", "--nnodes=2")
    assert done.stdout.split() == ["0", "0"], done.stderr
    assert identity.may_have_peers({"SLURM_STEP_ID": "0"}, ["python", "train.py"])
    assert not identity.may_have_peers({"SLURM_JOB_ID": "7"}, ["torchrun", "--nproc-per-node=2", "train.py"])


def test_a_run_without_a_name_carries_its_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Two runs that begin in the same second on one host have two names, and so two run directories."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SCOPE_REGISTRY", str(tmp_path / "registry"))
    environment = {name: value for name, value in outside().items() if name != "TORCHELASTIC_RUN_ID"}
    result = launch(LaunchPlan(command=["true"], spool=tmp_path / "spool"), environment)
    assert result.run_dir.name.endswith(f"-{os.getpid()}")
    assert result.run_dir.parent == tmp_path / "runs"
