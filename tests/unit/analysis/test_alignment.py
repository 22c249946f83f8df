"""Series of calls are aligned by what repeats in them and by the clock."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from scope.analysis.alignment import CallSeries, align, matching_shifts

SIGNATURES = st.lists(st.integers(0, 2), min_size=1, max_size=12)


def _series(
    signatures: list[int], starts: list[int], *, length: int = 1_000, steps: list[int | None] | None = None
) -> CallSeries:
    return CallSeries(
        signatures=signatures,
        arrivals_ns=starts,
        ends_ns=[start + length for start in starts],
        steps=steps or [None] * len(starts),
        are_symmetric=[True] * len(starts),
    )


def _places(reference: CallSeries, other: CallSeries, *, knows_clocks: bool = False) -> list[int | None] | None:
    found = align(reference, other, knows_clocks=knows_clocks)
    return None if found is None else list(found.places)


@given(SIGNATURES, SIGNATURES)
def test_shifts_equal_brute_force(reference: list[int], other: list[int]) -> None:
    """The shifts are those for which the two series agree wherever they overlap."""
    expected = [
        shift
        for shift in range(-len(other) + 1, len(reference))
        if all(
            other[place] == reference[place + shift]
            for place in range(len(other))
            if 0 <= place + shift < len(reference)
        )
    ]
    assert sorted(matching_shifts(reference, other)) == expected


def test_clock_picks_among_steps_that_repeat() -> None:
    """Of several shifts that agree in the series, that whose ends agree on the clock is taken."""
    starts = [1_000_000 * place for place in range(8)]
    reference = _series([0, 1] * 4, starts)
    other = _series([0, 1] * 3, [start + 30_000 for start in starts[2:]])
    assert _places(reference, other) == [2, 3, 4, 5, 6, 7]


def test_step_numbers_decide_where_the_clock_cannot() -> None:
    """Clocks half a step apart fit two shifts equally; the numbers of the steps choose, or nobody does."""
    starts = [1_000_000 * place for place in range(6)]
    late = [start + 500_000 for start in starts]
    numbered = _series([0] * 6, starts, steps=list(range(6)))
    assert _places(numbered, _series([0] * 6, late, steps=list(range(6)))) == [0, 1, 2, 3, 4, 5]
    assert _places(_series([0] * 6, starts), _series([0] * 6, late)) is None


def test_windows_that_share_two_steps_are_paired_by_their_numbers() -> None:
    """Two calls are too few for the clocks alone; the numbers of all steps that both windows hold decide."""
    starts = [1_000_000, 2_000_000, 3_300_000, 4_900_000, 6_800_000, 9_000_000]
    length = 900_000

    def window(first: int, steps: list[int | None], *, late: int = 0) -> CallSeries:
        begun = [start + late for start in starts[first : first + len(steps)]]
        return _series([0] * len(steps), begun, length=length, steps=steps)

    # The first call of the other overlaps two of the reference's, since its clock is half a call early.
    reference, other = window(0, [7, 8, 9, 10]), window(2, [9, 10, 11, 12], late=-450_000)
    assert _places(reference, other) == [2, 3, 4, 5]
    unnumbered = window(2, [None] * 4, late=-450_000)
    assert _places(window(0, [None] * 4), unnumbered) == [None, 3, None, None]
    # A shared step of which one window holds fewer calls than the other proves nothing; the clocks pair what is of
    # one step and at once.
    assert _places(window(0, [7, 8, 9, 10]), window(2, [9, 10, 10, 12], late=-450_000)) == [
        2,
        3,
        None,
        None,
    ]


def test_numbers_of_steps_go_before_clocks_of_which_nothing_is_known() -> None:
    """Clocks a step apart leave calls of one number together; nothing is assumed of the clocks then."""
    starts = [1_000_000 * place for place in range(6)]
    reference, steps = _series([0] * 6, starts, steps=list(range(6))), [*range(6)]
    for late in (1_000_000, -2_000_100, 5_000_000, 90_000_000):
        other = _series([0] * 6, [start + late for start in starts], steps=[*steps])
        found = align(reference, other)
        assert found is not None
        assert (list(found.places), found.rests_on_clocks) == (steps, False)
    unnumbered = align(_series([0] * 6, starts), _series([0] * 6, [start + 1_000_000 for start in starts]))
    assert unnumbered is not None
    assert (list(unnumbered.places), unnumbered.rests_on_clocks) == ([1, 2, 3, 4, 5, 6], True)


def test_clocks_that_are_known_refute_numbers_of_steps() -> None:
    """A rank that counts its steps from elsewhere is aligned by the clock, where that is known to be the other's."""
    starts = [1_000_000 * place for place in range(6)]
    reference = _series([0] * 6, starts, steps=list(range(6)))
    other = _series([0] * 6, [start + 2_000_000 for start in starts], steps=list(range(6)))
    assert _places(reference, other, knows_clocks=True) == [2, 3, 4, 5, 6, 7]
    assert _places(reference, other) == [0, 1, 2, 3, 4, 5]


def test_windows_that_begin_within_a_step_are_paired_by_the_rest_of_it() -> None:
    """Of a step that one window holds in part its last calls are paired, at any distance of the clocks."""
    starts = [1_000_000 * place for place in range(9)]
    reference = _series([0] * 9, starts, steps=[4, 4, 4, 5, 5, 5, 6, 6, 6])
    for late in range(-9_000_000, 9_000_000, 700_001):
        begun = [start + late for start in starts[1:]]
        other = _series([0] * 8, begun, steps=[None, 4, 5, 5, 5, 6, 6, None])
        assert _places(reference, other) == [1, 2, 3, 4, 5, 6, 7, 8]


def test_calls_of_other_steps_are_not_one_however_the_clocks_stand() -> None:
    """Where one window lacks a call in the middle, calls that are at once but of other steps stay apart."""
    starts = [1_000_000 * place for place in range(6)]
    reference = _series([0] * 6, starts, steps=[1, 1, 2, 2, 3, 3])
    other = _series(
        [0] * 5, [start + 1_000_000 for start in (0, 1_000_000, 2_000_000, 4_000_000, 5_000_000)], steps=[1, 1, 2, 3, 3]
    )
    assert _places(reference, other) == [1, None, 3, 5, None]


def test_holes_leave_calls_without_a_partner() -> None:
    """Where calls are missing in the middle, calls that overlap in time and no other are one; the rest have none."""
    reference = _series([0, 0, 0, 0], [0, 700_000, 2_000_000, 3_000_000])
    other = _series([0, 0, 0], [400, 2_000_300, 9_000_000])
    assert _places(reference, other) == [0, 2, None]


def test_series_that_share_nothing_are_not_aligned() -> None:
    """Series of different operations have no alignment."""
    assert _places(_series([0, 0], [0, 5_000]), _series([1, 1], [0, 5_000])) is None


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1_000, 90_000)), min_size=6, max_size=30), st.data())
def test_windows_of_one_series_find_each_other(calls: list[tuple[int, int]], data: st.DataObject) -> None:
    """Two windows onto one series of calls, on agreeing clocks, are aligned as they were cut."""
    signatures = [signature for signature, _ in calls]
    starts = [10_000 * place + sum(gap for _, gap in calls[:place]) for place in range(len(calls))]
    first = data.draw(st.integers(0, len(calls) - 4))
    last = data.draw(st.integers(first + 3, len(calls)))
    reference = _series(signatures, starts)
    other = _series(signatures[first:last], starts[first:last])
    assert _places(reference, other) == list(range(first, last))
