"""Whether ranks still live, and how they ended: by their records, their processes, and their last sign of life.

The one definition of it, for commands, dashboard and exporter. A rank has ended when an end is on record: its
`rank.json` holds one, or its black box was closed. One without, whose process is gone or which fell silent, ended
without a goodbye: it was killed, or crashed beyond any handler.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from scope.errors import RunError
from scope.run import paths
from scope.run.reader import RankReader, read_rank_info

if TYPE_CHECKING:
    from scope.run.blackbox import BlackBoxState
    from scope.run.schema import RankInfo

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_FIRST_NAMESPACE: Final = "pid:[4026531836]"
"""The namespace of process ids that the host itself is in, by the number that Linux gives it (PROC_PID_INIT_INO)."""


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
    return is_living(info, proc=proc) if _is_of_this_host(info, boot_id, proc) else None


def is_gone(info: RankInfo, *, run: Path | None = None, proc: Path = Path("/proc"), boot_id: Path = _BOOT_ID) -> bool:
    """Return whether the process of a rank is gone for certain, and left no end on record.

    That is known where this process is in the rank's container, or sees those of all containers of its host, and where
    the folder that the rank itself wrote to tells of no end either: what is published may lag behind it. A spool is
    deleted once it is published whole: then the copy in the run directory tells, as it is now.

    Args:
        info: `rank.json` of the rank, as it was read some time ago.
        run: The run directory; None where a deleted spool shall leave it unknown.
        proc: The table of processes.
        boot_id: What tells this boot of the host.
    """
    if not _is_of_this_host(info, boot_id, proc) or is_living(info, proc=proc):
        return False
    is_near = _counts_as_we_do(info, proc)
    if not is_near and (not sees_all_processes(proc=proc) or _lives_in_a_container(info, proc)):
        return False
    # Only now: whoever ends in order says so before he goes. A spool in another container may merely not be seen.
    return _left_no_end(info, run if is_near else None)


def left_an_end(info: RankInfo) -> bool:
    """Return whether the folder that a rank itself wrote to, where this host sees it, tells of its end.

    What is published may lag behind it: a process that is gone ended in order then, or said why it did not.

    Args:
        info: `rank.json` of the rank, as it was published.
    """
    folder = _own_folder(info)
    found = None if folder is None else _read_own(folder, info)
    return found is not None and has_ended(*found)


def sees_all_processes(*, proc: Path = Path("/proc")) -> bool:
    """Return whether this process may look at those of every user and container of its host."""
    try:
        namespace = str((proc / "self" / "ns" / "pid").readlink())
    except OSError:
        return False
    # Where /proc hides processes of others (hidepid), it hides the first one.
    return namespace == _FIRST_NAMESPACE and read_start_ticks(1, proc=proc) is not None


def _counts_as_we_do(info: RankInfo, proc: Path) -> bool:
    """Return whether the rank's id counts in this process's namespace, whose processes are all to be seen here."""
    if info.pid_namespace is None:
        return False
    try:
        namespace = str((proc / "self" / "ns" / "pid").readlink())
    except OSError:
        return False
    return namespace == f"pid:[{info.pid_namespace}]" and read_start_ticks(1, proc=proc) is not None


def _is_of_this_host(info: RankInfo, boot_id: Path, proc: Path) -> bool:
    """Return whether a rank began on this host, since it was booted, and told when, and processes are known here."""
    if info.boot_id is None or info.process_start_ticks is None or not knows_processes(proc):
        return False
    try:
        return info.boot_id == boot_id.read_text(encoding="ascii").strip()
    except OSError:
        return False


def _lives_in_a_container(info: RankInfo, proc: Path) -> bool:
    """Return whether a process lives that has the rank's number within its own namespace, and its start."""
    for process in proc.iterdir():
        if process.name.isdigit() and _read_ticks(process) == info.process_start_ticks:
            try:
                status = (process / "status").read_text(encoding="utf-8", errors="replace")
            except OSError:
                continue  # it has gone meanwhile
            numbers = [line.split() for line in status.splitlines() if line.startswith("NSpid:")]
            if any(each[-1] == str(info.pid) for each in numbers):
                return True
    return False


def _left_no_end(info: RankInfo, run: Path | None) -> bool:
    """Return whether the folder that a rank wrote to, or its copy once that is deleted, tells of no end of it."""
    folder = _own_folder(info)
    if folder is None:
        return False
    if run is not None and _is_deleted(folder):
        folder = paths.rank_folder(run, info.attempt, info.rank)
    found = _read_own(folder, info)
    return found is not None and not has_ended(*found)


def _own_folder(info: RankInfo) -> Path | None:
    """Return the folder that a rank writes to, where reading it waits for no network."""
    folder = None if info.spool is None else Path(info.spool)
    return None if folder is None or not folder.is_absolute() or paths.is_network_path(folder) else folder


def _read_own(folder: Path, info: RankInfo) -> tuple[RankInfo, BlackBoxState | None] | None:
    """Return what a folder tells of the same process of a rank; None where it is another's, deleted, or torn."""
    reader = RankReader(folder)
    try:
        latest, box = reader.info(), reader.state(with_ring=False)
    except RunError:
        return None
    is_same = (latest.pid, latest.process_start_ticks) == (info.pid, info.process_start_ticks)
    return (latest, box) if is_same else None


def _is_deleted(folder: Path) -> bool:
    try:
        folder.lstat()
    except OSError as error:
        return isinstance(error, FileNotFoundError)
    return False


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
    """Return the start of a process in clock ticks since boot; `None` when it is gone, or dead and not yet reaped.

    None as well where ids of processes mean nothing here, as `knows_processes` tells.
    """
    return _read_ticks(proc / str(pid)) if knows_processes(proc) else None


def knows_processes(proc: Path = Path("/proc")) -> bool:
    """Return whether the table of processes counts them as this process does.

    It does not in a new namespace of process ids for which no /proc was mounted: what stands there under an id is
    another process.
    """
    try:
        return str((proc / "self").readlink()) == str(os.getpid())
    except OSError:
        return False


def _read_ticks(process: Path) -> int | None:
    try:
        text = (process / "stat").read_text(encoding="utf-8", errors="replace")
        # The name of the program stands in parentheses and may itself hold spaces and parentheses.
        fields = text.rpartition(")")[2].split()
        return None if fields[0] in "ZX" else int(fields[19])
    except (OSError, ValueError, IndexError):
        return None
