"""Whether the ranks that write to a spool of this node still live."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from scope.errors import RunError
from scope.run import paths
from scope.run.reader import read_rank_info

if TYPE_CHECKING:
    from scope.run.schema import RankInfo


def has_living_rank(spool: Path, *, proc: Path = Path("/proc")) -> bool:
    """Whether any rank of the last attempt in a spool has not closed its recording and still runs on this host."""
    return any(
        _lives(paths.rank_folder(spool, attempt, rank), proc)
        for attempt in paths.list_attempts(spool)[-1:]
        for rank in paths.list_ranks(spool, attempt)
    )


def _lives(folder: Path, proc: Path) -> bool:
    try:
        info = read_rank_info(folder)
    except RunError:
        return False
    return info.ended_ns is None and is_living(info, proc=proc)


def is_living(info: RankInfo, *, proc: Path = Path("/proc")) -> bool:
    """Whether the process of a rank still runs on this host."""
    return read_start_ticks(info.pid, proc=proc) == info.process_start_ticks is not None


def read_start_ticks(pid: int, *, proc: Path = Path("/proc")) -> int | None:
    """Return the start of a process in clock ticks since boot; `None` when it is gone, or dead and not yet reaped."""
    try:
        text = (proc / str(pid) / "stat").read_text()
        # The name of the program stands in parentheses and may itself hold spaces and parentheses.
        fields = text.rpartition(")")[2].split()
        return None if fields[0] in "ZX" else int(fields[19])
    except (OSError, ValueError, IndexError):
        return None
