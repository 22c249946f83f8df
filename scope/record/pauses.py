"""Pauses of the garbage collector, noted without any Python code inside them.

Python runs the handlers of signals that wait where it enters a function, and drops what is raised in a function of
`gc.callbacks`: a Ctrl-C during a collection would be lost. So the callbacks here are made of C functions alone.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import threading
import time
from array import array
from types import BuiltinFunctionType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

_MAX_PAUSES: Final = 4_096
"""Above so many they are summed where nobody takes them, as in a program that trains no more."""


class Pauses:
    """Notes when each collection begins and ends, in whichever thread: all threads wait for it."""

    def __init__(self) -> None:
        self._ticks = array("q")
        self._first: dict[str, Any] = {}
        self._clock: Callable[[], int] = time.monotonic_ns
        self._callbacks = (self._first.setdefault, _stamp_into(self._ticks, self._clock))
        self._pauses: list[tuple[int, int, int]] = []
        self._lock = threading.RLock()

    def attach(self) -> None:
        """Begin.

        Raises:
            TypeError: The program has put a function of its own in the place of the clock, which would run Python code
                in each collection.
        """
        if not isinstance(self._clock, BuiltinFunctionType):
            message = "the program has replaced time.monotonic_ns by a function of its own"
            raise TypeError(message)
        gc.callbacks.extend(self._callbacks)

    def detach(self) -> None:
        """Note no more; a second call does nothing."""
        for callback in self._callbacks:
            with contextlib.suppress(ValueError):
                gc.callbacks.remove(callback)

    def take(self, end_ns: int) -> tuple[int, int]:
        """Return length in ns and number of the pauses not taken yet that began before a monotonic instant."""
        if not (self._ticks or self._pauses):
            return 0, 0
        with self._lock:
            self._read()
            taken = _sum(pause for pause in self._pauses if pause[0] < end_ns)
            self._pauses = [pause for pause in self._pauses if pause[0] >= end_ns]
        return taken[1:]

    def shorten(self, seen_ns: int) -> None:
        """Sum what has been noted when it is much: what began before an instant, and what began after it."""
        if len(self._ticks) + len(self._pauses) <= _MAX_PAUSES:
            return
        with self._lock:
            self._read()
            before = [pause for pause in self._pauses if pause[0] < seen_ns]
            after = [pause for pause in self._pauses if pause[0] >= seen_ns]
            self._pauses = [_sum(part) for part in (before, after) if part]

    def _read(self) -> None:
        """Take the pairs of begin and end; collections do not nest, so each end follows its own begin."""
        ticks = self._ticks
        if "stop" in self._first and next(iter(self._first)) == "stop":
            del ticks[0], self._first["stop"]  # attached in the middle of a collection
        pairs = ticks[: len(ticks) // 2 * 2]
        del ticks[: len(pairs)]
        self._pauses += [(begin, end - begin, 1) for begin, end in zip(pairs[::2], pairs[1::2], strict=True)]


def _stamp_into(ticks: array[int], clock: Callable[[], int]) -> Callable[..., str]:
    """Return a C function of any arguments that appends what a clock, a C function too, reads to an array.

    It formats a field that names an attribute of an object: a property, which appends the object to the array, which
    asks the object for its value as an integer: the clock. What is formatted is the name of the type of `None`, as
    `None` itself would be formatted by code that looks for signals.
    """
    members = {"__slots__": (), "__index__": clock, "stamp": property(ticks.append)}
    return functools.partial("{0.stamp.__class__.__name__}".format, type("Clock", (), members)())


def _sum(pauses: Any) -> tuple[int, int, int]:
    begins, lengths, numbers = tuple(zip(*pauses, strict=True)) or ((0,), (0,), (0,))
    return min(begins), sum(lengths), sum(numbers)
