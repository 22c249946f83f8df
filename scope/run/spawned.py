"""The folders of processes that no launcher gave a rank, which take the places of those that trained nothing.

A program that spawns its ranks (`torch.multiprocessing.spawn`) imports torch, so its recording begins, and takes the
first place of an attempt, before anybody can know whether it trains. As long as it has ended no step its ranks join
that attempt, and the first of them takes its place. So does a program that follows a tool which merely imported torch.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING, Final, NamedTuple

from scope.errors import RunError
from scope.run import paths
from scope.run.alive import is_living, knows_processes, read_start_ticks
from scope.run.goodbyes import EXITED, FINISHED
from scope.run.identity import make_folder
from scope.run.reader import RankReader, read_rank_info

if TYPE_CHECKING:
    from pathlib import Path

    from scope.run.schema import RankInfo

_MAX_CLAIMS: Final = 1000


class Spawned(NamedTuple):
    """A rank that a recorded process spawned.

    Attributes:
        rank: Its global rank.
        world_size: Ranks of its process group.
        parent_pid: The process that spawned it.
    """

    rank: int
    world_size: int | None
    parent_pid: int


def claim_own_folder(run: Path, *, attempt: int, rank: int | None) -> tuple[int, Path]:
    """Make the folder of a process in the first attempt, from `attempt` on, in which nobody trained in its place.

    Whoever was there and made no step makes room: a tool before a program without a rank, and this very process before
    it became another program (`os.execv`).

    Args:
        run: Folder with the layout of a run directory.
        attempt: The first attempt to look at.
        rank: Its global rank, None where nobody gave it one.

    Raises:
        OSError: It cannot be made.
        RunError: A thousand attempts are taken.
    """
    for number in range(attempt, attempt + _MAX_CLAIMS):
        folder = paths.rank_folder(run, number, rank or 0)
        with contextlib.suppress(RunError, FileNotFoundError):
            info = read_rank_info(folder)
            was_a_tool = rank is None and paths.list_ranks(run, number) == [0] and _was_a_tool(info)
            if (was_a_tool or _is_this_process(info)) and _may_displace(folder):
                # Not by its process id, which tells a living process that it writes no more: this one may have it.
                folder.rename(paths.displaced_folder(folder, time.time_ns()))
        if make_folder(folder):
            return number, folder
    message = f"{run}: has {_MAX_CLAIMS} attempts of rank {rank or 0}; name another run id"
    raise RunError(message)


def claim_spawned_folder(run: Path, who: Spawned, *, attempt: int) -> tuple[int, Path]:
    """Make the folder of a spawned rank in the first attempt that its group may share, and return both.

    Each rank chooses by itself, and all of a group choose alike: an attempt is passed over where its parent has made
    steps, where ranks of it have ended or are gone, and where it is one of more or fewer ranks.

    Args:
        run: Folder with the layout of a run directory.
        who: The rank.
        attempt: The attempt that its parent took when it began.

    Raises:
        OSError: It cannot be made.
        RunError: A thousand attempts are taken.
    """
    for number in range(attempt, attempt + _MAX_CLAIMS):
        if not _may_join(run, number, who):
            continue
        folder = paths.rank_folder(run, number, who.rank)
        if make_folder(folder):
            return number, folder
    message = f"{run}: has {_MAX_CLAIMS} attempts of rank {who.rank}; name another run id"
    raise RunError(message)


def _may_join(run: Path, attempt: int, who: Spawned) -> bool:
    """Return whether a rank's group may be that of an attempt; the parent makes room where it is in the way."""
    for other in paths.list_ranks(run, attempt):
        folder = paths.rank_folder(run, attempt, other)
        try:
            info = read_rank_info(folder)
            if info.pid != who.parent_pid:
                may_join = other != who.rank and _is_at_work(info) and info.world_size == who.world_size
            else:
                may_join = _may_displace(folder) if other == who.rank else has_no_step(folder)
        except RunError:
            continue  # it has just begun
        if not may_join:
            return False
        if other == who.rank:
            folder.rename(paths.displaced_folder(folder, who.parent_pid))
    return True


def _was_a_tool(info: RankInfo) -> bool:
    """Return whether a process without a rank ended by itself, and did nothing that may have been training."""
    has_ended = info.exit_reason is not None and info.exit_reason.startswith((FINISHED, EXITED))
    return has_ended and info.world_size in (None, 1) and "steps" not in info.absent


def _is_this_process(info: RankInfo) -> bool:
    return info.pid == os.getpid() and info.process_start_ticks == read_start_ticks(info.pid) is not None


def _is_at_work(info: RankInfo) -> bool:
    return info.ended_ns is None and (is_living(info) or not knows_processes())


def has_no_step(folder: Path) -> bool:
    """Return whether a rank has ended no step, by its black box and its file of steps.

    Raises:
        RunError: Its black box cannot be read.
    """
    box = RankReader(folder).state(with_ring=False)
    try:
        return not (box is not None and box.num_steps) and not (folder / paths.STEPS_FILE).lstat().st_size
    except FileNotFoundError:
        return True
    except OSError:
        return False


def _may_displace(folder: Path) -> bool:
    """Return whether a process has made no step, and is in no process group in which it may be a rank itself."""
    box = RankReader(folder).state(with_ring=False)
    return has_no_step(folder) and not (box is not None and box.groups)
