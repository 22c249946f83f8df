"""Clock offsets: bounds are those of brute force over all pairs, components stay apart, contradictions are said."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from scope.analysis.clock import SAME_CLOCK_NS, ClockAlignment, compute_clock_alignment, on_reference_clock
from scope.trace.schema import CollectiveCalls

if TYPE_CHECKING:
    from collections.abc import Sequence

Part = tuple[int, int, int]
"""Rank, arrival, end."""


def _calls(collectives: Sequence[Sequence[Part]], *, operation: str = "all_reduce", root: int = 0) -> pl.DataFrame:
    rows = [
        {
            "collective_id": number,
            "state": "matched",
            "rank": rank,
            "operation": operation,
            "device": 0,
            "is_symmetric": operation == "all_reduce",
            "is_pair": operation == "send",
            "is_root": rank == root if operation != "all_reduce" else None,
            "in_split": None,
            "out_split": None,
            "start_ns": start,
            "end_ns": end,
        }
        for number, parts in enumerate(collectives)
        for rank, start, end in parts
    ]
    return pl.DataFrame(
        rows,
        schema={
            "collective_id": pl.UInt32,
            "state": pl.String,
            "rank": pl.Int32,
            "operation": CollectiveCalls.operation.dtype,
            "device": pl.Int32,
            "is_symmetric": pl.Boolean,
            "is_pair": pl.Boolean,
            "is_root": pl.Boolean,
            "in_split": pl.List(pl.Int64),
            "out_split": pl.List(pl.Int64),
            "start_ns": pl.Int64,
            "end_ns": pl.Int64,
        },
    )


def _align(calls: pl.DataFrame, ranks: Sequence[int]) -> ClockAlignment:
    return compute_clock_alignment(calls, hosts=dict.fromkeys(ranks)).check()


LENGTHS = st.integers(1, 400_001)


@given(
    st.lists(st.tuples(LENGTHS, LENGTHS, LENGTHS, LENGTHS), min_size=1, max_size=6),
    st.tuples(*[st.integers(-5_000_001, 5_000_001)] * 2),
)
def test_bounds_equal_shortest_paths(work: list[tuple[int, int, int, int]], offsets: tuple[int, int]) -> None:
    """The interval of each rank is the tightest that all pairs of ranks in all calls allow, and holds the truth."""
    clocks = (0, *offsets)
    collectives: list[list[Part]] = []
    now = 10_000_000_001
    for *lengths, transfer in work:
        arrivals = [now + length for length in lengths]
        now = max(arrivals) + transfer
        collectives.append([(rank, arrivals[rank] + clocks[rank], now + clocks[rank]) for rank in range(3)])
    found = _align(_calls(collectives), range(3))
    upper = {
        (i, j): min(parts[i][2] - parts[j][1] for parts in collectives)
        for i, j in product(range(3), repeat=2)
        if i != j
    }
    for middle, i, j in product(range(3), repeat=3):
        if len({middle, i, j}) == 3:
            upper[i, j] = min(upper[i, j], upper[i, middle] + upper[middle, j])
    for offset in found.offsets[1:]:
        low, high = -upper[0, offset.rank], upper[offset.rank, 0]
        assert low <= clocks[offset.rank] <= high
        assert offset.low_ns is not None
        assert offset.high_ns is not None
        assert offset.low_ns <= clocks[offset.rank] <= offset.high_ns
        assert (offset.low_ns, offset.high_ns) == (low, high)
        assert offset.error_ns is not None
        if not found.is_corrected:
            assert offset.error_ns == min(high, SAME_CLOCK_NS) - max(low, -SAME_CLOCK_NS)


def test_components_are_kept_apart() -> None:
    """Ranks that no collective joins have clocks that say nothing of each other."""
    calls = _calls([[(0, 0, 10), (1, 5, 10)], [(2, 100, 120), (3, 7_000_110, 7_000_120)]])
    found = _align(calls, range(5))
    assert found.components == ((0, 1), (2, 3), (4,))
    assert [offset.reference_rank for offset in found.offsets] == [0, 0, 2, 2, 4]
    assert [offset.is_applied for offset in found.offsets] == [False, False, True, True, False]


def test_contradiction_is_said() -> None:
    """A clock that jumped between two calls leaves no interval, and says why."""
    calls = _calls([[(0, 1, 11), (1, 5, 11)], [(0, 1_001, 1_011), (1, 9_001_005, 9_001_011)]])
    found = _align(calls, range(2))
    assert found.num_contradictions == 2
    assert found.offsets[1].interval_ns is None
    assert "clock jumped" in found.offsets[1].absent["low_ns"]


def test_broadcast_bounds_one_side_only() -> None:
    """A receiver can't end before its root arrives, but a root may be gone before a receiver comes."""
    calls = _calls([[(0, 1_000_001, 1_000_101), (1, 3_000_001, 3_000_101)]], operation="broadcast")
    offset = _align(calls, range(2)).offsets[1]
    assert (offset.offset_ns, offset.is_applied) == (0, False)
    # The receiver ends 2.0001 ms after the root arrives; nothing tells how far it may run behind.
    assert (offset.low_ns, offset.high_ns) == (None, 3_000_101 - 1_000_001)
    assert offset.error_ns == 2 * SAME_CLOCK_NS
    behind = _calls([[(0, 1_000_001, 1_000_101), (1, 3_001, 3_101)]], operation="broadcast")
    offset = _align(behind, range(2)).offsets[1]
    assert (offset.high_ns, offset.offset_ns) == (3_101 - 1_000_001, 3_101 - 1_000_001)
    assert offset.low_ns is None


def test_a_clock_that_seems_to_agree_keeps_its_whole_interval() -> None:
    """Rank 1 runs 14 us ahead and leaves 8 us early: the estimate is 6 us, the interval holds 14, not 10 us at most.

    The true ends are 100 and 92 us after rank 0 arrives, and rank 1 arrives 1 us after it. So rank 1's clock shows an
    arrival at 15 us and an end at 106 us: its offset is at least 15 - 100 and at most 106 - 0 us.
    """
    parts = [[(0, at + 1, at + 100_001), (1, at + 15_001, at + 106_001)] for at in range(0, 80_000_000, 10_000_000)]
    for host in (None, "node"):
        found = compute_clock_alignment(_calls(parts), hosts={0: host, 1: host}).check()
        assert not found.is_corrected
        offset = found.offsets[1]
        assert (offset.low_ns, offset.high_ns) == (-85_000, 106_000)
        assert offset.offset_ns == 6_000
        assert offset.error_ns == 20_000
        assert offset.assumption == ("clocks agree" if host is None else "one host")


def test_an_estimate_on_one_host_is_not_held_to_what_clocks_of_one_host_are() -> None:
    """Ends 200 us apart on one host give that estimate, which is not applied; the clock's error is 20 us at most."""
    calls = _calls([[(0, 1, 900_001), (1, 5, 700_001)]])
    offset = compute_clock_alignment(calls, hosts={0: "node", 1: "node"}).check().offsets[1]
    assert (offset.offset_ns, offset.is_applied, offset.assumption) == (-200_000, False, "one host")
    assert (offset.low_ns, offset.high_ns) == (5 - 900_001, 700_001 - 1)
    assert offset.error_ns == 2 * SAME_CLOCK_NS


def test_one_host_has_one_clock() -> None:
    """Ranks that name the same host are not corrected, however their ends differ."""
    calls = _calls([[(0, 1, 900_001), (1, 5, 700_001)]])
    found = compute_clock_alignment(calls, hosts={0: "node", 1: "node"}).check()
    assert not found.is_corrected
    assert not compute_clock_alignment(_calls([]), hosts={0: None}).check().is_corrected


def test_instants_move_by_offset_and_drift() -> None:
    """An instant of a drifting clock comes back to within a nanosecond of the truth."""
    true = [1_790_000_000_000_000_000 + 50_000_000 * place for place in range(40)]
    local = [instant + 12_345_678 + round((instant - true[0]) * 30e-6) for instant in true]
    collectives = [[(0, at - 1_001, at), (1, shown - 1_001, shown)] for at, shown in zip(true, local, strict=True)]
    found = _align(_calls(collectives), range(2))
    assert abs(found.offsets[1].drift_ppb - 30_000) < 5
    frame = pl.DataFrame({"rank": pl.Series([1] * 40, dtype=pl.Int32), "at_ns": local})
    moved = on_reference_clock(frame, found, instants=["at_ns"])["at_ns"].to_list()
    assert max(abs(back - at) for back, at in zip(moved, true, strict=True)) <= 2
