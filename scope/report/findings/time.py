"""Findings about one device's time: exposed communication, and idle time by its cause."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from scope.analysis.exposure import ExposedCollectives
from scope.analysis.step_time import judged_steps
from scope.analysis.syncs import SyncStats
from scope.report.findings.basis import beside_missing_ranks, ranks_with
from scope.report.findings.collectives import late_ranks
from scope.report.findings.links import slow_link_costs
from scope.report.findings.model import Evidence, Finding, Where
from scope.report.findings.quality import is_mostly_replay
from scope.report.findings.unknown_waits import exposed_with_unknown_waits
from scope.report.sections.quality import format_ranks
from scope.trace.schema import Launches
from scope.units import format_bytes, format_duration, format_ratio

if TYPE_CHECKING:
    from collections.abc import Iterator

    from scope.report.findings.basis import Basis
    from scope.report.results import Results

EXPOSED_SHARE: Final = 0.05
LAUNCH_BOUND_SHARE: Final = 0.10
INPUT_SHARE: Final = 0.03
SYNC_SHARE: Final = 0.02
ALLOCATION_SHARE: Final = 0.01
RECOMPUTE_SHARE: Final = 0.05
_MOST_NAMED: Final = 3

_UNKNOWN_WAITS: Final = "in collectives whose wait is not known"
_START_EARLIER: Final = (
    "Start these collectives earlier or split them so that compute runs beside them: larger or more gradient buckets "
    "(bucket_cap_mb), prefetch for FSDP (forward_prefetch, reshard later), fewer but larger tensor-parallel exchanges."
)
_JUDGE_MORE: Final = (
    "Collectives whose wait is not known may be waiting too, and are not counted either: a window of more steps has a "
    "smaller share of them at its edge."
)


def exposed_communication(results: Results, basis: Basis) -> Iterator[Finding]:
    """Yield a finding when at least 5 % of step time is communication that no compute hides.

    What a straggler or a slow link costs that is a finding of its own is left out: no bucket makes that shorter. Beside
    a straggler, so is what may be waiting for it: communication whose waits are not known, as at a window's edge.
    """
    exposed_ns = basis.exposed_communication_ns
    if basis.share(exposed_ns) < EXPOSED_SHARE:
        return
    (late_ones, late_ns), slow = late_ranks(results, basis), slow_link_costs(results, basis)
    waited_ns = min(exposed_ns, late_ns)
    slow_ns = min(exposed_ns - waited_ns, sum(slow.values()))
    rest_ns = exposed_ns - waited_ns - slow_ns
    if basis.share(rest_ns) < EXPOSED_SHARE:
        return
    # Where no rank is late there is nothing to wait for that is known of.
    unknown_ns = min(rest_ns, exposed_with_unknown_waits(results)) if late_ones else 0
    cost = rest_ns - unknown_ns
    late = f"rank{'s' * (len(late_ones) > 1)} {format_ranks(late_ones)}"
    link = f"the slow link{'s' * (len(slow) > 1)} {', '.join(slow)}"
    # In the order of the whole recording, so that of equals the same comes first as in its table.
    exposed = results.exposed.filter(pl.col(ExposedCollectives.step_exposed_ns) > 0).sort(
        ExposedCollectives.step_exposed_ns, descending=True, maintain_order=True
    )
    rows = exposed.head(_MOST_NAMED)
    names = [_collective_name(row) for row in rows.iter_rows(named=True)]
    worst_ns = int(rows[ExposedCollectives.step_exposed_ns][0]) if names else 0
    worst = f", {'most of it' if 2 * worst_ns > exposed_ns else 'the largest part'} {names[0]}" if names else ""
    evidence = [
        Evidence.of("exposed_communication_ns", "exposed communication", exposed_ns),
        Evidence.of("window_ns", basis.whole, basis.window_ns),
        Evidence.of("overlap_ratio", "hidden by compute", basis.overlap_ns / basis.communication_ns),
    ]
    if names:
        evidence.append(Evidence.of("worst_exposed_ns", "the worst alone", worst_ns))
    others: list[str] = []
    if waited_ns:
        evidence.append(Evidence.of("straggler_wait_ns", f"of it waiting for {late}", waited_ns))
        others.append(f"the waiting for {late}")
    if slow_ns:
        evidence.append(Evidence.of("slow_link_ns", f"of it for {link}", slow_ns))
        others.append(f"what {link} cost{'s' * (len(slow) == 1)}")
    if unknown_ns:
        evidence.append(Evidence.of("unknown_wait_ns", f"of it {_UNKNOWN_WAITS}", unknown_ns))
        others.append(f"{format_duration(unknown_ns)} {_UNKNOWN_WAITS}")
    beside = f" besides {' and '.join(others)}" if others else ""
    advice = [_START_EARLIER] * (basis.share(cost) >= EXPOSED_SHARE)
    advice.append(_what_first(late if waited_ns else "", link if slow_ns else "", is_one=len(late_ones) == 1))
    if unknown_ns:
        advice.append(_JUDGE_MORE)
    yield Finding(
        kind="exposed_communication",
        title=f"Communication that no compute hides takes {basis.text(cost)}{beside}{worst}",
        where=Where(groups=tuple(names)),
        evidence=tuple(evidence),
        cost_ns=cost,
        share_ratio=basis.share(cost),
        action=beside_missing_ranks(results.analysis, " ".join(advice)),
        mend_first=late_ones if waited_ns else (),
    )


def _what_first(late: str, link: str, *, is_one: bool) -> str:
    if late:
        them = "it" if is_one else "them"
        beside = f" So with {link}." if link else ""
        first = f"Fix {late} first: the waiting for {them} is not counted here, and none of this would make it shorter."
        return f"{first}{beside}"
    if link:
        return f"Mend {link} first: what that costs is not counted here, and none of this would make it shorter."
    return "If the waits come from a late rank, fix that rank first."


def launch_bound(results: Results, basis: Basis) -> Iterator[Finding]:
    """Yield a finding when the device stands idle for at least 10 % of step time because the host is slow.

    A launch that its thread waits for in a later blocking call is not held up by the host.
    """
    host, latency = basis.idle_by_cause_ns["host"], basis.idle_by_cause_ns["launch_latency"] - basis.awaited.time_ns
    cost = host + latency
    if basis.share(cost) < LAUNCH_BOUND_SHARE:
        return
    part = "step" if basis.is_steps else "window"
    num_launches = basis.num_launches // max(1, basis.num_parts)
    if host >= latency:
        slow, why = "The host launches too slowly", ""
    else:
        slow = "Each launch takes long to reach the device"
        why = "Every launch onto a device that ran dry pays this delay once more, however fast the host is. "
    yield Finding(
        kind="launch_bound",
        title=f"{slow}: the device runs dry for {basis.text(cost)}",
        where=Where(ranks=ranks_with(results.analysis, "host", at_least=LAUNCH_BOUND_SHARE / 2)),
        evidence=(
            Evidence.of("host_ns", "idle for host code", host),
            Evidence.of("launch_latency_ns", "launch latency", latency),
            Evidence.of("host_bound_ns", "queue empty and host busy, the device running or not", basis.host_bound_ns),
            Evidence.of("launches_per_part", f"launches per {part}", num_launches),
        ),
        cost_ns=cost,
        share_ratio=basis.share(cost),
        action=(
            f"{why}Launch less or launch cheaper: {_compile(results)}fused or foreach optimizers, a larger "
            "micro-batch; keep Python work (logging, metrics) off the training thread."
        ),
    )


def _compile(results: Results) -> str:
    """Return the advice to use graphs, for a job that does not replay them already."""
    if any(is_mostly_replay(rank) for rank in results.job.ranks):
        return ""
    return "torch.compile (mode='reduce-overhead' for CUDA graphs), "


def input_bound(results: Results, basis: Basis) -> Iterator[Finding]:
    """Yield a finding when the device waits for the data loader for at least 3 % of step time."""
    cost = basis.idle_by_cause_ns["input"]
    if basis.share(cost) < INPUT_SHARE:
        return
    yield Finding(
        kind="input_bound",
        title=f"The device waits for input for {basis.text(cost)}",
        where=Where(ranks=ranks_with(results.analysis, "input", at_least=INPUT_SHARE)),
        evidence=(
            Evidence.of("input_ns", "idle for input", cost),
            Evidence.of("idle_ns", "idle in all", basis.idle_ns),
        ),
        cost_ns=cost,
        share_ratio=basis.share(cost),
        action=(
            "More DataLoader workers (num_workers), prefetch_factor above 2, pin_memory with non_blocking copies, and "
            "decoding or augmentation off the critical path; check the storage's bandwidth if workers are idle too."
        ),
    )


def synchronising_calls(results: Results, basis: Basis) -> Iterator[Finding]:
    """Yield a finding when blocking calls leave the device idle for at least 2 % of step time."""
    cost = basis.idle_by_cause_ns["sync"]
    if basis.share(cost) < SYNC_SHARE:
        return
    tables = [rank.syncs for rank in results.analysis.ranks]
    calls = (
        pl.concat(tables)
        .group_by(SyncStats.name, SyncStats.root_operator)
        .agg(pl.col(SyncStats.num_step_calls).sum(), pl.col(SyncStats.step_idle_ns).sum())
    ).filter(pl.any_horizontal(pl.col(SyncStats.num_step_calls) > 0, pl.col(SyncStats.step_idle_ns) > 0))
    worst = calls.sort(SyncStats.step_idle_ns, SyncStats.name, SyncStats.root_operator, descending=[True, False, False])
    rows = worst.head(_MOST_NAMED).select(SyncStats.name, SyncStats.root_operator).rows()
    names = tuple(f"{name} in {operator}" if operator else name for name, operator in rows)
    num_calls = int(calls[SyncStats.num_step_calls].sum())
    first = f", first {names[0]}" if names else ""
    yield Finding(
        kind="synchronising_calls",
        title=f"Calls that wait for the device leave it idle for {basis.text(cost)}{first}",
        where=Where(ranks=ranks_with(results.analysis, "sync", at_least=SYNC_SHARE), calls=names),
        evidence=(
            Evidence.of("sync_ns", "idle after blocking calls", cost),
            Evidence.of("num_calls", "blocking calls", num_calls),
        ),
        cost_ns=cost,
        share_ratio=basis.share(cost),
        action=(
            "Avoid .item(), .cpu(), print(tensor), nonzero and boolean masks inside the step; log every n steps from "
            "detached copies made with non_blocking=True; replace torch.cuda.synchronize by events."
        ),
    )


def device_allocation(results: Results, basis: Basis) -> Iterator[Finding]:
    """Yield a finding when driver allocations idle the device for 1 % of step time, or memory is freed inside steps.

    The caching allocator calls cudaFree inside a step only to try an allocation again, after a first failure.
    """
    cost = basis.idle_by_cause_ns["allocation"]
    names = _allocation_calls(results)
    num_frees = sum(count for name, count in names.items() if "Free" in name and "Async" not in name)
    # Without steps a free may be the clearing up after them.
    if basis.share(cost) < ALLOCATION_SHARE and not (basis.is_steps and num_frees):
        return
    num_calls = sum(names.values())
    place = "inside steps" if basis.is_steps else "in the window"
    retries = f", {num_frees:,} of them frees{' (allocation retries)' if basis.is_steps else ''}" if num_frees else ""
    yield Finding(
        kind="device_allocation",
        title=f"{num_calls:,} allocations from the driver {place}{retries} idle the device for {basis.text(cost)}",
        where=Where(ranks=ranks_with(results.analysis, "allocation", at_least=ALLOCATION_SHARE), calls=tuple(names)),
        evidence=(
            Evidence.of("allocation_ns", "idle for allocation", cost),
            Evidence.of("num_calls", f"calls {place}", num_calls),
            Evidence.of("num_frees", f"frees {place}", num_frees),
        ),
        cost_ns=cost,
        share_ratio=basis.share(cost),
        action=(
            "Leave headroom (smaller batch, less fragmentation) and set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:"
            "True; pad variable shapes to a few sizes so that cached blocks fit; do not call empty_cache in the loop."
        ),
    )


def recompute(results: Results, basis: Basis) -> Iterator[Finding]:
    """Yield a finding when at least 5 % of compute is forward computed again in backward."""
    found = [rank.recompute for rank in results.analysis.ranks if rank.recompute.recompute_ns is not None]
    total = sum(each.step_compute_ns for each in found)
    again = sum(each.step_recompute_ns or 0 for each in found)
    if not total or again / total < RECOMPUTE_SHARE:
        return
    ratio = again / total
    cost = round(ratio * basis.compute_ns)
    yield Finding(
        kind="recompute",
        title=f"{format_ratio(ratio)} of compute is forward computed again in backward: {basis.text(cost)}",
        where=Where(),
        evidence=(
            Evidence.of("recompute_ns", "recomputed", again),
            Evidence.of("recompute_ratio", "of compute", ratio),
            Evidence.of("num_ops", "operators", sum(each.step_num_ops or 0 for each in found)),
        ),
        cost_ns=cost,
        share_ratio=basis.share(cost),
        action=(
            "If memory allows, checkpoint fewer layers or use selective checkpointing (keep matrix products and "
            "attention, recompute cheap operators); the memory section shows the headroom."
        ),
    )


def _collective_name(row: dict[str, object]) -> str:
    size, group = row[ExposedCollectives.message_bytes], row[ExposedCollectives.group]
    operation = str(row[ExposedCollectives.operation])
    parts = [operation if operation != "unknown" else "a collective without metadata"]
    if isinstance(size, int):
        parts.append(f"of {format_bytes(size)}")
    if group:
        parts.append(f"in {group}")
    return " ".join(parts)


def _allocation_calls(results: Results) -> dict[str, int]:
    """Return how often each allocating call was made in the steps that count, or at all by a rank without steps."""
    counts: dict[str, int] = {}
    for trace, rank in zip(results.job.ranks, results.analysis.ranks, strict=True):
        calls = trace.launches.filter(pl.col(Launches.kind) == "allocation")
        judged = {step.step_id for device in rank.devices for step in judged_steps(device.windows)}
        if judged:
            calls = calls.filter(pl.col(Launches.step_id).is_in(judged))
        for name, count in calls.group_by(pl.col(Launches.name).cast(pl.String)).len().sort(Launches.name).iter_rows():
            counts[name] = counts.get(name, 0) + count
    return counts
