"""What the forwards of a step get: shapes alone, which tell steps of unlike work apart, and by how much they differ."""

# torch annotates only a part of itself.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportPrivateUsage=false

from __future__ import annotations

import functools
import math
import weakref
import zlib
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import torch

from scope.record.batches import tensors_in
from scope.run.schema import StepInputs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn

Forward = tuple[Any, ...]
"""The name of a module, and the shape of each tensor that one call of it got."""

_LONGEST: Final = 160
"""Characters of a pattern; of a longer one a checksum stands for the rest."""


class ModuleNames:
    """Names of modules: their class, and a number where there were several of one."""

    def __init__(self) -> None:
        self._names: dict[int, tuple[weakref.ref[nn.Module], str]] = {}
        self._num_of_class: Counter[str] = Counter()

    def name(self, module: nn.Module) -> str:
        """Return the name of a module; one that is made in the place of another has a name of its own."""
        known = self._names.get(id(module))
        if known is not None and known[0]() is module:
            return known[1]
        kind = type(module).__name__
        self._num_of_class[kind] += 1
        number = self._num_of_class[kind]
        name = kind if number == 1 else f"{kind} {number}"
        self._names = {key: value for key, value in self._names.items() if value[0]() is not None}
        self._names[id(module)] = weakref.ref(module), name
        return name


def shapes_of(args: Any, kwargs: Any) -> list[tuple[int, ...]]:
    """Return the shapes of the tensors among arguments; none of their values is read."""
    with torch._C.DisableTorchFunction():  # modes of the program see none of it
        return [tensor.shape for tensor in tensors_in([*args, *kwargs.values()] if kwargs else args)]


def rows_of(forward: Forward) -> tuple[str, int]:
    """Return what a forward got, its rows left open, and these."""
    rows, _ = _rows_and_length(forward[1:])
    return _text(forward, has_length=False), rows


def describe_inputs(seen: dict[Forward, int]) -> StepInputs | None:
    """Return what the forwards of a step got; `None` where no tensor was seen.

    Args:
        seen: How many calls were alike, for all that were made.
    """
    return _describe(tuple(seen.items())) if seen else None


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
    first = next((shape for shape in shapes if len(shape)), ())
    return first[0] if first else 1, first[1] if len(first) > 1 else 0


def _text(forward: Forward, *, has_length: bool) -> str:
    """Return module and shapes with B for the rows and, if it is left open as well, L for the length."""
    name, *shapes = forward
    rows, length = _rows_and_length(shapes)

    def dimension(place: int, size: int) -> str:
        if place == 0 and size == rows:
            return "B"
        return "L" if has_length and size == length else str(size)

    texts = (",".join(dimension(place, size) for place, size in enumerate(shape)) for shape in shapes)
    return f"{name}({'; '.join(texts)})"


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 9]}~{zlib.crc32(text.encode()):08x}"
