"""Files that may be torn, hostile or gone: reading with caps, writing that drops instead of raising."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import resource
import stat
from typing import TYPE_CHECKING, Final

from scope.errors import RunError
from scope.folders import find_fault, is_private

if TYPE_CHECKING:
    from pathlib import Path

FOLDER_MODE = 0o750
FILE_MODE = 0o640
MAX_DOCUMENT_BYTES = 16 * 2**20
"""Cap of a document that is read whole (`run.json`, `rank.json`)."""
_HIGH: Final = 768


def make_private(folder: Path) -> str | None:
    """Make a folder that nobody else can write into, whatever the umask is; return why it is none, None where it is.

    One that is there already, and that somebody else may have made, is left as it is. One of this user's own that a
    umask has left without its rights is given them.
    """
    try:
        folder.mkdir(mode=FOLDER_MODE)
        folder.chmod(FOLDER_MODE)
    except FileExistsError:
        pass
    except OSError as error:
        return f"cannot be made: {error.strerror}"
    fault = find_fault(folder)
    if fault is None and folder.stat().st_mode & stat.S_IRWXU != stat.S_IRWXU:
        folder.chmod(FOLDER_MODE)
    return fault


def make_folders(folder: Path) -> None:
    """Make a folder inside a run and what is missing above it, all with the mode of folders of runs.

    `Path.mkdir` would give that mode to the last one alone.

    Raises:
        OSError: It cannot be made.
    """
    try:
        folder.mkdir(mode=FOLDER_MODE)
    except FileNotFoundError:
        if folder.parent == folder:
            raise
        make_folders(folder.parent)
        folder.mkdir(mode=FOLDER_MODE, exist_ok=True)
    except FileExistsError:
        if not folder.is_dir():
            raise


def open_regular(path: Path) -> int:
    """Return a read-only descriptor of a regular file; the caller closes it.

    Neither a symbolic link, nor a pipe that would block, nor a device is opened: a run directory may be hostile.

    Raises:
        RunError: There is no such file, or it is not a regular one, or it may not be read.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        message = f"{path}: cannot be opened ({error.strerror})"
        raise RunError(message) from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        message = f"{path}: is not a regular file"
        raise RunError(message)
    return descriptor


def check_no_link(path: Path) -> None:
    """Refuse a symbolic link: what lies in a run directory must not lead out of it.

    Raises:
        RunError: It is one.
    """
    if os.path.islink(path):  # noqa: PTH114 - unlike Path's own, it raises nothing where access is denied
        message = f"{path}: is a link, which is not followed"
        raise RunError(message)


def read_span(path: Path, *, offset: int = 0, max_bytes: int) -> bytes:
    """Return up to `max_bytes` of a regular file from `offset` on; less at its end.

    Raises:
        RunError: As `open_regular`, or the reading failed.
    """
    descriptor = open_regular(path)
    try:
        parts: list[bytes] = []
        while max_bytes > 0:
            part = os.pread(descriptor, min(max_bytes, 2**20), offset)
            if not part:
                break
            parts.append(part)
            offset += len(part)
            max_bytes -= len(part)
        return b"".join(parts)
    except OSError as error:
        message = f"{path}: cannot be read ({error.strerror})"
        raise RunError(message) from error
    finally:
        os.close(descriptor)


def read_document(path: Path) -> bytes:
    """Return the whole of a small regular file.

    Raises:
        RunError: As `read_span`, or the file is larger than `MAX_DOCUMENT_BYTES`.
    """
    content = read_span(path, max_bytes=MAX_DOCUMENT_BYTES + 1)
    if len(content) > MAX_DOCUMENT_BYTES:
        message = f"{path}: is larger than {MAX_DOCUMENT_BYTES} bytes; it is not one of Scope's files"
        raise RunError(message)
    return content


def replace_document(path: Path, content: bytes) -> None:
    """Write a document whole: a new file beside it, then renamed over it, so that no reader sees half of it.

    Raises:
        OSError: The disk is full or the folder is gone; the old document stands unchanged.
    """
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, FILE_MODE)
        try:
            _write_all(descriptor, content)
        finally:
            os.close(descriptor)
        fresh.rename(path)
    except OSError:
        with contextlib.suppress(OSError):
            fresh.unlink()
        raise


def replace_text(path: Path, text: str) -> None:
    """Write a file that users read, whole: a new file beside it, on the disk, then renamed over it.

    What stands at `path` is replaced, a link too: it is never followed, and a pipe is never opened.

    Raises:
        OSError: It cannot be written; what was there stands unchanged.
    """
    fresh = path.with_name(f".{path.name}.{os.getpid()}.new")
    with fresh.open("xb") as file:
        try:
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())
            fresh.rename(path)
        except OSError:
            with contextlib.suppress(OSError):
                fresh.unlink()
            raise


def identify_folder(folder: Path) -> tuple[int, int] | None:
    """Return device and inode of a folder; `None` where there is none, or something else stands there, as a link."""
    try:
        status = os.lstat(folder)
    except OSError:
        return None
    return (status.st_dev, status.st_ino) if stat.S_ISDIR(status.st_mode) else None


def is_replaced(folder: Path, identity: tuple[int, int] | None) -> bool:
    """Return whether something else, a link say, stands where a folder of that device and inode was; it may be gone."""
    return identity is not None and os.path.lexists(folder) and identify_folder(folder) != identity


def is_made_anew(folder: Path) -> bool:
    """Return whether a folder in the place of a deleted one is this user's, and nobody else can have put it there.

    Ranks whose folder is deleted under them make it again.
    """
    return is_private(folder) and is_private(folder.parent)


def open_folder(folder: Path, identity: tuple[int, int] | None = None) -> int:
    """Return a descriptor of a folder, below which names lead to what lies in it, whatever takes its place meanwhile.

    The caller closes it.

    Args:
        folder: The folder; a link in its place is refused.
        identity: Its device and inode where another folder is refused as well.

    Raises:
        OSError: There is no such folder, or it may not be read.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    if identity is not None and identify_descriptor(descriptor) != identity:
        os.close(descriptor)
        raise OSError(errno.ESTALE, "another folder stands in its place", str(folder))
    return descriptor


def lift_descriptor(descriptor: int) -> int:
    """Return a copy of a descriptor with a high number, and close the original.

    A program that closes every descriptor and then opens files of its own is given the lowest numbers; what we write
    later must not land in these.
    """
    least = min(_HIGH, resource.getrlimit(resource.RLIMIT_NOFILE)[0] * 3 // 4)
    try:
        high = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, least)
    except OSError:
        return descriptor
    os.close(descriptor)
    return high


def identify_descriptor(descriptor: int) -> tuple[int, int] | None:
    """Return device and inode of what a descriptor stands for; `None` when it is closed."""
    try:
        status = os.fstat(descriptor)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def close_descriptor(descriptor: int, identity: tuple[int, int] | None) -> None:
    """Close a descriptor unless it is closed, or is by now that of somebody else's file."""
    if descriptor >= 0 and identity is not None and identify_descriptor(descriptor) == identity:
        os.close(descriptor)


class AppendFile:
    """A file of lines or records that grows; a write either lands whole or is dropped and counted.

    Attributes:
        num_dropped: Writes that did not land.
        last_error: Why the last of them did not.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.num_dropped = 0
        self.last_error: str | None = None
        self._descriptor = -1
        self._identity: tuple[int, int] | None = None

    def append(self, content: bytes) -> bool:
        """Append `content`; return whether it landed whole. Never raises `OSError`."""
        try:
            self._append(content)
        except OSError as error:
            self.num_dropped += 1
            self.last_error = error.strerror
            return False
        return True

    def close(self) -> None:
        """Close the file; a later append opens it again."""
        close_descriptor(self._descriptor, self._identity)
        self._descriptor = -1

    def _append(self, content: bytes) -> None:
        if self._descriptor >= 0 and identify_descriptor(self._descriptor) != self._identity:
            self._descriptor = -1  # the program closed it, and may have opened a file of its own under its number
        if self._descriptor >= 0 and os.fstat(self._descriptor).st_nlink == 0:
            self.close()  # somebody deleted it; a file nobody can open records nothing
        if self._descriptor < 0:
            make_folders(self.path.parent)
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
            self._descriptor = lift_descriptor(os.open(self.path, flags, FILE_MODE))
            self._identity = identify_descriptor(self._descriptor)
        size = os.fstat(self._descriptor).st_size
        try:
            _write_all(self._descriptor, content)
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, size)  # half a record must not stay
            raise


def _write_all(descriptor: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]
