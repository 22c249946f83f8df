"""Who a run is: its id, its `run.json`, its attempts and folders, and the environment that carries them to ranks."""

from __future__ import annotations

import contextlib
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from scope.errors import RunError, UsageError
from scope.run import paths
from scope.run.files import FOLDER_MODE, make_folders, replace_document
from scope.run.schema import SCHEMA_VERSION, RunInfo
from scope.units import parse_variable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

RUN_ID: Final = "SCOPE_RUN_ID"
RUN_DIR: Final = "SCOPE_RUN_DIR"
SPOOL_RUN: Final = "SCOPE_SPOOL_RUN"
FIRST_ATTEMPT: Final = "SCOPE_FIRST_ATTEMPT"
PARENT_PID: Final = "SCOPE_PARENT_PID"
LAUNCH_HOST: Final = "SCOPE_LAUNCH_HOST"
SPAWNED_BY: Final = "SCOPE_SPAWNED_BY"
TAGS: Final = "SCOPE_TAGS"
MAX_RUN_BYTES: Final = "SCOPE_MAX_RUN_BYTES"
FLOPS: Final = "SCOPE_FLOPS"
PREFLIGHT: Final = "SCOPE_PREFLIGHT"
_MAX_CLAIMS: Final = 1000
_PLACES: Final = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"),
)
"""What launchers of processes other than torch's call rank, number of ranks, and rank on the node.

SLURM_NTASKS would not do: in a batch script it is that of the steps to come.
"""
_PEER_VARIABLES: Final = ("SLURM_STEP_ID", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "RANK", "NODE_RANK")
_PEER_OPTIONS: Final = ("--nnodes", "--node-rank", "--node_rank", "--num_machines", "--machine_rank")


def choose_run_id(environment: Mapping[str, str], wanted: str | None = None) -> tuple[str, str]:
    """Return the run id and where it is from: `option`, `torchelastic`, `slurm` or `host`.

    An id of a launcher that cannot be the name of a folder is written with `-` for other characters and a digest, the
    same on all ranks.

    Raises:
        UsageError: The wanted id cannot be the name of a folder.
    """
    if wanted:
        return paths.check_run_id(wanted), "option"
    for name, source in ((RUN_ID, "option"), ("TORCHELASTIC_RUN_ID", "torchelastic"), ("SLURM_JOB_ID", "slurm")):
        value = environment.get(name)
        # torchrun without --rdzv-id calls every run "none".
        if value and value != "none":
            own = name == RUN_ID
            return parse_variable(name, value, paths.check_run_id) if own else paths.make_run_id(value), source
    return f"{_find_host()}-{time.strftime('%Y%m%d-%H%M%S')}", "host"


def write_run_info(
    run: Path, *, run_id: str, source: str, tags: Mapping[str, str] | None = None, run_dir: Path | None = None
) -> None:
    """Write `run.json` unless there is one; the first process of the run wins.

    Args:
        run: Folder with the layout of a run directory.
        run_id: The run.
        source: Where its id is from.
        tags: The user's own labels.
        run_dir: The run directory itself, where `run` is a spool that is published there.

    Raises:
        OSError: The folder cannot be made or written.
    """
    run.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
    path = run / paths.RUN_FILE
    if path.exists():
        return
    info = RunInfo(
        schema=SCHEMA_VERSION,
        run_id=run_id,
        run_id_source=source,
        started_ns=time.time_ns(),
        run_dir=str((run_dir or run).absolute()).encode("utf-8", "surrogateescape").decode("utf-8", "replace"),
        tags=dict(tags or {}),
    )
    replace_document(path, msgspec.json.encode(info))


def choose_folder(environment: Mapping[str, str], run_dir: Path | None, run_id: str) -> tuple[Path, Path | None]:
    """Return the folder with the layout of a run directory that this process writes to, and where it is published.

    Under `scope run` it is the spool that the parent made. Otherwise a run directory on a local file system is written
    directly; one on a network file system is never touched: the process writes to a spool that the node's exporter
    publishes.
    """
    spool = environment.get(SPOOL_RUN)
    if spool:
        return Path(spool), Path(environment[RUN_DIR]) if environment.get(RUN_DIR) else None
    # Absolute: the program may change its working directory.
    target = (run_dir if run_dir is not None else Path("runs") / run_id).absolute()
    if paths.is_network_path(target):
        return paths.default_spool().folder.absolute() / run_id, target
    return target, None


def claim_folder(run: Path, *, attempt: int, rank: int) -> tuple[int, Path]:
    """Make the rank's folder in the first attempt, from `attempt` on, in which it does not exist.

    Raises:
        OSError: It cannot be made.
        RunError: A thousand attempts are taken.
    """
    for number in range(attempt, attempt + _MAX_CLAIMS):
        folder = paths.rank_folder(run, number, rank)
        if make_folder(folder):
            return number, folder
    message = f"{run}: has {_MAX_CLAIMS} attempts of rank {rank}; name another run id"
    raise RunError(message)


def make_folder(folder: Path) -> bool:
    """Make a rank's folder; return whether nobody had, so that it is this rank's.

    Raises:
        OSError: It cannot be made.
    """
    make_folders(folder.parent)
    try:
        folder.mkdir(mode=FOLDER_MODE)
    except FileExistsError:
        return False
    return True


def may_have_peers(environment: Mapping[str, str], command: Sequence[str]) -> bool:
    """Return whether several `scope run` may belong to one launch, one a node or task, and share its attempt."""
    return any(environment.get(name) for name in _PEER_VARIABLES) or any(
        word.partition("=")[0] in _PEER_OPTIONS for word in command
    )


def reserve_attempt(run: Path) -> int:
    """Take the next attempt of a run directory for one launch on this host, and return its number.

    Two launches of one run directory that begin at the same time take two attempts, though neither has ranks yet. A
    folder that cannot be written has nothing to reserve: its attempts are counted by what it holds.
    """
    attempts = paths.list_attempts(run)
    first = attempts[-1] + 1 if attempts else 0
    with contextlib.suppress(OSError):
        run.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
        for attempt in range(first, first + _MAX_CLAIMS):
            with contextlib.suppress(FileExistsError):
                _reservation(run, attempt).mkdir(mode=FOLDER_MODE)
                if not paths.attempt_folder(run, attempt).exists():
                    return attempt
                release_attempt(run, attempt)  # another launch has ended since we looked
    return first


def release_attempt(run: Path, attempt: int) -> None:
    """Give back what `reserve_attempt` took: the ranks of the launch stand in the run directory, or never were."""
    with contextlib.suppress(OSError):
        _reservation(run, attempt).rmdir()


def _reservation(run: Path, attempt: int) -> Path:
    return run / f"{paths.RESERVATION}{attempt:03d}-{paths.make_run_id(_find_host())}"


def _find_host() -> str:
    return socket.gethostname().partition(".")[0] or "host"


def read_tags(text: str) -> dict[str, str]:
    """Return `a=1,b=2` as a mapping; a comma begins the next tag.

    Raises:
        UsageError: As `parse_tags`.
    """
    return parse_tags(filter(None, text.split(",")))


def parse_tags(parts: Iterable[str]) -> dict[str, str]:
    """Return tags, each of them `name=value`, as a mapping; a value may hold commas and further `=`.

    Raises:
        UsageError: A part has no `=`, no name before it, a comma in the name, or is no printable text.
    """
    tags: dict[str, str] = {}
    for part in parts:
        name, equals, value = part.partition("=")
        if not equals or not name or "," in name:
            message = f"{part!r} is no tag: write name=value, without a comma in the name"
            raise UsageError(message)
        if not part.isprintable():
            message = f"{part!r} is no tag: it holds what is no printable text"
            raise UsageError(message)
        tags[name] = value
    return tags


def read_attempt(environment: Mapping[str, str]) -> int:
    """Return the restart count of the launcher, counted from the first attempt that `scope run` chose.

    That one is behind those of a job that Slurm has started before.
    """
    restarts = read_number(environment, "TORCHELASTIC_RESTART_COUNT") or 0
    first = read_number(environment, FIRST_ATTEMPT)
    if first is None:
        return restarts or read_number(environment, "SLURM_RESTART_COUNT") or 0
    return first + restarts


def with_place(environment: Mapping[str, str]) -> Mapping[str, str]:
    """Return the environment with RANK and WORLD_SIZE, where another launcher than torch's tells them by other names.

    Examples:
        >>> task = {"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "8", "SLURM_LOCALID": "3"}
        >>> with_place(task)["RANK"], with_place({**task, "RANK": "5"})["RANK"]
        ('3', '5')
    """
    if "RANK" in environment:
        return environment
    for names in _PLACES:
        rank, world_size, local_rank = (read_number(environment, name) for name in names)
        if rank is not None and world_size is not None and rank < world_size > 1:
            own = {} if local_rank is None else {"LOCAL_RANK": str(local_rank)}
            return {**own, **environment, "RANK": str(rank), "WORLD_SIZE": str(world_size)}
    return environment


def read_number(environment: Mapping[str, str], name: str) -> int | None:
    """Return a variable that holds a whole number; `None` when it is missing or no number."""
    text = environment.get(name, "")
    return int(text) if text.isascii() and text.isdigit() else None
