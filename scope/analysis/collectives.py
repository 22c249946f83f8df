"""Collectives across ranks: arrival, wait, transfer, skew and bandwidth.

Symmetric operations: transfer = last end - last arrival, and a rank waits from its arrival to the last. Broadcast and
scatter: receivers wait for the root, and nobody for a receiver; reduce and gather: the root waits for all; send and
recv: each side for the other. When ranks of the group are missing, a wait is at least what is seen and a transfer at
most, and what the last rank imposed is unknown. When ranks were in a collective before another's recording began (it is
cut), what they waited may be the profiler's doing: the sum of its waits and what it imposed are unknown; its transfer,
which begins at the last arrival, is not touched. Bandwidth: `scope.definitions`.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

import polars as pl

from scope.analysis.clock import ClockAlignment, ClockOffset, compute_clock_alignment, on_reference_clock
from scope.analysis.collective_bandwidth import BANDWIDTH_REASON, RESIDUAL_NS, with_bandwidth
from scope.analysis.collective_tables import (
    CollectiveRows,
    CollectiveSummaryRows,
    GroupRows,
    MatchedCalls,
    RankWaitRows,
)
from scope.analysis.matching import Matched, match_calls
from scope.analysis.medians import lower_median_ns, median_rate
from scope.analysis.operations import FROM_ROOT, IS_SYMMETRIC, TO_ROOT
from scope.analysis.ordinals import PLACE, RESTS_ON_RECORDED_CLOCKS
from scope.analysis.result import Result
from scope.trace.schema import CollectiveCalls

if TYPE_CHECKING:
    from collections.abc import Mapping

    from scope.trace.model import Job

_ROOT_ARRIVAL: Final = "root_arrival_ns"
_HAS_ROOT: Final = "has_root"
_LAST_IS_ROOT: Final = "last_is_root"
_SECOND: Final = "second_last_arrival_ns"
_CUT: Final = "a rank's recording began while others were in it: what they waited may be the profiler's doing"


class Collectives(Result, frozen=True, kw_only=True):
    """All collectives of a job; the tables are those of `scope.analysis.collective_tables`."""

    collectives: pl.DataFrame
    """The table `CollectiveRows`: one row per logical operation."""
    calls: pl.DataFrame
    """The table `MatchedCalls`: one row per rank's part."""
    groups: pl.DataFrame
    """The table `GroupRows`."""
    summary: pl.DataFrame
    """The table `CollectiveSummaryRows`: by group, operation and size."""
    rank_waits: pl.DataFrame
    """The table `RankWaitRows`."""
    clock: ClockAlignment
    num_calls: int
    """Calls of all ranks whose rank is known."""
    num_matched: int
    """Calls with a partner on another rank."""
    num_by_recorded_clocks: int
    """Of these, calls whose partners are told by clocks that were taken to agree: nothing shows how these stand, and
    neither `Seq` nor the numbers of steps decide."""
    num_alone: int
    """Calls that no other rank's trace shows."""
    num_ambiguous: int
    """Calls left out because their partners can't be told."""
    num_of_unknown_group: int
    """Of these, calls whose group the trace does not say while it shows several."""
    num_unmatchable: int
    num_incomplete: int
    """Collectives that some rank of the group is missing from."""
    num_cut: int
    """Collectives in which some ranks were before another rank's recording began: their waits count nowhere."""
    is_group_assumed: bool
    """Some calls carry no group: they were matched by operation and ordinal over all ranks."""

    def _check_sums(self) -> None:
        parts = self.num_matched + self.num_alone + self.num_ambiguous + self.num_unmatchable
        assert parts == self.num_calls, f"{parts} calls by state, {self.num_calls} in all"
        assert self.num_by_recorded_clocks <= self.num_matched, "calls told by recorded clocks are matched"
        assert self.num_of_unknown_group <= self.num_ambiguous, "calls of unknown groups are ambiguous"


def compute_collectives(job: Job, *, nodes: Mapping[int, str] | None = None) -> Collectives:
    """Match the collectives of a job and measure them.

    Args:
        job: Its ranks; a single rank gives calls without partners.
        nodes: Node of every rank, for the tier; without it the hosts in the traces are used where all are known.
    """
    hosts = {trace.rank: trace.host for trace in job.ranks if trace.rank is not None}
    matched = match_calls(job)
    clock = compute_clock_alignment(matched.calls, hosts=hosts)
    groups = with_tiers(matched.groups, nodes=nodes if nodes is not None else _known_hosts(hosts, job.world_size))
    calls = _timed(matched, clock)
    collectives = with_bandwidth(_collectives(calls, groups), calls)
    calls = _waits(calls, collectives)
    collectives = _with_waits(collectives, calls)
    states = dict(calls.group_by(MatchedCalls.state).len().iter_rows())
    return Collectives(
        collectives=CollectiveRows.check(collectives.select(CollectiveRows.schema().names())),
        calls=MatchedCalls.check(calls.select(MatchedCalls.schema().names())),
        groups=GroupRows.check(groups),
        summary=_summary(collectives),
        rank_waits=_rank_waits(calls, collectives),
        clock=clock,
        num_calls=calls.height,
        num_matched=states.get("matched", 0),
        num_by_recorded_clocks=int(
            ((calls[MatchedCalls.state] == "matched") & calls[RESTS_ON_RECORDED_CLOCKS]).sum(),
        ),
        num_alone=states.get("alone", 0),
        num_ambiguous=states.get("ambiguous", 0),
        num_of_unknown_group=int(calls[MatchedCalls.is_of_unknown_group].sum()),
        num_unmatchable=states.get("unmatchable", 0),
        num_incomplete=int((~collectives[CollectiveRows.is_complete]).sum()),
        num_cut=int(collectives[CollectiveRows.is_cut].sum()),
        is_group_assumed=bool(groups[GroupRows.is_assumed].any()),
    )


def _known_hosts(hosts: Mapping[int, str | None], world_size: int | None) -> dict[int, str] | None:
    """Return the node of every rank when the traces tell all of them."""
    known = {rank: host for rank, host in hosts.items() if host is not None}
    return known if world_size is not None and len(known) == world_size else None


def with_tiers(groups: pl.DataFrame, *, nodes: Mapping[int, str] | None) -> pl.DataFrame:
    """Add to groups whether they lie in one node, and how many of their ranks the narrowest node holds.

    Args:
        groups: `GroupRows` with or without the tier.
        nodes: Node by rank; None, or a group with a rank that it lacks, leaves the tier unknown.
    """
    tiers: list[str | None] = []
    narrowest: list[int | None] = []
    for ranks in groups[GroupRows.ranks].to_list():
        places = [nodes.get(rank) for rank in ranks] if ranks is not None and nodes is not None else [None]
        counts = Counter(places)
        is_known = None not in counts
        tiers.append(("node" if len(counts) == 1 else "network") if is_known else None)
        narrowest.append(min(counts.values()) if is_known else None)
    return groups.with_columns(
        pl.Series(GroupRows.tier, tiers, dtype=GroupRows.tier.dtype),
        pl.Series(GroupRows.num_ranks_on_narrowest_node, narrowest, dtype=GroupRows.num_ranks_on_narrowest_node.dtype),
    )


def _timed(matched: Matched, clock: ClockAlignment) -> pl.DataFrame:
    """Return all calls with their instants on the reference clock and what is known of the rank's clock."""
    instants = (CollectiveCalls.start_ns, CollectiveCalls.end_ns, MatchedCalls.window_start_ns)
    calls = on_reference_clock(matched.calls, clock, instants=instants)
    clocks = pl.DataFrame(
        [(each.rank, each.interval_ns, each.error_ns, _scatter(each)) for each in clock.offsets],
        schema={
            MatchedCalls.rank: pl.Int32,
            MatchedCalls.clock_interval_ns: pl.Int64,
            CollectiveRows.clock_error_ns: pl.Int64,
            RESIDUAL_NS: pl.Int64,
        },
        orient="row",
    )
    return calls.join(clocks, on=MatchedCalls.rank, how="left", maintain_order="left").rename(
        {CollectiveCalls.start_ns: MatchedCalls.arrival_ns}
    )


def _scatter(offset: ClockOffset) -> int | None:
    """Return how far a rank's ends scatter, at most what its clock is probably wrong by."""
    known = [each for each in (offset.residual_ns, offset.error_ns) if each is not None]
    return min(known, default=None)


def _collectives(calls: pl.DataFrame, groups: pl.DataFrame) -> pl.DataFrame:
    """Return one row per collective with what needs no root: arrivals, ends, completeness, clocks."""
    arrival, rank = pl.col(MatchedCalls.arrival_ns), pl.col(MatchedCalls.rank)
    firsts = (CollectiveCalls.variant, CollectiveCalls.library, GroupRows.group_id)
    seen = (
        calls.filter(pl.col(MatchedCalls.collective_id).is_not_null())
        .group_by(MatchedCalls.collective_id)
        .agg(
            pl.col(CollectiveCalls.operation).first(),
            *(pl.col(name).first() for name in firsts),
            # On a host timeline the ranks that get a part of a scatter do not say its type.
            pl.col(CollectiveCalls.dtype).drop_nulls().first(),
            pl.col(PLACE).first().alias(CollectiveRows.sequence),
            pl.col(MatchedCalls.step_number).first(),
            rank.n_unique().cast(pl.Int32).alias(CollectiveRows.num_ranks_seen),
            arrival.min().alias(CollectiveRows.first_arrival_ns),
            arrival.max().alias(CollectiveRows.last_arrival_ns),
            pl.col(MatchedCalls.end_ns).max(),
            rank.filter(arrival == arrival.max()).min().alias(CollectiveRows.last_rank),
            arrival.top_k(2).min().alias(_SECOND),
            (arrival.min() < pl.col(MatchedCalls.window_start_ns).max()).alias(CollectiveRows.is_cut),
            # Two clocks are wrong against each other by no more than both are against the reference.
            *(
                pl.when(pl.col(name).null_count() == 0).then(pl.col(name).top_k(2).sum()).alias(name)
                for name in (CollectiveRows.clock_interval_ns, CollectiveRows.clock_error_ns)
            ),
            pl.col(RESIDUAL_NS).max(),
            pl.col(MatchedCalls.is_root).any().alias(_HAS_ROOT),
            pl.col(MatchedCalls.is_root).filter(arrival == arrival.max()).last().alias(_LAST_IS_ROOT),
            arrival.filter(pl.col(MatchedCalls.is_root)).first().alias(_ROOT_ARRIVAL),
            pl.col(IS_SYMMETRIC).first(),
        )
    )
    joined = seen.join(
        groups.select(GroupRows.group_id, GroupRows.num_ranks, GroupRows.tier, GroupRows.is_assumed),
        on=GroupRows.group_id,
        how="left",
    ).sort(MatchedCalls.collective_id)
    is_complete = pl.col(CollectiveRows.num_ranks_seen) == pl.col(CollectiveRows.num_ranks)
    transfer = pl.col(CollectiveRows.end_ns) - pl.col(CollectiveRows.last_arrival_ns)
    skew = pl.col(CollectiveRows.last_arrival_ns) - pl.col(CollectiveRows.first_arrival_ns)
    # One rank of several has nobody to be compared with.
    is_compared = is_complete | (pl.col(CollectiveRows.num_ranks_seen) > 1)
    return joined.with_columns(
        is_complete.fill_null(value=False).alias(CollectiveRows.is_complete),
        pl.when(is_compared).then(skew).alias(CollectiveRows.skew_ns),
        *(
            pl.when(is_compared).then(pl.col(name)).alias(name)
            for name in (CollectiveRows.clock_interval_ns, CollectiveRows.clock_error_ns)
        ),
        pl.when(transfer > 0).then(transfer).alias(CollectiveRows.transfer_ns),
    )


def _waits(calls: pl.DataFrame, collectives: pl.DataFrame) -> pl.DataFrame:
    """Add lateness and wait to every call that has partners."""
    keep = (
        MatchedCalls.collective_id,
        CollectiveRows.first_arrival_ns,
        CollectiveRows.last_arrival_ns,
        _ROOT_ARRIVAL,
        _HAS_ROOT,
    )
    joined = calls.join(collectives.select(keep), on=MatchedCalls.collective_id, how="left", maintain_order="left")
    operation, is_root = pl.col(CollectiveCalls.operation), pl.col(MatchedCalls.is_root)
    arrival = pl.col(MatchedCalls.arrival_ns)
    until_last = pl.col(CollectiveRows.last_arrival_ns) - arrival
    until_root = (pl.col(_ROOT_ARRIVAL) - arrival).clip(lower_bound=0)
    knows_root = pl.col(_HAS_ROOT).fill_null(value=False)
    wait = (
        pl.when(pl.col(IS_SYMMETRIC) | pl.col(GroupRows.is_pair))
        .then(until_last)
        .when(operation.is_in(FROM_ROOT) & knows_root)
        .then(pl.when(is_root).then(0).otherwise(until_root))
        .when(operation.is_in(TO_ROOT) & is_root.is_not_null())
        .then(pl.when(is_root).then(until_last).otherwise(0))
    )
    has_partner = pl.col(MatchedCalls.state) == "matched"
    return joined.with_columns(
        pl.when(has_partner).then(arrival - pl.col(CollectiveRows.first_arrival_ns)).alias(MatchedCalls.lateness_ns),
        pl.when(has_partner).then(wait).alias(MatchedCalls.wait_ns),
    )


def _with_waits(collectives: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Add the waits of the ranks, what the last one imposes, and the reason for what is null or a bound."""
    wait = pl.col(MatchedCalls.wait_ns)
    totals = (
        calls.filter(pl.col(MatchedCalls.state) == "matched")
        .group_by(MatchedCalls.collective_id)
        .agg(pl.when(wait.null_count() == 0).then(wait.sum()).alias(CollectiveRows.total_wait_ns))
    )
    is_cut, is_complete = pl.col(CollectiveRows.is_cut), pl.col(CollectiveRows.is_complete)
    joined = collectives.join(totals, on=CollectiveRows.collective_id, how="left", maintain_order="left")
    operation, last_is_root = pl.col(CollectiveRows.operation), pl.col(_LAST_IS_ROOT)
    alone = pl.col(CollectiveRows.last_arrival_ns) - pl.col(_SECOND)
    imposed = (
        pl.when(operation.is_in(FROM_ROOT))
        .then(pl.when(last_is_root).then(alone).when(~last_is_root & pl.col(_HAS_ROOT)).then(0))
        .when(operation.is_in(TO_ROOT))
        .then(pl.when(last_is_root).then(0).when(~last_is_root).then(alone))
        .when(operation != "unknown")
        .then(alone)
    )
    several = pl.col(CollectiveRows.num_ranks_seen) > 1
    # A rank that is not seen may have come between the last two that are.
    is_known = several & is_complete & ~is_cut
    rooted = operation.is_in((*FROM_ROOT, *TO_ROOT))
    return joined.with_columns(
        pl.when(is_known).then(imposed).alias(CollectiveRows.imposed_wait_ns),
        pl.when(~is_cut).then(CollectiveRows.total_wait_ns).alias(CollectiveRows.total_wait_ns),
        pl.concat_str(
            pl.when(is_cut).then(pl.lit(_CUT)),
            pl.when(~is_complete).then(_missing()),
            pl.when(pl.col(CollectiveRows.transfer_ns).is_null()).then(
                pl.lit("no transfer: it ends at the last arrival")
            ),
            pl.when(rooted & ~pl.col(_HAS_ROOT)).then(pl.lit("its root is unknown or missing")),
            pl.when(operation == "unknown").then(pl.lit("the operation is unknown, so who waits for whom is too")),
            pl.col(BANDWIDTH_REASON),
            separator="; ",
            ignore_nulls=True,
        )
        .replace("", None)
        .alias(CollectiveRows.reason),
    )


def _missing() -> pl.Expr:
    group = pl.col(CollectiveRows.num_ranks).cast(pl.String).fill_null("an unknown number of")
    bound = pl.lit(
        " ranks seen: waits are at least, transfer at most, bandwidth at least; imposed wait unknown, since one that "
        "is not seen may have come between"
    )
    return pl.concat_str(pl.col(CollectiveRows.num_ranks_seen).cast(pl.String), pl.lit(" of "), group, bound)


def _summary(collectives: pl.DataFrame) -> pl.DataFrame:
    """Return the table `CollectiveSummaryRows`."""
    keys = (
        CollectiveSummaryRows.group_id,
        CollectiveSummaryRows.operation,
        CollectiveSummaryRows.variant,
        CollectiveSummaryRows.library,
        CollectiveSummaryRows.dtype,
        CollectiveSummaryRows.message_bytes,
        CollectiveSummaryRows.tier,
    )
    is_measured = pl.col(CollectiveRows.is_complete)
    is_uncut = is_measured & ~pl.col(CollectiveRows.is_cut)

    def measured(name: str) -> pl.Expr:
        return pl.col(name).filter(is_measured)

    def total(name: str, counts: pl.Expr) -> pl.Expr:
        known = pl.col(name).filter(counts)
        return pl.when(known.count() > 0).then(known.sum()).alias(name)

    transfer, busbw = CollectiveRows.transfer_ns, CollectiveRows.busbw_bytes_per_s
    table = collectives.group_by(keys).agg(
        pl.len().cast(pl.Int64).alias(CollectiveSummaryRows.num_collectives),
        is_measured.sum().cast(pl.Int64).alias(CollectiveSummaryRows.num_measured),
        total(transfer, is_measured).alias(CollectiveSummaryRows.total_transfer_ns),
        lower_median_ns(measured(transfer)).alias(CollectiveSummaryRows.median_transfer_ns),
        total(CollectiveRows.total_wait_ns, is_uncut),
        measured(CollectiveRows.is_cut).sum().cast(pl.Int64).alias(CollectiveSummaryRows.num_cut),
        pl.col(CollectiveRows.skew_ns).filter(is_uncut).max().alias(CollectiveSummaryRows.max_skew_ns),
        median_rate(measured(CollectiveRows.algbw_bytes_per_s)).alias(CollectiveSummaryRows.median_algbw_bytes_per_s),
        median_rate(measured(busbw)).alias(CollectiveSummaryRows.median_busbw_bytes_per_s),
        measured(busbw).max().alias(CollectiveSummaryRows.max_busbw_bytes_per_s),
    )
    cost = pl.sum_horizontal(CollectiveSummaryRows.total_transfer_ns, CollectiveSummaryRows.total_wait_ns)
    ordered = table.sort(cost, *keys, descending=[True, *(False for _ in keys)], nulls_last=True)
    return CollectiveSummaryRows.check(ordered.select(CollectiveSummaryRows.schema().names()))


def _rank_waits(calls: pl.DataFrame, collectives: pl.DataFrame) -> pl.DataFrame:
    """Return the table `RankWaitRows`."""
    measured = collectives.filter(CollectiveRows.is_complete).select(
        CollectiveRows.collective_id, CollectiveRows.last_rank, CollectiveRows.skew_ns, CollectiveRows.is_cut
    )
    is_uncut = ~pl.col(CollectiveRows.is_cut)
    is_last = (pl.col(MatchedCalls.rank) == pl.col(CollectiveRows.last_rank)) & (pl.col(CollectiveRows.skew_ns) > 0)
    table = (
        calls.join(measured, on=MatchedCalls.collective_id)
        .group_by(MatchedCalls.rank)
        .agg(
            is_uncut.sum().cast(pl.Int64).alias(RankWaitRows.num_collectives),
            pl.col(MatchedCalls.wait_ns).filter(is_uncut).sum(),
            (is_last & is_uncut).sum().cast(pl.Int64).alias(RankWaitRows.num_last),
            (~is_uncut).sum().cast(pl.Int64).alias(RankWaitRows.num_cut),
            pl.col(MatchedCalls.wait_ns).filter(~is_uncut).sum().alias(RankWaitRows.cut_wait_ns),
        )
        .sort(RankWaitRows.rank)
    )
    return RankWaitRows.check(table.select(RankWaitRows.schema().names()))
