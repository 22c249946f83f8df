"""Which figures a report shows, made from its results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from scope.analysis.collective_tables import CollectiveRooflineRows, CollectiveRows, MatchedCalls
from scope.analysis.idle import IDLE_CAUSES
from scope.analysis.kernels import KernelStats
from scope.analysis.roofline import RooflinePoints
from scope.report import figures
from scope.report.sections.breakdown import summed_over
from scope.report.sections.collectives import group_names
from scope.trace.schema import DeviceEvents, Memory
from scope.units import NS_PER_MS, format_ratio

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from scope.analysis.collective_roofline import CollectiveRoofline
    from scope.analysis.collectives import Collectives
    from scope.analysis.job import Analysis
    from scope.hardware import Gpu
    from scope.report.figures.style import Figure
    from scope.report.results import Results
    from scope.trace.model import RankTrace

_PARTS: Final = ("compute", "exposed_communication", "exposed_memory", "idle")
_MOST_LANES: Final = 64
_MOST_BUBBLES: Final = 2_000
_HOST: Final = 0


def make_figures(results: Results) -> dict[str, Figure]:
    """Return the figures of a report by name; one that has nothing to show is left out."""
    return dict(_named(results))


def _named(results: Results) -> Iterator[tuple[str, Figure]]:
    analysis = results.analysis
    summed = summed_over(analysis)
    over = f", summed over {summed}" if summed else ""
    if analysis.steps:
        yield "steps", figures.step_breakdown(step_bars(analysis), title=f"Where each step went{over}")
    if any(rank.breakdown is not None for rank in analysis.ranks):
        yield "ranks", figures.rank_breakdown(rank_bars(analysis))
    if any(rank.idle is not None for rank in analysis.ranks):
        yield "idle", figures.idle_causes(idle_bars(analysis))
    if not analysis.kernels.by_name.is_empty():
        yield "kernels", kernels_figure(analysis, over=over)
    if results.rooflines:
        yield "roofline", roofline_figure(results)
    yield from _collective_figures(results)
    if len({(step.number) for step in analysis.steps}) > 1 and len(analysis.ranks) > 1:
        yield "rank-steps", rank_steps_figure(analysis)
    spans = timeline_spans(results)
    if not spans.is_empty():
        start, end = spans[figures.TimelineSpans.start_ns].min(), spans[figures.TimelineSpans.end_ns].max()
        assert isinstance(start, int)
        assert isinstance(end, int)
        yield "timeline", figures.timeline(spans, start_ns=start, end_ns=end)
    samples = memory_samples(results)
    if not samples.is_empty():
        yield "memory", figures.memory_over_time(samples, capacities=memory_capacities(results))


def step_bars(analysis: Analysis) -> figures.StackedTimes:
    """Return the breakdown of each step, summed over devices."""
    return figures.StackedTimes(
        labels=[f"step {step.number}" for step in analysis.steps],
        parts={part: [getattr(step.breakdown, f"{part}_ns") for step in analysis.steps] for part in _PARTS},
    )


def rank_step_bars(analysis: Analysis, number: int) -> figures.StackedTimes:
    """Return the breakdown of one step on every rank and device; unknown where it has no window there."""
    parts = [
        (rank.label if len(rank.devices) == 1 else f"{rank.label} device {device.device}", part.breakdown)
        for rank in analysis.ranks
        for device in rank.devices
        for part in device.steps
        if part.step is not None and part.step.number == number
    ]
    return figures.StackedTimes(
        labels=[label for label, _ in parts],
        parts={
            name: [None if breakdown is None else getattr(breakdown, f"{name}_ns") for _, breakdown in parts]
            for name in _PARTS
        },
    )


def rank_bars(analysis: Analysis) -> figures.StackedTimes:
    """Return the breakdown of each rank, summed over its devices; unknown where a rank has none."""
    return figures.StackedTimes(
        labels=[rank.label for rank in analysis.ranks],
        parts={
            part: [None if rank.breakdown is None else getattr(rank.breakdown, f"{part}_ns") for rank in analysis.ranks]
            for part in _PARTS
        },
    )


def idle_bars(analysis: Analysis) -> figures.StackedTimes:
    """Return the idle time of each rank by cause."""
    return figures.StackedTimes(
        labels=[rank.label for rank in analysis.ranks],
        parts={
            cause: [None if rank.idle is None else getattr(rank.idle, f"{cause}_ns") for rank in analysis.ranks]
            for cause in IDLE_CAUSES
        },
    )


def kernels_figure(analysis: Analysis, *, over: str = "") -> Figure:
    """Return the kernels of all ranks by time; the title ends with `over`, which says what the times are sums over."""
    rows = analysis.kernels.by_name.select(KernelStats.key, KernelStats.total_ns, KernelStats.kernel_class).rows()
    names = [name or "without a name" for name, _, _ in rows]
    title = "Kernels by time"
    if all(rank.is_host_timeline for rank in analysis.ranks):
        title = "Operators on the host by time"
    title += over
    return figures.kernels_by_time(names, [total for _, total, _ in rows], [each for _, _, each in rows], title=title)


def roofline_points(results: Results) -> pl.DataFrame:
    """Return the rows of `RooflinePoints` of all ranks that have a place under a roof, most time first."""
    points = pl.concat([roofline.points for roofline in results.rooflines.values()])
    return points.filter(
        pl.col(RooflinePoints.reason).is_null(), pl.col(RooflinePoints.flops) > 0, pl.col(RooflinePoints.num_bytes) > 0
    ).sort(RooflinePoints.duration_ns, descending=True, maintain_order=True)


def roofline_figure(results: Results) -> Figure:
    """Return the kernels with FLOPs under the roofs of the math paths that they use.

    The `place` of a bubble is its row in `roofline_points`.
    """
    placed = roofline_points(results)
    bubbles = [_bubble(row, place) for place, row in enumerate(placed.head(_MOST_BUBBLES).iter_rows(named=True))]
    compute = sum(each.compute_ns for each in results.rooflines.values())
    covered = sum(each.placed_ns for each in results.rooflines.values())
    note = f"{format_ratio(covered / compute)} of compute time is placed" if compute else ""
    return figures.roofline(bubbles, list(_ceilings(results, placed)), note=note)


def rank_steps_figure(analysis: Analysis) -> Figure:
    """Return how long each rank was busy other than waiting in communication, step by step."""
    numbers = [step.number for step in analysis.steps]
    places = {number: place for place, number in enumerate(numbers)}
    cells = [
        (places[part.step.number], row, (part.breakdown.compute_ns + part.breakdown.exposed_memory_ns) / 1e6)
        for row, rank in enumerate(analysis.ranks)
        for device in rank.devices[:1]
        for part in device.steps
        if part.step is not None and part.breakdown is not None and part.step.number in places
    ]
    axes = figures.HeatAxes(
        title="Compute and copies of each rank and step",
        x_title="Step",
        y_title="Rank",
        x_labels=[str(number) for number in numbers],
        y_labels=[rank.label for rank in analysis.ranks],
        value_title="Time (ms)",
        scale="diverging",
    )
    return figures.heat_map(pl.DataFrame(cells, schema=figures.HeatCells.schema(), orient="row"), axes)


def timeline_spans(results: Results) -> pl.DataFrame:
    """Return what ran on the first lanes of the job: one a rank, device and stream."""
    frames: list[pl.DataFrame] = []
    for trace in results.job.ranks:
        if len(frames) >= _MOST_LANES:
            break
        if not trace.device_events.is_empty():
            frames.append(_lanes(trace))
    if not frames:
        return figures.TimelineSpans.empty()
    spans = pl.concat(frames)
    lanes = spans[figures.TimelineSpans.lane].unique(maintain_order=True).head(_MOST_LANES)
    return spans.filter(pl.col(figures.TimelineSpans.lane).is_in(lanes.implode()))


def memory_samples(results: Results) -> pl.DataFrame:
    """Return allocated and reserved memory of every device whose events were recorded.

    Of the host it is what is allocated since the recording began, and nothing that is reserved: torch counts no more.
    """
    frames = [
        _memory(trace, name, column)
        for trace in results.job.ranks
        for name, column in (("allocated", Memory.allocated_bytes), ("reserved", Memory.reserved_bytes))
        if not trace.memory.is_empty()
    ]
    return pl.concat(frames) if frames else figures.Samples.empty()


def _lanes(trace: RankTrace) -> pl.DataFrame:
    events = trace.device_events.sort(DeviceEvents.device, DeviceEvents.stream, DeviceEvents.start_ns)
    several = events[DeviceEvents.device].n_unique() > 1
    stream = pl.format("stream {}", pl.col(DeviceEvents.stream))
    lane = pl.format("device {} {}", pl.col(DeviceEvents.device), stream) if several else stream
    return events.select(
        pl.format("{} {}", pl.lit(trace.label), lane).cast(pl.Categorical()).alias(figures.TimelineSpans.lane),
        pl.col(DeviceEvents.category).cast(pl.String).cast(pl.Categorical()).alias(figures.TimelineSpans.category),
        pl.col(DeviceEvents.name).alias(figures.TimelineSpans.name),
        pl.col(DeviceEvents.start_ns).alias(figures.TimelineSpans.start_ns),
        pl.col(DeviceEvents.end_ns).alias(figures.TimelineSpans.end_ns),
    )


def _memory(trace: RankTrace, name: str, column: str) -> pl.DataFrame:
    is_host = pl.col(Memory.device_type) == _HOST
    label = pl.lit(trace.label)
    device = pl.format("{} device {} " + name, label, pl.col(Memory.device).fill_null(-1))
    host = pl.format("{} host, allocated since the recording began", label)
    is_known = pl.col(column).is_not_null() & ~(is_host & (name == "reserved"))
    return trace.memory.filter(is_known).select(
        pl.when(is_host).then(host).otherwise(device).alias(figures.Samples.name),
        pl.col(Memory.time_ns).alias(figures.Samples.time_ns),
        pl.col(column).cast(pl.Float64).alias(figures.Samples.value),
    )


def memory_capacities(results: Results) -> dict[str, float]:
    """Return the memory of the devices, in bytes, by the name of the limit."""
    devices = [each for trace in results.job.ranks for each in trace.devices]
    sizes = {each.total_memory_bytes for each in devices if each.total_memory_bytes}
    return {f"memory of the device ({size / 1e9:.1f} GB)": float(size) for size in sorted(sizes)}


def _bubble(row: Mapping[str, object], place: int) -> figures.RooflineBubble:
    shapes = "".join(str(row[RooflinePoints.shapes] or "shapes unknown").split())
    return figures.RooflineBubble(
        name=str(row[RooflinePoints.operator] or row[RooflinePoints.kernel]),
        detail=f"{shapes} {row[RooflinePoints.path] or ''}",
        kernel_class=str(row[RooflinePoints.kernel_class]),
        flop_per_byte=_number(row[RooflinePoints.intensity_flop_per_byte]),
        flop_per_s=_number(row[RooflinePoints.achieved_flop_per_s]),
        attained_ratio=_number(row[RooflinePoints.attained_ratio]),
        total_ns=int(_number(row[RooflinePoints.duration_ns])),
        count=int(_number(row[RooflinePoints.num_kernels])),
        place=place,
    )


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


def _ceilings(results: Results, placed: pl.DataFrame) -> Iterator[figures.RooflineCeiling]:
    """Yield one roof for each GPU and math path in use."""
    paths = placed[RooflinePoints.path].drop_nulls().unique().sort().to_list()
    gpus: dict[str, Gpu] = {}
    for roofline in results.rooflines.values():
        gpus |= {match.usable.title: match.usable for match in roofline.devices if match.usable is not None}
    for title, gpu in gpus.items():
        for path in paths:
            units, _, dtype = path.partition(" ")
            peak = gpu.matrix_peak(dtype) if units == "matrix" else gpu.vector_peak(dtype)
            if peak is not None and gpu.memory_bytes_per_s is not None:
                yield figures.RooflineCeiling(
                    name=f"{title}: {path}", peak_flop_per_s=peak.value, bytes_per_s=gpu.memory_bytes_per_s.value
                )


def _collective_figures(results: Results) -> Iterator[tuple[str, Figure]]:
    links = results.collective_roofline
    if links is not None and not links.points.is_empty():
        yield "collectives", bandwidth_figure(links)
    if results.collectives is not None and results.stragglers is not None:
        yield "waits", figures.wait_and_transfer(wait_bars(results))


def bandwidth_figure(links: CollectiveRoofline) -> Figure:
    """Return the size of collectives against their bus bandwidth, under the ceilings of the links."""
    names = group_names(links)
    bubbles = [
        figures.CollectiveBubble(
            operation=str(row[CollectiveRooflineRows.operation]),
            detail=f"{names[row[CollectiveRooflineRows.group_id]]} {row[CollectiveRooflineRows.tier] or ''}",
            message_bytes=row[CollectiveRooflineRows.message_bytes],
            busbw_bytes_per_s=row[CollectiveRooflineRows.median_busbw_bytes_per_s],
            total_ns=row[CollectiveRooflineRows.total_transfer_ns],
            count=row[CollectiveRooflineRows.num_collectives],
        )
        for row in links.points.iter_rows(named=True)
    ]
    known = links.points.select(CollectiveRooflineRows.tier, CollectiveRooflineRows.ceiling_bytes_per_s).unique()
    ceilings = [
        figures.BandwidthCeiling(name=f"ceiling, {tier}", bytes_per_s=ceiling)
        for tier, ceiling in known.drop_nulls().sort(known.columns).iter_rows()
    ]
    return figures.collective_bandwidth(bubbles, ceilings)


def lateness_figure(collectives: Collectives) -> Figure:
    """Return how late each rank arrived at each collective, after the first rank of its group.

    Left out are collectives that the edge of a window cuts: how late ranks were may be the profiler's doing.
    """
    uncut = collectives.collectives.filter(~pl.col(CollectiveRows.is_cut))
    calls = collectives.calls.filter(
        pl.col(MatchedCalls.lateness_ns).is_not_null(),
        pl.col(MatchedCalls.collective_id).is_in(uncut[CollectiveRows.collective_id].implode()),
    )
    ranks = calls[MatchedCalls.rank].unique().sort()
    order = uncut.filter(
        pl.col(CollectiveRows.collective_id).is_in(calls[MatchedCalls.collective_id].unique().implode())
    )
    numbers = order[CollectiveRows.collective_id]
    cells = calls.select(
        pl.col(MatchedCalls.collective_id)
        .replace_strict(numbers, range(len(numbers)), return_dtype=pl.Int64)
        .alias(figures.HeatCells.x),
        pl.col(MatchedCalls.rank)
        .replace_strict(ranks, range(len(ranks)), return_dtype=pl.Int64)
        .alias(figures.HeatCells.y),
        (pl.col(MatchedCalls.lateness_ns) / NS_PER_MS).alias(figures.HeatCells.value),
    )
    axes = figures.HeatAxes(
        title="How late each rank arrived at each collective",
        x_title="Collective, in the order of time",
        y_title="Rank",
        x_labels=[str(number) for number in numbers],
        y_labels=[str(rank) for rank in ranks],
        value_title="after the first (ms)",
    )
    return figures.heat_map(cells, axes)


def wait_bars(results: Results) -> figures.StackedTimes:
    """Return what each rank waited in collectives that no window's edge cuts, and how long all moved data."""
    assert results.collectives is not None
    transfers = results.collectives.collectives.select(
        CollectiveRows.collective_id, CollectiveRows.transfer_ns, CollectiveRows.is_cut
    )
    by_rank = (
        results.collectives.calls.join(transfers, on=MatchedCalls.collective_id)
        .group_by(MatchedCalls.rank)
        .agg(
            pl.col(MatchedCalls.wait_ns).filter(~pl.col(CollectiveRows.is_cut)).sum(),
            pl.col(CollectiveRows.transfer_ns).sum(),
        )
        .sort(MatchedCalls.rank)
    )
    return figures.StackedTimes(
        labels=[f"rank {rank}" for rank in by_rank[MatchedCalls.rank].to_list()],
        parts={
            "wait": by_rank[MatchedCalls.wait_ns].to_list(),
            "transfer": by_rank[CollectiveRows.transfer_ns].to_list(),
        },
    )
