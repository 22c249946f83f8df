"""What the traces are too poor to say, and how to record better ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from scope.report.findings.model import Evidence, Finding, Where
from scope.report.findings.time_awaited import AWAITED_SHARE
from scope.report.sections.quality import format_ranks
from scope.trace.schema import CollectiveCalls, DeviceEvents, Ops, Steps
from scope.units import format_duration

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from scope.report.findings.basis import Basis
    from scope.report.results import Results
    from scope.trace.model import RankTrace

KNOWN_SHARE: Final = 0.90
"""Share of collective calls with sizes and groups below which they are called missing."""
REPLAY_SHARE: Final = 0.50
"""Share of device time in replayed graphs above which idle time is in doubt."""
UNLINKED_SHARE: Final = 0.10
"""Share of device events without a launch above which causes and operators are in doubt."""
UNKNOWN_SHARE: Final = 0.9
"""Share of a stream's time above which kernels of no known class are all it is there for."""
WORTH_ASKING_SHARE: Final = 0.01
"""Share of a device's busy time that such a stream must hold to be worth a question."""
_METADATA: Final = (
    "Use torch 2.2 or later, whose traces carry collective metadata, and keep launches inside the window."
)
_ON_HOST: Final = (
    "Traces of gloo do not say them: record the job with scope run, whose own records do, and give the run."
)
_ACTIVITIES: Final = "activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]"
_LET_FINISH: Final = "Let export_chrome_trace finish before the job ends or is killed."
_MOST_NAMED: Final = 4
_LISTED_RANKS: Final = 1_024
_TOTAL: Final = "total_ns"
_UNKNOWN: Final = "unknown_ns"
_OF_DEVICE: Final = "of_device_ns"


def trace_too_poor(results: Results, basis: Basis) -> Iterator[Finding]:
    """Yield one finding that lists what the traces do not hold, which figures that costs, and how to get it."""
    gaps = [*_gaps(results), *_unseen_work(basis)]
    if not gaps:
        return
    missing = ", ".join(name for name, _ in gaps)
    yield Finding(
        kind="trace_too_poor",
        title=f"The traces cannot say everything; they lack: {missing}",
        # Many are told by the title, as ranges.
        where=Where(ranks=results.job.missing_ranks if len(results.job.missing_ranks) <= _LISTED_RANKS else ()),
        evidence=tuple(_counts(results)),
        cost_ns=None,
        share_ratio=None,
        action=" ".join(dict.fromkeys(advice for _, advice in gaps)),
    )


def _counts(results: Results) -> Iterator[Evidence]:
    """Yield how many traces there are, and what of them is lost or missing where anything is."""
    ranks = results.job.ranks
    yield Evidence.of("num_traces", "traces read", len(ranks))
    lost = (
        ("num_missing_ranks", "ranks without a trace", len(results.job.missing_ranks)),
        ("events_lost", "records lost", sum(rank.quality.events_lost for rank in ranks)),
        (
            "device_events_without_launch",
            "events without launch",
            sum(rank.quality.device_events_without_launch for rank in ranks),
        ),
    )
    for key, heading, count in lost:
        if count:
            yield Evidence.of(key, heading, count)


def _unseen_work(basis: Basis) -> Iterator[tuple[str, str]]:
    """Yield that launched work waited for something that the traces do not show, where that took long."""
    awaited = basis.awaited
    if basis.share(awaited.time_ns) >= AWAITED_SHARE:
        yield (
            f"what held launched work up for {format_duration(awaited.time_ns)} while the host waited for it in "
            f"{', '.join(awaited.calls[:_MOST_NAMED])}",
            "Look for another process on the device, and for work that the profiler missed or that began before it.",
        )


def _gaps_of_steps(ranks: Sequence[RankTrace]) -> Iterator[tuple[str, str]]:
    """Yield that steps are missing, of all ranks or of some."""
    if any(rank.steps.is_empty() for rank in ranks):
        yield ("steps", "Call profiler.step() after every step.")
    unequal = _unequal_steps(ranks)
    if unequal is not None:
        yield (
            f"the same steps of all ranks ({unequal})",
            "Record the same steps on every rank (one schedule, and as many calls of profiler.step()): a collective "
            "of a step that another rank did not record has no known wait.",
        )


def _unequal_steps(ranks: Sequence[RankTrace]) -> str | None:
    """Return which ranks hold which steps, where they do not all hold the same; None where they do."""
    holders: dict[tuple[int, ...], list[RankTrace]] = {}
    for rank in ranks:
        numbers = tuple(sorted(rank.steps[Steps.number].drop_nulls().unique()))
        if numbers:
            holders.setdefault(numbers, []).append(rank)
    if len(holders) < 2:
        return None
    held = [f"{_named(each)} {format_ranks(numbers)}" for numbers, each in list(holders.items())[:_MOST_NAMED]]
    more = " and so on" if len(holders) > _MOST_NAMED else ""
    return f"{', '.join(held)}{more}"


def _named(ranks: Sequence[RankTrace]) -> str:
    """Return ranks as the beginning of what they hold: `ranks 0-3 have`; a file stands for a rank that is unknown."""
    numbers = tuple(rank.rank for rank in ranks if rank.rank is not None)
    if len(numbers) < len(ranks):
        return f"{ranks[0].label} has" if len(ranks) == 1 else f"{ranks[0].label} and {len(ranks) - 1:,} more have"
    return f"rank{'s' * (len(ranks) > 1)} {format_ranks(numbers)} {'have' if len(ranks) > 1 else 'has'}"


def _gaps(results: Results) -> Iterator[tuple[str, str]]:
    """Yield what is missing with how to record it."""
    ranks = results.job.ranks
    if any(rank.quality.truncated or rank.quality.events_lost for rank in ranks):
        yield ("records (files are cut or damaged)", _LET_FINISH)
    yield from _gaps_of_steps(ranks)
    if any(_has_unlinked(rank) for rank in ranks):
        yield (
            "launches of many device events",
            f"Record with {_ACTIVITIES} and a warmup step, so that launches precede the window; for graph replay also "
            "record the capture.",
        )
    if any(_lacks_devices(rank) for rank in ranks):
        yield ("device events", f"Record with {_ACTIVITIES}.")
    if any(rank.is_host_timeline and rank.quality.truncated and not _lacks_devices(rank) for rank in ranks):
        yield ("device events (none stands in what is left of a file, so that figures are the host's)", _LET_FINISH)
    if any(is_mostly_replay(rank) for rank in ranks):
        yield (
            "a full account of replayed graphs (profilers may miss their kernels, so idle time is in doubt)",
            "Check idle time against a recording without graphs.",
        )
    if any(rank.ops.is_empty() and not rank.device_events.is_empty() for rank in ranks):
        yield (
            "operators (what launched the kernels)",
            f"Record with {_ACTIVITIES}.",
        )
    if any(_lacks_shapes(rank) for rank in ranks):
        yield ("shapes (FLOPs, bytes and the roofline need them)", "Record with record_shapes=True.")
    poor = [rank for rank in ranks if _lacks_metadata(rank)]
    if poor:
        what = "groups of collectives" if all(_says_sizes(rank) for rank in poor) else "sizes and groups of collectives"
        yield (what, _ON_HOST if all(rank.is_host_timeline for rank in poor) else _METADATA)
    stragglers = results.stragglers
    if stragglers is not None and stragglers.num_of_unknown_root:
        from scope.analysis.straggler_verdict import TELL_ROOT

        yield (
            f"the roots of {stragglers.num_of_unknown_root:,} collectives, without which nobody knows who waits for "
            "whom in them",
            f"{TELL_ROOT[0].upper()}{TELL_ROOT[1:]}.",
        )
    unknown = sorted({label for rank in ranks for label in unknown_streams(rank)})
    if unknown:
        yield (
            f"what kernels of no known class do on {', '.join(unknown[:_MOST_NAMED])}",
            "They count as compute; if they communicate, give their names in a file for --classes.",
        )
    if results.job.missing_ranks:
        yield (
            f"rank{'s' * (len(results.job.missing_ranks) > 1)} {format_ranks(results.job.missing_ranks)}",
            "Give the traces of all ranks (scope run --capture-ranks all takes them): waits and stragglers need every "
            "rank of a group.",
        )


def unknown_streams(rank: RankTrace) -> list[str]:
    """Return streams beside the busiest one on which almost only kernels of no known class and no operator run.

    A library of communication that Scope does not know looks like that.
    """
    events = rank.device_events
    if not ((events[DeviceEvents.kernel_class] == "other") & events[DeviceEvents.op_id].is_null()).any():
        return []
    length = pl.col(DeviceEvents.end_ns) - pl.col(DeviceEvents.start_ns)
    is_unknown = (pl.col(DeviceEvents.kernel_class) == "other") & pl.col(DeviceEvents.op_id).is_null()
    streams = (
        events.group_by(DeviceEvents.device, DeviceEvents.stream)
        .agg(length.sum().alias(_TOTAL), length.filter(is_unknown).sum().alias(_UNKNOWN))
        .sort(DeviceEvents.device, _TOTAL, descending=[False, True])
        .with_columns(pl.col(_TOTAL).sum().over(DeviceEvents.device).alias(_OF_DEVICE))
    )
    beside = streams.filter(pl.int_range(pl.len()).over(DeviceEvents.device) > 0)
    chosen = beside.filter(
        pl.col(_UNKNOWN) > UNKNOWN_SHARE * pl.col(_TOTAL), pl.col(_UNKNOWN) > WORTH_ASKING_SHARE * pl.col(_OF_DEVICE)
    )
    pairs = chosen.select(DeviceEvents.device, DeviceEvents.stream).rows()
    return [f"stream {stream} of device {device}, {rank.label}" for device, stream in pairs]


def _lacks_devices(rank: RankTrace) -> bool:
    """Return whether there was a device of which the trace holds nothing, or nothing that stands in its place."""
    if not rank.device_events.is_empty():
        return False
    return rank.ops.is_empty() or not rank.is_host_timeline or bool(rank.devices)


def _has_unlinked(rank: RankTrace) -> bool:
    return rank.quality.device_events_without_launch > UNLINKED_SHARE * max(1, rank.device_events.height)


def _lacks_shapes(rank: RankTrace) -> bool:
    return not rank.device_events.is_empty() and rank.ops[Ops.input_dims].null_count() == rank.ops.height


def _lacks_metadata(rank: RankTrace) -> bool:
    calls = rank.collective_calls
    return not calls.is_empty() and int(calls[CollectiveCalls.has_metadata].sum()) < KNOWN_SHARE * calls.height


def _says_sizes(rank: RankTrace) -> bool:
    """Return whether calls say, or their operators do, how much they move, where they move anything."""
    calls = rank.collective_calls.filter(pl.col(CollectiveCalls.operation) != "barrier")
    known = calls[CollectiveCalls.in_bytes].is_not_null() | calls[CollectiveCalls.out_bytes].is_not_null()
    return int(known.sum()) >= KNOWN_SHARE * calls.height


def is_mostly_replay(rank: RankTrace) -> bool:
    """Return whether most of the time of a rank's devices went to replayed graphs."""
    if not rank.device_events[DeviceEvents.in_graph].any():
        return False
    length = pl.col(DeviceEvents.end_ns) - pl.col(DeviceEvents.start_ns)
    total, replayed = rank.device_events.select(
        length.sum().alias("total"), length.filter(pl.col(DeviceEvents.in_graph)).sum().alias("replayed")
    ).row(0)
    return replayed > REPLAY_SHARE * total
