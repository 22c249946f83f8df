"""Where a checkpoint is written to, and how many bytes of it this rank wrote."""

# torch annotates only a part of itself.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from torch import distributed

_DISTRIBUTED: Final = "torch.distributed.checkpoint"


class Size(NamedTuple):
    """Bytes that a rank wrote; `None` with the reason where they are unknown."""

    num_bytes: int | None
    reason: str | None = None


class Target(Protocol):
    """Where a checkpoint is written to; made before it is written, since places in files and groups change."""

    @property
    def path(self) -> str | None:
        """The file or the folder, where it is known."""
        ...

    def measure(self) -> Size:
        """Return what was written, once it is."""
        ...


class FileTarget:
    """What `torch.save` writes to: a path, or a file object from where it stands."""

    def __init__(self, target: Any) -> None:
        self._target = target
        self._before = _position(target)
        self.path = _path_of(target)

    def measure(self) -> Size:
        """Return the size of the file, or how far the file object has moved."""
        if self.path is not None:
            file = Path(self.path)
            return Size(file.stat().st_size) if file.is_file() else Size(None, "its path is no regular file")
        after = _position(self._target)
        if self._before is None or after is None:
            return Size(None, "its file object does not say where it stands")
        return Size(after - self._before)


class FolderTarget:
    """What `torch.distributed.checkpoint` writes to: of a local folder, the files of this rank.

    torch names them by the place of the rank in the group that saves, `__PLACE_*.distcp`; whoever saves alone is 0.
    """

    def __init__(self, *positional: Any, **options: Any) -> None:
        """Make it.

        Args:
            positional: Arguments of the call by place; old programs give the writer as the second.
            options: Arguments of the call by name.
        """
        writer = options.get("storage_writer", positional[1] if len(positional) > 1 else None)
        self._reason = None if writer is None or _writes_files(writer) else f"files of {type(writer).__name__}"
        identifier = options.get("checkpoint_id")
        if not identifier and self._reason is None:
            identifier = getattr(writer, "path", None)
        self.path = _path_of(identifier)
        self._prefix = f"__{_place(options.get('process_group'), alone=bool(options.get('no_dist')))}_"

    def measure(self) -> Size:
        """Return the bytes of this rank's files."""
        if self._reason is not None:
            return Size(None, f"{self._reason} are not known by name")
        if self.path is None:
            return Size(None, "it has no path")
        files = list(Path(self.path).glob(f"{self._prefix}*.distcp"))
        if not files:
            return Size(None, f"its folder has no local file of this rank ({self._prefix}*.distcp)")
        return Size(sum(file.stat().st_size for file in files))


def _writes_files(writer: object) -> bool:
    """Whether a writer is torch's own for folders that are mounted; others derive from it, with other file systems."""
    package = sys.modules[_DISTRIBUTED]
    return isinstance(writer, package.FileSystemWriter) and isinstance(
        getattr(writer, "fs", None), package.filesystem.FileSystem
    )


def _place(group: Any, *, alone: bool) -> int:
    """Return the place of this rank in the group that saves a distributed checkpoint."""
    if alone or not (distributed.is_available() and distributed.is_initialized()):
        return 0
    return distributed.get_rank(group)


def _position(target: Any) -> int | None:
    """Return where a file object stands; `None` for a path, or an object that does not know."""
    tell = getattr(target, "tell", None)
    try:
        return int(tell()) if tell is not None else None
    except (OSError, ValueError, TypeError):
        return None


def _path_of(target: Any) -> str | None:
    return os.fspath(target) if isinstance(target, str | os.PathLike) else None
