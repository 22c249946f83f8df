"""Which attempt of a run a launch is: the one behind those that its run directory holds, so that none is overwritten.

Several `scope run` may belong to one launch, one a node or task, and come to one number by themselves. Where a launcher
names the launch to all of them, the first makes a folder of that name in the run directory, and each makes one of its
own therein: a task that finds its own there has come once more. Where nobody names it, an attempt is joined that began
a moment ago on other hosts.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from scope.errors import RunError
from scope.run import paths
from scope.run.files import FOLDER_MODE
from scope.run.identity import may_have_peers, reserve_attempt
from scope.run.reader import read_rank_info

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_MAX_ATTEMPTS: Final = 1000
_YOUNG_S: Final = 300.0
"""Age up to which others may still join an attempt: nodes of a large job begin minutes apart."""
_MAX_LOOKED_AT: Final = 512
_ANSWER_S: Final = 5.0
_KILLED_S: Final = 0.5
_STEP: Final = ("SLURM_JOB_ID", "SLURM_STEP_ID")


class Launch(NamedTuple):
    """One `scope run`, as part of a launch.

    Attributes:
        name: What the launcher calls the launch in all its `scope run`; None where it does not.
        task: This `scope run` among those.
        has_peers: There may be others.
    """

    name: str | None
    task: str
    has_peers: bool


def describe_launch(environment: Mapping[str, str], command: Sequence[str]) -> Launch:
    """Return what a `scope run` knows of its launch."""
    name = environment.get("PMIX_NAMESPACE")
    if all(environment.get(part) for part in _STEP):
        restarts = environment.get("SLURM_RESTART_COUNT") or "0"
        name = "-".join((*(environment[part] for part in _STEP), restarts))
    number = environment.get("SLURM_PROCID") or environment.get("PMIX_RANK") or "0"
    task = f"{socket.gethostname()}-{number}"
    has_peers = may_have_peers(environment, command)
    return Launch(paths.make_run_id(name) if name and has_peers else None, paths.make_run_id(task), has_peers)


def choose_attempt(run: Path, launch: Launch) -> int:
    """Return the first attempt of a launch; it looks into the run directory, and may hang with it."""
    if launch.name is not None:
        with contextlib.suppress(OSError):
            return _join_named(run, launch.name, launch.task)
    if not launch.has_peers:
        return reserve_attempt(run)
    attempts = paths.list_attempts(run)
    if not attempts:
        return 0
    return attempts[-1] if _began_elsewhere(paths.attempt_folder(run, attempts[-1])) else attempts[-1] + 1


def ask_for_attempt(run: Path, launch: Launch, *, answer_s: float = _ANSWER_S) -> int | None:
    """Return what `choose_attempt` does, by a process of its own; None where the run directory does not answer."""
    words = [str(run), launch.name or "", launch.task, "peers" if launch.has_peers else ""]
    try:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "scope.run.attempts", *words],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
    except OSError:
        return None
    assert process.stdout is not None
    try:
        said = process.communicate(timeout=answer_s)[0].strip()
    except subprocess.TimeoutExpired:
        process.kill()
        with process.stdout, contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=_KILLED_S)  # it may be beyond that, and is left then
        return None
    return int(said) if said.isdigit() else None


def _join_named(run: Path, name: str, task: str) -> int:
    """Return the attempt of the launch of this name; a task that was part of it already begins another.

    Raises:
        OSError: The run directory cannot be written.
    """
    taken = [entry.name[len(paths.RESERVATION) :].partition("-") for entry in run.glob(f"{paths.RESERVATION}*")]
    begun = [int(number) for number, _, by in taken if by == name and number.isdecimal()]
    attempts = paths.list_attempts(run)
    first = max(begun) if begun else (attempts[-1] + 1 if attempts else 0)
    for attempt in range(first, first + _MAX_ATTEMPTS):
        own = run / f"{paths.RESERVATION}{attempt:03d}-{name}" / task
        own.parent.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            own.mkdir(mode=FOLDER_MODE)
            return attempt
    message = f"{run}: this task has begun {_MAX_ATTEMPTS} attempts"
    raise OSError(message)


def _began_elsewhere(attempt: Path) -> bool:
    """Return whether an attempt began a moment ago, and no rank of it on this host."""
    ranks = attempt / "ranks"
    try:
        if time.time() - ranks.stat().st_mtime > _YOUNG_S:
            return False
        folders = sorted(ranks.iterdir())
    except OSError:
        return False
    for folder in folders[:_MAX_LOOKED_AT]:
        with contextlib.suppress(RunError):
            info = read_rank_info(folder)
            if info.host == socket.gethostname() or info.ended_ns is not None:
                return False
    return True


if __name__ == "__main__":
    _run, _name, _task, _peers = sys.argv[1:]
    sys.stdout.write(str(choose_attempt(Path(_run), Launch(_name or None, _task, bool(_peers)))))
