"""From the tables of a job to all results that a report shows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

import polars as pl

from scope.analysis.collective_roofline import LinkRates, compute_collective_roofline
from scope.analysis.collectives import compute_collectives
from scope.analysis.exposure import ExposedCollectives, compute_exposed_collectives
from scope.analysis.options import Options
from scope.analysis.roofline import chosen_devices, compute_roofline, match_devices
from scope.analysis.stragglers import compute_stragglers
from scope.analysis.summary import analyze
from scope.hardware import intra_node_ceiling
from scope.report.results import Results

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from scope.analysis.collective_roofline import CollectiveRoofline
    from scope.analysis.collectives import Collectives
    from scope.analysis.roofline import Roofline
    from scope.analysis.stragglers import Stragglers
    from scope.hardware import Gpu, GpuMatch
    from scope.trace.model import Job, RankTrace

Part = Literal["collectives", "rooflines", "exposed"]
ALL_PARTS: Final[frozenset[Part]] = frozenset({"collectives", "rooflines", "exposed"})
"""What can be left out where only one section is wanted; the analyses of single ranks always run."""

_NOT_ASKED: Final = "not asked for"
_ONE_RANK: Final = "the traces of at least two ranks are needed"
_NO_CALLS: Final = "the traces hold no collective of a known rank"


@dataclass(frozen=True, kw_only=True, slots=True)
class Choices:
    """What the user says about the job and about the figures.

    Attributes:
        options: Which events count, and as what.
        nodes: Node of every rank, for the tier of collectives; None to take the hosts that the traces name.
        links: Rates of links; None to take the link inside a node from the catalogue.
        gpu: What every device is; None to take it from the traces.
        catalogue: GPUs to choose from; None for the built-in catalogue.
    """

    options: Options = field(default_factory=Options)
    nodes: Mapping[int, str] | None = None
    links: LinkRates | None = None
    gpu: Gpu | None = None
    catalogue: Mapping[str, Gpu] | None = None


def compute_results(job: Job, choices: Choices | None = None, *, parts: Collection[Part] = ALL_PARTS) -> Results:
    """Run the analyses of a job.

    Args:
        job: What `scope.load` returned.
        choices: What the user says about it.
        parts: Which analyses to run beside those of single ranks.
    """
    chosen = choices or Choices()
    devices = {trace.label: _devices(trace, chosen) for trace in job.ranks}
    collectives, absent = (None, _NOT_ASKED) if "collectives" not in parts else _collectives(job, chosen)
    stragglers, links, why = None, None, absent or _ONE_RANK
    if collectives is not None and sum(trace.rank is not None for trace in job.ranks) > 1:
        stragglers = compute_stragglers(job, collectives)
        links = compute_collective_roofline(collectives, links=chosen.links or _links(devices.values()))
    return Results(
        job=job,
        analysis=analyze(job, options=chosen.options),
        exposed=_exposed(job) if "exposed" in parts else ExposedCollectives.empty(),
        collectives=collectives,
        stragglers=stragglers,
        collective_roofline=links,
        rooflines=_rooflines(job, devices) if "rooflines" in parts else {},
        absent=_absent(collectives, stragglers, links, (absent, why)),
    )


def _collectives(job: Job, chosen: Choices) -> tuple[Collectives | None, str]:
    known = [trace for trace in job.ranks if trace.rank is not None]
    if all(trace.collective_calls.is_empty() for trace in known):
        return None, _NO_CALLS
    return compute_collectives(job, nodes=chosen.nodes), ""


def _absent(
    collectives: Collectives | None,
    stragglers: Stragglers | None,
    links: CollectiveRoofline | None,
    reasons: tuple[str, str],
) -> dict[str, str]:
    found = {"collectives": collectives, "stragglers": stragglers, "collective_roofline": links}
    return {name: reasons[0] if name == "collectives" else reasons[1] for name, value in found.items() if value is None}


def _devices(trace: RankTrace, chosen: Choices) -> dict[int, GpuMatch]:
    if chosen.gpu is not None:
        return chosen_devices(trace, chosen.gpu)
    return match_devices(trace, catalogue=chosen.catalogue)


def _rooflines(job: Job, devices: Mapping[str, Mapping[int, GpuMatch]]) -> dict[str, Roofline]:
    """Return the roofline of every rank that has device events."""
    return {
        trace.label: compute_roofline(trace, devices[trace.label])
        for trace in job.ranks
        if not trace.device_events.is_empty()
    }


def _links(devices: Iterable[Mapping[int, GpuMatch]]) -> LinkRates:
    """Return the link inside a node of the job's GPUs, where all are of one kind."""
    gpus = {match.usable.gpu_id: match.usable for each in devices for match in each.values() if match.usable}
    if len(gpus) != 1:
        return LinkRates(source="unknown GPU" if not gpus else "GPUs of several kinds")
    ceiling = intra_node_ceiling(next(iter(gpus.values())))
    return LinkRates(node_bytes_per_s=ceiling.bytes_per_s, source=ceiling.bound_by)


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
