"""Numbers of a program's objects that no later object is given, unlike `id`, and word of when one is collected."""

from __future__ import annotations

import weakref
from itertools import count
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


class Identities:
    """Numbers objects as they are met, without keeping any of them alive."""

    def __init__(self, collected: Callable[[int], object]) -> None:
        """Make it.

        Args:
            collected: Called with the number of each object that is collected, on any thread and amid anything.
        """
        self._collected = collected
        self._numbers: dict[int, int] = {}
        self._references: dict[int, weakref.ref[Any]] = {}
        self._next = count()

    def number_of(self, instance: Any) -> int:
        """Return the number of an object, the same each time; one that cannot be watched is never known to be gone."""
        number = self._numbers.get(id(instance))
        return self._meet(instance) if number is None else number

    def _meet(self, instance: Any) -> int:
        number, key = next(self._next), id(instance)

        def leave(reference: weakref.ref[Any]) -> None:
            # Comes before the memory is free: no other object has this id yet.
            del reference
            self._numbers.pop(key, None)
            self._references.pop(key, None)
            self._collected(number)

        try:
            self._references[key] = weakref.ref(instance, leave)
        except TypeError:
            return -1 - key  # as good as its id is
        self._numbers[key] = number
        return number
