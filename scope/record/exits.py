"""How a program ends: by an exception, by a person, or with an exit code of its own, which Python tells nobody.

A program that ends by `sys.exit(3)` or `exit(3)` runs what `atexit` knows with that exception gone already, and one
that leaves by `os._exit(3)` runs nothing at all. So these functions note the code that they are called with before they
do their work. Of `raise SystemExit(3)` nothing tells the code, but that the program has not come to its last line.
"""

from __future__ import annotations

import builtins
import contextlib
import dis
import functools
import multiprocessing
import os
import sys
import threading
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, Final

import msgspec

from scope.run import paths
from scope.run.files import FILE_MODE
from scope.run.goodbyes import AFTER_UPDATE, SAID, say_exit
from scope.run.schema import EventRecord

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import FrameType

_LONGEST: Final = 2**63


def describe_end(error: BaseException) -> str:
    """Return the `RankInfo.exit_reason` of a program that an exception ends."""
    if isinstance(error, SystemExit):
        return say_exit(read_exit_code(error.code))
    return "interrupted" if isinstance(error, KeyboardInterrupt) else "exception"


def read_exit_code(code: object) -> int:
    """Return the exit code, of one byte, of a process that ends by `SystemExit(code)`.

    Examples:
        >>> [read_exit_code(code) for code in (None, 0, 3, -1, 256, True, "no more data")]
        [0, 0, 3, 255, 0, 1, 1]
    """
    if code is None:
        return 0
    if not isinstance(code, int):
        return 1  # Python prints it instead
    return code & 0xFF if -_LONGEST <= code < _LONGEST else 0xFF


class ExitCodes:
    """What this process was last told to exit with.

    Args:
        leaving: Called with the exit code by `os._exit`, in this process alone.
    """

    def __init__(self, leaving: Callable[[int], None]) -> None:
        self._leaving = leaving
        self._pid = os.getpid()
        self._asked: int | None = None
        self._is_script = _is_script()
        self._frame = None if self._is_script else _find_frame()
        for module, name, wrap in ((sys, "exit", self._noting), (os, "_exit", self._telling)):
            setattr(module, name, wrap(getattr(module, name)))
        # `exit` and `quit`, which `site` makes for people, and which scripts call as well.
        quitter: Any = getattr(getattr(builtins, "exit", None), "__class__", None)
        if quitter is not None and quitter.__name__ == "Quitter":
            setattr(quitter, "__call__", self._noting(quitter.__call__, num_own=1))  # noqa: B010 - it is no method of ours

    def find(self) -> int | None:
        """Return the code that this process ends with, as far as it can tell; call it while the process ends.

        Exceptions other than SystemExit are left out. One that the program caught, to end otherwise, is known by the
        last line of the program.

        Returns:
            None where it raised SystemExit by itself.
        """
        error = sys.exc_info()[1]
        if isinstance(error, SystemExit):
            return read_exit_code(error.code)  # `multiprocessing` ends its processes while that is being handled
        return 0 if multiprocessing.parent_process() is not None or self._is_over() else self._asked

    def _is_over(self) -> bool:
        """Return whether the program has come to its last line."""
        if self._is_script:
            return not _names_its_file()
        frame, self._frame = self._frame, None
        return frame is not None and _has_returned(frame)

    def _noting(self, function: Callable[..., Any], *, num_own: int = 0) -> Callable[..., Any]:
        """Return the function, which notes the exit code that it is called with, behind so many other arguments."""

        @functools.wraps(function)
        def exit(*arguments: Any, **named: Any) -> Any:
            codes = (*arguments[num_own:], *(named[name] for name in named if num_own and name == "code"))
            if threading.current_thread() is threading.main_thread() and len(codes) < 2 and named.keys() <= {"code"}:
                self._asked = read_exit_code(*codes or (None,))
            return function(*arguments, **named)

        return exit

    def _telling(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def _exit(*arguments: Any, **named: Any) -> Any:
            code = arguments[0] if arguments else named.get("status")
            if isinstance(code, int) and os.getpid() == self._pid:
                with contextlib.suppress(Exception):
                    self._leaving(code & 0xFF)
            return function(*arguments, **named)

        return _exit


def tell_at_once(
    folder: Path, code: int, *, step: int | None, wall_offset_ns: int, is_after_update: bool = False
) -> None:
    """Add the end of a recording to the events of a rank whose process leaves without any of Python's endings.

    No lock is taken and nothing is waited for: a program leaves so from a handler of a signal, or because it hangs.

    Args:
        folder: The folder of the rank, which is left alone where another rank has its place by now.
        code: The exit code.
        step: The step in progress.
        wall_offset_ns: Added to the monotonic clock it gives nanoseconds since the epoch.
        is_after_update: The step has had its update.

    Raises:
        OSError: It cannot be written.
    """
    if os.path.lexists(paths.displaced_folder(folder, os.getpid())):
        return
    event = EventRecord(
        time_ns=monotonic_ns() + wall_offset_ns,
        kind="attempt_end",
        message=f"{SAID}{say_exit(code)}",
        step=step,
        detail={AFTER_UPDATE: True} if is_after_update else {},
    )
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(folder / paths.EVENTS_FILE, flags, FILE_MODE)
    os.write(descriptor, msgspec.json.encode(event) + b"\n")


def _names_its_file() -> bool:
    """Return whether the program is a script that has not come to its end: behind the last line Python unnames it."""
    return "__file__" in vars(sys.modules["__main__"])


def _is_script() -> bool:
    """Return whether the program is a file that Python was given, which it names until the last line; `-m` does not."""
    return _names_its_file() and getattr(sys.modules["__main__"], "__spec__", None) is None


def _find_frame() -> FrameType | None:
    """Return the frame of the program's own lines, where this is called from below them."""
    names = vars(sys.modules["__main__"])
    frame = sys._getframe()  # pyright: ignore[reportPrivateUsage] - as `traceback` and `warnings` do
    while frame is not None and (frame.f_globals is not names or frame.f_code.co_name != "<module>"):
        frame = frame.f_back
    return frame


def _has_returned(frame: FrameType) -> bool:
    """Return whether a frame has ended with its last line, and not by an exception."""
    code = frame.f_code.co_code
    return 0 <= frame.f_lasti < len(code) and dis.opname[code[frame.f_lasti]] in ("RETURN_CONST", "RETURN_VALUE")
