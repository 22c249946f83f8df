"""Steps that several lines of one `steps.jsonl` tell of, as of a file that was joined by hand: each counts once.

A process makes one step after the other, so lines of other steps never lie in the same time either.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import pairwise
from typing import TYPE_CHECKING

from scope.run.schema import StepLine, StepRecord

if TYPE_CHECKING:
    from collections.abc import Sequence


class _Ranges:
    """Whole numbers, as ranges that neither overlap nor touch; both ends are included."""

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []

    def overlap(self, first: int, last: int) -> bool:
        """Return whether one of `[first, last]` is among them."""
        place = bisect_left(self._lasts, first)
        return place < len(self._lasts) and self._firsts[place] <= last

    def add(self, first: int, last: int) -> None:
        """Add `[first, last]`."""
        begin, end = bisect_left(self._lasts, first - 1), bisect_right(self._firsts, last + 1)
        if begin < end:
            first, last = min(first, self._firsts[begin]), max(last, self._lasts[end - 1])
        self._firsts[begin:end] = [first]
        self._lasts[begin:end] = [last]


class StepsSeen:
    """The steps of one rank and attempt that were read.

    A line tells of a step once more when another has told of its number and of its time. A program that counts from an
    earlier number again has made other steps.
    """

    def __init__(self) -> None:
        self._numbers = _Ranges()
        self._instants = _Ranges()

    def take(self, lines: Sequence[StepLine]) -> tuple[list[StepLine], list[StepLine]]:
        """Return the lines that count, and those left out since others tell of some of their steps.

        The first line of a step counts, but a summary all of whose steps stand among the lines one by one: these tell
        more than it does.

        Args:
            lines: Lines that follow those taken before.
        """
        kept: list[StepLine] = []
        repeated: list[StepLine] = []
        singles: list[int] | None = None
        for line in lines:
            if isinstance(line, StepRecord):
                is_new = self._claim(line.step, line.step, line)
            else:
                if singles is None:
                    singles = sorted({each.start_ns for each in lines if isinstance(each, StepRecord)})
                num_singles = bisect_left(singles, line.end_ns) - bisect_left(singles, line.start_ns)
                is_new = not 0 < line.num_steps <= num_singles and self._claim(line.first_step, line.last_step, line)
            (kept if is_new else repeated).append(line)
        return kept, repeated

    def resume(self, line: StepLine) -> None:
        """Take all steps up to those of a line for read: an earlier reader has given them."""
        self._numbers.add(0, line.step if isinstance(line, StepRecord) else line.last_step)
        self._instants.add(0, line.end_ns - 1)

    def _claim(self, first: int, last: int, line: StepLine) -> bool:
        """Note that steps were read; return False, and note nothing, where one of them was."""
        last, end_ns = max(first, last), max(line.start_ns, line.end_ns - 1)
        if self._numbers.overlap(first, last) and self._instants.overlap(line.start_ns, end_ns):
            return False
        self._numbers.add(first, last)
        self._instants.add(line.start_ns, end_ns)
        return True


def leave_out_overlapping(lines: Sequence[StepLine]) -> tuple[list[StepLine], list[StepLine]]:
    """Return the lines whose time may be theirs, and those left out: single steps that last into two others.

    A step is judged by the two behind it and by the two before it, which do not overlap each other. Where only two
    steps lie in the same time, nothing tells which of them is wrong, and both count. Nothing tells so either of lines
    that are not among those given: a file that is read as it grows is judged by what each read gives.

    Args:
        lines: Lines in the order of the file.
    """
    if not any(later.start_ns < line.end_ns for line, later in pairwise(lines)):
        return list(lines), []
    wrong: set[int] = set()
    for place in range(len(lines) - 2):
        first, second, third = lines[place : place + 3]
        if all(isinstance(line, StepRecord) for line in (first, second, third)) and _overlap(first, third):
            if _overlap(first, second) and not _overlap(second, third):
                wrong.add(place)
            elif _overlap(second, third) and not _overlap(first, second):
                wrong.add(place + 2)
    return [line for place, line in enumerate(lines) if place not in wrong], [lines[place] for place in sorted(wrong)]


def _overlap(one: StepLine, other: StepLine) -> bool:
    return one.start_ns < other.end_ns and other.start_ns < one.end_ns
