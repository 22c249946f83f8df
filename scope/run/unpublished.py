"""What ranks of this node wrote and the run directory lacks: its publisher cannot write there, hangs, or is gone.

Told of spools that the registry names, by sizes and times alone. What is on its way is not told: a publisher comes by
every second.
"""

from __future__ import annotations

import os
import shlex
import stat
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from scope.run import paths
from scope.units import NS_PER_S

if TYPE_CHECKING:
    from collections.abc import Iterator

_LATE_NS: Final = 10 * NS_PER_S
"""Age of the last word of a rank after which it should have been published."""
_BEHIND_NS: Final = 60 * NS_PER_S
"""What a copy of a file that grows may be behind; the shared file system's clock may differ from this node's."""
_GROWING: Final = (paths.RANK_FILE, paths.STEPS_FILE, paths.EVENTS_FILE)


def find_unpublished(run: Path, *, registry: Path | None = None) -> list[str]:
    """Return which spools of this node hold more of a run than its run directory does, one sentence a spool.

    Args:
        run: The run directory.
        registry: Folder in which spools are registered; this user's where it is not given.
    """
    names = {os.path.abspath(run), os.path.realpath(run)}  # noqa: PTH100 - as the launcher names it
    spools = [Path(entry.spool) for entry in paths.read_registry(registry)[0] if entry.run_dir in names]
    return [sentence for spool in spools if (sentence := _describe(spool, run)) is not None]


def publishing_command(spool: Path, run: Path) -> str:
    """Return the shell command that publishes a spool once more."""
    places = f"--spool {shlex.quote(str(spool))} --run-dir {shlex.quote(str(run))}"
    return f"python -P -m scope.run.publish {places} </dev/null"


def _describe(spool: Path, run: Path) -> str | None:
    num_bytes = num_ranks = 0
    for attempt in paths.list_attempts(spool):
        for rank in paths.list_ranks(spool, attempt):
            lacking = _count_lacking(paths.rank_folder(spool, attempt, rank), paths.rank_folder(run, attempt, rank))
            num_bytes += lacking
            num_ranks += lacking > 0
    if not num_bytes:
        return None
    ranks = "1 rank" if num_ranks == 1 else f"{num_ranks} ranks"
    return (
        f"{run} lacks {num_bytes:,} bytes of {ranks}, which lie in {spool}: they could not be published; see that "
        f"there is room and that it can be written, then: {publishing_command(spool, run)}"
    )


def _count_lacking(own: Path, copy: Path) -> int:
    """Return the bytes that the folder of a rank holds and its copy does not; 0 where they may be on their way."""
    pairs = [(_status(own / name), _status(copy / name)) for name in _GROWING]
    pairs += [(_status(path), None) for path in _closed_files(own)]
    lacking = [
        (written.st_size - size, _is_late(written, copied))
        for written, copied in pairs
        if written is not None and written.st_size > (size := 0 if copied is None else copied.st_size)
    ]
    return sum(size for size, _ in lacking) if any(is_late for _, is_late in lacking) else 0


def _closed_files(own: Path) -> Iterator[Path]:
    """Yield the files that a publisher moves: what is still there is not published."""
    yield from (own / paths.CALLS_FOLDER).glob(f"*{paths.SEGMENT_SUFFIX}")
    traces = own / paths.TRACES_FOLDER
    for description in traces.glob("*.capture.json"):
        yield from traces.glob(description.name.removesuffix(".capture.json") + ".json*")


def _is_late(written: os.stat_result, copied: os.stat_result | None) -> bool:
    if time.time_ns() - written.st_mtime_ns > _LATE_NS:
        return True
    return copied is not None and written.st_mtime_ns - copied.st_mtime_ns > _BEHIND_NS


def _status(path: Path) -> os.stat_result | None:
    """Return what is known of a regular file; None where there is none."""
    try:
        status = path.lstat()
    except OSError:
        return None
    return status if stat.S_ISREG(status.st_mode) else None
