"""Which operator contains which, against a search of all pairs."""

from __future__ import annotations

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from scope.trace.nesting import covered, nest

Span = tuple[int, int, int]
"""Thread, start and length."""

spans = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 12), st.sampled_from((0, 0, 1, 2, 5, 12))), max_size=30)


def columns(rows: list[Span]) -> tuple[pl.Series, pl.Series, pl.Series]:
    """Return threads, starts and ends."""
    frame = pl.DataFrame(rows, schema={"thread": pl.Int64, "start": pl.Int64, "length": pl.Int64}, orient="row")
    return frame["thread"], frame["start"], frame["start"] + frame["length"]


def in_order(rows: list[Span]) -> list[Span]:
    """Sort by start, the longer first."""
    return sorted(rows, key=lambda row: (row[1], -row[2]))


def running(rows: list[Span], index: int) -> list[int]:
    """Return what runs on the thread when an operator begins, innermost first."""
    thread, start, _ = rows[index]
    return [
        other
        for other in range(index - 1, -1, -1)
        if rows[other][0] == thread and rows[other][1] + rows[other][2] > start
    ]


@given(spans)
def test_nesting_equals_a_search_of_all_pairs(drawn: list[Span]) -> None:
    """The parent is the innermost running operator that contains all of it, however the operators overlap."""
    rows = in_order(drawn)
    ends = [start + length for _, start, length in rows]
    parents: list[int | None] = []
    overlaps = 0
    for index in range(len(rows)):
        around = running(rows, index)
        overlaps += bool(around) and ends[around[0]] < ends[index]
        parents.append(next((other for other in around if ends[other] >= ends[index]), None))
    depths: list[int] = []
    for parent in parents:
        depths.append(0 if parent is None else depths[parent] + 1)
    found = nest(*columns(rows))
    assert found.parents.to_list() == parents
    assert found.depths.to_list() == depths
    assert found.is_leaf.to_list() == [index not in parents for index in range(len(rows))]
    assert found.overlaps == overlaps


def test_very_deep_nesting() -> None:
    """Ten thousand operators in each other, and one behind them all, take no turn each."""
    size = 10_000
    rows = [(0, start, 2 * (size - start)) for start in range(size)]
    found = nest(*columns([*rows, (0, size, 1), (0, 3 * size, 1)]))
    assert found.parents.to_list() == [None, *range(size - 1), size - 1, None]
    assert found.depths.to_list() == [*range(size + 1), 0]
    assert found.overlaps == 0


@given(spans, st.lists(st.tuples(st.integers(0, 2), st.integers(-1, 26)), max_size=10))
def test_covered_equals_a_search_of_all_pairs(drawn: list[Span], asked: list[tuple[int, int]]) -> None:
    """A point is covered where any span of its thread holds it, its end apart."""
    threads, starts, ends = columns(drawn)
    points = pl.DataFrame(asked, schema={"thread": pl.Int64, "time": pl.Int64}, orient="row")
    expected = [
        any(own == thread and start <= time < start + length for own, start, length in drawn) for thread, time in asked
    ]
    assert covered(points, pl.DataFrame([threads, starts, ends.alias("end")])).to_list() == expected
