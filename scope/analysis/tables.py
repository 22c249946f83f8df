"""The tables that group events and calls, for any choice of ranks and for one step."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Final, Self

from msgspec.structs import replace

from scope.analysis.copies import summarize_copies
from scope.analysis.idle import find_idle_spans
from scope.analysis.kernels import key_events, summarize_kernels
from scope.analysis.launches import compute_launch_delays, summarize_launches
from scope.analysis.memory import compute_memory_peaks
from scope.analysis.recompute import compute_recompute, sum_recompute
from scope.analysis.result import LazyResult
from scope.analysis.syncs import summarize_syncs
from scope.analysis.windows import build_timeline, narrow_to_step
from scope.errors import UsageError
from scope.trace.schema import Steps

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import polars as pl

    from scope.analysis.job import Analysis
    from scope.analysis.kernels import KernelKey
    from scope.analysis.launches import LaunchDelays
    from scope.analysis.memory import MemoryPeak
    from scope.analysis.options import Options
    from scope.analysis.recompute import Recompute
    from scope.analysis.windows import Timeline
    from scope.trace.model import Job, RankTrace

NO_STACKS: Final = (
    "no Python stacks were read: --modules reads them (in Python, ReadOptions(python_calls=True)), where traces were "
    "recorded with with_stack=True"
)


class KernelTables(LazyResult):
    """Device events of one or several ranks grouped in four ways, each the table `KernelStats`.

    Attributes:
        absent: Why there is no table by module, where there is none.
    """

    def __init__(self, timelines: Sequence[Timeline]) -> None:
        self._timelines = timelines
        self._has_stacks = any(not timeline.trace.python_calls.is_empty() for timeline in timelines)
        self.absent: Mapping[str, str] = {} if self._has_stacks else {"by_module": NO_STACKS}

    @cached_property
    def by_name(self) -> pl.DataFrame:
        """By the name of the kernel, copy or set."""
        return self._grouped("name")

    @cached_property
    def by_class(self) -> pl.DataFrame:
        """By class."""
        return self._grouped("kernel_class")

    @cached_property
    def by_operator(self) -> pl.DataFrame:
        """By the innermost operator around the launch."""
        return self._grouped("operator")

    @cached_property
    def by_module(self) -> pl.DataFrame | None:
        """By module; only for traces recorded with Python stacks and read with them."""
        return self._grouped("module") if self._has_stacks else None

    def check(self) -> Self:
        """Return the tables when one that is missing has its reason."""
        assert (self.by_module is None) == ("by_module" in self.absent)
        return self

    def _grouped(self, by: KernelKey) -> pl.DataFrame:
        return summarize_kernels([key_events(timeline, by=by) for timeline in self._timelines])


class Tables(LazyResult):
    """What groups events and calls, for one rank, for several together, or for one step of them.

    Kernels and recompute are of devices alone where a device ran anything: the time of a host is no part of theirs.

    Args:
        ranks: Each rank's events and what `scope.analysis.idle.find_idle_spans` returned for them.
    """

    def __init__(self, ranks: Sequence[tuple[Timeline, pl.DataFrame]]) -> None:
        self._ranks = ranks
        self._timelines = [timeline for timeline, _ in ranks]
        on_device = [timeline for timeline in self._timelines if not timeline.trace.is_host_timeline]
        self._of_one_kind = on_device if any(timeline.devices for timeline in on_device) else self._timelines

    @cached_property
    def delays(self) -> LaunchDelays:
        """Delays from launch to start."""
        return compute_launch_delays(self._timelines)

    @cached_property
    def kernels(self) -> KernelTables:
        """Device events grouped in four ways."""
        return KernelTables(self._of_one_kind)

    @cached_property
    def launches(self) -> pl.DataFrame:
        """The table `LaunchStats`."""
        return summarize_launches(self._timelines)

    @cached_property
    def copies(self) -> pl.DataFrame:
        """The table `CopyStats`."""
        return summarize_copies(self._timelines)

    @cached_property
    def syncs(self) -> pl.DataFrame:
        """The table `SyncStats`."""
        return summarize_syncs(self._ranks)

    @cached_property
    def memory(self) -> tuple[MemoryPeak, ...]:
        """The peak of every device whose memory was recorded, rank by rank."""
        return tuple(peak for timeline in self._timelines for peak in compute_memory_peaks(timeline.trace))

    @cached_property
    def recompute(self) -> Recompute:
        """How much of backward is forward computed again."""
        return sum_recompute(compute_recompute(timeline) for timeline in self._of_one_kind)


def narrow_tables(analysis: Analysis, job: Job, *, number: int) -> Analysis:
    """Return the analysis with the tables of one step alone; ranks that lack the step are left out.

    An event belongs to the step during whose window it starts, a call to the step on the host. The breakdowns, which
    have figures of every step already, stay those of the whole windows.

    Args:
        analysis: What `scope.analysis.summary.analyze` returned for the job.
        job: What `scope.load` returned.
        number: n of `ProfilerStep#n`.

    Raises:
        UsageError: No rank has such a step.
    """
    check_step(job, number)
    parts = [_of_step(trace, number, analysis.options) for trace in job.ranks]
    ranks = tuple(
        replace(rank, tables=Tables(found)) for rank, found in zip(analysis.ranks, parts, strict=True) if found
    )
    return replace(analysis, ranks=ranks, tables=Tables([each for found in parts for each in found]))


def _of_step(trace: RankTrace, number: int, options: Options) -> list[tuple[Timeline, pl.DataFrame]]:
    """Return a rank's events of a step, with the idle spans of its whole window; several where a number comes again."""
    ids = trace.steps.filter(trace.steps[Steps.number] == number)[Steps.step_id]
    if ids.is_empty():
        return []
    timeline = build_timeline(trace, options=options)
    idle = find_idle_spans(timeline)
    return [(narrow_to_step(timeline, step_id=step_id), idle) for step_id in ids]


def check_step(job: Job, number: int) -> None:
    """Raise `UsageError`, which says what steps there are, when no rank has a step."""
    known = sorted({each for trace in job.ranks for each in trace.steps[Steps.number].to_list()})
    if number not in known:
        message = f"no rank has a step {number}; the traces hold {', '.join(map(str, known)) or 'no profiler steps'}"
        if any("--window" in warning for warning in job.warnings):
            message += "; --window STEP reads another window"
        raise UsageError(message)
