"""Opens the session of a process: which run, attempt and rank it is, and which folder it writes to."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING

import torch.distributed as dist

from scope.errors import RunError
from scope.record import facts
from scope.run import paths
from scope.run.clock import read_anchor
from scope.run.identity import (
    LAUNCH_HOST,
    MAX_RUN_BYTES,
    SPAWNED_BY,
    SPOOL_RUN,
    TAGS,
    choose_folder,
    choose_run_id,
    claim_folder,
    read_attempt,
    read_number,
    read_tags,
    with_place,
    write_run_info,
)
from scope.run.schema import SCHEMA_VERSION, RankInfo
from scope.run.spawned import Spawned, claim_own_folder, claim_spawned_folder
from scope.units import parse_size, parse_variable

if TYPE_CHECKING:
    from collections.abc import Mapping


def describe_rank(environment: Mapping[str, str], *, run_id: str, attempt: int, folder: Path) -> RankInfo:
    """Return what is known of this rank before training begins."""
    rank = read_number(environment, "RANK")
    return RankInfo(
        schema=SCHEMA_VERSION,
        run_id=run_id,
        attempt=attempt,
        rank=rank or 0,
        started_ns=time.time_ns(),
        host=socket.gethostname(),
        pid=os.getpid(),
        process_start_ticks=facts.read_own_start_ticks(),
        boot_id=facts.read_boot_id(),
        pid_namespace=facts.read_pid_namespace(),
        world_size=read_number(environment, "WORLD_SIZE") or (1 if rank is None else None),
        local_rank=read_number(environment, "LOCAL_RANK"),
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
        UsageError: The run id cannot be the name of a folder, or a variable makes no sense.
        RunError: The folder cannot be made, or `scope run` is on another node.
    """
    _check_node(environment)
    environment = _with_rank(environment)
    chosen, source = choose_run_id(environment, run_id)
    run, target = choose_folder(environment, run_dir, chosen)
    try:
        tags = parse_variable(TAGS, environment.get(TAGS, ""), read_tags)
        write_run_info(run, run_id=chosen, source=source, tags=tags, run_dir=target)
        attempt, folder = _claim(environment, run)
    except OSError as error:
        message = f"{run}: cannot be written ({error.strerror}); name another folder with SCOPE_SPOOL or run_dir"
        raise RunError(message) from error
    if not environment.get(SPOOL_RUN):
        max_bytes = environment.get(MAX_RUN_BYTES)
        entry = paths.Registration(
            run_id=chosen,
            spool=str(run.absolute()),
            run_dir=str(target.absolute()) if target else None,
            max_run_bytes=parse_variable(MAX_RUN_BYTES, max_bytes, parse_size) if max_bytes else None,
        )
        paths.register_spool(entry)
    return folder, describe_rank(environment, run_id=chosen, attempt=attempt, folder=folder)


def _check_node(environment: Mapping[str, str]) -> None:
    """See that `scope run` is on this node: its variables reach tasks of other nodes too, where nobody publishes."""
    spool, launch_host, own = environment.get(SPOOL_RUN), environment.get(LAUNCH_HOST), socket.gethostname()
    if spool and launch_host and launch_host != own and not Path(spool).is_dir():
        message = (
            f"scope run is on {launch_host} and cannot record what runs on {own}; put it around the command of each "
            "node: srun scope run --run-dir RUN -- python train.py"
        )
        raise RunError(message)


def _claim(environment: Mapping[str, str], run: Path) -> tuple[int, Path]:
    attempt, rank = read_attempt(environment), read_number(environment, "RANK")
    parent = read_number(environment, SPAWNED_BY)
    if not environment.get(SPOOL_RUN):
        return claim_folder(run, attempt=attempt, rank=rank or 0)
    if rank is None or parent is None:
        return claim_own_folder(run, attempt=attempt, rank=rank)
    who = Spawned(rank=rank, world_size=read_number(environment, "WORLD_SIZE"), parent_pid=parent)
    return claim_spawned_folder(run, who, attempt=attempt)


def _with_rank(environment: Mapping[str, str]) -> Mapping[str, str]:
    """Return the environment with the rank that this process has, where torch's launcher set none.

    Its process group tells it, else another launcher.
    """
    if "RANK" in environment or not (dist.is_available() and dist.is_initialized()):
        return with_place(environment)
    return {**environment, "RANK": str(dist.get_rank()), "WORLD_SIZE": str(dist.get_world_size())}
