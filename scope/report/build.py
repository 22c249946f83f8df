"""From the tables of a job to all results that a report shows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
import polars as pl
from msgspec.structs import replace

from scope.analysis.exposure import EXPOSED_KEYS, ExposedCollectives, compute_exposed_collectives
from scope.analysis.job import summed_ranks
from scope.analysis.options import Options
from scope.analysis.roofline import chosen_devices, compute_roofline, match_devices
from scope.analysis.step_time import compute_step_time
from scope.analysis.summary import analyze
from scope.analysis.tables import narrow_tables
from scope.errors import UsageError
from scope.hardware import intra_node_ceiling
from scope.report.doubtful_matches import say_doubtful_matches
from scope.report.recorded_slowest import say_slowest
from scope.report.results import ALL_PARTS, Results
from scope.structs import Record
from scope.trace.model import Job

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from scope.analysis.clock import ClockAlignment
    from scope.analysis.collective_roofline import CollectiveRoofline, LinkRates
    from scope.analysis.collectives import Collectives
    from scope.analysis.job import Analysis
    from scope.analysis.roofline import Roofline
    from scope.analysis.stragglers import Stragglers
    from scope.hardware import Gpu, GpuMatch
    from scope.report.results import Part
    from scope.trace.model import RankTrace

_NOTHING: Final[dict[str, str]] = dict.fromkeys(("collectives", "stragglers", "collective_roofline"), "not asked for")
_ONE_RANK: Final = "the traces of at least two ranks are needed"
_NO_CALLS: Final = "the traces hold no collective of a known rank"


class Choices(Record, frozen=True, kw_only=True):
    """What the user says about the job and about the figures.

    Attributes:
        options: Which events count, and as what.
        nodes: Node of every rank, for the tier of collectives; None to take the hosts that the traces name.
        links: Rates of links; None to take the link inside a node from the catalogue.
        gpu: What every device is; None to take it from the traces.
        catalogue: GPUs to choose from; None for the built-in catalogue.
        path_step: Number of the step whose critical path is wanted; None for that of median length.
        tables_step: Number of the step that the tables of kernels, launches, copies and blocking calls are of; None for
            the whole windows.
    """

    options: Options = msgspec.field(default_factory=Options)
    nodes: Mapping[int, str] | None = None
    links: LinkRates | None = None
    gpu: Gpu | None = None
    catalogue: Mapping[str, Gpu] | None = None
    path_step: int | None = None
    tables_step: int | None = None


def compute_results(job: Job, choices: Choices | None = None, *, parts: Collection[Part] = ALL_PARTS) -> Results:
    """Return everything that Scope says of a job; `scope.analyze` is this function.

    Args:
        job: What `scope.load` returned.
        choices: What the user says about it.
        parts: Which analyses to run beside those of single ranks.

    Raises:
        UsageError: `choices` names a step that no trace holds, or `job` is something else, such as a path.
    """
    if not isinstance(job, Job):  # pyright: ignore[reportUnnecessaryIsInstance] - people try the path
        message = f"scope.analyze takes what scope.load returns, not {job!r}: scope.analyze(scope.load({job!r}))"
        raise UsageError(message)
    chosen = choices or Choices()
    devices = {trace.label: _devices(trace, chosen) for trace in job.ranks}
    collectives, stragglers, links, absent = (None, None, None, _NOTHING)
    if "collectives" in parts or "stragglers" in parts:
        collectives, stragglers, links, absent = _across_ranks(job, chosen, devices, alone="collectives" in parts)
    wants_path = chosen.options.critical_path and "critical_path" in parts
    options = replace(chosen.options, critical_path=wants_path)
    analysis = analyze(job, options=options, by_launch="launched" in parts, path_step=chosen.path_step)
    step_times = _step_times(analysis)
    rooflines = _rooflines(job, devices, step_times) if "rooflines" in parts else {}
    analysis = _with_coverage(analysis, rooflines)
    if chosen.tables_step is not None:
        analysis = narrow_tables(analysis, job, number=chosen.tables_step)
    if collectives is not None:
        analysis = replace(analysis, warnings=(*analysis.warnings, *say_doubtful_matches(collectives)))
    if "stragglers" in parts:
        analysis = replace(analysis, warnings=(*analysis.warnings, *say_slowest(job, stragglers)))
    return Results(
        job=job,
        analysis=analysis if collectives is None else _with_clocks(analysis, collectives.clock),
        exposed=_exposed(job, _summed(analysis, step_times), options)
        if "exposed" in parts
        else ExposedCollectives.empty(),
        collectives=collectives,
        stragglers=stragglers,
        collective_roofline=links,
        rooflines=rooflines,
        absent=absent,
    )


def _with_coverage(analysis: Analysis, rooflines: Mapping[str, Roofline]) -> Analysis:
    """Return the analysis with the share of each rank's compute time that the roofline places."""
    ranks = tuple(
        replace(
            rank,
            quality=replace(rank.quality, roofline_coverage_ratio=rooflines[rank.label].coverage_ratio),
        )
        if rank.label in rooflines
        else rank
        for rank in analysis.ranks
    )
    return replace(analysis, ranks=ranks)


def _with_clocks(analysis: Analysis, clock: ClockAlignment) -> Analysis:
    """Return the analysis with the clock interval of every rank that shares a collective with another."""
    joined = {rank for component in clock.components if len(component) > 1 for rank in component}
    intervals = {offset.rank: offset.interval_ns for offset in clock.offsets if offset.rank in joined}
    ranks = tuple(
        replace(rank, quality=replace(rank.quality, clock_interval_ns=intervals[rank.rank]))
        if rank.rank in intervals
        else rank
        for rank in analysis.ranks
    )
    return replace(analysis, ranks=ranks)


def _across_ranks(
    job: Job, chosen: Choices, devices: Mapping[str, Mapping[int, GpuMatch]], *, alone: bool
) -> tuple[Collectives | None, Stragglers | None, CollectiveRoofline | None, dict[str, str]]:
    """Return collectives, stragglers and the collective roofline, and why one of them is None.

    Args:
        job: The job.
        chosen: What the user says about it.
        devices: The GPUs of every rank.
        alone: Whether the collectives of a single rank are wanted.
    """
    known = [trace for trace in job.ranks if trace.rank is not None]
    if all(trace.collective_calls.is_empty() for trace in known):
        return None, None, None, dict.fromkeys(_NOTHING, _NO_CALLS)
    if len(known) == 1 and not alone:
        return None, None, None, dict.fromkeys(_NOTHING, _ONE_RANK)
    # Matching and clocks are a third of the code of all analyses; one rank, the most frequent case, needs none of it.
    from scope.analysis.collectives import compute_collectives

    collectives = compute_collectives(job, nodes=chosen.nodes)
    if len(known) == 1:
        return collectives, None, None, dict.fromkeys(("stragglers", "collective_roofline"), _ONE_RANK)
    from scope.analysis.collective_roofline import compute_collective_roofline
    from scope.analysis.stragglers import compute_stragglers

    links = compute_collective_roofline(collectives, links=chosen.links or _links(devices.values()))
    return collectives, compute_stragglers(job, collectives), links, {}


def _devices(trace: RankTrace, chosen: Choices) -> dict[int, GpuMatch]:
    if chosen.gpu is not None:
        return chosen_devices(trace, chosen.gpu)
    return match_devices(trace, catalogue=chosen.catalogue)


def _step_times(analysis: Analysis) -> dict[str, pl.DataFrame]:
    """Return the step time of every rank's devices, by the label of the rank."""
    return {rank.label: compute_step_time(device.windows for device in rank.devices) for rank in analysis.ranks}


def _rooflines(
    job: Job, devices: Mapping[str, Mapping[int, GpuMatch]], step_times: Mapping[str, pl.DataFrame]
) -> dict[str, Roofline]:
    """Return the roofline of every rank that has device events."""
    return {
        trace.label: compute_roofline(trace, devices[trace.label], step_time=step_times[trace.label])
        for trace in job.ranks
        if not trace.device_events.is_empty()
    }


def _links(devices: Iterable[Mapping[int, GpuMatch]]) -> LinkRates:
    """Return the link inside a node of the job's GPUs, where all are of one kind."""
    from scope.analysis.collective_roofline import LinkRates

    gpus = {match.usable.gpu_id: match.usable for each in devices for match in each.values() if match.usable}
    if len(gpus) != 1:
        return LinkRates(source="unknown GPU" if not gpus else "GPUs of several kinds")
    ceiling = intra_node_ceiling(next(iter(gpus.values())))
    return LinkRates(node_bytes_per_s=ceiling.bytes_per_s, source=ceiling.bound_by)


def _summed(analysis: Analysis, step_times: Mapping[str, pl.DataFrame]) -> dict[str, pl.DataFrame]:
    """Return the step times of those ranks whose figures are added up."""
    return {rank.label: step_times[rank.label] for rank in summed_ranks(analysis.ranks)}


def _exposed(job: Job, step_times: Mapping[str, pl.DataFrame], options: Options) -> pl.DataFrame:
    """Return the exposed collectives of the ranks of these step times together."""
    tables = [
        compute_exposed_collectives(trace, step_time=step_times[trace.label], options=options)
        for trace in job.ranks
        if trace.label in step_times
    ]
    if len(tables) == 1:
        return tables[0]
    keys = list(EXPOSED_KEYS)
    sums = [column for column in ExposedCollectives.columns() if column not in keys]
    return (
        pl.concat(tables)
        .group_by(keys)
        .agg(pl.col(name).sum() for name in sums)
        .sort(pl.col(ExposedCollectives.exposed_ns), *keys, descending=[True, *(False for _ in keys)], nulls_last=True)
        .select(*(str(column) for column in ExposedCollectives.columns()))
    )
