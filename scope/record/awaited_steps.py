"""Which steps to count because steps unlike the counted ones came twice: those that begin alike, or are due."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, TypeVar

from scope.record.counted_steps import Kind, kind_of, scale_work

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scope.record.forward_inputs import Forward
    from scope.run.schema import CountedStep

_SOON: Final = 16
"""Steps within which one has to have its like, so that one more is counted: by what it begins with, else when due."""
_MAX_WAITS: Final = 8
"""Steps of a kind that are due at most: kinds that come at no fixed distance would have others counted in vain."""
_MAX_KINDS: Final = 64
_Key = TypeVar("_Key")


class AwaitedSteps:
    """Waits for steps whose FLOPs nothing tells; one that stays away has one other step counted for it at most."""

    def __init__(self) -> None:
        """Start with none."""
        self._last: dict[Kind, int] = {}
        self._num_waits: Counter[Kind] = Counter()
        self._counted_begins: set[Forward | None] = {None}
        self._by_begin: dict[Forward | None, CountedStep] = {}
        self._due: dict[int, CountedStep] = {}

    def take_due(self, step: int) -> bool:
        """Return whether a step is due as the one that begins; once, so that none is waited for beyond it."""
        return self._due.pop(step, None) is not None

    def begins_as(self, forward: Forward) -> bool:
        """Return whether an awaited step begins with this forward, as no counted one does."""
        return forward in self._by_begin

    def note_counted(self, begin: Forward | None) -> None:
        """A step that begins with this forward was counted."""
        self._counted_begins.add(begin)
        self._by_begin.pop(begin, None)

    def drop_told(self, counted: Sequence[CountedStep]) -> None:
        """Wait for no step whose FLOPs counted ones tell by now."""

        def without_told(steps: dict[_Key, CountedStep]) -> dict[_Key, CountedStep]:
            return {key: each for key, each in steps.items() if scale_work(counted, each) is None}

        self._due, self._by_begin = without_told(self._due), without_told(self._by_begin)

    def note_unlike(self, step: CountedStep, begin: Forward | None) -> None:
        """Wait for one more step like one that nothing tells of, if it has had its like of late.

        Args:
            step: The step, which has ended.
            begin: Its first forward, where that is known.
        """
        kind = kind_of(step)
        before = self._last.get(kind)
        if before is not None and step.step - before <= _SOON:
            self._wait_for(step, begin, distance=step.step - before)
        if before is not None or len(self._last) < _MAX_KINDS:
            self._last[kind] = step.step

    def _wait_for(self, step: CountedStep, begin: Forward | None, *, distance: int) -> None:
        if begin not in self._counted_begins:
            if len(self._by_begin) < _MAX_KINDS:
                self._by_begin[begin] = step
            return
        kind = kind_of(step)
        self._due = {at: each for at, each in self._due.items() if kind_of(each) != kind}
        if self._num_waits[kind] < _MAX_WAITS:
            self._num_waits[kind] += 1
            self._due[step.step + distance] = step
