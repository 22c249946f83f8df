"""Opens the session of a process: which run, attempt and rank it is, and which folder it writes to."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from scope.errors import RunError, UsageError
from scope.record import facts
from scope.run import paths
from scope.run.clock import read_anchor
from scope.run.files import FOLDER_MODE, replace_document
from scope.run.schema import SCHEMA_VERSION, RankInfo, RunInfo

if TYPE_CHECKING:
    from collections.abc import Mapping

RUN_ID: Final = "SCOPE_RUN_ID"
RUN_DIR: Final = "SCOPE_RUN_DIR"
SPOOL_RUN: Final = "SCOPE_SPOOL_RUN"
FIRST_ATTEMPT: Final = "SCOPE_FIRST_ATTEMPT"
TAGS: Final = "SCOPE_TAGS"
_MAX_CLAIMS: Final = 1000


def choose_run_id(environment: Mapping[str, str], wanted: str | None = None) -> tuple[str, str]:
    """Return the run id and where it is from: `option`, `torchelastic`, `slurm` or `host`.

    Raises:
        UsageError: The wanted id cannot be the name of a folder.
    """
    if wanted:
        return paths.check_run_id(wanted), "option"
    for name, source in ((RUN_ID, "option"), ("TORCHELASTIC_RUN_ID", "torchelastic"), ("SLURM_JOB_ID", "slurm")):
        value = environment.get(name)
        # torchrun without --rdzv-id calls every run "none".
        if value and value != "none":
            return paths.check_run_id(value), source
    host = socket.gethostname().partition(".")[0] or "host"
    return f"{host}-{time.strftime('%Y%m%d-%H%M%S')}", "host"


def write_run_info(run: Path, *, run_id: str, source: str, tags: Mapping[str, str] | None = None) -> None:
    """Write `run.json` unless there is one; the first process of the run wins.

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
    target = run_dir if run_dir is not None else Path("runs") / run_id
    if paths.is_network_path(target):
        return paths.default_spool() / run_id, target
    return target, None


def claim_folder(run: Path, *, attempt: int, rank: int) -> tuple[int, Path]:
    """Make the rank's folder in the first attempt, from `attempt` on, in which it does not exist.

    Raises:
        OSError: It cannot be made.
        RunError: A thousand attempts are taken.
    """
    for number in range(attempt, attempt + _MAX_CLAIMS):
        folder = paths.rank_folder(run, number, rank)
        folder.parent.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
        try:
            folder.mkdir(mode=FOLDER_MODE)
        except FileExistsError:
            continue
        return number, folder
    message = f"{run}: has {_MAX_CLAIMS} attempts of rank {rank}; name another run id"
    raise RunError(message)


def read_attempt(environment: Mapping[str, str]) -> int:
    """Return the restart count of the launcher, counted from the first attempt that `scope run` chose."""
    first = _number(environment, FIRST_ATTEMPT) or 0
    restarts = _number(environment, "TORCHELASTIC_RESTART_COUNT") or _number(environment, "SLURM_RESTART_COUNT") or 0
    return first + restarts


def describe_rank(environment: Mapping[str, str], *, run_id: str, attempt: int, folder: Path) -> RankInfo:
    """Return what is known of this rank before training begins."""
    rank = _number(environment, "RANK")
    return RankInfo(
        schema=SCHEMA_VERSION,
        run_id=run_id,
        attempt=attempt,
        rank=rank or 0,
        started_ns=time.time_ns(),
        host=socket.gethostname(),
        pid=os.getpid(),
        process_start_ticks=facts.read_start_ticks(os.getpid()),
        boot_id=facts.read_boot_id(),
        world_size=_number(environment, "WORLD_SIZE") or (1 if rank is None else None),
        local_rank=_number(environment, "LOCAL_RANK"),
        nics=facts.read_nics(),
        environment=facts.read_environment(environment),
        anchors=(read_anchor(),),
        versions=facts.read_versions(),
        spool=str(folder),
        script=facts.read_script(),
        absent={"device": "not known before the first step"},
    )


def prepare(
    environment: Mapping[str, str], *, run_dir: Path | None = None, run_id: str | None = None
) -> tuple[Path, RankInfo]:
    """Make this rank's folder and return it with what is known of the rank.

    Raises:
        UsageError: The run id cannot be the name of a folder.
        RunError: The folder cannot be made.
    """
    chosen, source = choose_run_id(environment, run_id)
    run, target = choose_folder(environment, run_dir, chosen)
    try:
        write_run_info(run, run_id=chosen, source=source, tags=read_tags(environment.get(TAGS, "")))
        attempt, folder = claim_folder(run, attempt=read_attempt(environment), rank=_number(environment, "RANK") or 0)
    except OSError as error:
        message = f"{run}: cannot be written ({error.strerror}); name another folder with SCOPE_SPOOL or run_dir"
        raise RunError(message) from error
    if not environment.get(SPOOL_RUN):
        entry = paths.Registration(
            run_id=chosen, spool=str(run.absolute()), run_dir=str(target.absolute()) if target else None
        )
        paths.register_spool(entry)
    return folder, describe_rank(environment, run_id=chosen, attempt=attempt, folder=folder)


def read_tags(text: str) -> dict[str, str]:
    """Return `a=1,b=2` as a mapping.

    Raises:
        UsageError: A part has no `=`.
    """
    tags: dict[str, str] = {}
    for part in filter(None, text.split(",")):
        name, equals, value = part.partition("=")
        if not equals or not name:
            message = f"{part!r} is no tag: write name=value"
            raise UsageError(message)
        tags[name] = value
    return tags


def _number(environment: Mapping[str, str], name: str) -> int | None:
    text = environment.get(name, "")
    return int(text) if text.isascii() and text.isdigit() else None
