"""Whether ranks still live, and how they ended: by their records, their processes, and their last sign of life.

The one definition of it, for commands, dashboard and exporter. A rank has ended when an end is on record: its
`rank.json` holds one, or its black box was closed. One without, whose process is gone or which fell silent, ended
without a goodbye: it was killed, or crashed beyond any handler.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Final

from scope.errors import RunError
from scope.run import paths
from scope.run.reader import RankReader, read_rank_info

if TYPE_CHECKING:
    from scope.run.blackbox import BlackBoxState
    from scope.run.schema import RankInfo

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


def has_ended(info: RankInfo, state: BlackBoxState | None) -> bool:
    """Return whether an end of a rank is on record, by its `rank.json` or its black box (None where it has none)."""
    return info.ended_ns is not None or (state is not None and state.closed)


def find_signs(info: RankInfo, state: BlackBoxState | None) -> list[int]:
    """Return the instants at which a rank lived, by its `rank.json` and black box, since the epoch; never empty."""
    signs = [info.started_ns, info.ended_ns]
    if state is not None:
        signs += [state.beat_ns, state.pulse_ns]
    return [sign for sign in signs if sign is not None]


def find_fate(info: RankInfo, *, proc: Path = Path("/proc"), boot_id: Path = _BOOT_ID) -> bool | None:
    """Return whether the process of a rank lives; None where this host cannot tell, as of a rank of another host.

    False is the answer of this host's table of processes, and is as well that of a process in a container of its own:
    believe it only of a rank that is silent too.
    """
    if info.boot_id is None or info.process_start_ticks is None:
        return None
    try:
        here = boot_id.read_text(encoding="ascii").strip()
    except OSError:
        return None
    return is_living(info, proc=proc) if info.boot_id == here else None


def has_living_rank(spool: Path, *, proc: Path = Path("/proc")) -> bool:
    """Whether any rank of the last attempt in a spool has not closed its recording and still runs on this host."""
    return any(
        _lives(paths.rank_folder(spool, attempt, rank), proc)
        for attempt in paths.list_attempts(spool)[-1:]
        for rank in paths.list_ranks(spool, attempt)
    )


def read_signs(spool: Path) -> list[int]:
    """Return the instants of all signs of life of the last attempt in a spool: while they change, a rank lives on.

    Beside those of `find_signs` they are the last writes of steps and events, which a rank without a black box gives.
    """
    signs: list[int] = []
    for attempt in paths.list_attempts(spool)[-1:]:
        for rank in paths.list_ranks(spool, attempt):
            folder = paths.rank_folder(spool, attempt, rank)
            with contextlib.suppress(RunError):
                signs += find_signs(read_rank_info(folder), None)
            with contextlib.suppress(RunError):
                box = RankReader(folder).state(with_ring=False)
                signs += [] if box is None else [box.beat_ns or 0, box.pulse_ns or 0]
            for name in (paths.STEPS_FILE, paths.EVENTS_FILE):
                with contextlib.suppress(OSError):
                    signs.append((folder / name).lstat().st_mtime_ns)
    return signs


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
        text = (proc / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
        # The name of the program stands in parentheses and may itself hold spaces and parentheses.
        fields = text.rpartition(")")[2].split()
        return None if fields[0] in "ZX" else int(fields[19])
    except (OSError, ValueError, IndexError):
        return None
