"""Growing files of JSON lines, read from where the last reading stopped, in bounded memory."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Generic, TypeVar

import msgspec

from scope.run.files import open_regular

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_Record = TypeVar("_Record")
MAX_LINE_BYTES: Final = 16 * 2**20
"""A longer line is no record of Scope's and is left out."""
_READ_BYTES: Final = 4 * 2**20
_MAX_SKIPPED_BYTES: Final = 64 * 2**20
"""Of a line that is too long, at one reading of a caller who takes little at a time."""
_MOST_SKIPPED_BYTES: Final = 256 * 2**20
"""Of such a line at any other reading, holes apart, which are not read: somebody waits for it."""
_REMEMBERED_BYTES: Final = 4096
"""Enough for a whole line as a rule, which has an instant of its own: ends alone may be alike from step to step."""
_MAX_NAMED_PROBLEMS: Final = 5
_READ: Final = "the other lines are read"


@dataclass(frozen=True, kw_only=True)
class LinePlace:
    """Where the reading of a growing file of lines has stopped, and how to tell that it is still the same file.

    Attributes:
        inode: Number of the file.
        offset: Bytes that were read.
        line: Lines that were read.
        seen_last: The bytes before `offset`, at most 4,096.
    """

    inode: int
    offset: int
    line: int
    seen_last: bytes


class LineTail(Generic[_Record]):
    """Reads a growing file of JSON lines from where it stopped the last time.

    A last line without its newline is left for the next time: it is being written. A file that was replaced (old steps
    folded) or that shrank is read again from its start; `restarts` counts that, and the caller forgets what it had.

    A line that is no record, or is longer than 16 MiB, costs itself alone; `take_problems` names it, or
    names others of the same piece, and `take_num_unnamed` counts it. Where such a line has no end within 256 MiB, holes
    apart, the next reading goes on from there.

    Attributes:
        path: The file.
        restarts: Times that reading began anew.
    """

    def __init__(
        self,
        path: Path,
        decoder: msgspec.json.Decoder[_Record],
        *,
        find_fault: Callable[[_Record], str | None] | None = None,
    ) -> None:
        self.path = path
        self.restarts = 0
        self._decoder = decoder
        self._find_fault = find_fault
        self._problems: list[str] = []
        self._num_unnamed = 0
        self._offset = 0
        self._line = 0
        self._inode = -1
        self._seen_last = b""
        # Bytes after the offset that are known to be of a line that is too long.
        self._overlong_bytes = 0
        self._is_overlong_told = False

    def read(self, *, max_bytes: int | None = None) -> list[_Record]:
        """Return the records that are new; empty when the file does not exist.

        Args:
            max_bytes: Stop after about this many, but not before the first record; the next call goes on.

        Raises:
            RunError: The file is no regular one.
        """
        if not os.path.lexists(self.path):
            return []
        descriptor = open_regular(self.path)
        try:
            self._restart_if_replaced(descriptor)
            return self._read(descriptor, max_bytes)
        finally:
            os.close(descriptor)

    def take_problems(self) -> list[str]:
        """Return what was wrong with lines since the last call, one sentence a piece of the file that was read."""
        taken, self._problems = self._problems, []
        return taken

    def take_num_unnamed(self) -> int:
        """Return how many lines were no records since the last call, beyond one a sentence of `take_problems`."""
        taken, self._num_unnamed = self._num_unnamed, 0
        return taken

    @property
    def place(self) -> LinePlace:
        """Where reading has stopped."""
        return LinePlace(inode=self._inode, offset=self._offset, line=self._line, seen_last=self._seen_last)

    def resume(self, place: LinePlace) -> bool:
        """Go on from a place that an earlier reader has reached; return whether the file is still the one it read.

        Raises:
            RunError: The file is no regular one.
        """
        if place.inode < 0 or not os.path.lexists(self.path):
            return False
        descriptor = open_regular(self.path)
        try:
            seen_last = os.pread(descriptor, len(place.seen_last), place.offset - len(place.seen_last))
            if os.fstat(descriptor).st_ino != place.inode or seen_last != place.seen_last:
                return False
        finally:
            os.close(descriptor)
        self._inode, self._offset, self._line = place.inode, place.offset, place.line
        self._seen_last = place.seen_last
        return True

    def _restart_if_replaced(self, descriptor: int) -> None:
        status = os.fstat(descriptor)
        inode = status.st_ino
        # The number of a deleted file is soon given to a new one, so what was read last must still stand there.
        seen_last = os.pread(descriptor, len(self._seen_last), self._offset - len(self._seen_last))
        if self._inode >= 0 and (inode != self._inode or seen_last != self._seen_last):
            self.restarts += 1
            self._offset = self._line = self._overlong_bytes = 0
            self._is_overlong_told = False
            self._seen_last = b""
        if status.st_size < self._offset + self._overlong_bytes:
            self._overlong_bytes, self._is_overlong_told = 0, False
        self._inode = inode

    def _read(self, descriptor: int, max_bytes: int | None) -> list[_Record]:
        records: list[_Record] = []
        taken = size = 0
        begun: list[bytes] = []
        while max_bytes is None or taken < max_bytes or not records:
            if self._overlong_bytes and not self._skip_overlong(descriptor, max_bytes):
                break
            chunk = os.pread(descriptor, min(_READ_BYTES, max_bytes or _READ_BYTES), self._offset + size)
            if not chunk:
                break
            end = chunk.rfind(b"\n")
            if end < 0:
                begun.append(chunk)
                size += len(chunk)
                if size > MAX_LINE_BYTES:
                    self._overlong_bytes, size, begun = size, 0, []
                continue
            whole = b"".join((*begun, chunk[:end]))
            begun = [chunk[end + 1 :]]
            size = len(begun[0])
            records.extend(self._decode_lines(whole))
            self._move_on(len(whole) + 1, whole[-_REMEMBERED_BYTES:] + b"\n")
            taken += len(whole) + 1
        return records

    def _skip_overlong(self, descriptor: int, max_bytes: int | None) -> bool:
        """Pass over the line that is too long, none of which is kept; False while its end has not been reached."""
        left = _MOST_SKIPPED_BYTES if max_bytes is None else _MAX_SKIPPED_BYTES
        while left > 0:
            self._overlong_bytes = _find_data(descriptor, self._offset + self._overlong_bytes) - self._offset
            chunk = os.pread(descriptor, _READ_BYTES, self._offset + self._overlong_bytes)
            length = chunk.find(b"\n") + 1
            self._overlong_bytes += length or len(chunk)
            left -= len(chunk)
            if length:
                self._tell_overlong(MAX_LINE_BYTES, _READ)
                size, self._overlong_bytes, self._is_overlong_told = self._overlong_bytes, 0, False
                self._line += 1
                self._move_on(size, chunk[:length])
                return True
            if not chunk:
                self._tell_overlong(MAX_LINE_BYTES, _READ)
                return False
        self._tell_overlong(self._overlong_bytes, "the lines behind it are left for a later look")
        return False

    def _tell_overlong(self, num_bytes: int, of_others: str) -> None:
        if not self._is_overlong_told:
            self._is_overlong_told = True
            self._note(f"line {self._line + 1}: is longer than {num_bytes} bytes", of_others=of_others)

    def _move_on(self, num_bytes: int, last: bytes) -> None:
        self._offset += num_bytes
        self._seen_last = last[-_REMEMBERED_BYTES:]

    def _decode_lines(self, content: bytes) -> list[_Record]:
        try:
            records = self._decoder.decode_lines(content)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return self._decode_one_by_one(content)
        if self._find_fault is not None and any(map(self._find_fault, records)):
            return self._decode_one_by_one(content)
        self._line += content.count(b"\n") + 1
        return records

    def _decode_one_by_one(self, content: bytes) -> list[_Record]:
        """Return the lines that are records, and note which are none."""
        records: list[_Record] = []
        problems: list[str] = []
        lines = content.split(b"\n")
        for number, line in enumerate(lines, start=self._line + 1):
            if not line.strip():
                continue
            try:
                record = self._decoder.decode(line)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                problems.append(f"line {number}: {error}")
                continue
            if self._find_fault is not None and (fault := self._find_fault(record)):
                problems.append(f"line {number}: {fault}")
            else:
                records.append(record)
        self._line += len(lines)
        more = len(problems) - _MAX_NAMED_PROBLEMS
        named = "; ".join(problems[:_MAX_NAMED_PROBLEMS]) + (f"; and {more} more" if more > 0 else "")
        self._note(named, num_lines=len(problems))
        return records

    def _note(self, named: str, *, num_lines: int = 1, of_others: str = _READ) -> None:
        # Of a file that is not ours at all, the first words suffice.
        self._num_unnamed += num_lines
        if len(self._problems) < _MAX_NAMED_PROBLEMS:
            self._num_unnamed -= 1
            self._problems.append(f"{self.path}: is torn or foreign: {named}; {of_others}")


def _find_data(descriptor: int, offset: int) -> int:
    """Return where a file holds data again from an offset on, or its end: a hole has no bytes to look at."""
    try:
        return os.lseek(descriptor, offset, os.SEEK_DATA)
    except OSError as error:
        # A file system that knows of no holes has data everywhere.
        return max(offset, os.fstat(descriptor).st_size) if error.errno == errno.ENXIO else offset
