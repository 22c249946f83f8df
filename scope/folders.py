"""Folders that nobody else may write into: whoever can, may put anything in the place of what was made there."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

_OTHERS_MAY_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH


def is_private(folder: Path) -> bool:
    """Return whether a folder is a real one, of this user, that nobody else can write into."""
    return find_fault(folder) is None


def find_fault(folder: Path) -> str | None:
    """Return why a folder is not this user's alone, as what is said of it; None where it is."""
    try:
        status = os.lstat(folder)
    except OSError as error:
        return f"cannot be looked at: {error.strerror}"
    if not stat.S_ISDIR(status.st_mode):
        return "is a link" if stat.S_ISLNK(status.st_mode) else "is no folder"
    if status.st_uid != os.geteuid():
        return "belongs to another user"
    return "can be written by others" if status.st_mode & _OTHERS_MAY_WRITE else None
