"""Deleting what Scope wrote, and nothing else.

A spool or run directory may be any folder that somebody named: a home folder, a project, a mount point, `/`. So only
the files of the layout go, and a folder goes only once it is empty.
"""

from __future__ import annotations

import contextlib
import shutil
from typing import TYPE_CHECKING, Final

from scope.run import paths
from scope.run.requests import AGREED

if TYPE_CHECKING:
    from pathlib import Path

LOCK_FILE: Final = ".publish.lock"
"""What the publisher of a spool holds."""
LAUNCH_LOCK_FILE: Final = ".launch.lock"
"""What the launcher of a run holds in its run directory."""
_FILES: Final = (
    paths.RUN_FILE,
    paths.VERDICTS_FILE,
    paths.REQUEST_FILE,
    paths.STACKS_REQUEST_FILE,
    LOCK_FILE,
    LAUNCH_LOCK_FILE,
    paths.note_of_passed(paths.REQUEST_FILE),
    paths.note_of_passed(paths.STACKS_REQUEST_FILE),
)


def remove_run_files(run: Path) -> list[str]:
    """Delete the files of a run from a folder, and the folder when it holds nothing else.

    Args:
        run: A run directory or a spool.

    Returns:
        The names of what else lies in the folder and stays; empty when the folder is gone.

    Raises:
        OSError: Something of the run could not be deleted.
    """
    for attempt in paths.list_attempts(run):
        # Its name is one that only Scope gives, it is no link, and links inside are not followed.
        shutil.rmtree(paths.attempt_folder(run, attempt))
    for name in _FILES:
        with contextlib.suppress(IsADirectoryError):
            (run / name).unlink(missing_ok=True)
    for agreed in run.glob(f"{AGREED}*"):
        with contextlib.suppress(IsADirectoryError):
            agreed.unlink(missing_ok=True)
    for reservation in run.glob(f"{paths.RESERVATION}*"):
        with contextlib.suppress(OSError):
            reservation.rmdir()  # only an empty folder goes
    left = sorted(path.name for path in run.iterdir())
    if not left:
        run.rmdir()
    return left
