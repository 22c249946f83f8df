"""Tracebacks as they would be without Scope: its frames, between those of torch and of the program, are left out."""

from __future__ import annotations

import functools
import operator
import os
import traceback
from itertools import compress
from typing import TYPE_CHECKING, Any

from scope.record.patches import PatchTable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import FrameType, TracebackType

_HERE = os.path.dirname(__file__) + os.sep  # noqa: PTH120 - compared with the names of code as they are
_EXAMPLES = os.path.join(_HERE, "examples")  # noqa: PTH118
_AROUND_MODE = ("/torch/_compile.py", "/torch/_dynamo/eval_frame.py")
"""Where torch calls a mode's `__torch_dispatch__`."""
_OPERATORS = ("/torch/_ops.py",)
"""Where a mode calls the operator that it was told of."""
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
    entries: list[TracebackType] = []
    while traceback is not None:
        entries.append(traceback)
        traceback = traceback.tb_next
    for each, is_own in reversed(list(zip(entries, _are_own([each.tb_frame for each in entries]), strict=True))):
        if not is_own:
            if each.tb_next is not traceback:
                each.tb_next = traceback
            traceback = each
    return traceback


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
        items = list(original(at))
        return compress(items, map(operator.not_, _are_own([item[0] for item in items])))

    return walk


def _are_own(frames: Sequence[FrameType]) -> list[bool]:
    """Whether each frame is Scope's, or is there for it alone: torch's around the mode that counts operators."""
    scopes = [_is_own_frame(frame) for frame in frames]
    own = scopes.copy()
    for at in (at for at, frame in enumerate(frames) if scopes[at] and frame.f_code.co_name == "__torch_dispatch__"):
        for neighbours, files in ((range(at - 1, -1, -1), _AROUND_MODE), (range(at + 1, len(frames)), _OPERATORS)):
            for other in neighbours:
                if not frames[other].f_code.co_filename.endswith(files):
                    break
                own[other] = True
    return own


def _is_own_frame(frame: FrameType) -> bool:
    name = frame.f_code.co_filename
    return name.startswith(_HERE) and not name.startswith(_EXAMPLES)
