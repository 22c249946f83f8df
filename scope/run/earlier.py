"""What a run directory holds already when another launch begins in it.

A run that has ended goes on: the launch becomes its next attempt. One that is being recorded is another run, and the
launch gets a folder of its own beside it: neither steps nor goodput of two jobs are of one.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from scope.errors import RunError
from scope.run import paths
from scope.run.alive import find_fate, find_signs, has_ended
from scope.run.files import FILE_MODE, FOLDER_MODE
from scope.run.reader import RankReader
from scope.run.removal import LAUNCH_LOCK_FILE
from scope.units import NS_PER_S

if TYPE_CHECKING:
    from collections.abc import Generator

_RECENT_NS: Final = 10 * NS_PER_S
_MAX_FOLDERS: Final = 1000


class Claim(NamedTuple):
    """The run directory of a launch.

    Attributes:
        run: The folder.
        message: What whoever launches should know, in a sentence without a full stop; None for a new run.
    """

    run: Path
    message: str | None


@contextlib.contextmanager
def claim_run(run: Path) -> Generator[Claim]:
    """Inside the `with` a run directory is this launch's, or a new one beside it where another launch has it.

    Another one has it while its launcher lives, or a rank that it left behind. A folder that cannot be written is
    nobody's.

    Args:
        run: The run directory that was asked for, on a local file system.
    """
    run = Path(os.path.abspath(run))  # noqa: PTH100 - `..` has no name
    is_new = not os.path.lexists(run)
    with contextlib.ExitStack() as held:
        try:
            held.callback(_release, run, _lock(run), is_new=is_new)
            is_taken = _has_living_rank(run)
        except BlockingIOError:
            is_taken = True
        except OSError:
            is_taken = False
            if is_new:
                with contextlib.suppress(OSError):
                    run.rmdir()  # it was made, but a umask keeps us out
        if not is_taken:
            yield Claim(run, describe_earlier(run))
            return
        held.close()
        beside = _make_beside(run)
        if beside is None:
            yield Claim(run, f"{run} is recorded by another launch that goes on: both share one record")
            return
        with contextlib.suppress(OSError):
            held.callback(_release, beside, _lock(beside), is_new=True)
        yield Claim(beside, f"{run} is recorded by another launch that goes on: this one is recorded in {beside}")


def _lock(run: Path) -> int:
    """Take a run directory for this process, and return what holds it.

    Raises:
        BlockingIOError: Another process has it.
        OSError: It cannot be written.
    """
    run.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
    path = run / LAUNCH_LOCK_FILE
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, FILE_MODE)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_there = os.path.lexists(path) and os.path.samestat(os.fstat(descriptor), path.lstat())
        except OSError:
            os.close(descriptor)
            raise
        if is_there:
            return descriptor
        os.close(descriptor)  # its holder has taken it away meanwhile


def _release(run: Path, descriptor: int, *, is_new: bool) -> None:
    with contextlib.suppress(OSError):
        (run / LAUNCH_LOCK_FILE).unlink()
        if is_new:
            run.rmdir()  # nothing came of the launch, else it is not empty
    os.close(descriptor)


def _make_beside(run: Path) -> Path | None:
    """Make the first of `RUN-2`, `RUN-3`, ... that is not there; None where none can be made."""
    with contextlib.suppress(OSError, ValueError):
        for number in range(2, _MAX_FOLDERS):
            beside = run.with_name(f"{run.name}-{number}")
            with contextlib.suppress(FileExistsError):
                beside.mkdir(mode=FOLDER_MODE)
                return beside
    return None


def _has_living_rank(run: Path) -> bool:
    """Return whether a rank of the last attempt that has not ended is known to live on this host."""
    for attempt in paths.list_attempts(run)[-1:]:
        for rank in paths.list_ranks(run, attempt):
            reader = RankReader(paths.rank_folder(run, attempt, rank))
            with contextlib.suppress(RunError):
                info = reader.info()
                if not has_ended(info, reader.state(with_ring=False)) and find_fate(info):
                    return True
    return False


def describe_earlier(run: Path, *, now_ns: int | None = None) -> str | None:
    """Return what a launch into a run directory should know, in a sentence without a full stop; None for a new run.

    Args:
        run: The run directory.
        now_ns: Now, since the epoch; by default it is asked for.
    """
    attempts = paths.list_attempts(run)
    if not attempts:
        return None
    last = attempts[-1]
    now = time.time_ns() if now_ns is None else now_ns
    num_living = sum(_seems_living(run, last, rank, now) for rank in paths.list_ranks(run, last))
    message = f"{run} is an existing run: this becomes attempt {last + 1} of it"
    if not num_living:
        return f"{message} (--run-dir names another folder)"
    ranks = "1 rank of attempt {} seems" if num_living == 1 else f"{num_living:,} ranks of attempt {{}} seem"
    return (
        f"{message}, though {ranks.format(last)} to train still, and both then share one record: end what runs there, "
        "or name another folder with --run-dir"
    )


def _seems_living(run: Path, attempt: int, rank: int, now_ns: int) -> bool:
    """Return whether a rank lives on this host, or, where nobody here can tell, gave a sign of life lately."""
    reader = RankReader(paths.rank_folder(run, attempt, rank))
    try:
        info, box = reader.info(), reader.state(with_ring=False)
    except RunError:
        return False
    if has_ended(info, box):
        return False
    lives = find_fate(info)
    return now_ns - max(find_signs(info, box)) < _RECENT_NS if lives is None else lives
