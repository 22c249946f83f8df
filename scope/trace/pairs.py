"""Records that stand in two halves, begin (`B`) and end (`E`): each pair is one record with a length.

Kineto writes whole records; other writers of the format, and tools that merge or convert its files, write halves.
"""

from __future__ import annotations

from collections import defaultdict
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

import msgspec

from scope.trace.events import Begin, End, ExactSpan
from scope.trace.instants import ns_from_text

if TYPE_CHECKING:
    from collections.abc import Iterable

_NS_DIGITS: Final = 3
_NO_LENGTH: Final = msgspec.Raw(b"null")


class Halves:
    """Joins the halves of a file: on one thread, an end belongs to the last begin that has none yet.

    Attributes:
        num_open: Begins whose end did not come yet.
    """

    def __init__(self) -> None:
        self.num_open = 0
        self._open: defaultdict[tuple[Any, Any], list[Begin]] = defaultdict(list)

    def join(self, halves: Iterable[Begin | End]) -> tuple[list[ExactSpan], int]:
        """Return the records that these halves, in the order of the file, complete, and how many ends have no begin.

        A record has the arguments of its begin.
        """
        joined: list[ExactSpan] = []
        num_lost = 0
        for half in halves:
            waiting = self._open[half.pid, half.tid]
            if isinstance(half, Begin):
                # Texts of a chunk would keep all of it in memory.
                half.ts, half.args = half.ts.copy(), half.args.copy()
                waiting.append(half)
                self.num_open += 1
            elif waiting:
                joined.append(_whole(waiting.pop(), half))
                self.num_open -= 1
            else:
                num_lost += 1
        return joined, num_lost


def _whole(begin: Begin, end: End) -> ExactSpan:
    start, stop = ns_from_text(bytes(begin.ts)), ns_from_text(bytes(end.ts))
    length = _NO_LENGTH
    if start is not None and stop is not None:
        length = msgspec.Raw(str(Decimal(stop - start).scaleb(-_NS_DIGITS)).encode())
    return ExactSpan(
        cat=begin.cat, name=begin.name, pid=begin.pid, tid=begin.tid, ts=begin.ts, dur=length, args=begin.args
    )
