"""Bandwidth of large calls among small ones: six messages of 4 bytes and a bucket of 330 kB a step, by hand."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from scope.analysis.recorded import CollectiveSummary, summarize_collectives
from scope.frames.schema import Calls, CollectiveTotals

US = 1_000
BUCKET = 330_000
STEPS = 5


def _rows(table: Any, rows: list[dict[str, Any]]) -> pl.DataFrame:
    empty: dict[str, Any] = dict.fromkeys(map(str, table.columns()))
    return table.check(pl.DataFrame([empty | row for row in rows], schema=table.schema(), orient="row"))


def _kind(rank: int, operation: str) -> dict[str, Any]:
    group = {"attempt": 0, "rank": rank, "group": "0", "group_ranks": [0, 1], "mesh_axis": "dp"}
    return group | {"operation": operation, "variant": "plain", "control": False}


def _totals(sizes: list[int], operation: str = "all_reduce") -> pl.DataFrame:
    num_bytes = {"in_bytes": sum(sizes), "out_bytes": sum(sizes)}
    facts = num_bytes | {"num_calls": len(sizes), "num_timed": len(sizes), "duration_ns": 1_000 * US}
    return _rows(
        CollectiveTotals, [_kind(rank, operation) | facts | {"step": step} for rank in (0, 1) for step in range(STEPS)]
    )


def _calls(sizes: dict[int, int | None], operation: str = "all_reduce") -> pl.DataFrame:
    """Return one call of each size, which takes that long, for both ranks and two recorded steps."""
    facts = [
        {
            "step": step,
            "sequence": number,
            "in_bytes": size,
            "out_bytes": size,
            "dtype": "float32",
            "asynchronous": False,
            "issued_ns": 1_000,
            "completed_ns": None if length is None else 1_000 + length,
        }
        for step in (0, 1)
        for number, (size, length) in enumerate(sizes.items())
    ]
    return _rows(Calls, [_kind(rank, operation) | fact for rank in (0, 1) for fact in facts])


def _summary(totals: pl.DataFrame, calls: pl.DataFrame | None) -> dict[str, Any]:
    given = None if calls is None else lambda: calls
    (row,) = summarize_collectives(totals.lazy(), calls=given).iter_rows(named=True)
    return row


def test_the_bandwidth_is_that_of_the_large_calls() -> None:
    """Two ranks, 330 kB in 660 us: 2 (N-1)/N x 330 kB / 660 us = 0.5 GB/s, of four calls, whatever the small ones."""
    row = _summary(_totals([4] * 6 + [BUCKET]), _calls({4: 30 * US, 8: 40 * US, BUCKET: 660 * US}))
    assert row[CollectiveSummary.message_bytes] == pytest.approx((24 + BUCKET) / 7)
    assert row[CollectiveSummary.busbw_at_least_bytes_per_s] == pytest.approx(0.5e9)
    assert row[CollectiveSummary.num_large_calls] == 4
    assert row[CollectiveSummary.large_message_bytes] == BUCKET
    assert row[CollectiveSummary.busbw_absent_reason] is None


def test_without_recorded_calls_nothing_is_said_of_single_messages() -> None:
    """The mean is small, and that no message is large would be a guess."""
    totals = _totals([4] * 6 + [BUCKET])
    for calls in (None, Calls.empty()):
        row = _summary(totals, calls)
        assert row[CollectiveSummary.busbw_at_least_bytes_per_s] is None
        assert "no call was recorded one by one" in row[CollectiveSummary.busbw_absent_reason]
        assert "messages below" not in row[CollectiveSummary.busbw_absent_reason]


def test_recorded_calls_that_are_small_or_not_timed_give_none() -> None:
    """A large call whose end was not seen has no bandwidth, and what was recorded is counted."""
    row = _summary(_totals([4] * 6 + [BUCKET]), _calls({4: 30 * US, BUCKET: None}))
    assert row[CollectiveSummary.busbw_at_least_bytes_per_s] is None
    assert row[CollectiveSummary.busbw_absent_reason] == (
        "none of the 8 calls recorded one by one is timed and of 65.54 kB or more"
    )


def test_large_calls_outside_of_steps_tell_nothing_of_those_in_them() -> None:
    """A model of 1.6 MB is broadcast before the first step: its bandwidth is none of the small broadcasts of steps."""
    small = _calls({4: 30 * US}, "broadcast")
    once = _calls({1_600_000: 2_000 * US}, "broadcast").with_columns(pl.lit(None, pl.Int64).alias(Calls.step))
    totals = _totals([4] * 6 + [100_000], "broadcast")
    row = _summary(totals, pl.concat((once, small)))
    assert row[CollectiveSummary.busbw_at_least_bytes_per_s] is None
    assert row[CollectiveSummary.num_large_calls] is None
    assert "none of the 4 calls recorded one by one" in row[CollectiveSummary.busbw_absent_reason]
    row = _summary(totals, once)
    assert row[CollectiveSummary.busbw_at_least_bytes_per_s] is None
    assert "no call was recorded one by one" in row[CollectiveSummary.busbw_absent_reason]


def test_calls_are_not_read_where_totals_tell_enough() -> None:
    """Seven messages of 28 bytes in all are small for certain, and a mean of 330 kB shows bandwidth by itself."""

    def unwanted() -> pl.DataFrame:
        message = "the calls were read"
        raise AssertionError(message)

    (small,) = summarize_collectives(_totals([4] * 7).lazy(), calls=unwanted).iter_rows(named=True)
    assert small[CollectiveSummary.busbw_absent_reason] == "messages below 65.54 kB show latency and no bandwidth"
    (large,) = summarize_collectives(_totals([BUCKET]).lazy(), calls=unwanted).iter_rows(named=True)
    # 330 kB in 1 ms.
    assert large[CollectiveSummary.busbw_at_least_bytes_per_s] == pytest.approx(0.33e9)
    assert large[CollectiveSummary.num_large_calls] is None


def test_the_slowest_rank_counts_for_a_reduce() -> None:
    """Of a reduce the sender is done in 100 us and the root in 660 us: 330 kB / 660 us = 0.5 GB/s."""
    calls = _calls({4: 30 * US, BUCKET: 660 * US}, "reduce")
    early = (pl.col(Calls.rank) == 1) & (pl.col(Calls.in_bytes) == BUCKET)
    completed = pl.when(early).then(1_000 + 100 * US).otherwise(Calls.completed_ns)
    row = _summary(_totals([4] * 6 + [BUCKET], "reduce"), calls.with_columns(completed.alias(Calls.completed_ns)))
    assert row[CollectiveSummary.busbw_at_least_bytes_per_s] == pytest.approx(0.5e9)
