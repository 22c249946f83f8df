"""Calls made by hand find their partners by group, operation, sequence and tag, or stay apart for a reason."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from scope.analysis.collective_roofline import LinkRates, compute_collective_roofline
from scope.analysis.collectives import Collectives, compute_collectives
from scope.analysis.stragglers import compute_stragglers
from scope.trace.model import Job, ProcessGroup

if TYPE_CHECKING:
    from collections.abc import Callable

    from scope.trace.model import RankTrace

Row = dict[str, Any]


@pytest.fixture
def match(make_trace: Callable[..., RankTrace]) -> Callable[..., Collectives]:
    """Function that matches calls given as rows by rank."""

    def build(calls: dict[int, list[Row]], *, world_size: int | None = None, **fields: Any) -> Collectives:
        ranks = tuple(
            make_trace(rank=rank, label=f"rank {rank}", collective_calls=rows, **fields) for rank, rows in calls.items()
        )
        return compute_collectives(Job(ranks=ranks, world_size=world_size or len(calls))).check()

    return build


def _call(start: int, end: int, **fields: Any) -> Row:
    return {
        "start_ns": start,
        "end_ns": end,
        "library": "nccl",
        "device": 0,
        "group_name": "0",
        "group_ranks": [0, 1],
        "group_size": 2,
        "in_bytes": 64,
        "out_bytes": 64,
        **fields,
    }


def _exchange(start: int, end: int, operation: str, tag: int | None, size: int, library: str) -> Row:
    peer = {"destination_rank": 1} if operation == "send" else {"source_rank": 0}
    return _call(start, end, operation=operation, tag=tag, in_bytes=size, out_bytes=size, library=library, **peer)


def test_tags_tell_messages_apart(match: Callable[..., Collectives]) -> None:
    """Messages with tags match by tag, in whatever order they are received."""
    sends = [_exchange(100, 400, "send", 7, 8, "gloo"), _exchange(110, 300, "send", 9, 16, "gloo")]
    receives = [_exchange(200, 300, "recv", 9, 16, "gloo"), _exchange(310, 400, "recv", 7, 8, "gloo")]
    found = match({0: sends, 1: receives})
    rows = found.collectives.select("operation", "message_bytes", "first_arrival_ns", "last_arrival_ns").rows()
    assert rows == [("send", 8, 100, 310), ("send", 16, 110, 200)]
    assert found.calls.filter(found.calls["is_root"])["wait_ns"].to_list() == [210, 90]


def test_nccl_pays_no_heed_to_tags(match: Callable[..., Collectives]) -> None:
    """NCCL messages match in order, whether or not both sides know the tag."""
    sends = [_exchange(100, 400, "send", 7, 8, "nccl"), _exchange(500, 600, "send", 9, 8, "nccl")]
    receives = [_exchange(310, 400, "recv", None, 8, "nccl"), _exchange(510, 600, "recv", None, 8, "nccl")]
    found = match({0: sends, 1: receives})
    assert found.num_matched == 4
    assert found.collectives["transfer_ns"].to_list() == [90, 90]


def test_peer_that_is_unknown_leaves_a_message_unmatched(match: Callable[..., Collectives]) -> None:
    """A send whose receiver the trace does not say is counted as unmatchable."""
    found = match({0: [_call(0, 9, operation="send")], 1: [_call(0, 9, operation="recv", source_rank=0)]})
    assert (found.num_unmatchable, found.num_alone, found.num_matched) == (1, 1, 0)


def test_different_operations_are_not_one(match: Callable[..., Collectives]) -> None:
    """Calls of one group and number but different operations are two collectives that each miss a rank."""
    found = match(
        {0: [_call(0, 9, sequence=4)], 1: [_call(0, 9, sequence=4, operation="all_gather")]},
    )
    assert found.num_alone == 2
    assert found.num_incomplete == 2
    assert set(found.collectives["num_ranks_seen"].to_list()) == {1}


def test_calls_that_share_a_number_are_told_apart_by_order(match: Callable[..., Collectives]) -> None:
    """Parts of a coalesced group bear one number; the k-th of one rank is the k-th of the other."""
    calls = [_call(0, 9, sequence=4), _call(10, 19, sequence=4)]
    later = [_call(2, 9, sequence=4), _call(13, 19, sequence=4)]
    found = match({0: calls, 1: later})
    assert found.collectives["skew_ns"].to_list() == [2, 3]


def test_elided_ranks_are_those_of_the_trace_or_the_world(match: Callable[..., Collectives]) -> None:
    """Ranks that a call elides come from the trace's list of groups, or from a size that is the world's."""
    bare = {"group_ranks": None, "group_name": "9"}
    listed = match(
        {0: [_call(0, 9, **bare)], 1: [_call(4, 9, **bare)]},
        world_size=4,
        process_groups=(ProcessGroup(name="9", description=None, backend="nccl", ranks=(0, 1), size=2),),
    )
    assert listed.groups["ranks"].to_list() == [[0, 1]]
    assert listed.collectives["is_complete"].to_list() == [True]
    world = match({0: [_call(0, 9, **bare)], 1: [_call(4, 9, **bare)]}, world_size=2)
    assert world.groups["ranks"].to_list() == [[0, 1]]


def test_root_that_is_unknown_leaves_waits_unknown(match: Callable[..., Collectives]) -> None:
    """Who waits in a broadcast of unknown root can't be said: waits are null with the reason, the rest stands."""
    calls = {rank: [_call(rank * 10, 99, operation="broadcast")] for rank in (0, 1)}
    (row,) = match(calls).collectives.iter_rows(named=True)
    assert (row["total_wait_ns"], row["imposed_wait_ns"]) == (None, None)
    assert (row["skew_ns"], row["transfer_ns"], row["message_bytes"]) == (10, 89, 64)
    assert "root is unknown" in row["reason"]


def test_unknown_operation_has_arrivals_but_no_waits(match: Callable[..., Collectives]) -> None:
    """A kernel whose operation its name does not tell has a skew, but no waits and no bandwidth."""
    bare = {"operation": "unknown", "group_name": None, "group_ranks": None, "group_size": None, "has_metadata": False}
    found = match({rank: [_call(rank * 10, 99, **bare)] for rank in (0, 1)})
    (row,) = found.collectives.iter_rows(named=True)
    assert found.is_group_assumed
    assert (row["skew_ns"], row["total_wait_ns"], row["busbw_bytes_per_s"]) == (10, None, None)
    assert "operation is unknown" in row["reason"]


def test_zero_transfer_has_no_bandwidth(match: Callable[..., Collectives]) -> None:
    """A collective that ends at its last arrival has no transfer and no bandwidth, said."""
    (row,) = match({0: [_call(0, 9)], 1: [_call(9, 9)]}).collectives.iter_rows(named=True)
    assert (row["transfer_ns"], row["algbw_bytes_per_s"], row["busbw_bytes_per_s"]) == (None, None, None)
    assert "no transfer" in row["reason"]


def _uneven(start: int, end: int, split: list[int] | None, size: int) -> Row:
    return _call(
        start,
        end,
        operation="all_to_all",
        variant="uneven",
        in_split=split,
        in_bytes=size,
        out_bytes=None,
        dtype="Float",
    )


def test_an_uneven_message_is_the_input_of_the_largest_sender(match: Callable[..., Collectives]) -> None:
    """Rank 0 puts in 100 bytes and keeps 90; rank 1 puts in 50 and sends 40: the message is 50, busbw counts 40."""
    calls = {0: [_uneven(0, 30, [9, 1], 100)], 1: [_uneven(10, 30, [4, 1], 50)]}
    (row,) = match(calls).collectives.iter_rows(named=True)
    assert (row["message_bytes"], row["transfer_ns"]) == (50, 20)
    assert row["algbw_bytes_per_s"] == pytest.approx(50 / 20e-9)
    assert row["busbw_bytes_per_s"] == pytest.approx(40 / 20e-9)


def test_an_uneven_message_of_unknown_splits_is_unknown(match: Callable[..., Collectives]) -> None:
    """Where one rank's splits are elided it may send most: no message and no bandwidth, unless inputs are equal."""
    (row,) = match({0: [_uneven(0, 30, None, 100)], 1: [_uneven(10, 30, [4, 1], 50)]}).collectives.iter_rows(named=True)
    assert (row["message_bytes"], row["algbw_bytes_per_s"], row["busbw_bytes_per_s"]) == (None, None, None)
    assert "what each rank sends to each" in row["reason"]
    (same,) = match({0: [_uneven(0, 30, None, 50)], 1: [_uneven(10, 30, [4, 1], 50)]}).collectives.iter_rows(named=True)
    assert (same["message_bytes"], same["busbw_bytes_per_s"]) == (50, None)


def test_medians_are_values_that_occur(match: Callable[..., Collectives]) -> None:
    """Of two all_reduces of 64 bytes that take 10 and 20 ns the median is 10, and the bandwidths are that one's."""
    calls = {0: [_call(0, 10), _call(100, 120)], 1: [_call(0, 10), _call(100, 120)]}
    found = match(calls)
    (row,) = found.summary.iter_rows(named=True)
    assert row["median_transfer_ns"] == 10
    # The bus factor of two ranks is 1, so both bandwidths are 64 bytes over 10 ns.
    assert (row["median_algbw_bytes_per_s"], row["median_busbw_bytes_per_s"]) == pytest.approx((6.4e9, 6.4e9))
    (point,) = compute_collective_roofline(found, links=LinkRates()).points.iter_rows(named=True)
    assert point["median_busbw_bytes_per_s"] == pytest.approx(6.4e9)


def test_ranks_without_a_number_are_left_out(make_trace: Callable[..., RankTrace]) -> None:
    """A file of unknown rank takes no part in figures across ranks; a job of none has empty tables."""
    nameless = make_trace(rank=None, label="file 1", collective_calls=[_call(0, 9)])
    found = compute_collectives(Job(ranks=(nameless,), world_size=2)).check()
    assert (found.num_calls, found.collectives.height, found.groups.height) == (0, 0, 0)
    assert found.clock.offsets == ()


def test_different_inputs_of_one_exchange_show_that_it_is_uneven(match: Callable[..., Collectives]) -> None:
    """An all_to_all whose ranks put in 100 and 80 bytes is uneven, so without splits no bus factor holds, said."""
    given = {0: 100, 1: 80}
    calls = {
        rank: [_call(0, 30, operation="all_to_all", in_bytes=given[rank], out_bytes=given[1 - rank])] for rank in given
    }
    (row,) = match(calls).collectives.iter_rows(named=True)
    assert (row["message_bytes"], row["busbw_bytes_per_s"]) == (None, None)
    assert "what each rank sends to each" in row["reason"]


def test_an_output_of_another_size_shows_that_an_exchange_is_uneven(match: Callable[..., Collectives]) -> None:
    """Of an all_to_all that gets other bytes than it gives the message is the input, and no bus factor holds."""
    got = {0: 80, 1: 120}
    calls = {rank: [_call(0, 30, operation="all_to_all", in_bytes=100, out_bytes=got[rank])] for rank in got}
    (row,) = match(calls).collectives.iter_rows(named=True)
    assert (row["message_bytes"], row["busbw_bytes_per_s"]) == (100, None)


def test_the_message_of_a_scatter_is_the_data_of_all_ranks(match: Callable[..., Collectives]) -> None:
    """The root's input of 128 bytes counts, and where only receivers are seen their parts are no message."""
    rows = {
        0: _call(0, 30, operation="scatter", source_rank=0, in_bytes=128, out_bytes=64),
        1: _call(0, 30, operation="scatter", source_rank=0, in_bytes=None, out_bytes=64),
    }
    assert match({rank: [row] for rank, row in rows.items()}).collectives["message_bytes"].to_list() == [128]
    assert match({1: [rows[1]]}, world_size=2).collectives["message_bytes"].to_list() == [None]


_UNSAID: Row = {"group_name": None, "group_ranks": None, "group_size": None, "has_metadata": False}


def _mesh(*lists: tuple[int, ...]) -> tuple[ProcessGroup, ...]:
    return tuple(
        ProcessGroup(name=str(name), description=None, backend="gloo", ranks=ranks, size=len(ranks))
        for name, ranks in enumerate(lists)
    )


def test_a_call_is_not_assumed_to_be_the_worlds_where_other_groups_are_listed(
    match: Callable[..., Collectives],
) -> None:
    """Where the trace lists groups of two of four ranks, calls that say no group are ambiguous and have no figures."""
    calls = {rank: [_call(rank, 30, **_UNSAID)] for rank in range(4)}
    found = match(calls, process_groups=_mesh((0, 1, 2, 3), (0, 1), (0, 2)))
    assert (found.num_ambiguous, found.num_of_unknown_group, found.collectives.height) == (4, 4, 0)
    assert not found.is_group_assumed
    assert match(calls, process_groups=_mesh((0, 1, 2, 3))).is_group_assumed


@pytest.mark.parametrize("listed", [(5, 6), (1, 2)])
def test_a_call_is_not_assumed_to_be_the_worlds_where_only_another_group_is_listed(
    match: Callable[..., Collectives], listed: tuple[int, ...]
) -> None:
    """Two ranks whose traces list one group of as many other ranks tell nothing of the group that their call ran in."""
    found = match({rank: [_call(rank, 30, **_UNSAID)] for rank in (0, 1)}, process_groups=_mesh(listed))
    assert (found.num_of_unknown_group, found.collectives.height, found.is_group_assumed) == (2, 0, False)


def test_a_size_that_is_not_the_worlds_leaves_the_group_unknown(match: Callable[..., Collectives]) -> None:
    """A gathered size that tells two ranks of four rules the world out, and one that tells four is the world's."""
    two, four = ({**_UNSAID, "group_size": size, "operation": "all_gather"} for size in (2, 4))
    found = match({rank: [_call(rank, 30, **two)] for rank in range(4)})
    assert (found.num_of_unknown_group, found.collectives.height) == (4, 0)
    found = match({rank: [_call(rank, 30, **four)] for rank in range(4)})
    assert (found.num_of_unknown_group, found.num_matched) == (0, 4)
    assert found.groups.select("ranks", "is_assumed", "is_inferred").rows() == [([0, 1, 2, 3], False, True)]


def test_an_inferred_group_says_so(match: Callable[..., Collectives]) -> None:
    """Calls whose group was chosen by their sizes match within it, and the group is marked."""
    pairs = {0: [0, 1], 1: [0, 1], 2: [2, 3], 3: [2, 3]}
    calls = {
        rank: [_call(rank, 30, group_name=f"{ranks[0]}", group_ranks=ranks, is_group_inferred=True)]
        for rank, ranks in pairs.items()
    }
    found = match(calls, world_size=4)
    assert found.num_matched == 4
    assert found.groups.select("ranks", "is_inferred").rows() == [([0, 1], True), ([2, 3], True)]
    assert found.collectives["skew_ns"].to_list() == [1, 1]


@pytest.mark.parametrize(("world_size", "words"), [(3, "1 rank of the job is missing"), (4, "2 ranks of the job are")])
def test_missing_ranks_are_counted_in_words(make_trace: Callable[..., RankTrace], world_size: int, words: str) -> None:
    """One missing rank is spoken of in the singular."""
    everyone = {"group_ranks": list(range(world_size)), "group_size": world_size}
    ranks = tuple(
        make_trace(rank=rank, label=f"rank {rank}", collective_calls=[_call(0, 9, **everyone)]) for rank in (0, 1)
    )
    job = Job(ranks=ranks, world_size=world_size, missing_ranks=tuple(range(2, world_size)))
    assert words in compute_stragglers(job, compute_collectives(job)).verdict


def test_a_verdict_says_that_groups_are_unknown(make_trace: Callable[..., RankTrace]) -> None:
    """Where the groups of all calls are unknown, that is why no straggler is named."""
    ranks = tuple(
        make_trace(
            rank=rank,
            label=f"rank {rank}",
            collective_calls=[_call(rank, 30, **_UNSAID)],
            process_groups=_mesh((0, 1, 2, 3), (0, 1), (0, 2)),
        )
        for rank in range(4)
    )
    job = Job(ranks=ranks, world_size=4)
    assert compute_stragglers(job, compute_collectives(job)).verdict == (
        "4 collective calls ran in groups that the traces do not tell: nobody can be named"
    )


def test_a_type_that_only_the_root_of_a_scatter_says_leaves_the_order_clear(match: Callable[..., Collectives]) -> None:
    """Calls before and after a scatter match, though only its root says the type of its elements."""
    calls: dict[int, list[Row]] = {
        rank: [
            _call(0, 20, operation="all_to_all", dtype="float"),
            _call(10, 30, operation="all_to_all", dtype="float"),
            _call(40, 50, operation="scatter", source_rank=0, dtype=None if rank else "float"),
        ]
        for rank in (0, 1)
    }
    found = match(calls)
    assert (found.num_matched, found.num_ambiguous) == (6, 0)


def test_a_call_in_a_group_of_others_is_of_an_unknown_group(make_trace: Callable[..., RankTrace]) -> None:
    """Calls of ranks 0 and 1 said to run in a group of ranks 5 and 6 are counted and left out, beside good ones."""
    ranks = tuple(
        make_trace(
            rank=rank,
            label=f"rank {rank}",
            collective_calls=[_call(rank, 30, group_ranks=[5, 6]), _call(40, 60, group_name="1")],
        )
        for rank in (0, 1)
    )
    job = Job(ranks=ranks, world_size=2)
    found = compute_collectives(job).check()
    assert (found.num_matched, found.num_ambiguous, found.num_of_unknown_group) == (2, 2, 2)
    assert found.collectives["first_arrival_ns"].to_list() == [40]
    assert compute_stragglers(job, found).num_collectives_judged == 1


def test_elided_ranks_of_others_leave_the_group_unknown(match: Callable[..., Collectives]) -> None:
    """A call that names a group is left out where the list of groups says that the group is of other ranks."""
    calls = {rank: [_call(rank, 30, group_ranks=None)] for rank in (0, 1)}
    found = match(calls, process_groups=_mesh((5, 6)))
    assert (found.num_of_unknown_group, found.num_ambiguous, found.collectives.height) == (2, 2, 0)


@pytest.mark.parametrize("operation", ["all_reduce", "all_gather", "reduce_scatter"])
def test_ranks_that_contradict_each_other_leave_the_message_unknown(
    match: Callable[..., Collectives], operation: str
) -> None:
    """Of one call 4,096 B on rank 0 and 16,384 B on rank 1 there is no size, no bandwidth, and the reason."""
    sizes = {0: 4_096, 1: 16_384}
    found = match(
        {
            rank: [
                _call(0, 1_030, operation=operation, sequence=0, in_bytes=size, out_bytes=size),
                _call(2_000, 3_000, operation=operation, sequence=1, in_bytes=4_096, out_bytes=4_096),
            ]
            for rank, size in sizes.items()
        }
    )
    columns = ("message_bytes", "algbw_bytes_per_s", "busbw_bytes_per_s", "reason")
    contradicting, agreeing = found.collectives.select(*columns, "transfer_ns").rows()
    assert contradicting == (None, None, None, "its ranks say different sizes", 1_030)
    assert agreeing[:2] == (4_096, 4_096 / 1e-6)


def test_a_rank_that_says_no_size_contradicts_nobody(match: Callable[..., Collectives]) -> None:
    """Where one rank alone says the size of an all_reduce, that is the size."""
    sizes = {0: 64, 1: None}
    found = match(
        {rank: [_call(0, 30, operation="all_reduce", sequence=0, in_bytes=size)] for rank, size in sizes.items()}
    )
    assert found.collectives["message_bytes"].to_list() == [64]


def test_ranks_that_name_different_roots_name_none(match: Callable[..., Collectives]) -> None:
    """Where each rank of a broadcast writes itself where the root belongs, it is unknown who waits, with the reason."""
    calls = {rank: [_call(rank, 30, operation="broadcast", source_rank=rank)] for rank in (0, 1)}
    found = match(calls)
    assert found.num_matched == 2
    assert found.calls["is_root"].to_list() == [None, None]
    assert found.calls["wait_ns"].to_list() == [None, None]
    assert "root is unknown" in found.collectives["reason"][0]


@pytest.mark.parametrize(("operation", "source"), [("broadcast", None), ("reduce", None), ("broadcast", 0)])
def test_verdicts_tell_of_roots_that_are_unknown(
    operation: str, source: int | None, make_trace: Callable[..., RankTrace]
) -> None:
    """Of three rooted collectives without a root the verdict says how many, what that means and what to record."""
    ranks = tuple(
        make_trace(
            rank=rank,
            label=f"rank {rank}",
            collective_calls=[
                _call(at, 90 + at, operation="all_reduce")
                if at == 0
                else _call(at + rank * 10, 90 + at, operation=operation, source_rank=source)
                for at in (0, 100, 200, 300)
            ],
        )
        for rank in (0, 1)
    )
    job = Job(ranks=ranks, world_size=2)
    found = compute_stragglers(job, compute_collectives(job)).check()
    known = source is not None
    assert found.num_of_unknown_root == (0 if known else 3)
    assert ("3 collectives have a root" in found.verdict) != known
    assert ("record_shapes=True" in found.verdict) != known
