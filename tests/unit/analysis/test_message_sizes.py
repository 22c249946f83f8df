"""The size of a collective's message from the buffers of its ranks, for each operation as torch defines it."""

from __future__ import annotations

import random
from typing import Any

import polars as pl
import pytest

from scope.analysis.recorded import CollectiveSummary, summarize_collectives
from scope.frames.schema import CollectiveTotals

MB = 1_000_000
MS = 1_000_000


def buffers(operation: str, message: int, *, ranks: int, rank: int, root: int) -> tuple[int, int]:
    """What one rank gives and gets in a call whose full message has so many bytes."""
    is_root = rank == root
    part = message // ranks
    return {
        "all_reduce": (message, message),
        "reduce": (message, message if is_root else 0),
        "broadcast": (message, 0) if is_root else (0, message),
        "all_gather": (part, message),
        "reduce_scatter": (message, part),
        "all_to_all": (message, message),
        "gather": (part, message if is_root else 0),
        "scatter": (message if is_root else 0, part),
    }[operation]


def totals_row(operation: str, rank: int, *, ranks: int, **values: Any) -> dict[str, Any]:
    """Totals of one rank."""
    row: dict[str, Any] = dict.fromkeys(map(str, CollectiveTotals.columns()))
    row |= {"attempt": 0, "rank": rank, "step": 0, "group": "0", "group_ranks": list(range(ranks))}
    row |= {"operation": operation, "variant": "plain", "control": False, "num_timed": 0}
    return row | values


def summarize(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The one row of the summary."""
    table = CollectiveTotals.check(pl.DataFrame(rows, schema=CollectiveTotals.schema(), orient="row"))
    (row,) = summarize_collectives(table.lazy()).iter_rows(named=True)
    return row


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "operation",
    ["all_reduce", "reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"],
)
def test_the_mean_message_is_the_mean_of_the_messages(operation: str, seed: int) -> None:
    """Whoever the root is from call to call, sums over all ranks give the mean of the full messages."""
    numbers = random.Random(seed)
    ranks = numbers.randrange(1, 7)
    messages = [numbers.randrange(1, 50) * 60 * 7 * 1000 for _ in range(numbers.randrange(1, 9))]
    roots = [numbers.randrange(ranks) for _ in messages]
    rows = []
    for rank in range(ranks):
        sizes = [
            buffers(operation, message, ranks=ranks, rank=rank, root=root)
            for message, root in zip(messages, roots, strict=True)
        ]
        given, got = (sum(each) for each in zip(*sizes, strict=True))
        rows.append(totals_row(operation, rank, ranks=ranks, num_calls=len(messages), in_bytes=given, out_bytes=got))
    assert summarize(rows)[CollectiveSummary.message_bytes] == pytest.approx(sum(messages) / len(messages))


@pytest.mark.parametrize("operation", ["broadcast", "gather", "scatter"])
def test_a_rank_whose_record_is_missing_changes_no_size(operation: str) -> None:
    """4 MB over 4 ranks, of which the root's records are lost."""
    rows = []
    for rank in (0, 2, 3):
        given, got = buffers(operation, 4 * MB, ranks=4, rank=rank, root=1)
        rows.append(totals_row(operation, rank, ranks=4, num_calls=3, in_bytes=3 * given, out_bytes=3 * got))
    assert summarize(rows)[CollectiveSummary.message_bytes] == 4 * MB


def test_parts_of_a_group_of_unknown_size_tell_no_message() -> None:
    """A part of a gather alone does not say how large the whole is: absent, not the part."""
    row = totals_row("gather", 0, ranks=1, num_calls=1, in_bytes=MB, out_bytes=0, num_timed=1, duration_ns=MS)
    summary = summarize([row | {"group_ranks": None}])
    assert summary[CollectiveSummary.message_bytes] is None
    assert summary[CollectiveSummary.busbw_at_least_bytes_per_s] is None


def test_the_rank_that_is_done_first_does_not_make_a_gather_faster() -> None:
    """4 ranks gather 4 MB in 4 ms on the root, 1 ms on the others: at least 3/4 x 4 MB / 4 ms = 0.75 GB/s."""
    rows = []
    for rank in range(4):
        given, got = buffers("gather", 4 * MB, ranks=4, rank=rank, root=0)
        length = 4 * MS if rank == 0 else MS
        facts = {"num_calls": 2, "in_bytes": 2 * given, "out_bytes": 2 * got}
        rows.append(totals_row("gather", rank, ranks=4, num_timed=2, duration_ns=2 * length, **facts))
    assert summarize(rows)[CollectiveSummary.busbw_at_least_bytes_per_s] == pytest.approx(0.75e9)


def test_a_broadcast_of_which_some_calls_were_timed() -> None:
    """2 of 3 broadcasts of 8 MB were timed, 5 ms each: at least 8 MB / 5 ms = 1.6 GB/s."""
    rows = []
    for rank in range(2):
        given, got = buffers("broadcast", 8 * MB, ranks=2, rank=rank, root=1)
        facts = {"num_calls": 3, "in_bytes": 3 * given, "out_bytes": 3 * got}
        rows.append(totals_row("broadcast", rank, ranks=2, num_timed=2, duration_ns=10 * MS, **facts))
    summary = summarize(rows)
    assert summary[CollectiveSummary.message_bytes] == 8 * MB
    assert summary[CollectiveSummary.busbw_at_least_bytes_per_s] == pytest.approx(1.6e9)
    assert summary[CollectiveSummary.duration_ns] == 20 * MS
