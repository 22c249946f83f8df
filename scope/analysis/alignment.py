"""Which call of one rank is which call of another, where the trace counts them only from the start of its window.

Two ranks of a group make the same calls in the same order, but their windows may begin at different ones. Paired
correctly, the series of (operation, bytes, dtype) agree over the whole overlap. Steps repeat, so many shifts agree in
the series: the numbers of the steps tell them apart, unless clocks that are known refute them; where they do not, the
clocks do, as far as it is known how these stand.
"""

from __future__ import annotations

from statistics import median_low
from typing import TYPE_CHECKING, Final

from scope.structs import Record

if TYPE_CHECKING:
    from collections.abc import Sequence, Set

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


class Alignment(Record, frozen=True, kw_only=True):
    """Which collectives of a reference the calls of another series are."""

    places: Sequence[int | None]
    """For each call of the other the place in the reference that is the same collective.

    It may lie outside the reference (before its first or after its last call), since a third rank may have that call.
    None for a call without a partner, where calls are missing in the middle."""
    rests_on_clocks: bool
    """Neither the numbers of the steps nor the series alone decide: on other clocks the calls may be others."""


class _Candidate(Record, frozen=True, kw_only=True):
    shift: int
    distance_ns: int
    """How far the clocks would stand apart if this shift were true."""
    steps_agree: bool | None
    """None where the step is known of no call or of one of the two alone."""


def align(reference: CallSeries, other: CallSeries, *, knows_clocks: bool = False) -> Alignment | None:
    """Return which calls of two series are the same collectives.

    Args:
        reference: The series that places count in.
        other: The series to align.
        knows_clocks: It is known that the instants of both are those of one clock; else they are taken to be where
            nothing else decides.

    Returns:
        The alignment, or None when several explain the two series equally well, or none does.
    """
    shift = _shift_of_steps(reference, other)
    if shift is not None and not (knows_clocks and _is_refuted(reference, other, shift)):
        return _shifted(other, shift, rests_on_clocks=False)
    candidates = _candidates(reference, other)
    if not knows_clocks:
        agreeing = [candidate for candidate in candidates if candidate.steps_agree]
        candidates = agreeing or [candidate for candidate in candidates if candidate.steps_agree is None]
    if not candidates:
        places = _align_by_time(reference, other)
        return None if places is None else Alignment(places=places, rests_on_clocks=True)
    shift = _choose(candidates)
    return None if shift is None else _shifted(other, shift, rests_on_clocks=len(candidates) > 1)


def _shifted(other: CallSeries, shift: int, *, rests_on_clocks: bool) -> Alignment:
    return Alignment(places=[place + shift for place in range(len(other))], rests_on_clocks=rests_on_clocks)


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


def _candidates(reference: CallSeries, other: CallSeries) -> list[_Candidate]:
    """Return the shifts that the series allow, and that some offset of the clocks explains."""
    judged = (_judge(reference, other, shift) for shift in _nearest(reference, other))
    return [candidate for candidate in judged if candidate is not None]


def _nearest(reference: CallSeries, other: CallSeries) -> list[int]:
    """Return the matching shifts of which the clocks speak best, by one call in the middle of each overlap."""

    def distance(shift: int) -> int:
        overlap = _overlap(reference, other, shift)
        place = (overlap.start + overlap.stop) // 2
        return abs(other.ends_ns[place] - reference.ends_ns[place + shift])

    return sorted(matching_shifts(reference.signatures, other.signatures), key=distance)[:_MAX_CANDIDATES]


def _overlap(reference: CallSeries, other: CallSeries, shift: int) -> range:
    """Return the places of `other` that a shift pairs with a call of the reference."""
    return range(max(0, -shift), min(len(other), len(reference) - shift))


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


def _judge(reference: CallSeries, other: CallSeries, shift: int) -> _Candidate | None:
    """Return how well a shift explains the clocks, or None when no offset of the clocks allows it."""
    overlap = _overlap(reference, other, shift)
    if not _is_possible(reference, other, shift) or len(overlap) < min(_MIN_OVERLAP, len(reference), len(other)):
        return None
    gaps = _gaps(reference, other, shift)
    apart = median_low(gaps)
    if all(other.are_symmetric[place] for place in overlap):
        lengths = [other.ends_ns[place] - other.arrivals_ns[place] for place in overlap]
        deviations = sorted(abs(gap - apart) for gap in gaps)
        scatter = deviations[(3 * len(deviations) - 1) // 4]
        if scatter > _END_SCATTER_NS + median_low(lengths) // 10 + _drift_ns(other, overlap):
            return None
    steps = [(other.steps[place], reference.steps[place + shift]) for place in overlap]
    numbered = [pair for pair in steps if None not in pair]
    return _Candidate(
        shift=shift,
        distance_ns=abs(apart),
        steps_agree=all(step == other_step for step, other_step in numbered) if numbered else None,
    )


def _is_possible(reference: CallSeries, other: CallSeries, shift: int) -> bool:
    """Return whether some offset of the clocks lets no rank end a symmetric collective before the other arrives."""
    overlap = _overlap(reference, other, shift)
    bounded = [place for place in overlap if other.are_symmetric[place]]
    if not bounded:
        return True
    low = max(other.arrivals_ns[place] - reference.ends_ns[place + shift] for place in bounded)
    high = min(other.ends_ns[place] - reference.arrivals_ns[place + shift] for place in bounded)
    return low <= high + _SLACK_NS + _drift_ns(other, overlap)


def _gaps(reference: CallSeries, other: CallSeries, shift: int) -> list[int]:
    """Return how much later each call of the overlap ends on the other's clock than on the reference's."""
    return [other.ends_ns[place] - reference.ends_ns[place + shift] for place in _overlap(reference, other, shift)]


def _drift_ns(other: CallSeries, overlap: range) -> float:
    return _MAX_DRIFT * (other.ends_ns[overlap[-1]] - other.arrivals_ns[overlap[0]])


def _choose(candidates: Sequence[_Candidate]) -> int | None:
    """Return the shift that the clocks single out, else the one that the numbers of the steps do, else None."""
    best, *others = sorted(candidates, key=lambda candidate: candidate.distance_ns)
    if not others or others[0].distance_ns > _DECISIVE * best.distance_ns + _SLACK_NS:
        return best.shift
    agreeing = [candidate.shift for candidate in candidates if candidate.steps_agree]
    return agreeing[0] if len(agreeing) == 1 else None


def _shift_of_steps(reference: CallSeries, other: CallSeries) -> int | None:
    """Return the only shift that pairs calls of equal steps alone, where some offset of the clocks allows it.

    One that pairs all calls of every step that both series hold goes before those that leave some out, as where a
    window begins or ends within a step.
    """
    mine, theirs = _edges(other.steps), _edges(reference.steps)
    shared = mine.keys() & theirs.keys()
    shifts = {theirs[step][edge] - mine[step][edge] for step in shared for edge in (0, 1)}
    agreeing = [shift for shift in sorted(shifts) if _pairs_equal_steps(reference, other, shift)]
    whole = [shift for shift in agreeing if _pairs_whole_steps(reference, other, shift, shared)]
    min_overlap = _MIN_NUMBERED if whole else _MIN_OVERLAP
    found = whole or agreeing
    if len(found) != 1 or not _is_possible(reference, other, found[0]):
        return None
    num_pairs = len(_overlap(reference, other, found[0]))
    return found[0] if num_pairs >= min(min_overlap, len(reference), len(other)) else None


def _edges(steps: Sequence[int | None]) -> dict[int, tuple[int, int]]:
    """Return the places of the first and the last call of each step."""
    edges: dict[int, tuple[int, int]] = {}
    for place, step in enumerate(steps):
        if step is not None:
            edges[step] = (edges.get(step, (place,))[0], place)
    return edges


def _pairs_equal_steps(reference: CallSeries, other: CallSeries, shift: int) -> bool:
    """Return whether a shift pairs no calls of different kinds or of steps with different numbers."""
    return all(
        other.signatures[place] == reference.signatures[place + shift]
        and not _steps_differ(reference, other, place + shift, place)
        for place in _overlap(reference, other, shift)
    )


def _steps_differ(reference: CallSeries, other: CallSeries, reference_place: int, place: int) -> bool:
    step, other_step = reference.steps[reference_place], other.steps[place]
    return None not in (step, other_step) and step != other_step


def _pairs_whole_steps(reference: CallSeries, other: CallSeries, shift: int, shared: Set[int]) -> bool:
    """Return whether a shift, which pairs equal steps alone, pairs all calls of the steps that both series hold."""
    num_paired = sum(
        other.steps[place] in shared and other.steps[place] == reference.steps[place + shift]
        for place in _overlap(reference, other, shift)
    )
    return all(sum(step in shared for step in each.steps) == num_paired for each in (reference, other))


def _is_refuted(reference: CallSeries, other: CallSeries, shift: int) -> bool:
    """Return whether the clocks, being known, single out another shift than the numbers of the steps do.

    A rank that counts its steps from elsewhere gives them other numbers.
    """
    distance_ns = abs(median_low(_gaps(reference, other, shift)))
    if distance_ns <= _END_SCATTER_NS:
        return False
    best_ns = min((each.distance_ns for each in _candidates(reference, other)), default=distance_ns)
    return distance_ns > _DECISIVE * best_ns + _END_SCATTER_NS


def _align_by_time(reference: CallSeries, other: CallSeries) -> list[int | None] | None:
    """Return places for series with holes: two calls are one collective when each overlaps no other call of its kind.

    All ranks of a symmetric collective are inside it at once between the last arrival and the first end.
    """
    partners: list[list[int]] = [[] for _ in range(len(other))]
    taken: list[int] = [0] * len(reference)
    start = 0
    for place in range(len(other)):
        arrival, end = other.arrivals_ns[place], other.ends_ns[place]
        while start < len(reference) and reference.ends_ns[start] + _SLACK_NS < arrival:
            start += 1
        candidate = start
        while candidate < len(reference) and reference.arrivals_ns[candidate] <= end + _SLACK_NS:
            if (
                reference.signatures[candidate] == other.signatures[place]
                and not _steps_differ(reference, other, candidate, place)
                and _are_at_once(reference, candidate, arrival, end)
            ):
                partners[place].append(candidate)
                taken[candidate] += 1
            candidate += 1
    places = [found[0] if len(found) == 1 and taken[found[0]] == 1 else None for found in partners]
    return places if any(place is not None for place in places) else None


def _are_at_once(reference: CallSeries, place: int, arrival_ns: int, end_ns: int) -> bool:
    first = max(reference.arrivals_ns[place], arrival_ns)
    return min(reference.ends_ns[place], end_ns) > first
