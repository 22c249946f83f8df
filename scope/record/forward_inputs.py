"""What the forwards of a step get: shapes alone, which tell steps of unlike work apart, and by how much they differ."""

# torch annotates only a part of itself.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportPrivateUsage=false

from __future__ import annotations

import functools
import math
import weakref
import zlib
from collections.abc import Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from scope.run.schema import StepInputs

if TYPE_CHECKING:
    from collections.abc import Sequence

Forward = tuple[Any, ...]
"""The name of a module, and the shape of each tensor that one call of it got."""
UNTOLD: Final[Forward] = ()
"""Stands for a forward that got more than shapes tell: an object of some kind, or more tensors than are looked at."""

_LONGEST: Final = 160
"""Characters of a pattern; of a longer one a checksum stands for the rest."""
_MAX_DEPTH: Final = 4
_MAX_TENSORS: Final = 512
"""Tensors of one call that are looked at; a step of longer lists is told by its tokens or samples."""
_MAX_GONE: Final = 256
_OF_NO_SIZE: Final = (int, float, complex, str, bytes, Enum, type, torch.dtype, torch.device, torch.layout)
_SETTINGS: Final = (bool, int, str)


class ModuleNames:
    """Names of modules: their class, and a number where there were several of one.

    One that is made in the place of another that is gone, as by a copy for each step, has the name of that one where it
    is built alike: from modules with the same settings and parameters of the same shapes.
    """

    def __init__(self) -> None:
        self._names: dict[int, tuple[weakref.ref[nn.Module], str, Any]] = {}
        self._num_of_class: dict[str, int] = {}
        self._gone: dict[Any, list[str]] = {}

    def name(self, module: nn.Module) -> str:
        """Return the name of a module."""
        known = self._names.get(id(module))
        if known is not None and known[0]() is module:
            return known[1]
        self._forget_gone()
        structure = _structure_of(module)
        free = self._gone.get(structure)
        name = free.pop(0) if free else self._new_name(type(module).__name__)
        self._names[id(module)] = weakref.ref(module), name, structure
        return name

    def _new_name(self, kind: str) -> str:
        number = self._num_of_class[kind] = self._num_of_class.get(kind, 0) + 1
        return kind if number == 1 else f"{kind} {number}"

    def _forget_gone(self) -> None:
        gone = [key for key, (module, _, _) in self._names.items() if module() is None]
        if len(self._gone) > _MAX_GONE:
            self._gone.clear()
        for key in gone:
            _, name, structure = self._names.pop(key)
            self._gone.setdefault(structure, []).append(name)


def _structure_of(module: nn.Module) -> int:
    """Return a checksum of what a module is built from; none of the program's own code runs for it."""
    parts: list[Any] = []
    with torch._C.DisableTorchFunction():
        for each in nn.Module.modules(module):
            own = vars(each)
            settings = [(key, value) for key, value in own.items() if _is_setting(value)]
            tensors = [
                (key, None if value is None or is_lazy(value) else tuple(value.shape))
                for key, value in own["_parameters"].items()
            ]
            parts.append((type(each).__module__, type(each).__qualname__, settings, tensors))
    return zlib.crc32(repr(parts).encode("utf-8", "replace"))


def _is_setting(value: Any) -> bool:
    return type(value) in _SETTINGS or (
        type(value) in (list, tuple) and all(type(inner) in _SETTINGS for inner in value)
    )


def shapes_of(args: Any, kwargs: Any) -> list[tuple[int, ...]] | None:
    """Return the shapes of the tensors among arguments; none of their values is read.

    `None` where there may be more than these: a tensor without one shape (nested, or of symbols), an object of some
    kind, or more and deeper containers than are looked at.
    """
    shapes: list[tuple[int, ...]] = []
    with torch._C.DisableTorchFunction():  # modes of the program see none of it
        is_told = _add_shapes([*args, *kwargs.values()] if kwargs else args, shapes, _MAX_DEPTH)
    return shapes if is_told else None


def _add_shapes(values: Any, shapes: list[tuple[int, ...]], depth: int) -> bool:
    """Add the shapes of the tensors among values; return whether these are all that they hold."""
    for value in values:
        if isinstance(value, torch.Tensor):
            if value.is_nested or len(shapes) == _MAX_TENSORS:
                return False
            shape = value.shape
            for size in shape:
                if type(size) is not int:
                    return False
            shapes.append(shape)
        elif value is None or isinstance(value, _OF_NO_SIZE):
            continue
        elif not isinstance(value, list | tuple | Mapping) or not depth or len(value) > _MAX_TENSORS:
            return False
        else:
            inner = list(value.values()) if isinstance(value, Mapping) else value
            if not _add_shapes(inner, shapes, depth - 1):
                return False
    return True


def pattern_of(forward: Forward) -> str:
    """Return the pattern of a step that makes this forward alone, however often."""
    return _shortened(_text(forward, has_length=True))


def rows_of(forward: Forward) -> tuple[str, int]:
    """Return what a forward got, its rows left open, and these."""
    rows, _ = _rows_and_length(forward[1:])
    return _text(forward, has_length=False), rows


def describe_inputs(seen: dict[Forward, int]) -> StepInputs | None:
    """Return what the forwards of a step got; `None` where no tensor was seen, or one got more than shapes tell.

    Args:
        seen: How many calls were alike, for all that were made.
    """
    return _describe(tuple(seen.items())) if seen and UNTOLD not in seen else None


@functools.lru_cache(maxsize=64)
def _describe(seen: Sequence[tuple[Forward, int]]) -> StepInputs:
    num_forwards = sum(number for _, number in seen)
    patterns = {_text(forward, has_length=True) for forward, _ in seen}
    if len(patterns) > 1:
        return _describe_mixture(seen, num_forwards)
    rows = positions = pairs = 0
    for forward, number in seen:
        each_rows, length = _rows_and_length(forward[1:])
        rows += number * each_rows
        positions += number * each_rows * length
        pairs += number * each_rows * length * length
    return StepInputs(
        pattern=_shortened(*patterns), num_forwards=num_forwards, rows=rows, positions=positions, position_pairs=pairs
    )


def _describe_mixture(seen: Sequence[tuple[Forward, int]], num_forwards: int) -> StepInputs:
    """Return forwards of several kinds as one pattern of which a step has more or less as a whole."""
    mixture: dict[str, list[int]] = {}
    for forward, number in seen:
        text, rows = rows_of(forward)
        sums = mixture.setdefault(text, [0, 0])
        sums[0] += number
        sums[1] += number * rows
    calls, rows = (math.gcd(*sums) or 1 for sums in zip(*mixture.values(), strict=True))
    parts = (f"{of_calls // calls} {text} x{of_rows // rows}" for text, (of_calls, of_rows) in mixture.items())
    return StepInputs(pattern=_shortened(" + ".join(sorted(parts))), num_forwards=num_forwards, rows=rows)


def _rows_and_length(shapes: Sequence[Sequence[int]]) -> tuple[int, int]:
    """Return the first and the second dimension of the first tensor that has any; 1 and 0 where it has none."""
    for shape in shapes:
        if shape:
            return shape[0], shape[1] if len(shape) > 1 else 0
    return 1, 0


@functools.lru_cache(maxsize=1024)
def _text(forward: Forward, *, has_length: bool) -> str:
    """Return module and shapes with B for the rows and, if it is left open as well, L for the length."""
    name, *shapes = forward
    rows, length = _rows_and_length(shapes)
    texts: list[str] = []
    for shape in shapes:
        sizes = ["L" if has_length and size == length else str(size) for size in shape]
        if sizes and shape[0] == rows:
            sizes[0] = "B"
        texts.append(",".join(sizes))
    return f"{name}({'; '.join(texts)})"


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 9]}~{zlib.crc32(text.encode()):08x}"
