"""Findings across ranks: who makes the others wait, and which collectives do not use their link."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import polars as pl

from scope.analysis.collective_tables import CollectiveRooflineRows, CollectiveRows
from scope.analysis.exposure import ExposedCollectives
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
    """Yield one finding a straggler whose repair alone would save at least 1 % of the time."""
    if results.stragglers is None:
        return
    for each in results.stragglers.stragglers:
        # Everybody waits for the straggler, so the time is lost on every device.
        cost = each.imposed_wait_ns * max(1, len(results.analysis.ranks))
        share = _share_of_window(results, cost)
        if share >= STRAGGLER_SHARE:
            yield _straggler_finding(each, cost, share)


def small_messages(results: Results, basis: Basis) -> Iterator[Finding]:
    """Yield a finding when exposed messages below 1 MB take at least 1 % of the time and are several a step.

    Where the collectives of several ranks were matched, their transfers count and not the waits for late ranks.
    """
    size = pl.col(ExposedCollectives.message_bytes)
    rows = results.exposed.filter(size.is_not_null(), size < SMALL_BYTES)
    cost = int(rows[ExposedCollectives.exposed_ns].sum())
    if results.collectives is not None and results.stragglers is not None:
        cost = min(cost, _small_transfers_ns(results.collectives))
    num_calls = int(rows[ExposedCollectives.num_calls].sum())
    share = _share_of_window(results, cost)
    if share < SMALL_SHARE or num_calls < SMALL_CALLS_PER_PART * max(1, basis.num_parts):
        return
    names = rows.group_by(ExposedCollectives.operation).agg(pl.col(ExposedCollectives.exposed_ns).sum())
    operations = names.sort(ExposedCollectives.exposed_ns, descending=True)[ExposedCollectives.operation].to_list()
    yield Finding(
        kind="small_messages",
        title=(
            f"{num_calls:,} exposed collectives below 1 MB take {format_ratio(share)} of the time "
            f"({format_duration(cost)})"
        ),
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
        action=(
            "Latency, not the link, bounds messages this small: put them into fewer, larger ones (gradient buckets, "
            "coalesced all-gathers, flattened scalars), or let them overlap with compute."
        ),
    )


def _small_transfers_ns(collectives: Collectives) -> int:
    """Return the transfer time of messages below 1 MB, summed over the ranks that took part."""
    rows = collectives.collectives.filter(pl.col(CollectiveRows.message_bytes) < SMALL_BYTES)
    return int(rows.select((pl.col(CollectiveRows.transfer_ns) * pl.col(CollectiveRows.num_ranks_seen)).sum()).item())


def slow_collective(results: Results, basis: Basis) -> Iterator[Finding]:
    """Yield a finding for each kind of message of 16 MB and more that reaches less than half of its link."""
    if results.collective_roofline is None:
        return
    slow = results.collective_roofline.points.filter(
        pl.col(CollectiveRooflineRows.message_bytes) >= LARGE_BYTES,
        pl.col(CollectiveRooflineRows.attained_ratio) < SLOW_RATIO,
    )
    for row in slow.iter_rows(named=True):
        ratio = row[CollectiveRooflineRows.attained_ratio]
        lost = row[CollectiveRooflineRows.total_transfer_ns] * (1 - ratio)
        cost = round(lost * row[CollectiveRooflineRows.num_ranks])
        share = _share_of_window(results, cost)
        if share >= SLOW_SHARE:
            yield _slow_finding(row, cost, share)


def _straggler_finding(each: Straggler, cost: int, share: float) -> Finding:
    reason = each.reason or "a reason that the traces do not show"
    evidence = [
        Evidence(column("imposed_wait_ns", "imposed wait", "What fixing this rank saves."), each.imposed_wait_ns),
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
            f"Rank {each.rank} makes the others wait {format_duration(each.imposed_wait_ns)} "
            f"({format_ratio(share)} of the time), by {reason}"
        ),
        where=Where(ranks=(each.rank,), steps=steps),
        evidence=tuple(evidence),
        cost_ns=cost,
        share_ratio=share,
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


def _share_of_window(results: Results, cost_ns: int) -> float:
    breakdown = results.analysis.breakdown
    return cost_ns / breakdown.window_ns if breakdown is not None and breakdown.window_ns else 0.0
