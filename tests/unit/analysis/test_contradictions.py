"""What the ranks of one collective say of it may be impossible, which is flagged, or uneven, which is not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from scope.analysis.collectives import compute_collectives
from scope.analysis.contradictions import PARTS_DIFFER, SIZES_DIFFER, TYPES_DIFFER
from scope.analysis.operations import SYMMETRIC
from scope.trace.model import Job

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from scope.trace.model import RankTrace

Row = dict[str, Any]
NUM_RANKS = 3


@pytest.fixture
def measure(make_trace: Callable[..., RankTrace]) -> Callable[..., Row]:
    """Function that returns the one collective of three ranks, of each of which it gets what the call says."""

    def build(rows: Sequence[Row], **common: Any) -> Row:
        ranks = tuple(
            make_trace(rank=rank, label=f"rank {rank}", collective_calls=[_call(rank, **common, **row)])
            for rank, row in enumerate(rows)
        )
        found = compute_collectives(Job(ranks=ranks, world_size=NUM_RANKS)).check()
        (collective,) = found.collectives.iter_rows(named=True)
        return collective

    return build


def _call(rank: int, **fields: Any) -> Row:
    return {
        "start_ns": 10 * rank,
        "end_ns": 1_020,
        "library": "nccl",
        "device": 0,
        "group_name": "0",
        "group_ranks": list(range(NUM_RANKS)),
        "group_size": NUM_RANKS,
        "sequence": 1,
        "dtype": "Float",
        **fields,
    }


def sizes(*pairs: tuple[int | None, int | None]) -> list[Row]:
    """Return the bytes put in and received, by rank."""
    return [{"in_bytes": put_in, "out_bytes": received} for put_in, received in pairs]


def typed(rows: list[Row], *dtypes: str | None) -> list[Row]:
    """Return what the ranks say with their types of elements."""
    return [row | {"dtype": dtype} for row, dtype in zip(rows, dtypes, strict=True)]


def reasons(collective: Row) -> str:
    """Return the reasons of a collective."""
    return collective["reason"] or ""


@pytest.mark.parametrize(
    ("operation", "rows", "reason"),
    [
        ("all_reduce", sizes((8, 8), (8, 8), (16, 16)), SIZES_DIFFER),
        ("broadcast", sizes((8, 8), (8, 8), (16, 16)), SIZES_DIFFER),
        ("broadcast", sizes((8, 8), (None, 4), (8, 8)), SIZES_DIFFER),
        ("reduce", sizes((8, 8), (4, 4), (8, 8)), SIZES_DIFFER),
        ("gather", sizes((8, 24), (8, None), (4, None)), SIZES_DIFFER),
        ("scatter", sizes((24, 8), (None, 8), (None, 16)), SIZES_DIFFER),
        ("gather", sizes((8, 16), (8, None), (8, None)), PARTS_DIFFER),
        ("scatter", sizes((16, 8), (None, 8), (None, 8)), PARTS_DIFFER),
        ("all_gather", sizes((8, 24), (8, 24), (8, 48)), SIZES_DIFFER),
        ("reduce_scatter", sizes((24, 8), (24, 8), (48, 8)), SIZES_DIFFER),
        ("all_to_all", sizes((12, 12), (12, 12), (12, 24)), PARTS_DIFFER),
    ],
)
def test_the_impossible_has_neither_size_nor_bandwidth(
    measure: Callable[..., Row], operation: str, rows: list[Row], reason: str
) -> None:
    """Ranks that contradict each other leave a collective its times, and the reason why it has no size."""
    found = measure(rows, operation=operation, source_rank=0)
    assert (found["message_bytes"], found["algbw_bytes_per_s"], found["busbw_bytes_per_s"]) == (None, None, None)
    assert reason in reasons(found)
    assert found["transfer_ns"] == 1_000
    assert found["dtype"] == "Float"


@pytest.mark.parametrize(
    ("operation", "rows", "message"),
    [
        ("all_reduce", sizes((8, 8), (8, 8), (None, None)), 8),
        ("broadcast", sizes((8, None), (None, 8), (None, 8)), 8),
        ("reduce", sizes((8, 8), (8, None), (8, None)), 8),
        ("gather", sizes((8, 24), (8, None), (8, None)), 24),
        ("gather", sizes((8, 24), (8, 24), (8, 24)), 24),
        ("scatter", sizes((24, 8), (None, 8), (None, 8)), 24),
        ("all_gather", sizes((4, 24), (8, 24), (12, 24)), 24),
        ("all_gather", sizes((4, 12), (8, 24), (12, 36)), 24),
        ("reduce_scatter", sizes((24, 4), (24, 8), (24, 12)), 24),
        ("reduce_scatter", sizes((12, 4), (24, 8), (36, 12)), 24),
        ("all_to_all", sizes((12, 12), (12, 12), (12, 12)), 12),
        ("all_to_all", sizes((12, 9), (12, 12), (12, 15)), 12),
    ],
)
def test_the_uneven_that_is_allowed_keeps_its_size(
    measure: Callable[..., Row], operation: str, rows: list[Row], message: int
) -> None:
    """Parts of different sizes, and ranks that say nothing, contradict nobody: the message is what was moved."""
    found = measure(rows, operation=operation, source_rank=0)
    assert found["message_bytes"] == message
    assert "its ranks" not in reasons(found)
    if operation in SYMMETRIC:  # the others bound no clocks
        assert found["algbw_bytes_per_s"] == message / 1e-6


@pytest.mark.parametrize("operation", ["all_gather", "reduce_scatter"])
def test_parts_of_different_sizes_have_no_bus_factor(measure: Callable[..., Row], operation: str) -> None:
    """Of parts that each rank says times the number of ranks the sum is the message, and busbw is not known."""
    gathered, reduced = sizes((4, 12), (8, 24), (12, 36)), sizes((12, 4), (24, 8), (36, 12))
    found = measure(gathered if operation == "all_gather" else reduced, operation=operation)
    assert (found["message_bytes"], found["busbw_bytes_per_s"]) == (24, None)
    assert "no bus factor" in reasons(found)


def test_parts_of_a_rank_that_is_not_seen_leave_the_sum_unknown(measure: Callable[..., Row]) -> None:
    """Where the parts differ and one is not seen, the message is not known."""
    found = measure(sizes((4, 12), (8, 24)), operation="all_gather")
    assert found["message_bytes"] is None
    assert "its ranks" not in reasons(found)


@pytest.mark.parametrize("operation", ["all_reduce", "broadcast", "all_gather", "scatter", "all_to_all"])
def test_ranks_of_different_types_are_flagged(measure: Callable[..., Row], operation: str) -> None:
    """One rank that says integers where the others say floats of the same size leaves type and size unknown."""
    size = {"all_gather": (4, 12), "scatter": (12, 4)}.get(operation, (12, 12))
    found = measure(typed(sizes(size, size, size), "Float", "Int", "Float"), operation=operation, source_rank=0)
    assert (found["dtype"], found["message_bytes"], found["busbw_bytes_per_s"]) == (None, None, None)
    assert TYPES_DIFFER in reasons(found)


@pytest.mark.parametrize(
    "dtypes", [("Float", "float", "Float32"), (None, "Float", None), ("BFloat16", "c10::BFloat16", "BFloat16")]
)
def test_types_that_are_spelt_differently_or_not_said_are_no_contradiction(
    measure: Callable[..., Row], dtypes: tuple[str | None, ...]
) -> None:
    """Names of one type, and ranks that say none, are one type: the first that is said."""
    found = measure(typed(sizes((8, 8), (8, 8), (8, 8)), *dtypes), operation="all_reduce")
    assert found["dtype"] == next(dtype for dtype in dtypes if dtype is not None)
    assert found["message_bytes"] == 8


def test_a_barrier_has_no_type_to_differ(measure: Callable[..., Row]) -> None:
    """What a barrier sends is nobody's concern."""
    found = measure(typed(sizes((1, 1), (1, 1), (1, 1)), "Byte", "Int", "Byte"), operation="barrier")
    assert "its ranks" not in reasons(found)


def _split(given: list[int], got: list[int]) -> Row:
    return {"in_bytes": 4 * sum(given), "out_bytes": 4 * sum(got), "in_split": given, "out_split": got}


def test_splits_that_fit_are_an_exchange(measure: Callable[..., Row]) -> None:
    """Rank 0 gives 1, 2, 3 rows, rank 1 gives 4, 5, 6 and rank 2 gives 7, 8, 9; each gets a column of these."""
    rows = [_split([1, 2, 3], [1, 4, 7]), _split([4, 5, 6], [2, 5, 8]), _split([7, 8, 9], [3, 6, 9])]
    found = measure(rows, operation="all_to_all", variant="uneven")
    # The most that one rank sends to others: 7 + 8 rows of 4 bytes.
    assert (found["message_bytes"], found["busbw_bytes_per_s"]) == (96, 60 / 1e-6)


def test_splits_that_do_not_fit_are_flagged(measure: Callable[..., Row]) -> None:
    """Rank 1 expects from rank 0 what rank 2 gets, though the sums over all ranks agree."""
    rows = [_split([1, 2, 3], [1, 4, 7]), _split([4, 5, 6], [3, 5, 8]), _split([7, 8, 9], [2, 6, 9])]
    found = measure(rows, operation="all_to_all", variant="uneven")
    assert (found["message_bytes"], found["busbw_bytes_per_s"]) == (None, None)
    assert PARTS_DIFFER in reasons(found)
