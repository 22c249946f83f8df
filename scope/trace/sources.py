"""The bytes of a trace, decompressed in blocks, with caps against bombs."""

from __future__ import annotations

import os
import re
import stat
from contextlib import closing
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from isal import isal_zlib

from scope.errors import LimitError, TraceError, UsageError
from scope.structs import Record
from scope.units import format_bytes, parse_size, parse_variable

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

BLOCK_BYTES: Final = 512 << 10
_GZIP_MAGIC: Final = b"\x1f\x8b"
_ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
UTF8_MARK: Final = b"\xef\xbb\xbf"
WHITE: Final = b" \t\r\n"
MOST_BLANK_BYTES: Final = 1 << 20
"""What may stand before the first byte of JSON: a file of blanks or zeros alone is refused at once, however long."""
_GZIP_WINDOW: Final = 31
_RATIO_FREE_BYTES: Final = 32 << 20
_COMPRESSED_READ_BYTES: Final = 128 << 10
_MAX_BYTES_VARIABLE: Final = "SCOPE_MAX_TRACE_BYTES"
_MAX_RATIO_VARIABLE: Final = "SCOPE_MAX_TRACE_RATIO"


_DEFAULT_MAX_BYTES: Final = 32 * 10**9
_DEFAULT_MAX_RATIO: Final = 600


class Limits(Record, frozen=True, kw_only=True):
    """Caps that protect this machine from a file that unpacks without end."""

    max_bytes: int = _DEFAULT_MAX_BYTES
    """Uncompressed bytes of one file; the environment variable `SCOPE_MAX_TRACE_BYTES` sets it."""
    max_ratio: int = _DEFAULT_MAX_RATIO
    """Uncompressed by compressed size, beyond the first 32 MiB; `SCOPE_MAX_TRACE_RATIO` sets it."""

    @staticmethod
    def from_environment() -> Limits:
        """Return the caps that the environment sets, else the defaults.

        Raises:
            UsageError: A variable is set to something that is no size or number.
        """
        size = os.environ.get(_MAX_BYTES_VARIABLE)
        ratio = os.environ.get(_MAX_RATIO_VARIABLE)
        return Limits(
            max_bytes=parse_variable(_MAX_BYTES_VARIABLE, size, parse_size) if size else _DEFAULT_MAX_BYTES,
            max_ratio=parse_variable(_MAX_RATIO_VARIABLE, ratio, _parse_ratio) if ratio else _DEFAULT_MAX_RATIO,
        )


def _parse_ratio(text: str) -> int:
    if not re.fullmatch("[1-9][0-9]{0,17}", text):
        message = f"{text!r}: must be a whole number, from 1 on, such as {_DEFAULT_MAX_RATIO}"
        raise UsageError(message)
    return int(text)


_isal: Any = isal_zlib
_GZIP_ERROR: Final[type[Exception]] = _isal.error


def _decompressor() -> Any:
    return _isal.decompressobj(wbits=_GZIP_WINDOW)


def may_hold_trace(head: bytes) -> bool:
    """Say whether a file that begins so may be a trace: something compressed, or JSON of an object or a list."""
    if head.startswith((_GZIP_MAGIC, _ZSTD_MAGIC)):
        return True
    start = head.removeprefix(UTF8_MARK).lstrip(WHITE)
    return start.startswith((b"{", b"[")) if start else len(head) < MOST_BLANK_BYTES


class Source:
    """One trace file as an iterator of uncompressed blocks.

    Attributes:
        path: The file.
        is_cut: The compressed stream ends early or is damaged; what came before was delivered.
        uncompressed_bytes: What was delivered so far.
    """

    def __init__(self, path: Path, *, limits: Limits) -> None:
        self.path = path
        self.limits = limits
        self.is_cut = False
        self.uncompressed_bytes = 0
        self.compressed_bytes = 0

    def blocks(self) -> Generator[bytes]:
        """Yield the uncompressed bytes.

        Raises:
            TraceError: The file cannot be opened or read.
            LimitError: A cap was reached.
        """
        try:
            if not stat.S_ISREG(self.path.stat().st_mode):
                message = f"{self.path}: is no regular file but, say, a pipe; write its content to a file first"
                raise TraceError(message)
            with self.path.open("rb") as file:
                magic = file.read(4)
                file.seek(0)
                with closing(self._decompressed(file, magic)) as blocks:
                    for block in blocks:
                        self.uncompressed_bytes += len(block)
                        self._check_limits()
                        yield block
        except OSError as error:
            message = f"{self.path}: cannot be read: {error.strerror or error}"
            raise TraceError(message) from error

    def _decompressed(self, file: BinaryIO, magic: bytes) -> Generator[bytes]:
        if magic.startswith(_GZIP_MAGIC):
            return self._gunzip(file)
        if magic == _ZSTD_MAGIC:
            return self._unzstd(file)
        return self._plain(file)

    def _plain(self, file: BinaryIO) -> Generator[bytes]:
        while block := file.read(BLOCK_BYTES):
            yield block

    def _gunzip(self, file: BinaryIO) -> Generator[bytes]:
        decompressor: Any = _decompressor()
        pending = b""
        while True:
            if not pending:
                pending = file.read(_COMPRESSED_READ_BYTES)
                if not pending:
                    self.is_cut = not decompressor.eof
                    return
            try:
                block = decompressor.decompress(pending, BLOCK_BYTES)
            except _GZIP_ERROR:
                self.is_cut = True
                return
            pending = decompressor.unconsumed_tail
            self.compressed_bytes = file.tell() - len(pending)
            if block:
                yield block
            if decompressor.eof:
                pending = decompressor.unused_data.lstrip(b"\0") or file.read(_COMPRESSED_READ_BYTES)
                if not pending.startswith(_GZIP_MAGIC):
                    return
                decompressor = _decompressor()

    def _unzstd(self, file: BinaryIO) -> Generator[bytes]:
        import zstandard

        reader = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True)
        try:
            while block := reader.read(BLOCK_BYTES):
                self.compressed_bytes = file.tell()
                yield block
        except zstandard.ZstdError:
            self.is_cut = True
        # A frame that ends before its first block is no error to the library.
        self.is_cut = self.is_cut or not self.uncompressed_bytes

    def _check_limits(self) -> None:
        if self.uncompressed_bytes > self.limits.max_bytes:
            message = (
                f"{self.path}: unpacks to more than {format_bytes(self.limits.max_bytes)}; if the file can be "
                f"trusted, raise the cap: {_MAX_BYTES_VARIABLE}={10 * self.limits.max_bytes}"
            )
            raise LimitError(message)
        if not self.compressed_bytes or self.uncompressed_bytes <= _RATIO_FREE_BYTES:
            return
        if self.uncompressed_bytes > self.limits.max_ratio * self.compressed_bytes:
            message = (
                f"{self.path}: unpacks to more than {self.limits.max_ratio} times its size, as a decompression bomb "
                f"does; if the file can be trusted, raise the cap: {_MAX_RATIO_VARIABLE}=100000"
            )
            raise LimitError(message)
