"""Checkpoints: `torch.save`, `torch.distributed.checkpoint` and safetensors, how long they blocked, what they wrote."""

# torch annotates only a part of itself.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false, reportMissingParameterType=false

from __future__ import annotations

import functools
import sys
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

import torch

from scope.record.checkpoint_targets import FileTarget, FolderTarget, Size
from scope.record.patches import PatchTable

if TYPE_CHECKING:
    from collections.abc import Callable

    from scope.record.checkpoint_targets import Target
    from scope.record.session import Session

_DISTRIBUTED: Final = "torch.distributed.checkpoint"
_SAVER: Final = "torch.distributed.checkpoint.state_dict_saver"
_SAFETENSORS: Final = "safetensors.torch"
_HOOK: Final = "checkpoint"


class _Begun(NamedTuple):
    """What is known when a checkpoint begins; an asynchronous one ends in a later step."""

    time_ns: int
    step: int | None
    target: Target
    asynchronous: bool


class CheckpointHooks:
    """Attaches to the saving functions of torch between `attach` and `close`."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._patches = PatchTable()

    def attach(self) -> None:
        """Hook into `torch.save`, and into distributed checkpoints where they are imported already."""
        self._patches.replace(torch, "save", functools.partial(self._wrap_blocking, _find_file))
        self.look()

    def look(self) -> bool:
        """Hook into what else writes checkpoints once it is imported; return False while an import is half done."""
        return self._look_for_safetensors() & self._look_for_distributed()

    def _look_for_safetensors(self) -> bool:
        """Hook into what `save_file` hands its tensors to: programs have that function by a name of their own."""
        module = sys.modules.get(_SAFETENSORS)
        if module is None or self._patches.holds(module, "serialize_file"):
            return True
        if hasattr(module, "serialize_file"):
            wrap = functools.partial(self._wrap_blocking, _find_file_of_tensors)
            self._patches.replace(module, "serialize_file", wrap)
        return hasattr(module, "save_file")

    def _look_for_distributed(self) -> bool:
        package = sys.modules.get(_DISTRIBUTED)
        saver = sys.modules.get(_SAVER)
        if package is None or saver is None:
            return package is None
        if self._patches.holds(package, "save"):
            return True
        wrap_save = functools.partial(self._wrap_blocking, FolderTarget)
        for name, wrap in (("save", wrap_save), ("async_save", self._wrap_asynchronous)):
            # The package re-exports the function; programs import it from either.
            for owner in (package, saver):
                self._patches.replace(owner, name, wrap)
        return self._patches.holds(package, "save")

    def close(self) -> None:
        """Take every hook away."""
        self._patches.restore()

    def _wrap_blocking(self, find_target: Callable[..., Target], original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def save(*args: Any, **kwargs: Any) -> Any:
            begun = self._begin(find_target, args, kwargs)
            if begun is None:
                return original(*args, **kwargs)
            result = self._run(begun, original, args, kwargs)
            self._tell(begun, self._leave(begun))
            return result

        return save

    def _wrap_asynchronous(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def async_save(*args: Any, **kwargs: Any) -> Any:
            begun = self._begin(FolderTarget, args, kwargs, asynchronous=True)
            if begun is None:
                return original(*args, **kwargs)
            future = self._run(begun, original, args, kwargs)
            blocked = self._leave(begun)
            upload = getattr(future, "upload_completion", future)
            if hasattr(upload, "add_done_callback"):
                upload.add_done_callback(lambda done: self._tell(begun, blocked, lambda: _name_end(done)))
            return future

        return async_save

    def _run(self, begun: _Begun, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Run what saves; end the phase and tell of the failure where it raises."""
        try:
            return original(*args, **kwargs)
        except BaseException as error:
            self._tell(begun, self._leave(begun), functools.partial(_name_failure, error))
            raise

    def _begin(
        self, find_target: Callable[..., Target], args: Any, kwargs: Any, *, asynchronous: bool = False
    ) -> _Begun | None:
        """Begin the phase; return what is known then, None when a checkpoint is open already or the hook is off."""
        if _HOOK in self._session.guard.reasons or not self._session.writer.enabled:
            return None
        clock, opened = self._session.clock, False
        try:
            opened = clock.push("checkpoint")
            if not opened:
                return None
            time_ns = clock.last_seen_ns
            return _Begun(time_ns, self._session.step, find_target(*args, **kwargs), asynchronous)
        except Exception as error:  # noqa: BLE001 - the guard
            self._session.guard.disable(_HOOK, error)
            if opened:
                clock.pop("checkpoint")
            return None

    def _leave(self, begun: _Begun) -> int:
        """End the phase; return its length by the very instants that the clock took: threads may hold up both calls."""
        clock = self._session.clock
        clock.pop("checkpoint")
        return clock.last_seen_ns - begun.time_ns

    def _tell(self, begun: _Begun, blocked_ns: int, name_failure: Callable[[], str | None] = lambda: None) -> None:
        """Write the event of a checkpoint that has ended.

        Args:
            begun: What was known at its beginning.
            blocked_ns: How long the training thread was held up.
            name_failure: Returns the type of the exception that ended it; `None` where it was written.
        """
        try:
            failure = name_failure()
            duration = time.monotonic_ns() - begun.time_ns if begun.asynchronous else blocked_ns
            if failure is None:
                size = _measure(begun.target)
                unknown = "" if size.reason is None else f", its size is unknown: {size.reason}"
                rate = size.num_bytes * 1e9 / duration if size.num_bytes is not None and duration else None
                what = {"bytes": size.num_bytes, "bytes_per_s": rate}
                kind, message = "checkpoint", f"a checkpoint was written{unknown}"
            else:
                what = {"error": failure}
                kind, message = "checkpoint_failed", f"a checkpoint failed: {failure}"
            self._session.writer.add_event(
                kind,
                message,
                time_ns=begun.time_ns,
                step=begun.step,
                phase="checkpoint",
                duration_ns=duration,
                blocked_ns=blocked_ns,
                asynchronous=begun.asynchronous,
                path=begun.target.path,
                **what,
            )
        except Exception as error:  # noqa: BLE001 - the guard
            self._session.guard.disable(_HOOK, error)


def _find_file(obj: object = None, f: object = None, *args: object, **kwargs: object) -> FileTarget:
    """Return what `torch.save` writes to; the parameters are torch's."""
    del obj, args, kwargs
    return FileTarget(f)


def _find_file_of_tensors(
    tensor_dict: object = None, filename: object = None, *args: object, **kw: object
) -> FileTarget:
    """Return what safetensors writes to; the parameters are its own."""
    del tensor_dict, args, kw
    return FileTarget(filename)


def _measure(target: Target) -> Size:
    """Return what was written; of what cannot be looked at why, which says nothing of the next checkpoint."""
    try:
        return target.measure()
    except OSError as error:
        return Size(None, f"what was written cannot be looked at ({error.strerror or type(error).__name__})")


def _name_failure(error: BaseException) -> str:
    """Return the type of an exception; of what torch raises on every rank also those of the ranks that failed."""
    name = type(error).__name__
    api = sys.modules.get(f"{_DISTRIBUTED}.api")
    if api is None or not isinstance(error, api.CheckpointException):
        return name
    causes = {type(cause).__name__ for cause, _ in cast("Any", error).failures.values()}
    return f"{name} ({', '.join(sorted(causes))})"


def _name_end(upload: Any) -> str | None:
    """Return how an asynchronous checkpoint failed; `None` where it was written."""
    if upload.cancelled():
        return "CancelledError"
    error = upload.exception()
    return None if error is None else _name_failure(error)
