"""Checkpoints: `torch.save` and `torch.distributed.checkpoint`, how long they blocked and how much they wrote."""

# torch annotates only a part of itself.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false, reportMissingParameterType=false

from __future__ import annotations

import functools
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch

from scope.record.patches import PatchTable

if TYPE_CHECKING:
    from collections.abc import Callable

    from scope.record.session import Session

_DISTRIBUTED: Final = "torch.distributed.checkpoint"
_SAVER: Final = "torch.distributed.checkpoint.state_dict_saver"
_HOOK: Final = "checkpoint"


class _Begun(NamedTuple):
    """What is known when a checkpoint begins; an asynchronous one ends in a later step."""

    time_ns: int
    step: int | None


class CheckpointHooks:
    """Attaches to the saving functions of torch between `attach` and `close`."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._patches = PatchTable()

    def attach(self) -> None:
        """Hook into `torch.save`, and into distributed checkpoints where they are imported already."""
        self._patches.replace(torch, "save", self._wrap_save)
        self.look()

    def look(self) -> bool:
        """Hook into `torch.distributed.checkpoint` once it is imported; return False while that is half done."""
        package = sys.modules.get(_DISTRIBUTED)
        saver = sys.modules.get(_SAVER)
        if package is None or saver is None:
            return package is None
        if self._patches.holds(package, "save"):
            return True
        for name, wrap in (("save", self._wrap_distributed), ("async_save", self._wrap_asynchronous)):
            # The package re-exports the function; programs import it from either.
            for owner in (package, saver):
                self._patches.replace(owner, name, wrap)
        return self._patches.holds(package, "save")

    def close(self) -> None:
        """Take every hook away."""
        self._patches.restore()

    def _wrap_save(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def save(obj: object, f: Any, *args: Any, **kwargs: Any) -> Any:
            begun = self._begin()
            before = _position(f) if begun else None
            try:
                return original(obj, f, *args, **kwargs)
            finally:
                self._end(begun, lambda: _written(f, before), path=_path_of(f), asynchronous=False)

        return save

    def _wrap_distributed(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def save(*args: Any, **kwargs: Any) -> Any:
            begun = self._begin()
            path = kwargs.get("checkpoint_id")
            try:
                return original(*args, **kwargs)
            finally:
                self._end(begun, lambda: self._shard_bytes(path), path=_path_of(path), asynchronous=False)

        return save

    def _wrap_asynchronous(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def async_save(*args: Any, **kwargs: Any) -> Any:
            begun = self._begin()
            path = kwargs.get("checkpoint_id")
            future: Any = None
            try:
                future = original(*args, **kwargs)
            finally:
                blocked = self._leave(begun)
            upload = getattr(future, "upload_completion", future)
            if begun and hasattr(upload, "add_done_callback"):
                upload.add_done_callback(
                    lambda _: self._tell(
                        begun, lambda: self._shard_bytes(path), blocked, path=_path_of(path), asynchronous=True
                    )
                )
            return future

        return async_save

    def _begin(self) -> _Begun | None:
        """Begin the phase; return what is known then, None when a checkpoint is open already or the hook is off."""
        if _HOOK in self._session.guard.reasons or not self._session.writer.enabled:
            return None
        try:
            clock = self._session.clock
            opened = clock.push("checkpoint")
            return _Begun(time_ns=clock.last_seen_ns, step=self._session.step) if opened else None
        except Exception as error:  # noqa: BLE001 - the guard
            self._session.guard.disable(_HOOK, error)
            return None

    def _leave(self, begun: _Begun | None) -> int:
        """End the phase; return its length by the very instants that the clock took: threads may hold up both calls."""
        if begun is None:
            return 0
        clock = self._session.clock
        clock.pop("checkpoint")
        return clock.last_seen_ns - begun.time_ns

    def _end(
        self, begun: _Begun | None, count: Callable[[], int | None], *, path: str | None, asynchronous: bool
    ) -> None:
        if begun:
            self._tell(begun, count, self._leave(begun), path=path, asynchronous=asynchronous)

    def _tell(
        self, begun: _Begun, count: Callable[[], int | None], blocked: int, *, path: str | None, asynchronous: bool
    ) -> None:
        try:
            duration = time.monotonic_ns() - begun.time_ns if asynchronous else blocked
            written = count()
            self._session.writer.add_event(
                "checkpoint",
                "a checkpoint was written" if written is not None else "a checkpoint was written, its size is unknown",
                time_ns=begun.time_ns,
                step=begun.step,
                phase="checkpoint",
                duration_ns=duration,
                bytes=written,
                bytes_per_s=written * 1e9 / duration if written is not None and duration else None,
                blocked_ns=blocked,
                asynchronous=asynchronous,
                path=path,
            )
        except Exception as error:  # noqa: BLE001 - the guard
            self._session.guard.disable(_HOOK, error)

    def _shard_bytes(self, path: Any) -> int | None:
        """Return the bytes of this rank's files of a distributed checkpoint in a local folder."""
        if not isinstance(path, str | os.PathLike):
            return None
        files = list(Path(path).glob(f"__{self._session.writer.info.rank}_*.distcp"))
        return sum(file.stat().st_size for file in files) if files else None


def _position(target: Any) -> int | None:
    """Return where a file object stands; `None` for a path, or an object that does not know."""
    tell = getattr(target, "tell", None)
    try:
        return int(tell()) if tell is not None else None
    except (OSError, ValueError, TypeError):
        return None


def _written(target: Any, before: int | None) -> int | None:
    if isinstance(target, str | os.PathLike):
        return Path(target).stat().st_size if Path(target).is_file() else None
    after = _position(target)
    return after - before if before is not None and after is not None else None


def _path_of(target: Any) -> str | None:
    return os.fspath(target) if isinstance(target, str | os.PathLike) else None
