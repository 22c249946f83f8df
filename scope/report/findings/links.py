"""Findings about links: one that is slower than its sisters, and messages that run far under what their link allows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import polars as pl

from scope.analysis.collective_tables import ROOFLINE_KEYS, CollectiveRooflineRows, CollectiveRows, GroupRows
from scope.analysis.group_names import name_group
from scope.analysis.medians import median_rate
from scope.analysis.own_time_noise import NOISE_FLOOR_NS
from scope.report.findings.collectives import SMALL_BYTES, STEP_TRANSFER, in_step_time, judged_sums, say_as_seen
from scope.report.findings.model import Evidence, Finding, Where
from scope.report.sections.collectives import group_names
from scope.report.sections.quality import format_ranks
from scope.structs import Record
from scope.units import format_bandwidth, format_bytes, format_duration, format_ratio

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from scope.analysis.collective_roofline import CollectiveRoofline
    from scope.analysis.collectives import Collectives
    from scope.analysis.replay import Replay, Shifts
    from scope.analysis.stragglers import Stragglers
    from scope.report.findings.basis import Basis
    from scope.report.results import Results

LARGE_BYTES: Final = 16_000_000
SLOW_RATIO: Final = 0.5
SLOW_SHARE: Final = 0.01
SISTER_RATIO: Final = 0.75
"""A group that reaches less than this of what its sisters do has a slow link; one of two links gone leaves 0.5."""
_MOST_NAMED: Final = 4

_GROUP_KEYS: Final = (CollectiveRooflineRows.group_id, *ROOFLINE_KEYS)
_ACTION: Final = (
    "Check which link carries it: NVLink and P2P enabled inside the node (NCCL_DEBUG=INFO), one NIC per GPU "
    "on the right NUMA node and GPUDirect RDMA across nodes; look for a slow or down-trained link and for "
    "compute kernels that starve the collective of SMs."
)


class _SlowLink(Record, frozen=True, kw_only=True):
    """A group, or the pairs of one, that moves data slower than its sisters."""

    name: str
    ranks: tuple[int, ...]
    rows: pl.DataFrame
    """Its slow rows of `CollectiveRooflineRows`, largest total first."""

    @property
    def called(self) -> str:
        """Name and ranks of the group."""
        return f"{self.name} [{format_ranks(self.ranks)}]"


def slow_link(results: Results, basis: Basis) -> Iterator[Finding]:
    """Yield a finding for each group that reaches less than 75 % of its sisters with messages of 1 MB and more.

    Its cost is what all devices would gain if it moved data as its sisters do; where that is less than what its own
    ranks stand still for, because others are as late, it is the latter.
    """
    for link, shifts, cost in _costly_links(results, basis):
        yield _link_finding(link, shifts, cost, basis, results.stragglers)


def slow_link_costs(results: Results, basis: Basis) -> dict[str, int]:
    """Return, for each slow link that is a finding, what it costs in step time: communication that nothing hides."""
    return {link.called: cost for link, _, cost in _costly_links(results, basis)}


def _costly_links(results: Results, basis: Basis) -> Iterator[tuple[_SlowLink, Shifts | None, int]]:
    """Yield the slow links that cost enough to be a finding, with what changes without each and what it costs."""
    roofline, collectives = results.collective_roofline, results.collectives
    lazy = None if results.stragglers is None else results.stragglers.lazy
    if roofline is None or collectives is None or lazy is None:
        return
    from scope.analysis.savings import MOST_REPLAYED

    for place, link in enumerate(_links(_outliers(roofline), roofline.groups)):
        ratios = _ratios(link, collectives)
        shifts = lazy.without_slow_link(ratios) if place < MOST_REPLAYED else None
        cost = basis.within(_cost(results, lazy.replay, ratios, shifts))
        if basis.share(cost) >= SLOW_SHARE:
            yield link, shifts, cost


def slow_collective(results: Results, basis: Basis) -> Iterator[Finding]:
    """Yield a finding for each kind of message of 16 MB and more that reaches less than half of its link.

    Groups that are slower than their sisters are left out: they are findings of their own.
    """
    roofline, collectives = results.collective_roofline, results.collectives
    if roofline is None or collectives is None:
        return
    large = roofline.points.filter(
        pl.col(CollectiveRooflineRows.message_bytes) >= LARGE_BYTES,
        pl.col(CollectiveRooflineRows.attained_ratio) < SLOW_RATIO,
    ).join(_outliers(roofline), on=_GROUP_KEYS, how="anti", nulls_equal=True)
    if large.is_empty():
        return
    spent = _measured(results, collectives).group_by(_GROUP_KEYS).agg(pl.col(STEP_TRANSFER).sum())
    busbw = pl.col(CollectiveRooflineRows.median_busbw_bytes_per_s)
    slow = (
        large.join(spent, on=_GROUP_KEYS, how="left", nulls_equal=True, maintain_order="left")
        .group_by(ROOFLINE_KEYS, maintain_order=True)
        .agg(
            pl.col(CollectiveRooflineRows.group_id),
            median_rate(busbw),
            pl.col(CollectiveRooflineRows.ceiling_bytes_per_s).first(),
            (pl.col(STEP_TRANSFER) * (1 - pl.col(CollectiveRooflineRows.attained_ratio))).sum().alias(STEP_TRANSFER),
        )
    )
    for row in slow.iter_rows(named=True):
        cost = basis.within(round(row[STEP_TRANSFER]))
        if basis.share(cost) >= SLOW_SHARE:
            yield _slow_finding(row, cost, basis.share(cost), roofline)


def _outliers(roofline: CollectiveRoofline) -> pl.DataFrame:
    return roofline.points.filter(
        pl.col(CollectiveRooflineRows.message_bytes) >= SMALL_BYTES,
        pl.col(CollectiveRooflineRows.sister_ratio) < SISTER_RATIO,
    )


def _links(outliers: pl.DataFrame, groups: pl.DataFrame) -> list[_SlowLink]:
    """Return the slow links, that with the longest transfers first; pairs of one process group are one link."""
    columns = (GroupRows.group_id, GroupRows.name, GroupRows.description, GroupRows.ranks, GroupRows.is_pair)
    found: dict[object, list[int]] = {}
    names: dict[object, tuple[str, set[int]]] = {}
    by_id = {row[0]: row[1:] for row in groups.select(columns).iter_rows()}
    for group_id in outliers[CollectiveRooflineRows.group_id].unique(maintain_order=True).to_list():
        name, description, ranks, is_pair = by_id[group_id]
        key = (name, description) if is_pair else group_id
        found.setdefault(key, []).append(group_id)
        names.setdefault(key, (name_group(name, description=description), set()))[1].update(ranks or ())
    return [
        _SlowLink(
            name=called,
            ranks=tuple(sorted(ranks)),
            rows=outliers.filter(pl.col(CollectiveRooflineRows.group_id).is_in(found[key])),
        )
        for key, (called, ranks) in names.items()
    ]


def _ratios(link: _SlowLink, collectives: Collectives) -> dict[int, float]:
    """Return, by collective, the share of its transfer that it would take at the bandwidth of its sisters."""
    shape = collectives.groups.select(GroupRows.group_id, GroupRows.num_ranks_on_narrowest_node)
    sisters = link.rows.select(*_GROUP_KEYS, CollectiveRooflineRows.sister_busbw_bytes_per_s)
    ratio = pl.col(CollectiveRows.busbw_bytes_per_s) / pl.col(CollectiveRooflineRows.sister_busbw_bytes_per_s)
    rows = (
        collectives.collectives.filter(CollectiveRows.is_complete, pl.col(CollectiveRows.busbw_bytes_per_s) > 0)
        .join(shape, on=GroupRows.group_id, how="left")
        .join(sisters, on=_GROUP_KEYS, nulls_equal=True)
        .select(CollectiveRows.collective_id, pl.min_horizontal(ratio, 1.0))
    )
    return dict(rows.iter_rows())


def _cost(results: Results, replay: Replay, ratios: Mapping[int, float], shifts: Shifts | None) -> int:
    """Return what a slow link costs in step time over all devices."""
    from scope.analysis.savings import exposed_excess_rows

    excess = exposed_excess_rows(replay, ratios)
    own = judged_sums(results, ((0, rank, step, time_ns) for rank, step, time_ns in excess)).get(0, 0)
    if shifts is None:
        return own
    gained = judged_sums(results, ((0, rank, step, saved) for (rank, step), saved in shifts.by_step_ns.items()))
    return max(own, gained.get(0, 0))


def _measured(results: Results, collectives: Collectives) -> pl.DataFrame:
    shape = collectives.groups.select(GroupRows.group_id, GroupRows.num_ranks_on_narrowest_node)
    measured = in_step_time(results, collectives).filter(
        CollectiveRows.is_complete, pl.col(CollectiveRows.busbw_bytes_per_s) > 0
    )
    return measured.join(shape, on=GroupRows.group_id, how="left")


def _link_finding(
    link: _SlowLink, shifts: Shifts | None, cost_ns: int, basis: Basis, stragglers: Stragglers | None
) -> Finding:
    row = link.rows.row(0, named=True)
    busbw: float = row[CollectiveRooflineRows.median_busbw_bytes_per_s]
    sisters: float = row[CollectiveRooflineRows.sister_busbw_bytes_per_s]
    num_sisters: int = row[CollectiveRooflineRows.num_sisters]
    message = f"{row[CollectiveRooflineRows.operation]} of {format_bytes(row[CollectiveRooflineRows.message_bytes])}"
    others = "its sister group" if num_sisters == 1 else f"its {num_sisters:,} sister groups"
    evidence = [
        Evidence.of("busbw_bytes_per_s", "busbw", busbw),
        Evidence.of("sister_busbw_bytes_per_s", "sisters", sisters),
        Evidence.of("sister_ratio", "of the sisters", busbw / sisters),
        Evidence.of("num_sisters", "sister groups", num_sisters),
    ]
    ceiling = row[CollectiveRooflineRows.ceiling_bytes_per_s]
    if ceiling is not None:
        evidence.append(Evidence.of("ceiling_bytes_per_s", "ceiling", ceiling))
    saves, seen = "", say_as_seen(stragglers)
    # Where ranks are missing, others may wait for these behind one of those.
    if shifts is not None and (shifts.job_ns > NOISE_FLOOR_NS or not seen):
        evidence.append(Evidence.of("saving_ns", "mending it alone saves", shifts.job_ns))
        saved = format_duration(shifts.job_ns) if shifts.job_ns > 0 else "nothing, since others are as late"
        saves = f"; mending it alone saves {saved}{seen}"
    return Finding(
        kind="slow_collective",
        title=(
            f"{link.called} runs at {format_bandwidth(busbw)} in {message}, {others} at "
            f"{format_bandwidth(sisters)}{saves}: it costs {basis.text(cost_ns)}"
        ),
        where=Where(ranks=link.ranks, groups=(link.called,)),
        evidence=tuple(evidence),
        cost_ns=cost_ns,
        share_ratio=basis.share(cost_ns),
        action=f"Links of its sisters do the same faster, so the hardware allows more. {_ACTION}",
    )


def _slow_finding(row: dict[str, Any], cost: int, share: float, roofline: CollectiveRoofline) -> Finding:
    busbw: float = row[CollectiveRooflineRows.median_busbw_bytes_per_s]
    ceiling: float = row[CollectiveRooflineRows.ceiling_bytes_per_s]
    size: int = row[CollectiveRooflineRows.message_bytes]
    operation, num_ranks = row[CollectiveRooflineRows.operation], row[CollectiveRooflineRows.num_ranks]
    where = {"node": "inside a node", "network": "across the network"}.get(row[CollectiveRooflineRows.tier], "")
    names = group_names(roofline)
    groups = tuple(names[each] for each in sorted(row[CollectiveRooflineRows.group_id]))
    more = (f"{len(groups) - _MOST_NAMED:,} more groups",) if len(groups) > _MOST_NAMED else ()
    return Finding(
        kind="slow_collective",
        title=(
            f"{operation} of {format_bytes(size)} among {num_ranks} ranks {where} runs at {format_bandwidth(busbw)}, "
            f"{format_ratio(busbw / ceiling)} of its link"
        ).replace("  ", " "),
        where=Where(groups=(*groups[:_MOST_NAMED], *more)),
        evidence=(
            Evidence.of("busbw_bytes_per_s", "busbw", busbw),
            Evidence.of("ceiling_bytes_per_s", "ceiling", ceiling),
            Evidence.of("attained_ratio", "of the link", busbw / ceiling),
            Evidence.of("num_groups", "groups", len(groups)),
        ),
        cost_ns=cost,
        share_ratio=share,
        action=_ACTION,
    )
