"""Runs a command beside a file system that never answers: `hanging_mount.py FOLDER -- COMMAND...`.

FOLDER is a FUSE mount without anybody behind it, in a mount namespace of its own: whoever asks it for anything waits,
as with a network file system whose server is gone. It ends with this process.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys

NEW_MOUNTS = 0x20000
RECURSIVE_PRIVATE = 0x4000 | 0x40000


def mount_nothing(folder: str) -> int:
    """Mount a file system that nobody serves; return the descriptor that keeps it."""
    libc = ctypes.CDLL(None, use_errno=True)
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0".encode()
    calls = (
        lambda: libc.unshare(NEW_MOUNTS),
        lambda: libc.mount(b"none", b"/", None, RECURSIVE_PRIVATE, None),
        lambda: libc.mount(b"hanging", folder.encode(), b"fuse", 0, options),
    )
    for call in calls:
        if call():
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return device


if __name__ == "__main__":
    mount_nothing(sys.argv[1])
    if sys.argv[2:]:
        sys.exit(subprocess.call(sys.argv[3:]))
