"""Copies of files that a rank goes on writing, kept equal to them while they grow or are replaced."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from scope.errors import RunError
from scope.run.files import FILE_MODE, identify_descriptor, open_regular

if TYPE_CHECKING:
    from pathlib import Path

_CHUNK_BYTES: Final = 2**20
_REMEMBERED_BYTES: Final = 4096


class GrowingCopy:
    """A copy of a file that grows by whole writes and is replaced now and then by another one of the same name.

    The number of a deleted file is soon given to a new one, so a number does not tell a file from its successor. The
    file that was read last is therefore kept open: while it is, no other one can have its number.

    Args:
        source: The file.
        target: Its copy; the folder exists.
    """

    def __init__(self, source: Path, target: Path) -> None:
        self._source = source
        self._target = target
        self._held = -1
        self._stamp: tuple[int, ...] = ()
        self._offset = 0
        self._seen_last = b""

    def update(self) -> None:
        """Append what was appended; copy the whole file where it is another one, or the copy is not as it was left.

        Readers of the copy never see a part of a file that replaced another.

        Raises:
            OSError: The copy could not be written; the next call copies all of it.
            RunError: The source is no regular file.
        """
        source = open_regular(self._source)
        try:
            if self._held < 0 and self._stamp == _stamp(source) and self._is_as_left():
                return
            if self._is_same_file(source) and self._is_as_left():
                offset = append_span(source, self._target, self._offset)
            else:
                offset = replace_by_copy(source, self._target)
            self._offset = offset
            self._seen_last = _read_before(source, offset)
            # One that was read to its end while it grew is read on from there, wherever its end is by now.
            self._stamp = (*_stamp(source)[:2], offset, *_stamp(source)[3:])
            source, self._held = self._held, source
        finally:
            if source >= 0:
                os.close(source)

    def let_go(self) -> None:
        """Close the file, of one that is not expected to change: if it does, it is copied anew."""
        if self._held >= 0:
            os.close(self._held)
            self._held = -1

    def make_equal(self) -> None:
        """Compare the copy with the file, byte by byte, and copy it anew where they differ.

        Raises:
            OSError: The copy could not be written.
            RunError: They differ still: the file is being written, or what was written cannot be read back.
        """
        self.update()
        if not are_equal(self._source, self._target):
            source = open_regular(self._source)
            try:
                replace_by_copy(source, self._target)
            finally:
                os.close(source)
            check_equal(self._source, self._target)

    def _is_same_file(self, source: int) -> bool:
        """Return whether `source` is the file that was read last, and what was read of it stands in it still.

        Half a line is taken back where a disk is full.
        """
        return (
            self._held >= 0
            and identify_descriptor(source) == identify_descriptor(self._held)
            and os.fstat(source).st_size >= self._offset
            and _read_before(source, self._offset) == self._seen_last
        )

    def _is_as_left(self) -> bool:
        try:
            return self._target.lstat().st_size == self._offset
        except OSError:
            return False


def append_span(source: int, target: Path, offset: int) -> int:
    """Append the bytes of `source` from `offset` on to a file, which is made if need be; return where they end."""
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, FILE_MODE)
    try:
        while chunk := os.pread(source, _CHUNK_BYTES, offset):
            view = memoryview(chunk)
            while view:
                view = view[os.write(descriptor, view) :]
            offset += len(chunk)
    finally:
        os.close(descriptor)  # raises where a network file system could not keep what it took
    return offset


def replace_by_copy(source: int, target: Path) -> int:
    """Put a copy of `source` in place of `target`, whole; return how many bytes it has."""
    part = target.with_name(f".{target.name}.part")
    part.unlink(missing_ok=True)
    size = append_span(source, part, 0)
    part.rename(target)
    return size


def are_equal(one: Path, other: Path) -> bool:
    """Return whether two files hold the same bytes; False where the second is missing or no regular file."""
    first = open_regular(one)
    try:
        second = open_regular(other)
    except RunError:
        os.close(first)
        return False
    try:
        offset = 0
        while True:
            chunk = os.pread(first, _CHUNK_BYTES, offset)
            if chunk != os.pread(second, _CHUNK_BYTES, offset):
                return False
            if not chunk:
                return True
            offset += len(chunk)
    finally:
        os.close(first)
        os.close(second)


def check_equal(source: Path, target: Path) -> None:
    """Refuse a copy that does not hold what its source does.

    Raises:
        RunError: It does not.
    """
    if not are_equal(source, target):
        message = f"{target}: does not hold what {source} does, though it was just copied; the source is kept"
        raise RunError(message)


def _stamp(descriptor: int) -> tuple[int, ...]:
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _read_before(descriptor: int, offset: int) -> bytes:
    length = min(offset, _REMEMBERED_BYTES)
    return os.pread(descriptor, length, offset - length)
