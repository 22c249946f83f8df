"""Tracebacks as they would be without Scope: its frames, between those of torch and of the program, are left out."""

from __future__ import annotations

import functools
import os
import traceback
from typing import TYPE_CHECKING, Any

from scope.record.patches import PatchTable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType, TracebackType

_HERE = os.path.dirname(__file__) + os.sep  # noqa: PTH120 - compared with the names of code as they are
_EXAMPLES = os.path.join(_HERE, "examples")  # noqa: PTH118
_WALKERS = ("walk_tb", "_walk_tb_with_full_positions")
"""What the functions of `traceback` walk by, and with them `logging`, and torch where it sends a text on."""


def hide_own_frames(error: BaseException) -> TracebackType | None:
    """Take Scope's frames out of the tracebacks of an exception and of those that led to it; return its own.

    The wrapped functions of torch and of the program stand between frames of theirs alone, as without Scope.
    """
    waiting, seen = [error], set[int]()
    while waiting:
        each = waiting.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        each.__traceback__ = _without_own(each.__traceback__)
        waiting += [other for other in (each.__cause__, each.__context__) if other is not None]
        if isinstance(each, BaseExceptionGroup):
            waiting += each.exceptions  # pyright: ignore[reportUnknownMemberType] - of any exceptions
    return error.__traceback__


def _without_own(traceback: TracebackType | None) -> TracebackType | None:
    while traceback is not None and _is_own(traceback):
        traceback = traceback.tb_next
    at = traceback
    while at is not None:
        while at.tb_next is not None and _is_own(at.tb_next):
            at.tb_next = at.tb_next.tb_next
        at = at.tb_next
    return traceback


def _is_own(traceback: TracebackType) -> bool:
    return _is_own_frame(traceback.tb_frame)


def hide_in_text() -> None:
    """Let `traceback` pass over Scope's frames, for the rest of this process: programs print what they catch."""
    table = PatchTable()
    for name in _WALKERS:
        table.replace(traceback, name, _pass_over_own)


def _pass_over_own(original: Callable[..., Any]) -> Callable[..., Any]:
    if getattr(original, "__wrapped__", None) is not None:
        return original  # a second recording of this process

    @functools.wraps(original)
    def walk(at: TracebackType | None) -> Iterator[tuple[FrameType, Any]]:
        return (item for item in original(at) if not _is_own_frame(item[0]))

    return walk


def _is_own_frame(frame: FrameType) -> bool:
    name = frame.f_code.co_filename
    return name.startswith(_HERE) and not name.startswith(_EXAMPLES)
