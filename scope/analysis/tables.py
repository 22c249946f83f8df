"""The tables that group events and calls, for any choice of ranks and for one step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from scope.analysis.copies import summarize_copies
from scope.analysis.idle import find_idle_spans
from scope.analysis.job import KernelTables, Tables
from scope.analysis.kernels import key_events, summarize_kernels
from scope.analysis.launches import compute_launch_delays, summarize_launches
from scope.analysis.options import Options
from scope.analysis.recompute import compute_recompute, sum_recompute
from scope.analysis.syncs import summarize_syncs
from scope.analysis.windows import build_timeline, narrow_to_step
from scope.errors import UsageError
from scope.trace.schema import Steps

if TYPE_CHECKING:
    from collections.abc import Sequence

    import polars as pl

    from scope.analysis.kernels import KernelKey
    from scope.analysis.windows import Timeline
    from scope.trace.model import Job

NO_STACKS: Final = "the trace holds no Python calls (record with_stack=True, and load with the Python calls)"
_DEFAULTS: Final = Options()


def summarize_tables(ranks: Sequence[tuple[Timeline, pl.DataFrame]]) -> Tables:
    """Return the tables of one or several ranks together.

    Args:
        ranks: Each rank's events and what `scope.analysis.idle.find_idle_spans` returned for them.
    """
    timelines = [timeline for timeline, _ in ranks]
    return Tables(
        kernels=_kernel_tables(timelines),
        delays=compute_launch_delays(timelines),
        launches=summarize_launches(timelines),
        copies=summarize_copies(timelines),
        syncs=summarize_syncs(ranks),
        recompute=sum_recompute(compute_recompute(timeline) for timeline in timelines),
    )


def summarize_step_tables(job: Job, *, number: int, options: Options = _DEFAULTS) -> Tables:
    """Return the tables of one step over all ranks that have it.

    An event belongs to the step during whose window it starts, a call to the step on the host.

    Args:
        job: What `scope.load` returned.
        number: n of `ProfilerStep#n`.
        options: Which events count.

    Raises:
        UsageError: No rank has such a step.
    """
    ranks: list[tuple[Timeline, pl.DataFrame]] = []
    for trace in job.ranks:
        for step_id in trace.steps.filter(trace.steps[Steps.number] == number)[Steps.step_id]:
            timeline = build_timeline(trace, options=options)
            ranks.append((narrow_to_step(timeline, step_id=step_id), find_idle_spans(timeline)))
    if not ranks:
        known = sorted({each for trace in job.ranks for each in trace.steps[Steps.number].to_list()})
        message = f"no rank has a step {number}; the traces hold {known or 'no profiler steps'}"
        raise UsageError(message)
    return summarize_tables(ranks)


def _kernel_tables(timelines: Sequence[Timeline]) -> KernelTables:
    """Return the device events of one or several ranks, grouped in the four ways."""
    has_stacks = any(not timeline.trace.python_calls.is_empty() for timeline in timelines)

    def table(by: KernelKey) -> pl.DataFrame:
        return summarize_kernels([key_events(timeline, by=by) for timeline in timelines])

    return KernelTables(
        by_name=table("name"),
        by_class=table("kernel_class"),
        by_operator=table("operator"),
        by_module=table("module") if has_stacks else None,
        absent={} if has_stacks else {"by_module": NO_STACKS},
    )
