"""Opens the session under `scope run`, and closes it when the program ends."""

from __future__ import annotations

import atexit
import contextlib
import functools
import inspect
import os
import sys
import threading
from multiprocessing import util
from typing import TYPE_CHECKING, Any, Final

from scope.record.exits import ExitCodes, describe_end, tell_at_once
from scope.record.tracebacks import hide_in_text, hide_own_frames
from scope.run.goodbyes import FINISHED, say_exit
from scope.run.identity import FIRST_ATTEMPT, SPAWNED_BY, read_attempt

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

RECORDING_PID = "SCOPE_RECORDING_PID"
SPAWN_ATTEMPT = "SCOPE_SPAWN_ATTEMPT"
"""Attempt of the recorded process, which the ranks that it spawns share unless it trains itself."""

_LAST: Final = -1000
"""Priority of what `multiprocessing` calls at the end of a process after all that others ask of it."""


class _Ending:
    """Learns how the program ends, and keeps Scope out of what it prints: the excepthook is called before atexit.

    What is printed is seen to from the start, for Ctrl-C may come while the session is being opened.
    """

    def __init__(self) -> None:
        self._session: Any = None
        self._pid = os.getpid()
        self._reason = FINISHED
        self._codes: ExitCodes | None = None
        self._is_over = False
        self._hook = sys.excepthook
        sys.excepthook = self.on_exception
        self._thread_hook = threading.excepthook
        threading.excepthook = self.on_exception_of_thread
        hide_in_text()

    def follow(self, session: Any) -> None:
        """Tell a session how the program ends, from now on."""
        if self._session is None:
            atexit.register(self.on_exit)
            # A process that `multiprocessing` made may end without what `atexit` knows; this comes last of its own.
            util.Finalize(None, self.on_exit, exitpriority=_LAST)
            for name in ("execv", "execve"):
                setattr(os, name, self._before(getattr(os, name)))
            self._codes = ExitCodes(self.on_leaving)
        self._session = session

    def _before(self, execute: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that closes the recording before this process becomes another program."""

        @functools.wraps(execute)
        def wrapper(*arguments: Any, **named: Any) -> Any:
            path = arguments[0] if arguments else named.get("path")
            with contextlib.suppress(TypeError, ValueError):
                # Along the search path most are tried in vain.
                if path is not None and os.access(path, os.X_OK):
                    self._close(FINISHED)
            return execute(*arguments, **named)

        return wrapper

    def on_exception(self, kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        """Note the exception and let the program's own hook tell it."""
        try:
            self._note(error)
            traceback = hide_own_frames(error)
        finally:
            self._hook(kind, error, traceback)

    def on_exception_of_thread(self, told: Any) -> None:
        """Let the program's own hook tell the exception that ends a thread."""
        traceback = told.exc_traceback
        if told.exc_value is not None:
            traceback = hide_own_frames(told.exc_value)
        self._thread_hook(threading.ExceptHookArgs((told.exc_type, told.exc_value, traceback, told.thread)))

    def on_exit(self) -> None:
        """Close the recording in the process that opened it."""
        code = 0 if self._codes is None else self._session.guard.call("exit code", self._codes.find)
        self._close(FINISHED if code is None else say_exit(code), is_known=code is not None)

    def on_leaving(self, code: int) -> None:
        """Tell of an end which nothing comes after, with its exit code."""
        if self._is_over or self._session is None:
            return
        self._is_over = True
        writer = self._session.writer
        if writer.enabled:
            tell_at_once(
                writer.folder,
                code,
                step=self._session.step,
                wall_offset_ns=writer.wall_offset_ns,
                is_after_update=self._session.is_after_update,
            )

    def _close(self, reason: str, *, is_known: bool = True) -> None:
        """Close the recording in the process that opened it.

        Args:
            reason: Why the program ends, where no exception ends it.
            is_known: Else it may as well end with an exit code, which nothing tells.
        """
        if os.getpid() == self._pid and not self._is_over:
            self._is_over = True
            # Python would print what comes out of here among the words of the program.
            self._session.guard.call("ending", self._end, reason, is_known)

    def _end(self, reason: str, is_known: bool) -> None:
        # The program has an excepthook of its own, which does not call ours; `multiprocessing` calls none.
        last = getattr(sys, "last_value", None) or _find_reason(sys.exc_info()[1])
        if self._reason == FINISHED and isinstance(last, BaseException):
            self._note(last)
        if self._reason == FINISHED and not is_known:
            self._session.guard.call("exit code", self._session.note_unknown_exit)
        self._session.close(reason if self._reason == FINISHED else self._reason)

    def _note(self, error: BaseException) -> None:
        if self._session is None:
            return
        self._reason = describe_end(error)
        self._session.guard.call("exception", self._session.note_exception, error)


def _find_reason(error: BaseException | None) -> BaseException | None:
    """Return why a process that `multiprocessing` made is about to end; torch turns an exception into an exit code."""
    if not isinstance(error, SystemExit):
        return error
    return error.__context__ if error.code else None


def start(
    environment: Mapping[str, str] | None = None, *, importing: contextlib.AbstractContextManager[None] | None = None
) -> None:
    """Open the session of this process; whatever goes wrong is said in one line, and the program runs on.

    Args:
        environment: What says which rank it is; the process's own when absent.
        importing: Inside it imports find Scope's own modules, whatever lies beside the script.
    """
    try:
        with importing or contextlib.nullcontext():
            _open(environment)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - the guard: training must start whatever happens here
        if sys.stderr is not None:  # pyright: ignore[reportUnnecessaryComparison] - it is where it was closed
            sys.stderr.write(f"scope: the run goes on unrecorded: {type(error).__name__}: {error}\n")


def _open(environment: Mapping[str, str] | None) -> None:
    from scope.record import session, start
    from scope.record.settings import read_settings

    if session.current is not None:
        return
    ending = _Ending()
    environment = _own_environment() if environment is None else environment

    def begin() -> None:
        folder, info = start.prepare(environment)
        opened = session.open_session(read_settings(environment, folder), info)
        os.environ[RECORDING_PID] = str(os.getpid())
        os.environ.pop(SPAWN_ATTEMPT, None)
        if "RANK" not in environment:
            os.environ[SPAWN_ATTEMPT] = str(info.attempt)
            opened.on_displaced = begin_anew
        ending.follow(opened)

    def begin_anew() -> None:
        """Record a program that trains itself after the ranks that it spawned: in an attempt of its own."""
        if session.current is not None:
            session.current.close("finished")
        begin()

    begin()


def start_with_group(*, importing: contextlib.AbstractContextManager[None] | None = None) -> None:
    """Begin when this process joins a process group, which says its rank, and which loader workers never do."""
    import torch.distributed as dist

    from scope.record.patches import PatchTable

    if not dist.is_available():
        return
    # Those that this process spawns join the attempt that it would.
    os.environ.setdefault(SPAWN_ATTEMPT, str(read_attempt(os.environ)))
    patches = PatchTable()

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def init_process_group(*args: Any, **kwargs: Any) -> Any:
            patches.restore()
            environment = _as_rank(original, args, kwargs)
            if environment is not None:
                start(environment, importing=importing)
                return original(*args, **kwargs)
            result = original(*args, **kwargs)
            start(_environment_of(dist.get_rank(), dist.get_world_size()), importing=importing)
            return result

        return init_process_group

    for owner in (dist, dist.distributed_c10d):
        patches.replace(owner, "init_process_group", wrap)


def _as_rank(function: Callable[..., Any], args: Any, kwargs: Any) -> dict[str, str] | None:
    """Return the environment of the rank that a call of `init_process_group` names; `None` when it names none."""
    try:
        named = inspect.signature(function).bind(*args, **kwargs).arguments
        rank = int(named.get("rank", -1))
        world_size = int(named.get("world_size", -1))
        rank = rank if rank >= 0 else int(os.environ["RANK"])
        world_size = world_size if world_size >= 0 else int(os.environ["WORLD_SIZE"])
    except (TypeError, ValueError, KeyError):
        return None
    return _environment_of(rank, world_size)


def _own_environment() -> Mapping[str, str]:
    """Return the environment of this process, and that of a spawned rank where a recorded process has started it."""
    parent, rank = os.environ.get(RECORDING_PID), os.environ.get("RANK", "")
    world_size = os.environ.get("WORLD_SIZE", "")
    is_started = SPAWN_ATTEMPT in os.environ and parent not in (None, str(os.getpid()))
    if is_started and rank.isdecimal() and world_size.isdecimal():
        return _environment_of(int(rank), int(world_size))
    return os.environ


def _environment_of(rank: int, world_size: int) -> dict[str, str]:
    known = {"RANK": str(rank), "WORLD_SIZE": str(world_size)}
    attempt, parent = os.environ.get(SPAWN_ATTEMPT), os.environ.get(RECORDING_PID)
    if attempt is not None:
        # Restarts are counted in it.
        known |= {FIRST_ATTEMPT: attempt, "TORCHELASTIC_RESTART_COUNT": "0"}
    return {**os.environ, **known, **({SPAWNED_BY: parent} if parent else {})}
