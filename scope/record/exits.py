"""How a program ends: by an exception, by a person, or with an exit code of its own, which Python tells nobody.

A program that ends by `sys.exit(3)` runs what `atexit` knows with that exception gone already, and one that leaves by
`os._exit(3)` runs nothing at all. So both functions note the code that they are called with before they do their work.
"""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import os
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, Final

import msgspec

from scope.run import paths
from scope.run.files import FILE_MODE
from scope.run.goodbyes import SAID, say_exit
from scope.run.schema import EventRecord

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

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
        self._is_script = _names_its_file()
        for module, name, wrap in ((sys, "exit", self._noting), (os, "_exit", self._telling)):
            setattr(module, name, wrap(getattr(module, name)))

    def find(self) -> int:
        """Return the code that this process ends with, as far as it can tell; call it while the process ends.

        Exceptions other than SystemExit are left out. One that the program caught, to end otherwise, is known of a
        script by its last line.
        """
        error = sys.exc_info()[1]
        if isinstance(error, SystemExit):
            return read_exit_code(error.code)  # `multiprocessing` ends its processes while that is being handled
        is_over = multiprocessing.parent_process() is not None or (self._is_script and not _names_its_file())
        return 0 if is_over or self._asked is None else self._asked

    def _noting(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def exit(*arguments: Any, **named: Any) -> Any:
            if threading.current_thread() is threading.main_thread() and not named and len(arguments) < 2:
                self._asked = read_exit_code(*arguments or (None,))
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


def tell_at_once(folder: Path, code: int, *, step: int | None, wall_offset_ns: int) -> None:
    """Add the end of a recording to the events of a rank whose process leaves without any of Python's endings.

    No lock is taken and nothing is waited for: a program leaves so from a handler of a signal, or because it hangs.

    Args:
        folder: The folder of the rank, which is left alone where another rank has its place by now.
        code: The exit code.
        step: The step in progress.
        wall_offset_ns: Added to the monotonic clock it gives nanoseconds since the epoch.

    Raises:
        OSError: It cannot be written.
    """
    if os.path.lexists(paths.displaced_folder(folder, os.getpid())):
        return
    event = EventRecord(
        time_ns=time.monotonic_ns() + wall_offset_ns, kind="attempt_end", message=f"{SAID}{say_exit(code)}", step=step
    )
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(folder / paths.EVENTS_FILE, flags, FILE_MODE)
    os.write(descriptor, msgspec.json.encode(event) + b"\n")


def _names_its_file() -> bool:
    """Return whether the program is a script that has not come to its end: behind the last line Python unnames it."""
    return "__file__" in vars(sys.modules["__main__"])
