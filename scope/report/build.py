"""From the tables of a job to all results that a report shows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import polars as pl

from scope.analysis.collectives import compute_collectives
from scope.analysis.exposure import ExposedCollectives, compute_exposed_collectives
from scope.analysis.options import Options
from scope.analysis.roofline import chosen_devices, compute_roofline
from scope.analysis.summary import analyze
from scope.report.results import Results

if TYPE_CHECKING:
    from collections.abc import Mapping

    from scope.analysis.collective_roofline import LinkRates
    from scope.analysis.collectives import Collectives
    from scope.analysis.roofline import Roofline
    from scope.hardware import Gpu
    from scope.trace.model import Job

_ONE_RANK: Final = "the traces of at least two ranks are needed"
_NO_CALLS: Final = "the traces hold no collective of a known rank"


@dataclass(frozen=True, kw_only=True, slots=True)
class Choices:
    """What the user says about the job and about the figures.

    Attributes:
        options: Which events count, and as what.
        nodes: Node of every rank, for the tier of collectives; None when unknown.
        links: Rates of links that the user knows.
        gpu: What every device is; None to take it from the traces.
    """

    options: Options = field(default_factory=Options)
    nodes: Mapping[int, str] | None = None
    links: LinkRates | None = None
    gpu: Gpu | None = None


def compute_results(job: Job, choices: Choices | None = None) -> Results:
    """Run every analysis of a job.

    Args:
        job: What `scope.load` returned.
        choices: What the user says about it.
    """
    chosen = choices or Choices()
    known = [trace for trace in job.ranks if trace.rank is not None]
    absent: dict[str, str] = {}
    collectives: Collectives | None = None
    if any(not trace.collective_calls.is_empty() for trace in known):
        collectives = compute_collectives(job, nodes=chosen.nodes)
    else:
        absent |= dict.fromkeys(("collectives", "stragglers", "collective_roofline"), _NO_CALLS)
    stragglers = links = None
    return Results(
        job=job,
        analysis=analyze(job, options=chosen.options),
        exposed=_exposed(job),
        collectives=collectives,
        stragglers=stragglers,
        collective_roofline=links,
        rooflines=_rooflines(job, chosen.gpu),
        absent=absent,
    )


def _rooflines(job: Job, gpu: Gpu | None) -> dict[str, Roofline]:
    """Return the roofline of every rank that has device events."""
    with_devices = [trace for trace in job.ranks if not trace.device_events.is_empty()]
    return {
        trace.label: compute_roofline(trace, None if gpu is None else chosen_devices(trace, gpu))
        for trace in with_devices
    }


def _exposed(job: Job) -> pl.DataFrame:
    """Return the exposed collectives of all ranks together."""
    tables = [compute_exposed_collectives(trace) for trace in job.ranks]
    if len(tables) == 1:
        return tables[0]
    sums = (ExposedCollectives.num_calls, ExposedCollectives.total_ns, ExposedCollectives.exposed_ns)
    keys = [column for column in ExposedCollectives.columns() if column not in sums]
    return (
        pl.concat(tables)
        .group_by(keys)
        .agg(pl.col(name).sum() for name in sums)
        .sort(pl.col(ExposedCollectives.exposed_ns), *keys, descending=[True, *(False for _ in keys)], nulls_last=True)
        .select(*(str(column) for column in ExposedCollectives.columns()))
    )
