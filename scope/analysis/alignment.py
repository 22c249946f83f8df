"""Which call of one rank is which call of another, where the trace counts them only from the start of its window.

Two ranks of a group make the same calls in the same order, but their windows may begin at different ones. Paired
correctly, the series of (operation, bytes, dtype) agree over the whole overlap and the clocks agree; steps repeat, so
many shifts agree in the series, and the clock tells them apart.
"""

from __future__ import annotations

from statistics import median_low
from typing import TYPE_CHECKING, Final

from scope.structs import Record

if TYPE_CHECKING:
    from collections.abc import Sequence

_DECISIVE: Final = 4
"""The best shift must explain the clocks this many times better than the next, else the clock decides nothing."""

_MAX_CANDIDATES: Final = 64
"""Shifts that are judged on all their calls; the others lie further from the clocks."""

_MAX_DRIFT: Final = 1e-4
"""Clocks that run apart by more than 100 parts in a million are broken."""

_MIN_OVERLAP: Final = 3
"""Two calls that agree prove little where the series are longer."""

_MIN_NUMBERED: Final = 2
"""So many calls are enough where they are all calls of all steps that both series hold, and the numbers agree."""

_END_SCATTER_NS: Final = 20_000
"""Ranks leave a symmetric collective within a few microseconds and a fraction of its length of each other."""

_SLACK_NS: Final = 1_000
"""Rounding of old traces to whole microseconds."""


class CallSeries(Record, frozen=True, kw_only=True):
    """One rank's calls in one group, in the order of their start."""

    signatures: Sequence[int]
    """A number per kind of call; equal numbers may be the same call."""
    arrivals_ns: Sequence[int]
    ends_ns: Sequence[int]
    steps: Sequence[int | None]
    """n of the `ProfilerStep#n` that launched each."""
    are_symmetric: Sequence[bool]
    """Whether no rank can end the call before every rank has arrived."""

    def __len__(self) -> int:
        return len(self.signatures)


class _Candidate(Record, frozen=True, kw_only=True):
    shift: int
    distance_ns: int
    """How far the clocks would stand apart from what is expected, if this shift were true."""
    steps_agree: bool


def align(reference: CallSeries, other: CallSeries, *, expected_offset_ns: int = 0) -> list[int | None] | None:
    """Return, for each call of `other`, the place in `reference` that is the same collective.

    Places may lie outside `reference` (before its first or after its last call), since a third rank may have that call.
    None for a call without a partner, where calls are missing in the middle.

    Args:
        reference: The series that places count in.
        other: The series to align.
        expected_offset_ns: What is known of the other clock less the reference's.

    Returns:
        The places, or None when several alignments explain the two series equally well, or none does.
    """
    candidates = [
        candidate
        for shift in _nearest(reference, other, expected_offset_ns)
        if (candidate := _judge(reference, other, shift, expected_offset_ns)) is not None
    ]
    shift = _choose(candidates) if candidates else _shift_of_steps(reference, other, expected_offset_ns)
    if shift is None and not candidates:
        return _align_by_time(reference, other, expected_offset_ns)
    return None if shift is None else [place + shift for place in range(len(other))]


def matching_shifts(reference: Sequence[int], other: Sequence[int]) -> list[int]:
    """Return every shift s for which `other[k]` equals `reference[k + s]` wherever both exist, at least once.

    Linear in the lengths, by the Z-function (Gusfield, Algorithms on Strings, Trees and Sequences, 1.3).

    Examples:
        >>> matching_shifts([1, 2, 1, 2], [1, 2])
        [0, 2]
        >>> matching_shifts([2, 1], [1, 2])
        [-1, 1]
    """
    num_reference, num_other = len(reference), len(other)
    later = _prefix_lengths([*other, None, *reference])[num_other + 1 :]
    earlier = _prefix_lengths([*reference, None, *other])[num_reference + 1 :]
    before = [
        -start for start in range(num_other - 1, 0, -1) if earlier[start] >= min(num_other - start, num_reference)
    ]
    after = [start for start in range(num_reference) if later[start] >= min(num_reference - start, num_other)]
    return before + after


def _nearest(reference: CallSeries, other: CallSeries, expected_offset_ns: int) -> list[int]:
    """Return the matching shifts of which the clocks speak best, by one call in the middle of each overlap."""

    def distance(shift: int) -> int:
        place = (max(0, -shift) + min(len(other), len(reference) - shift)) // 2
        return abs(other.ends_ns[place] - reference.ends_ns[place + shift] - expected_offset_ns)

    return sorted(matching_shifts(reference.signatures, other.signatures), key=distance)[:_MAX_CANDIDATES]


def _prefix_lengths(text: Sequence[int | None]) -> list[int]:
    """Return for each place how many items from there on equal the beginning of the text."""
    size = len(text)
    lengths = [0] * size
    left = right = 0
    for place in range(1, size):
        length = min(right - place, lengths[place - left]) if place < right else 0
        while place + length < size and text[length] == text[place + length]:
            length += 1
        lengths[place] = length
        if place + length > right:
            left, right = place, place + length
    return lengths


def _judge(
    reference: CallSeries, other: CallSeries, shift: int, expected_offset_ns: int, *, min_overlap: int = _MIN_OVERLAP
) -> _Candidate | None:
    """Return how well a shift explains the clocks, or None when no offset of the clocks allows it."""
    first, last = max(0, -shift), min(len(other), len(reference) - shift)
    mine, theirs = slice(first, last), slice(first + shift, last + shift)
    arrivals, ends = other.arrivals_ns[mine], other.ends_ns[mine]
    other_arrivals, other_ends = reference.arrivals_ns[theirs], reference.ends_ns[theirs]
    bounded = [place for place, symmetric in enumerate(other.are_symmetric[mine]) if symmetric]
    if bounded:
        low = max(arrivals[place] - other_ends[place] for place in bounded)
        high = min(ends[place] - other_arrivals[place] for place in bounded)
        if low > high + _SLACK_NS + _MAX_DRIFT * (ends[-1] - arrivals[0]):
            return None
    if len(arrivals) < min(min_overlap, len(reference), len(other)):
        return None
    gaps = [end - other_end for end, other_end in zip(ends, other_ends, strict=True)]
    apart = median_low(gaps)
    if len(bounded) == len(gaps):
        lengths = [end - arrival for arrival, end in zip(arrivals, ends, strict=True)]
        deviations = sorted(abs(gap - apart) for gap in gaps)
        scatter = deviations[(3 * len(deviations) - 1) // 4]
        if scatter > _END_SCATTER_NS + median_low(lengths) // 10 + _MAX_DRIFT * (ends[-1] - arrivals[0]):
            return None
    steps = [
        (step, other_step)
        for step, other_step in zip(other.steps[mine], reference.steps[theirs], strict=True)
        if step is not None and other_step is not None
    ]
    return _Candidate(
        shift=shift,
        distance_ns=abs(apart - expected_offset_ns),
        steps_agree=bool(steps) and all(step == other_step for step, other_step in steps),
    )


def _choose(candidates: Sequence[_Candidate]) -> int | None:
    """Return the shift that the clocks single out, else the one that the numbers of the steps do, else None."""
    best, *others = sorted(candidates, key=lambda candidate: candidate.distance_ns)
    if not others or others[0].distance_ns > _DECISIVE * best.distance_ns + _SLACK_NS:
        return best.shift
    agreeing = [candidate.shift for candidate in candidates if candidate.steps_agree]
    return agreeing[0] if len(agreeing) == 1 else None


def _shift_of_steps(reference: CallSeries, other: CallSeries, expected_offset_ns: int) -> int | None:
    """Return the shift that pairs exactly the calls of the steps that both series hold, where the clocks allow it.

    Windows that share two steps of one call each overlap in two calls, which is too little for the clocks alone.
    """
    judged = {
        shift: candidate
        for shift in _nearest(reference, other, expected_offset_ns)
        if (candidate := _judge(reference, other, shift, expected_offset_ns, min_overlap=_MIN_NUMBERED)) is not None
    }
    agreeing = [shift for shift in judged if _pairs_shared_steps(reference, other, shift)]
    if len(agreeing) != 1:
        return None
    best_ns = min(candidate.distance_ns for candidate in judged.values())
    is_refuted = judged[agreeing[0]].distance_ns > _DECISIVE * best_ns + _SLACK_NS
    return None if is_refuted else agreeing[0]


def _pairs_shared_steps(reference: CallSeries, other: CallSeries, shift: int) -> bool:
    """Return whether a shift pairs calls of equal steps alone, and all calls of every step that both series hold."""
    first, last = max(0, -shift), min(len(other), len(reference) - shift)
    steps = other.steps[first:last]
    if None in steps or list(steps) != list(reference.steps[first + shift : last + shift]):
        return False
    shared = set(reference.steps) & set(other.steps)
    return all(sum(step in shared for step in each.steps) == len(steps) for each in (reference, other))


def _align_by_time(reference: CallSeries, other: CallSeries, expected_offset_ns: int) -> list[int | None] | None:
    """Return places for series with holes: two calls are one collective when each overlaps no other call of its kind.

    All ranks of a symmetric collective are inside it at once between the last arrival and the first end.
    """
    partners: list[list[int]] = [[] for _ in range(len(other))]
    taken: list[int] = [0] * len(reference)
    start = 0
    for place in range(len(other)):
        arrival, end = other.arrivals_ns[place] - expected_offset_ns, other.ends_ns[place] - expected_offset_ns
        while start < len(reference) and reference.ends_ns[start] + _SLACK_NS < arrival:
            start += 1
        candidate = start
        while candidate < len(reference) and reference.arrivals_ns[candidate] <= end + _SLACK_NS:
            if reference.signatures[candidate] == other.signatures[place] and _overlap_ns(
                reference, candidate, arrival, end
            ):
                partners[place].append(candidate)
                taken[candidate] += 1
            candidate += 1
    places = [found[0] if len(found) == 1 and taken[found[0]] == 1 else None for found in partners]
    return places if any(place is not None for place in places) else None


def _overlap_ns(reference: CallSeries, place: int, arrival_ns: int, end_ns: int) -> bool:
    first = max(reference.arrivals_ns[place], arrival_ns)
    return min(reference.ends_ns[place], end_ns) > first
