"""Findings across ranks: who makes the others wait, and which collectives do not use their link."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import polars as pl

from scope.analysis.collective_tables import (
    ROOFLINE_KEYS,
    CollectiveRooflineRows,
    CollectiveRows,
    GroupRows,
    MatchedCalls,
)
from scope.analysis.exposure import ExposedCollectives
from scope.report.findings.basis import beside_missing_ranks, judged_numbers
from scope.report.findings.model import Evidence, Finding, Where
from scope.report.sections.base import column
from scope.units import format_bandwidth, format_bytes, format_duration, format_ratio

if TYPE_CHECKING:
    from collections.abc import Iterator

    from scope.analysis.collectives import Collectives
    from scope.analysis.stragglers import Straggler
    from scope.report.findings.basis import Basis
    from scope.report.results import Results

STRAGGLER_SHARE: Final = 0.01
SMALL_BYTES: Final = 1_000_000
SMALL_SHARE: Final = 0.01
SMALL_CALLS_PER_PART: Final = 4
LARGE_BYTES: Final = 16_000_000
SLOW_RATIO: Final = 0.5
SLOW_SHARE: Final = 0.01

_STEP_TRANSFER: Final = "step_transfer_ns"

_WHAT_TO_DO: Final = {
    "compute": (
        "Compare its work with its peers': uneven batches, sequence lengths or experts; else its device: clocks, "
        "power cap, temperature, another process."
    ),
    "input": "Look at its data loader: shard sizes, workers, storage of its node.",
    "memory": "Look at its copies and allocator: pageable memory, retries, a busy PCIe link.",
    "host": "Look at its host: CPU contention, NUMA binding, Python work on this rank only (logging, checkpoints).",
}
_UNKNOWN: Final = "Record this rank and a peer with stacks to see what differs before the collectives it is late for."


def straggler(results: Results, basis: Basis) -> Iterator[Finding]:
    """Yield one finding a straggler whose repair alone would save at least 1 % of step time."""
    waits = straggler_waits(results, basis)
    for each, cost in _costly_stragglers(results, basis):
        yield _straggler_finding(each, cost, waits[each.rank], basis)


def straggler_waits(results: Results, basis: Basis) -> dict[int, int]:
    """Return, for each straggler that is a finding, how long ranks waited for it in step time without computing."""
    named = [each.rank for each, _ in _costly_stragglers(results, basis)]
    if not named or results.stragglers is None:
        return {}
    from scope.analysis.straggler_waits import StragglerWaits

    judged = {rank.rank: judged_numbers(rank) for rank in results.analysis.ranks if rank.rank is not None}
    totals = dict.fromkeys(named, 0)
    for straggler_rank, rank, number, wait_ns in results.stragglers.waits.select(
        StragglerWaits.straggler, StragglerWaits.rank, StragglerWaits.step_number, StragglerWaits.exposed_wait_ns
    ).iter_rows():
        numbers = judged.get(rank)
        if straggler_rank in totals and (numbers is None or number in numbers):
            totals[straggler_rank] += wait_ns
    return totals


def _costly_stragglers(results: Results, basis: Basis) -> Iterator[tuple[Straggler, int]]:
    """Yield the stragglers that cost enough to be a finding, with what they cost over all devices."""
    if results.stragglers is None:
        return
    # Here, because one rank, the most frequent case, needs nothing of what finds stragglers.
    from scope.analysis.stragglers import StragglerSteps

    for each in results.stragglers.stragglers:
        steps = results.stragglers.per_step.filter(pl.col(StragglerSteps.rank) == each.rank)
        waits = steps.select(StragglerSteps.step_number, StragglerSteps.imposed_wait_ns).rows()
        # Everybody waits for the straggler, so the time is lost on every device that has the step.
        cost = sum(wait * basis.num_devices_of(number) for number, wait in waits)
        if basis.share(cost) >= STRAGGLER_SHARE:
            yield each, cost


def small_messages(results: Results, basis: Basis) -> Iterator[Finding]:
    """Yield a finding when exposed messages below 1 MB take at least 1 % of step time and are several a step.

    Where the collectives of several ranks were matched, their transfers count and not the waits for late ranks.
    """
    size = pl.col(ExposedCollectives.message_bytes)
    rows = results.exposed.filter(size.is_not_null(), size < SMALL_BYTES, pl.col(ExposedCollectives.num_step_calls) > 0)
    cost = int(rows[ExposedCollectives.step_exposed_ns].sum())
    if results.collectives is not None and results.stragglers is not None:
        small = _in_step_time(results, results.collectives).filter(pl.col(CollectiveRows.message_bytes) < SMALL_BYTES)
        cost = min(cost, int(small[_STEP_TRANSFER].sum()))
    num_calls = int(rows[ExposedCollectives.num_step_calls].sum())
    share = basis.share(cost)
    if share < SMALL_SHARE or num_calls < SMALL_CALLS_PER_PART * max(1, basis.num_parts):
        return
    names = rows.group_by(ExposedCollectives.operation).agg(pl.col(ExposedCollectives.step_exposed_ns).sum())
    order = names.sort(ExposedCollectives.step_exposed_ns, ExposedCollectives.operation, descending=[True, False])
    operations = order[ExposedCollectives.operation].to_list()
    yield Finding(
        kind="small_messages",
        title=f"{num_calls:,} exposed collectives below 1 MB take {basis.text(cost)}",
        where=Where(groups=tuple(operations)),
        evidence=(
            Evidence(column("small_ns", "their time", "Exposed, without waits for late ranks where known."), cost),
            Evidence(column("num_calls", "calls", "Calls below 1 MB, all ranks."), num_calls),
            Evidence(
                column("largest_bytes", "largest", "The largest of these messages."),
                int(rows[ExposedCollectives.message_bytes].max()),  # pyright: ignore[reportArgumentType]
            ),
        ),
        cost_ns=cost,
        share_ratio=share,
        action=beside_missing_ranks(
            results.analysis,
            "Latency, not the link, bounds messages this small: put them into fewer, larger ones (gradient buckets, "
            "coalesced all-gathers, flattened scalars), or let them overlap with compute.",
        ),
    )


def _in_step_time(results: Results, collectives: Collectives) -> pl.DataFrame:
    """Return the collectives, each with its transfer times the ranks that launched it in their step time."""
    steps: list[tuple[int, int]] = []
    without: list[int] = []
    for rank in results.analysis.ranks:
        numbers = judged_numbers(rank)
        if rank.rank is None:
            continue
        if numbers is None:
            without.append(rank.rank)
        else:
            steps += [(rank.rank, number) for number in numbers]
    columns = (MatchedCalls.rank, MatchedCalls.step_number)
    judged = pl.DataFrame(steps, schema={str(name): name.dtype for name in columns}, orient="row")
    calls = collectives.calls.filter(pl.col(MatchedCalls.collective_id).is_not_null())
    inside = pl.concat(
        [calls.join(judged, on=columns, how="semi"), calls.filter(pl.col(MatchedCalls.rank).is_in(without))]
    )
    num_ranks = inside.group_by(MatchedCalls.collective_id).agg(pl.len().cast(pl.Int64).alias(_STEP_TRANSFER))
    return collectives.collectives.join(num_ranks, on=MatchedCalls.collective_id).with_columns(
        pl.col(_STEP_TRANSFER) * pl.col(CollectiveRows.transfer_ns)
    )


def slow_collective(results: Results, basis: Basis) -> Iterator[Finding]:
    """Yield a finding for each kind of message of 16 MB and more that reaches less than half of its link."""
    if results.collective_roofline is None:
        return
    slow = results.collective_roofline.points.filter(
        pl.col(CollectiveRooflineRows.message_bytes) >= LARGE_BYTES,
        pl.col(CollectiveRooflineRows.attained_ratio) < SLOW_RATIO,
    )
    if slow.is_empty() or results.collectives is None:
        return
    measured = _in_step_time(results, results.collectives).filter(
        CollectiveRows.is_complete, pl.col(CollectiveRows.busbw_bytes_per_s) > 0
    )
    groups = results.collectives.groups.select(GroupRows.group_id, GroupRows.num_ranks_on_narrowest_node)
    spent = (
        measured.join(groups, on=GroupRows.group_id, how="left")
        .group_by(ROOFLINE_KEYS)
        .agg(pl.col(_STEP_TRANSFER).sum())
    )
    for row in slow.join(spent, on=ROOFLINE_KEYS, nulls_equal=True, maintain_order="left").iter_rows(named=True):
        cost = round(row[_STEP_TRANSFER] * (1 - row[CollectiveRooflineRows.attained_ratio]))
        if basis.share(cost) >= SLOW_SHARE:
            yield _slow_finding(row, cost, basis.share(cost))


def _straggler_finding(each: Straggler, cost_ns: int, waited_ns: int, basis: Basis) -> Finding:
    reason = each.reason or "a reason that the traces do not show"
    evidence = [
        Evidence(column("imposed_wait_ns", "imposed wait", "What fixing this rank saves."), each.imposed_wait_ns),
        Evidence(column("lost_ns", f"in {basis.noun} of all devices", "Imposed wait of each step x devices."), cost_ns),
        Evidence(column("basis_ns", "of", f"Length of {basis.noun}, summed over devices."), basis.window_ns),
        Evidence(
            column("exposed_wait_ns", "others wait, computing nothing", "Exposed waits for it, summed over ranks."),
            waited_ns,
        ),
        Evidence(column("num_collectives", "collectives", "Collectives it was late for."), each.num_collectives),
        Evidence(column("noise_floor_ns", "noise floor", "Lateness below it counts for nobody."), each.noise_floor_ns),
    ]
    if each.excess is not None and each.reason is not None:
        excess = column(f"{each.reason}_excess_ns", f"{each.reason} beyond its peers", "Against the peers' median.")
        evidence.append(Evidence(excess, getattr(each.excess, f"{each.reason}_ns")))
    steps = () if each.worst_step_number is None else (each.worst_step_number,)
    return Finding(
        kind="straggler",
        title=(
            f"Rank {each.rank} makes the others wait {format_duration(each.imposed_wait_ns)}, by {reason}: over all "
            f"devices that is {basis.text(cost_ns)}"
        ),
        where=Where(ranks=(each.rank,), steps=steps),
        evidence=tuple(evidence),
        cost_ns=cost_ns,
        share_ratio=basis.share(cost_ns),
        action=_WHAT_TO_DO.get(each.reason or "", _UNKNOWN),
    )


def _slow_finding(row: dict[str, Any], cost: int, share: float) -> Finding:
    ratio: float = row[CollectiveRooflineRows.attained_ratio]
    busbw: float = row[CollectiveRooflineRows.median_busbw_bytes_per_s]
    ceiling: float = row[CollectiveRooflineRows.ceiling_bytes_per_s]
    size: int = row[CollectiveRooflineRows.message_bytes]
    operation, num_ranks = row[CollectiveRooflineRows.operation], row[CollectiveRooflineRows.num_ranks]
    where = {"node": "inside a node", "network": "across the network"}.get(row[CollectiveRooflineRows.tier], "")
    return Finding(
        kind="slow_collective",
        title=(
            f"{operation} of {format_bytes(size)} among {num_ranks} ranks {where} runs at {format_bandwidth(busbw)}, "
            f"{format_ratio(ratio)} of its link"
        ).replace("  ", " "),
        where=Where(groups=(f"{operation} of {format_bytes(size)} among {num_ranks} ranks",)),
        evidence=(
            Evidence(column("busbw_bytes_per_s", "busbw", "Median bus bandwidth, decimal, one way."), busbw),
            Evidence(column("ceiling_bytes_per_s", "ceiling", "What the link allows one way."), ceiling),
            Evidence(column("attained_ratio", "of the link", "busbw / ceiling."), ratio),
        ),
        cost_ns=cost,
        share_ratio=share,
        action=(
            "Check which link carries it: NVLink and P2P enabled inside the node (NCCL_DEBUG=INFO), one NIC per GPU "
            "on the right NUMA node and GPUDirect RDMA across nodes; look for a slow or down-trained link and for "
            "compute kernels that starve the collective of SMs."
        ),
    )
