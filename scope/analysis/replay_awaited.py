"""Which calls a rank did not wait for, though they ended while it stood still: another call held it, as peers show.

A rank that stands still in one call (tensor parallel, say) while another of its calls ends (of gradients, beside it)
may wait for both or for the one alone: when it goes on only tells that of the last. Where a rank at the same place of
the program, of its group or of another of its axis, had been let go by as many calls of other groups since the call
that ended first, and computed on while that was still in flight, no rank waits for it there. So it is with what a rank
sends where that ends together with what it gets.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING

from scope.analysis.readiness import QUEUED_NS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True, slots=True)
class Stay:
    """One rank's part of a collective, and the exposed stretch in which it ends."""

    rank: int
    group_id: int | None
    collective_id: int | None
    turn: int
    """Its place in the program."""
    is_send: bool
    ready_ns: int
    end_ns: int
    run_start_ns: int | None
    """Begin of the stretch in which nothing computes, in which the call ends; None where the rank computed then."""
    run_end_ns: int | None


def find_unawaited(stays: Sequence[Stay]) -> set[int]:
    """Return the calls that ended while their rank stood still, and that it did not wait for, by their number."""
    by_turn: dict[int, list[int]] = {}
    goes_on: dict[int, set[int]] = {}
    by_rank: dict[int, list[tuple[int, int]]] = {}
    for number, stay in enumerate(stays):
        by_rank.setdefault(stay.rank, []).append((stay.ready_ns, number))
        if stay.collective_id is not None:
            by_turn.setdefault(stay.turn, []).append(number)
    for found in by_rank.values():
        found.sort()
    holders = _holders(stays)
    unawaited: set[int] = set()
    for number, stay in enumerate(stays):
        if stay.run_start_ns is None or stay.collective_id is None:
            continue
        holder = holders[stay.rank, stay.run_start_ns]
        if holder == number or (stay.end_ns == stay.run_end_ns and not stay.is_send):
            continue
        if stays[holder].group_id == stay.group_id:
            continue
        others = _of_other_groups(number, stays, by_rank[stay.rank])
        if holder not in others:
            continue
        if stay.turn not in goes_on:
            goes_on[stay.turn] = _behind_how_many(by_turn[stay.turn], stays, by_rank)
        if others.index(holder) + 1 in goes_on[stay.turn]:
            unawaited.add(number)
    return unawaited


def _holders(stays: Sequence[Stay]) -> dict[tuple[int, int], int]:
    """Return, by rank and begin of a stretch in which nothing computes, the call that ends last in it.

    Where what the rank got ends as late as what it sent, or next to that, it waited for the former.
    """
    last: dict[tuple[int, int], int] = {}
    got: dict[tuple[int, int], int] = {}
    for number, stay in enumerate(stays):
        if stay.run_start_ns is not None:
            key = (stay.rank, stay.run_start_ns)
            for found in (last,) if stay.is_send else (last, got):
                if key not in found or stays[found[key]].end_ns <= stay.end_ns:
                    found[key] = number
    near = {key: number for key, number in got.items() if stays[last[key]].end_ns - stays[number].end_ns <= QUEUED_NS}
    return last | near


def _behind_how_many(
    numbers: Sequence[int], stays: Sequence[Stay], by_rank: Mapping[int, Sequence[tuple[int, int]]]
) -> set[int]:
    """Return behind how many calls of other groups ranks computed on while calls of theirs were still in flight."""
    found: set[int] = set()
    for number in numbers:
        stay = stays[number]
        if stay.run_start_ns is None:
            others = _of_other_groups(number, stays, by_rank[stay.rank])
            found.update(place for place, other in enumerate(others, 1) if stays[other].end_ns < stay.end_ns)
    return found


def _of_other_groups(number: int, stays: Sequence[Stay], calls: Sequence[tuple[int, int]]) -> list[int]:
    """Return the calls of other groups that a rank was ready for since it was ready for one, until that one ended."""
    stay = stays[number]
    place = bisect_left(calls, (stay.ready_ns - QUEUED_NS, -1))
    found: list[int] = []
    for ready, other in calls[place:]:
        if ready > stay.end_ns:
            break
        if stays[other].group_id != stay.group_id:
            found.append(other)
    return found
