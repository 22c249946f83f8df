"""Findings across ranks: who makes the others wait, and which messages are too small to use their link."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from scope.analysis.collective_tables import CollectiveRows, MatchedCalls
from scope.analysis.exposure import ExposedCollectives
from scope.analysis.straggler_verdict import AS_SEEN
from scope.report.findings.basis import beside_missing_ranks, judged_lengths, judged_numbers, left_out_ranks
from scope.report.findings.model import Evidence, Finding, Where
from scope.report.sections.quality import format_ranks
from scope.structs import Record
from scope.units import format_duration

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from scope.analysis.collectives import Collectives
    from scope.analysis.late_together import LateTogether
    from scope.analysis.straggler_facts import Straggler
    from scope.analysis.stragglers import Stragglers
    from scope.report.findings.basis import Basis
    from scope.report.results import Results

STRAGGLER_SHARE: Final = 0.01
SMALL_BYTES: Final = 1_000_000
SMALL_SHARE: Final = 0.01
SMALL_CALLS_PER_PART: Final = 4

STEP_TRANSFER: Final = "step_transfer_ns"
"""Transfer of a collective times the ranks that launched it in their step time."""

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


class _Cost(Record, frozen=True, kw_only=True):
    """What one straggler costs in step time, summed over devices."""

    waited_ns: int
    """Others stand waiting for it, or for one that waits for it."""
    saved_ns: int | None
    """All devices gain when it alone works as fast as its peers; None where that is not known."""

    @property
    def lost_ns(self) -> int:
        """The larger of both: time that ranks wait for one who is late is lost, also where others are late as well."""
        return max(self.waited_ns, self.saved_ns or 0)


def straggler(results: Results, basis: Basis) -> Iterator[Finding]:
    """Yield one finding a straggler that costs at least 1 % of step time, and one of ranks that are late together."""
    found = results.stragglers
    if found is None:
        return
    together, named = found.together, set[int]()
    for each, cost in _costly_stragglers(results, basis):
        yield _straggler_finding(each, cost, basis, found)
        named.add(each.rank)
    if together is not None:
        yield from _together_finding(together, named, results, basis)


def late_ranks(results: Results, basis: Basis) -> tuple[tuple[int, ...], int]:
    """Return the ranks that findings call late, and how long others waited for them in step time without computing."""
    waits = {each.rank: cost.waited_ns for each, cost in _costly_stragglers(results, basis)}
    together = None if results.stragglers is None else results.stragglers.together
    if together is None or not _costs_together(together, set(waits), results, basis):
        return tuple(waits), sum(waits.values())
    # What the others gain when all of them are mended, they stood waiting.
    others = (row for row in _saved_together(together) if row[1] not in together.ranks)
    gained = sum(judged_sums(results, others).values())
    return tuple(sorted({*waits, *together.ranks})), max(sum(waits.values()), gained)


def judged_sums(results: Results, rows: Iterable[tuple[int, int, int | None, int]]) -> dict[int, int]:
    """Return sums over what lies in the step time of the rank that it is of; ranks that are left out have none.

    Of each step no more counts than it lasts: records that contradict each other, such as a kernel long before its
    launch, make a replay believe that a step can save more.

    Args:
        results: The results.
        rows: Key of the sum, rank, number of the step, and time.
    """
    left_out = left_out_ranks(results.analysis)
    ranks = (rank for rank in results.analysis.ranks if rank.rank is not None and rank.rank not in left_out)
    judged = {rank.rank: judged_lengths(rank) for rank in ranks}
    by_part: dict[tuple[int, int, int | None], int] = {}
    for key, rank, number, time_ns in rows:
        lengths = judged.get(rank, {})
        part = None if None in lengths else number
        if part in lengths:
            by_part[key, rank, part] = by_part.get((key, rank, part), 0) + time_ns
    totals: dict[int, int] = {}
    for (key, rank, part), time_ns in by_part.items():
        totals[key] = totals.get(key, 0) + min(time_ns, judged[rank][part])
    return totals


def _costly_stragglers(results: Results, basis: Basis) -> Iterator[tuple[Straggler, _Cost]]:
    """Yield the stragglers that cost enough to be a finding, with what they cost over all devices."""
    found = results.stragglers
    if found is None or not found.stragglers:
        return
    # Here, because one rank, the most frequent case, needs nothing of what finds stragglers.
    from scope.analysis.savings import StragglerSavings
    from scope.analysis.straggler_waits import StragglerWaits

    waits = (StragglerWaits.straggler, StragglerWaits.rank, StragglerWaits.step_number, StragglerWaits.exposed_wait_ns)
    savings = (
        StragglerSavings.straggler, StragglerSavings.rank, StragglerSavings.step_number, StragglerSavings.saved_ns
    )  # fmt: skip
    waited = judged_sums(results, found.waits.select(*waits).iter_rows())
    rows = found.savings.select(*savings).rows()
    saved = judged_sums(results, rows)
    # What others gain is what they stood waiting: their own work takes as long as it did.
    saved_by_others = judged_sums(results, (row for row in rows if row[0] != row[1]))
    for each in found.stragglers:
        known = None if each.saving_ns is None else max(0, saved.get(each.rank, 0))
        waits = max(waited.get(each.rank, 0), saved_by_others.get(each.rank, 0))
        cost = _Cost(waited_ns=waits, saved_ns=known)
        is_late_with_others = found.together is not None and each.rank in found.together.ranks
        if each.saving_ns == 0 and not is_late_with_others:
            continue
        if basis.share(cost.lost_ns) >= STRAGGLER_SHARE:
            yield each, cost


def small_messages(results: Results, basis: Basis) -> Iterator[Finding]:
    """Yield a finding when exposed messages below 1 MB take at least 1 % of step time and are several a step.

    Where the collectives of several ranks were matched, their transfers count and not the waits for late ranks.
    """
    size = pl.col(ExposedCollectives.message_bytes)
    rows = results.exposed.filter(size.is_not_null(), size < SMALL_BYTES, pl.col(ExposedCollectives.num_step_calls) > 0)
    # Of calls in flight together each row has the whole of the time: their sum may be more than there is.
    cost = min(int(rows[ExposedCollectives.step_exposed_ns].sum()), basis.exposed_communication_ns)
    if results.collectives is not None and results.stragglers is not None:
        small = in_step_time(results, results.collectives).filter(pl.col(CollectiveRows.message_bytes) < SMALL_BYTES)
        cost = min(cost, int(small[STEP_TRANSFER].sum()))
    cost = basis.within(cost)
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
            Evidence.of("small_ns", "their time", cost),
            Evidence.of("num_calls", "calls", num_calls),
            Evidence.of(
                "largest_bytes",
                "largest",
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


def in_step_time(results: Results, collectives: Collectives) -> pl.DataFrame:
    """Return the collectives, each with its transfer times the ranks that launched it in their step time."""
    steps: list[tuple[int, int]] = []
    without: list[int] = []
    left_out = left_out_ranks(results.analysis)
    for rank in results.analysis.ranks:
        numbers = judged_numbers(rank)
        if rank.rank is None or rank.rank in left_out:
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
    num_ranks = inside.group_by(MatchedCalls.collective_id).agg(pl.len().cast(pl.Int64).alias(STEP_TRANSFER))
    return collectives.collectives.join(num_ranks, on=MatchedCalls.collective_id).with_columns(
        pl.col(STEP_TRANSFER) * pl.col(CollectiveRows.transfer_ns)
    )


def _saved_together(together: LateTogether) -> list[tuple[int, int, int | None, int]]:
    from scope.analysis.savings import StragglerSavings

    columns = (
        StragglerSavings.straggler, StragglerSavings.rank, StragglerSavings.step_number, StragglerSavings.saved_ns
    )  # fmt: skip
    return together.savings.select(*columns).rows()


def _costs_together(together: LateTogether, named: set[int], results: Results, basis: Basis) -> int:
    """Return what ranks cost that are late together; 0 where all are named alone, or it is too little to tell."""
    saved = sum(judged_sums(results, _saved_together(together)).values())
    is_told = named.issuperset(together.ranks) or basis.share(saved) < STRAGGLER_SHARE
    return 0 if is_told else saved


def _together_finding(together: LateTogether, named: set[int], results: Results, basis: Basis) -> Iterator[Finding]:
    """Yield what ranks cost that are late together, of whom some are not among those that are named alone."""
    saved = _costs_together(together, named, results, basis)
    if not saved:
        return
    share = basis.share(saved)
    alone = tuple(rank for rank in together.ranks if rank in named)
    late = f"{_named(tuple(rank for rank in together.ranks if rank not in named))} late"
    late = f"besides {_named(alone).rpartition(' ')[0]}, {late} too" if alone else f"{late} together"
    yield Finding(
        kind="straggler",
        title=(
            f"{late[0].upper()}{late[1:]}: mending all of them ends the recording "
            f"{format_duration(together.saving_ns)} sooner and saves {basis.text(saved)}, "
            f"{_summed_over(basis)}{say_as_seen(results.stragglers)}"
        ),
        where=Where(ranks=together.ranks),
        evidence=(
            Evidence.of("together_saving_ns", "fixing all of them ends the recording sooner by", together.saving_ns),
            Evidence.of("saved_ns", "saves on all devices", saved),
            Evidence.of("basis_ns", basis.whole, basis.window_ns),
        ),
        cost_ns=saved,
        share_ratio=share,
        action=(
            "Mend all of them: behind one that is mended alone the others are waited for. Look for what they "
            "share: a node, a switch, a power cap, a shard of the data, a role in the layout."
        ),
    )


def _named(ranks: tuple[int, ...]) -> str:
    """Return ranks as the subject of a sentence: `rank 3 is`, `ranks 1, 6 are`."""
    return f"rank {ranks[0]} is" if len(ranks) == 1 else f"ranks {format_ranks(ranks)} are"


def say_as_seen(found: Stragglers | None) -> str:
    """Return what to add to a saving: that ranks are missing, and it is what the others tell."""
    return AS_SEEN if found is not None and found.has_missing_ranks else ""


def _straggler_finding(each: Straggler, cost: _Cost, basis: Basis, found: Stragglers) -> Finding:
    together = found.together
    reason = each.reason or "a reason that the traces do not show"
    over = f"in {basis.whole}"
    evidence = [
        Evidence.of("imposed_wait_ns", "imposed wait in the whole recording", each.imposed_wait_ns),
        Evidence.of("basis_ns", basis.whole, basis.window_ns),
        Evidence.of("exposed_wait_ns", "others wait, computing nothing", cost.waited_ns),
        Evidence.of("num_collectives", "collectives", each.num_collectives),
        Evidence.of("noise_floor_ns", "noise floor", each.noise_floor_ns),
    ]
    if each.saving_ns is not None and cost.saved_ns is not None:
        sooner = "fixing it alone ends the recording sooner by"
        evidence[1:1] = [
            Evidence.of("saving_ns", sooner, each.saving_ns),
            Evidence.of("saved_ns", f"saves {over}", cost.saved_ns),
        ]
    if each.excess is not None and each.reason is not None:
        excess_ns = getattr(each.excess, f"{each.reason}_ns")
        evidence.append(Evidence.of(f"{each.reason}_excess_ns", f"{each.reason} beyond its peers", excess_ns))
    if together is not None and each.rank in together.ranks:
        others = format_ranks(tuple(rank for rank in together.ranks if rank != each.rank))
        whom = f"{'rank' if len(together.ranks) == 2 else 'ranks'} {others}"
        heading = f"fixed together with {whom} it ends the recording sooner by"
        evidence.append(Evidence.of("together_saving_ns", heading, together.saving_ns))
    steps = () if each.worst_step_number is None else (each.worst_step_number,)
    most = "at most " if each.excess is None else ""
    wait = f"Rank {each.rank} makes its peers wait {most}{format_duration(each.imposed_wait_ns)}, by {reason}"
    return Finding(
        kind="straggler",
        title=f"{wait}{_what_it_saves(each, cost, basis, say_as_seen(found))}",
        where=Where(ranks=(each.rank,), steps=steps),
        evidence=tuple(evidence),
        cost_ns=cost.lost_ns,
        share_ratio=basis.share(cost.lost_ns),
        action=_WHAT_TO_DO.get(each.reason or "", _UNKNOWN),
    )


def _what_it_saves(each: Straggler, cost: _Cost, basis: Basis, seen: str) -> str:
    waiting = f"those who wait for it lose {basis.text(cost.lost_ns)}"
    if each.saving_ns is None:
        return f": {waiting}"
    # The end of the recording moves by what the slowest path gains; every device gains in each of its steps.
    sooner = f"ends the recording {format_duration(each.saving_ns)} sooner"
    if cost.lost_ns == cost.saved_ns:
        return f"; fixing it alone {sooner} and saves {basis.text(cost.lost_ns)}, {_summed_over(basis)}{seen}"
    saved = sooner if each.saving_ns > 0 else "saves nothing"
    return f"; fixing it alone {saved}, since others are late too: {waiting}{seen}"


def _summed_over(basis: Basis) -> str:
    return "summed over steps and devices" if basis.is_steps else "summed over devices"
