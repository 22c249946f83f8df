"""All analyses of a job that look at one rank at a time, and their sums over ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from scope.analysis.breakdown import sum_breakdowns
from scope.analysis.idle import find_idle_spans, sum_idle_causes
from scope.analysis.job import Analysis, StepSummary, summed_ranks
from scope.analysis.launches import sum_queues
from scope.analysis.options import Options
from scope.analysis.rank import analyze_rank
from scope.analysis.tables import Tables, check_step
from scope.analysis.windows import build_timeline

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from scope.analysis.job import PartAnalysis, RankAnalysis
    from scope.trace.model import Job

_DEFAULTS: Final = Options()
_NOTHING_RAN: Final = "no rank has device events or a host timeline"
_NOT_BOTH: Final = "no host timeline stands beside devices"
_NO_LAUNCHES: Final = "no rank has launches"
_MOST_NAMED: Final = 4


def analyze(
    job: Job, *, options: Options = _DEFAULTS, by_launch: bool = True, path_step: int | None = None
) -> Analysis:
    """Return the analyses of every rank by itself and their sums over all ranks.

    What takes several ranks together (collectives, clocks, stragglers, comparison) and the roofline have functions of
    their own beside this one.

    Args:
        job: What `scope.load` returned.
        options: Which events count, and as what.
        by_launch: Compute for each step the breakdown of what was launched in it too, whenever it ran.
        path_step: Number of the step whose critical path is wanted; None for that of median length.

    Raises:
        UsageError: No trace holds the step.
    """
    if path_step is not None:
        check_step(job, path_step)
    timelines = [build_timeline(trace, options=options) for trace in job.ranks]
    idle_spans = [find_idle_spans(timeline) for timeline in timelines]
    ranks = tuple(
        analyze_rank(*each, by_launch=by_launch, path_step=path_step)
        for each in zip(timelines, idle_spans, strict=True)
    )
    tables = ranks[0].tables if len(ranks) == 1 else Tables(list(zip(timelines, idle_spans, strict=True)))
    summed = summed_ranks(ranks)
    breakdowns = [rank.breakdown for rank in summed if rank.breakdown is not None]
    # Where hosts alone are there, they are summed already.
    hosts = [rank for rank in ranks if rank.is_host_timeline] if len(summed) < len(ranks) else []
    on_host = [rank.breakdown for rank in hosts if rank.breakdown is not None]
    idle = [rank.idle for rank in summed if rank.idle is not None]
    queues = [rank.queue for rank in summed if rank.queue is not None]
    absent = {
        **({} if breakdowns else {"breakdown": _NOTHING_RAN}),
        **({} if on_host else {"host_breakdown": _NOT_BOTH}),
        **({} if idle else {"idle": _NO_LAUNCHES, "queue": _NO_LAUNCHES}),
        **({} if job.world_size is not None else {"world_size": "no trace says how many ranks there are"}),
    }
    return Analysis(
        options=options,
        ranks=ranks,
        breakdown=sum_breakdowns(breakdowns) if breakdowns else None,
        host_breakdown=sum_breakdowns(on_host) if on_host else None,
        idle=sum_idle_causes(idle) if idle else None,
        queue=sum_queues(queues) if queues else None,
        steps=_summarize_steps(summed),
        tables=tables,
        world_size=job.world_size,
        missing_ranks=job.missing_ranks,
        warnings=(*job.warnings, *_say_different_gpus(job), *_say_left_out(ranks, summed)),
        absent=absent,
    )


def _say_different_gpus(job: Job) -> Iterator[str]:
    """Yield which GPUs the traces name, where not all ranks name the same: they may be of several jobs."""
    labels: dict[tuple[str, ...], list[str]] = {}
    for trace in job.ranks:
        names = tuple(sorted({each.name for each in trace.devices if each.name}))
        if names:
            labels.setdefault(names, []).append(trace.label)
    if len(labels) < 2:
        return
    named = [f"{' and '.join(map(repr, names))} ({_first(ranks)})" for names, ranks in labels.items()]
    yield f"the traces name different GPUs: {_first(named)}; what is summed over ranks mixes them: are they of one job?"


def _first(names: Sequence[str]) -> str:
    """Return the first of several names, and how many more there are."""
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return f"{', '.join(names[:_MOST_NAMED])}{more}"


def _say_left_out(ranks: Sequence[RankAnalysis], summed: Sequence[RankAnalysis]) -> Iterator[str]:
    """Yield, where hosts stand beside devices, which ranks are no part of the figures over all ranks."""
    if len(summed) == len(ranks):
        return
    left_out = [rank.label for rank in ranks if rank.is_host_timeline]
    yield (
        f"totals, steps, kernels, exposed collectives and findings are those of devices; left out, since their traces "
        f"hold no device events: {_first(left_out)}"
    )


def _summarize_steps(ranks: Sequence[RankAnalysis]) -> tuple[StepSummary, ...]:
    """Return every step number over all ranks and devices in which it has a window."""
    found: dict[int, list[tuple[str, PartAnalysis]]] = {}
    for rank in ranks:
        for device in rank.devices:
            for part in device.steps:
                if part.step is not None and part.window is not None:
                    found.setdefault(part.step.number, []).append((rank.label, part))
    return tuple(_summarize_step(number, found[number]) for number in sorted(found))


def _summarize_step(number: int, parts: list[tuple[str, PartAnalysis]]) -> StepSummary:
    lengths = [part.window.length_ns for _, part in parts if part.window is not None]
    slowest = lengths.index(max(lengths))
    idle = [part.idle for _, part in parts if part.idle is not None]
    queues = [part.queue for _, part in parts if part.queue is not None]
    return StepSummary(
        number=number,
        num_devices=len(parts),
        is_cut=any(part.step is not None and part.step.is_cut for _, part in parts),
        breakdown=sum_breakdowns(part.breakdown for _, part in parts if part.breakdown is not None),
        idle=sum_idle_causes(idle) if idle else None,
        queue=sum_queues(queues) if queues else None,
        min_window_ns=min(lengths),
        median_window_ns=sorted(lengths)[(len(lengths) - 1) // 2],
        max_window_ns=max(lengths),
        slowest=parts[slowest][0],
        absent={} if idle else {"idle": _NO_LAUNCHES, "queue": _NO_LAUNCHES},
    )
