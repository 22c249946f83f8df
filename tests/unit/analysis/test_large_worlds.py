"""Groups of very many ranks are listed once, not for every call in them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from scope.analysis.matching import match_calls
from scope.analysis.rank_sets import NUMBER, RankSets
from scope.trace.model import Job, ProcessGroup

if TYPE_CHECKING:
    from collections.abc import Callable

    from scope.trace.model import RankTrace

WORLD = 50_000
NUM_CALLS = 40


def _call(turn: int, **fields: Any) -> dict[str, Any]:
    own = {"start_ns": turn * 10, "end_ns": turn * 10 + 5, "library": "nccl", "device": 0, "in_bytes": 64}
    return own | {"out_bytes": 64, "group_name": "0", "group_size": WORLD, "sequence": turn} | fields


def test_calls_of_the_whole_world_do_not_list_it_each(make_trace: Callable[..., RankTrace]) -> None:
    """40 calls of a world of 50,000 whose ranks are left out would hold 8 MB of ranks; the group alone has them."""
    pair = {"group_name": "1", "group_ranks": [3, 4], "group_size": 2}
    calls = [_call(turn) for turn in range(NUM_CALLS)] + [_call(NUM_CALLS + turn, **pair) for turn in range(NUM_CALLS)]
    matched = match_calls(Job(ranks=(make_trace(rank=3, collective_calls=calls),), world_size=WORLD))
    assert matched.groups["ranks"].to_list() == [list(range(WORLD)), [3, 4]]
    assert matched.groups["num_ranks"].to_list() == [WORLD, 2]
    assert matched.calls.height == 2 * NUM_CALLS
    assert matched.calls.estimated_size() < 1 << 20


def test_calls_of_a_group_that_the_trace_lists_do_not_list_it_each(make_trace: Callable[..., RankTrace]) -> None:
    """So it is with a group whose ranks stand once in the trace, and whose calls only name it."""
    even = tuple(range(0, WORLD, 2))
    calls = [_call(turn, group_name="even", group_size=None) for turn in range(NUM_CALLS)]
    group = ProcessGroup(name="even", description=None, backend=None, ranks=even)
    trace = make_trace(rank=4, collective_calls=calls, process_groups=(group,))
    matched = match_calls(Job(ranks=(trace,), world_size=WORLD))
    assert matched.groups["ranks"].to_list() == [list(even)]
    assert matched.calls["group_size"].to_list() == [len(even)] * NUM_CALLS
    assert matched.calls.estimated_size() < 1 << 20


def test_calls_that_say_what_goes_to_each_rank_have_the_ranks(make_trace: Callable[..., RankTrace]) -> None:
    """An uneven all_to_all is measured by its splits, one a rank of its group."""
    calls = [_call(0), _call(1, operation="all_to_all", in_split=[1, 2, 3], group_ranks=[0, 3, 5], group_size=3)]
    matched = match_calls(Job(ranks=(make_trace(rank=3, collective_calls=calls),), world_size=WORLD))
    found = dict(matched.calls.select("operation", "group_ranks").iter_rows())
    assert found == {"all_reduce": None, "all_to_all": [0, 3, 5]}


_lists = st.lists(st.one_of(st.none(), st.lists(st.integers(0, 12), max_size=3)), max_size=8)


@given(_lists, st.data())
def test_numbers_stand_for_their_lists(lists: list[list[int] | None], data: st.DataObject) -> None:
    """Sizes, ranks at a place and the order of texts are those of the lists, and equal lists share a number."""
    places = data.draw(st.lists(st.one_of(st.none(), st.integers(0, 4)), min_size=len(lists), max_size=len(lists)))
    sets = RankSets()
    numbers = sets.numbers(pl.Series(lists, dtype=pl.List(pl.Int32)))
    assert [None if number is None else list(sets.ranks(number)) for number in numbers] == lists
    assert numbers.n_unique() == len({str(each) for each in lists})
    assert sets.sizes(numbers).to_list() == [None if each is None else len(each) for each in lists]
    expected = [
        each[place] if each is not None and place is not None and place < len(each) else None
        for each, place in zip(lists, places, strict=True)
    ]
    assert sets.at(numbers, pl.Series(places, dtype=pl.Int32)).to_list() == expected
    known = [
        (",".join(map(str, each)), key) for each, key in zip(lists, sets.keys(numbers), strict=True) if each is not None
    ]
    assert [text for text, _ in sorted(known, key=lambda pair: pair[1])] == sorted(text for text, _ in known)


def test_a_list_that_is_told_again_keeps_its_number() -> None:
    """Ranks that a trace lists, and those of the whole world, are the same list where they are equal."""
    sets = RankSets()
    assert [sets.number(each) for each in ([0, 1], range(3), (0, 1), [0, 1, 2])] == [0, 1, 0, 1]
    assert sets.numbers(pl.Series([[0, 1, 2], None], dtype=pl.List(pl.Int32))).to_list() == [1, None]
    assert sets.sizes(pl.Series([None], dtype=NUMBER)).to_list() == [None]
