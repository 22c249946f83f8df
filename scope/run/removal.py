"""Deleting what Scope wrote, and nothing else.

A spool or run directory may be any folder that somebody named: a home folder, a project, a mount point, `/`. So only
the files of the layout go, and a folder goes only once it is empty.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from typing import TYPE_CHECKING, Final

from scope.run import paths
from scope.run.files import identify_descriptor, identify_folder, open_folder
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


def remove_run_files(run: Path, *, identity: tuple[int, int] | None = None) -> list[str]:
    """Delete the files of a run from a folder, and the folder when it holds nothing else.

    Args:
        run: A run directory or a spool; nothing is deleted through a link in its place.
        identity: Device and inode of that folder where another one in its place is to stay as it is.

    Returns:
        The names of what else lies in the folder and stays; empty when the folder is gone.

    Raises:
        OSError: Something of the run could not be deleted.
    """
    descriptor = open_folder(run, identity)
    try:
        with os.scandir(descriptor) as entries:
            for entry in list(entries):
                _remove(entry, descriptor)
        left = sorted(os.listdir(descriptor))  # noqa: PTH208 - Path knows no descriptors
        if not left and identify_folder(run) == identify_descriptor(descriptor):
            run.rmdir()
    finally:
        os.close(descriptor)
    return left


def _remove_reservation(name: str, folder: int) -> None:
    """Delete a folder by which an attempt was taken, and those of the tasks in it, where all of them are empty."""
    with contextlib.suppress(OSError):
        descriptor = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
        try:
            for task in os.listdir(descriptor):  # noqa: PTH208 - Path knows no descriptors
                os.rmdir(task, dir_fd=descriptor)
        finally:
            os.close(descriptor)
        os.rmdir(name, dir_fd=folder)


def _remove(entry: os.DirEntry[str], folder: int) -> None:
    """Delete what lies in a folder, a descriptor, where its name is one that Scope gives."""
    is_folder = entry.is_dir(follow_symlinks=False)
    if is_folder and paths.is_attempt(entry.name):
        # It is no link, and links inside are not followed.
        shutil.rmtree(entry.name, dir_fd=folder)
    elif is_folder and entry.name.startswith(paths.RESERVATION):
        _remove_reservation(entry.name, folder)
    elif not is_folder and (entry.name in _FILES or entry.name.startswith(AGREED)):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(entry.name, dir_fd=folder)
