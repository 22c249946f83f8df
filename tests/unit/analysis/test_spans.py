"""The algebra of spans against a set of integers, and a sweep against counting by hand."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scope.analysis import spans
from scope.analysis.windows import find_parts

if TYPE_CHECKING:
    from collections.abc import Callable

Pairs = list[tuple[int, int]]

_pairs = st.lists(st.tuples(st.integers(-20, 60), st.integers(-20, 60)), max_size=12)
_lanes = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 30), st.integers(0, 30)), max_size=15)


def frame(pairs: Pairs) -> pl.DataFrame:
    """Return the frame of some spans."""
    return pl.DataFrame(pairs, schema=spans.Spans.schema(), orient="row")


def covered(pairs: Pairs) -> set[int]:
    """Return every nanosecond that some span covers."""
    return {instant for start, end in pairs for instant in range(start, end)}


def runs(instants: set[int]) -> Pairs:
    """Return the longest runs of neighbouring nanoseconds."""
    starts = sorted(each for each in instants if each - 1 not in instants)
    ends = sorted(each + 1 for each in instants if each + 1 not in instants)
    return list(zip(starts, ends, strict=True))


@given(_pairs)
def test_union_covers_what_any_span_covers(pairs: Pairs) -> None:
    """The union is the longest runs of covered nanoseconds, for empty and reversed spans too."""
    assert spans.union(frame(pairs)).rows() == runs(covered(pairs))
    assert spans.length(frame(pairs)) == len(covered(pairs))


@given(_pairs, _pairs)
def test_intersection_and_difference_split_the_left_set(left: Pairs, right: Pairs) -> None:
    """Intersection and difference are those of the sets of nanoseconds."""
    assert spans.intersect(frame(left), frame(right)).rows() == runs(covered(left) & covered(right))
    assert spans.subtract(frame(left), frame(right)).rows() == runs(covered(left) - covered(right))


@given(_pairs, st.integers(-25, 65), st.integers(-25, 65))
def test_clip_is_the_intersection_with_one_span(pairs: Pairs, start: int, end: int) -> None:
    """Clipping keeps the covered nanoseconds between its two bounds."""
    assert spans.clip(frame(pairs), start_ns=start, end_ns=end).rows() == runs(covered(pairs) & covered([(start, end)]))


@given(_lanes)
def test_union_by_a_column_keeps_each_lane_apart(rows: list[tuple[int, int, int]]) -> None:
    """With `by`, each value's spans are united among themselves only."""
    table = pl.DataFrame(rows, schema={"lane": pl.Int64, **spans.Spans.schema()}, orient="row")
    expected = [
        (lane, *run) for lane in range(3) for run in runs(covered([(s, e) for each, s, e in rows if each == lane]))
    ]
    assert spans.union(table, by="lane").rows() == expected


@given(_lanes)
def test_sweep_counts_each_layer_on_each_piece(rows: list[tuple[int, int, int]]) -> None:
    """Every piece has, per lane and layer, the number of spans over each of its nanoseconds."""
    table = pl.DataFrame(rows, schema={"lane": pl.Int64, **spans.Spans.schema()}, orient="row")
    odd, even = pl.col("start_ns") % 2 == 1, pl.col("start_ns") % 2 == 0
    pieces = spans.sweep(table, layers={"odd": odd, "even": even}, by="lane")
    for lane in range(3):
        solid = [(s, e) for each, s, e in rows if each == lane and e > s]
        mine = pieces.filter(pl.col("lane") == lane)
        edges = sorted({edge for span in solid for edge in span})
        assert mine.select("start_ns", "end_ns").rows() == list(itertools.pairwise(edges))
        for _, start, _, num_odd, num_even in mine.iter_rows():
            over = [s for s, e in solid if s <= start < e]
            assert (num_odd, num_even) == (sum(s % 2 for s in over), sum(1 - s % 2 for s in over))


@pytest.mark.parametrize("operation", [spans.intersect, spans.subtract])
def test_no_spans_give_no_spans(operation: Callable[[pl.DataFrame, pl.DataFrame], pl.DataFrame]) -> None:
    """Empty sets are ordinary input."""
    empty = frame([])
    assert operation(empty, empty).is_empty()
    assert spans.length(empty) == 0
    assert spans.sweep(empty, layers={"any": pl.lit(value=True)}).is_empty()


@given(instants=st.lists(st.integers(-3, 25), max_size=20), edges=st.lists(st.integers(0, 20), min_size=2, max_size=8))
def test_instants_lie_in_the_part_that_holds_them(instants: list[int], edges: list[int]) -> None:
    """Each instant gets the part with start <= instant < end, whether parts are adjacent or apart, else none."""
    distinct = sorted(set(edges))
    bounds = list(zip(distinct[::2], distinct[1::2], strict=False))
    rows = [(number + 5, start, end) for number, (start, end) in enumerate(bounds)]
    schema = {"part_id": pl.UInt32, "start_ns": pl.Int64, "end_ns": pl.Int64}
    found = find_parts(pl.Series(sorted(instants), dtype=pl.Int64), pl.DataFrame(rows, schema=schema, orient="row"))
    wanted = [next((part for part, start, end in rows if start <= each < end), None) for each in sorted(instants)]
    assert found.to_list() == wanted
