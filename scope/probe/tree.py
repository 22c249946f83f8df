"""Files of the kernel below an injected root, read whole, small and with their failures told apart."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Final

from scope.probe.records import Problem

if TYPE_CHECKING:
    from pathlib import Path

_ERRORS: Final = {
    errno.ENOENT: "not_found",
    errno.ENODEV: "no_device",
    errno.EACCES: "permission_denied",
    errno.EPERM: "permission_denied",
    errno.EINVAL: "invalid",
    errno.EIO: "io_error",
    errno.EOPNOTSUPP: "not_supported",
    errno.ENOTDIR: "not_found",
    errno.ESTALE: "stale",
    errno.EBUSY: "busy",
}
SMALL_FILE_BYTES: Final = 64 << 10
LARGE_FILE_BYTES: Final = 16 << 20


def error_kind(error: OSError) -> str:
    """Return the short, bounded name of an operating system's error."""
    return _ERRORS.get(error.errno or 0, "os_error")


class Tree:
    """Reads files below `root`, which is `/` on a real node and a folder of a test.

    Args:
        root: What absolute paths are taken from.
    """

    def __init__(self, root: str | Path = "/") -> None:
        self._root = str(root).rstrip("/")

    def path(self, path: str) -> str:
        """Return where an absolute path of the node lies."""
        return self._root + path

    def read(self, path: str, *, limit: int = SMALL_FILE_BYTES) -> str:
        """Return the text of a file without the white space around it.

        Args:
            path: Absolute path on the node.
            limit: The most bytes that are read; the rest is cut.

        Raises:
            OSError: The file cannot be read.
        """
        descriptor = os.open(self._root + path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            chunks: list[bytes] = []
            while limit > 0 and (chunk := os.read(descriptor, min(limit, 1 << 20))):
                chunks.append(chunk)
                limit -= len(chunk)
        finally:
            os.close(descriptor)
        return b"".join(chunks).decode("utf-8", "replace").strip()

    def list(self, path: str) -> list[str]:
        """Return the sorted names in a folder, or nothing when it does not exist.

        Raises:
            OSError: The folder is there and cannot be listed.
        """
        try:
            return sorted(os.listdir(self._root + path))  # noqa: PTH208 - names alone, at each sample
        except (FileNotFoundError, NotADirectoryError):
            return []

    def exists(self, path: str) -> bool:
        """Return whether something lies at this path."""
        return os.path.lexists(self._root + path)

    def resolve(self, path: str) -> str:
        """Return the real path, as an absolute path of the node, with all links followed."""
        real = os.path.realpath(self._root + path)
        root = os.path.realpath(self._root) if self._root else ""
        return real[len(root) :] if real.startswith(root) else real


class CounterFiles:
    """Many small counter files, kept open: a second read costs one `pread` and no lookup.

    A file that vanishes or fails is closed, so that the next read opens what is there then.

    Args:
        tree: Where the files lie.
        max_open: The most descriptors kept.
    """

    def __init__(self, tree: Tree, *, max_open: int = 4_096) -> None:
        self._tree = tree
        self._max_open = max_open
        self._descriptors: dict[str, int] = {}

    def read(self, path: str) -> bytes:
        """Return the content of one file, at most 256 bytes.

        Raises:
            OSError: It cannot be read now.
        """
        descriptor = self._descriptors.get(path)
        if descriptor is None:
            descriptor = os.open(self._tree.path(path), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            if len(self._descriptors) >= self._max_open:
                self.close()
            self._descriptors[path] = descriptor
        try:
            return os.pread(descriptor, 256, 0)
        except OSError:
            os.close(self._descriptors.pop(path))
            raise

    def forget(self, prefix: str) -> None:
        """Close all files whose path begins so."""
        for path in [path for path in self._descriptors if path.startswith(prefix)]:
            os.close(self._descriptors.pop(path))

    def close(self) -> None:
        """Close all files."""
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._descriptors.clear()


class Problems:
    """Gathers what a sample could not read, for one collector.

    Args:
        collector: Name of the reader.
    """

    def __init__(self, collector: str) -> None:
        self.collector = collector
        self.found: list[Problem] = []

    def add(self, error: str, *, where: str, message: str = "") -> None:
        """Note one problem; `error` is out of a small fixed set."""
        self.found.append(Problem(self.collector, error, where, message))

    def add_os_error(self, error: OSError, *, where: str) -> None:
        """Note a failed system call."""
        self.add(error_kind(error), where=where, message=str(error))
