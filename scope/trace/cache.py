"""Parsed traces in the user's cache folder, so that a second look costs a tenth of the first.

An entry is found by the digest of the file's bytes and of everything that decides what is read out of them. It is
written beside its place and renamed into it, so a reader sees all of it or nothing. Nothing here is needed: a cache
that cannot be written, is owned by somebody else, or is torn, is as good as none.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
import polars as pl
from msgspec.structs import replace

from scope.folders import is_private
from scope.trace.classes import RULES_VERSION
from scope.trace.schema import SCHEMA_VERSION
from scope.trace.sources import MOST_BLANK_BYTES, may_hold_trace
from scope.trace.store import read_rank, write_rank
from scope.units import parse_size, parse_variable

if TYPE_CHECKING:
    from scope.trace.classes import Pattern
    from scope.trace.model import RankTrace

_FOLDER_VARIABLE: Final = "SCOPE_CACHE_DIR"
_SIZE_VARIABLE: Final = "SCOPE_CACHE_MAX_BYTES"
_DEFAULT_MAX_BYTES: Final = 4 * 10**9
SMALLEST_BYTES: Final = 128 << 10
"""Smaller files are read as fast as their entry would be."""
_READ_BYTES: Final = MOST_BLANK_BYTES
_PRIVATE: Final = 0o700
_UNREADABLE: Final = (OSError, ValueError, msgspec.MsgspecError, pl.exceptions.PolarsError)


def find_cache_folder() -> Path | None:
    """Return the user's cache folder: `SCOPE_CACHE_DIR`, else that of the operating system.

    None where nothing tells the user's home folder, as in a container whose user has no name.
    """
    named = os.environ.get(_FOLDER_VARIABLE)
    if named:
        return Path(named)
    # Readings without the cache, those of every rank that another process reads among them, need no folder for it.
    import platformdirs

    try:
        folder = Path(platformdirs.user_cache_dir("stepscope"))
    except RuntimeError:
        return None
    return folder if folder.is_absolute() else None


class Cache:
    """The cache folder of one user.

    Attributes:
        folder: Where entries stand.
        max_bytes: What all entries together may take; the oldest used go first.
    """

    def __init__(self, folder: Path, *, max_bytes: int = _DEFAULT_MAX_BYTES) -> None:
        self.folder = folder
        self.max_bytes = max_bytes

    @staticmethod
    def of_user() -> Cache | None:
        """Return the cache in the user's cache folder; None where there is no such folder.

        Raises:
            UsageError: `SCOPE_CACHE_MAX_BYTES` is no size.
        """
        size = os.environ.get(_SIZE_VARIABLE)
        max_bytes = parse_variable(_SIZE_VARIABLE, size, parse_size) if size else _DEFAULT_MAX_BYTES
        place = find_cache_folder()
        return None if place is None else Cache(place / "traces", max_bytes=max_bytes)

    def key(self, path: Path, *, python_calls: bool, patterns: tuple[Pattern, ...]) -> str | None:
        """Return the name of a file's entry, or None when the file is small, cannot be read, or can be no trace."""
        rules = f"{SCHEMA_VERSION}/{RULES_VERSION}/{python_calls}/{pl.__version__}"
        digest = hashlib.blake2b(rules.encode(), digest_size=20)
        for pattern in patterns:
            digest.update(f"\0{pattern.kernel_class}\0{pattern.expression.pattern}".encode())
        try:
            if path.stat().st_size < SMALLEST_BYTES:
                return None
            with path.open("rb") as file:
                block = file.read(_READ_BYTES)
                if not may_hold_trace(block):
                    return None
                while block:
                    digest.update(block)
                    block = file.read(_READ_BYTES)
        except OSError:
            return None
        return digest.hexdigest()

    def get(self, key: str) -> RankTrace | None:
        """Return an entry, or None when there is none that can be used."""
        entry = self.folder / key
        if not (is_private(self.folder) and is_private(entry)):
            return None
        try:
            trace = read_rank(entry)
            os.utime(entry)
        except _UNREADABLE:
            shutil.rmtree(entry, ignore_errors=True)
            return None
        return trace

    def put(self, key: str, trace: RankTrace) -> None:
        """Write an entry, and forget the oldest ones beyond the cap."""
        try:
            self.folder.mkdir(mode=_PRIVATE, parents=True, exist_ok=True)
            if not is_private(self.folder):
                return
            fresh = Path(tempfile.mkdtemp(prefix=".new-", dir=self.folder))
            try:
                # Whoever reads an entry knows the path; one that is no UTF-8 could not be written.
                write_rank(replace(trace, path=""), fresh)
                fresh.rename(self.folder / key)
            except _UNREADABLE:
                shutil.rmtree(fresh, ignore_errors=True)
            self._forget_oldest()
        except OSError:
            return

    def put_aside(self, key: str, trace: RankTrace) -> None:
        """Write an entry in a thread, which the end of the process waits for."""
        threading.Thread(target=self.put, args=(key, trace), name="scope-cache").start()

    def _forget_oldest(self) -> None:
        entries: list[tuple[float, int, Path]] = []
        for entry in self.folder.iterdir():
            try:
                size = sum(file.stat().st_size for file in entry.iterdir())
                entries.append((entry.stat().st_mtime, size, entry))
            except OSError:
                continue
        total = sum(size for _, size, _ in entries)
        for _, size, entry in sorted(entries):
            if total <= self.max_bytes:
                return
            shutil.rmtree(entry, ignore_errors=True)
            total -= size
