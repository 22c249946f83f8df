"""How close each kernel comes to what its GPU can do: the roofline of every compute kernel.

Definitions (Williams et al. 2009): intensity = FLOPs / bytes; ceiling = min(peak of the units used, intensity x memory
bandwidth); time at the ceiling = max(FLOPs / peak, bytes / bandwidth); attained = time at the ceiling / duration, which
is achieved / ceiling where there are FLOPs. Bytes are the least possible traffic, so a kernel that caches badly attains
little, and one whose operands sit in the cache already may attain more than 1: that is a finding, not an error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from scope.analysis import spans
from scope.analysis.kernel_work import KernelWork, compute_kernel_work
from scope.analysis.result import Result
from scope.analysis.step_time import starts_within
from scope.hardware import DeviceFacts, GpuMatch, match_gpu
from scope.trace.columns import Column, Table
from scope.trace.schema import KERNEL_CLASSES
from scope.units import NS_PER_S, NS_PER_US

if TYPE_CHECKING:
    from collections.abc import Mapping

    from scope.hardware import Gpu
    from scope.trace.model import RankTrace

BOUNDS: Final = ("compute", "memory", "latency")
"""What limits a kernel. `latency`: too short for either (less than 2 us at the ceiling, less than 10 us in fact)."""

_LATENCY_CEILING_NS: Final = 2 * NS_PER_US
_LATENCY_DURATION_NS: Final = 10 * NS_PER_US
_MOST: Final = 2.0**62
"""A larger sum is nonsense of broken shapes, and would not fit its column."""
_PEAK: Final = "peak_flop_per_s"
_BANDWIDTH: Final = "bandwidth_bytes_per_s"
_CEILING: Final = "kernel_ceiling_ns"
_LANE: Final = "lane"
_STREAMS: Final = "streams"
_ALONE: Final = "alone_ns"
_LENGTH: Final = "length_ns"
_SAVING: Final = "kernel_saving_ns"
_PLACED: Final = "is_placed"
_EXCESS: Final = "compute_less_memory_ns"
_WHY_NOT: Final = "limit_reason"


class RooflinePoints(Table):
    """One row for each (kernel, operator, shapes, units and dtype, reason), sorted by duration, the longest first.

    Sums are over the kernels of the row. What cannot be known is null, with the reason in `reason`.
    """

    device = Column("device", pl.Int32, "device")
    kernel = Column("kernel", pl.Categorical(), "name of the kernel")
    kernel_class = Column("kernel_class", pl.Enum(KERNEL_CLASSES), "class")
    operator = Column("operator", pl.Categorical(), "operator whose work it does", nullable=True)
    shapes = Column("shapes", pl.Categorical(), "JSON list of that operator's shapes", nullable=True)
    path = Column("path", pl.String, "units and dtype of the arithmetic, such as `matrix bfloat16`", nullable=True)
    num_kernels = Column("num_kernels", pl.UInt32, "kernels of this point")
    duration_ns = Column("duration_ns", pl.Int64, "sum of their lengths")
    flops = Column("flops", pl.Int64, "sum of their FLOPs", nullable=True)
    num_bytes = Column("num_bytes", pl.Int64, "sum of the least bytes they move", nullable=True)
    intensity_flop_per_byte = Column("intensity_flop_per_byte", pl.Float64, "FLOPs / bytes", nullable=True)
    achieved_flop_per_s = Column("achieved_flop_per_s", pl.Float64, "FLOPs / duration", nullable=True)
    achieved_bytes_per_s = Column("achieved_bytes_per_s", pl.Float64, "least bytes / duration", nullable=True)
    ceiling_flop_per_s = Column("ceiling_flop_per_s", pl.Float64, "the roofline at this intensity", nullable=True)
    time_at_ceiling_ns = Column("time_at_ceiling_ns", pl.Int64, "the least time their work can take", nullable=True)
    attained_ratio = Column("attained_ratio", pl.Float64, "time at the ceiling / duration", nullable=True)
    saving_ns = Column("saving_ns", pl.Int64, "time above the ceiling while no other stream computes", nullable=True)
    bound = Column("bound", pl.Enum(BOUNDS), "what limits it", nullable=True)
    reason = Column("reason", pl.String, "why it has no place under the roofline; null where it has", nullable=True)


class Roofline(Result, frozen=True, kw_only=True):
    """The roofline of one rank's compute kernels."""

    points: pl.DataFrame
    """The table `RooflinePoints`."""
    step_points: pl.DataFrame
    """The same of the kernels that start in step time (`scope.analysis.step_time`), which findings rest on."""
    devices: tuple[GpuMatch, ...]
    """What each device is, in the order of `device_ids`."""
    device_ids: tuple[int, ...]
    compute_ns: int
    """Sum of the lengths of all compute kernels."""
    placed_ns: int
    """Of those, the kernels that have a place under the roofline."""
    coverage_ratio: float | None
    """Placed / compute."""
    saving_ns: int
    """Sum of the savings of all points: at most this much shorter with every kernel at its ceiling."""

    def unplaced_ns(self) -> dict[str, int]:
        """Return the time of the kernels that have no place, by the reason, the largest first."""
        unplaced = self.points.filter(self.points[RooflinePoints.reason].is_not_null())
        sums = unplaced.group_by(RooflinePoints.reason).agg(pl.col(RooflinePoints.duration_ns).sum())
        ordered = sums.sort(-pl.col(RooflinePoints.duration_ns), RooflinePoints.reason)
        return dict(ordered.select(RooflinePoints.reason, RooflinePoints.duration_ns).iter_rows())

    def _check_sums(self) -> None:
        assert sum(self.unplaced_ns().values()) == self.compute_ns - self.placed_ns
        placed = self.points.filter(pl.col(RooflinePoints.reason).is_null())[RooflinePoints.duration_ns].sum()
        assert self.compute_ns == self.points[RooflinePoints.duration_ns].sum()
        assert self.placed_ns == placed
        assert self.saving_ns == self.points[RooflinePoints.saving_ns].sum()


def match_devices(trace: RankTrace, *, catalogue: Mapping[str, Gpu] | None = None) -> dict[int, GpuMatch]:
    """Return what each device of a trace is, by its index in the device events.

    An index that the trace's list of devices lacks is taken to be like the listed ones when they are all alike (a list
    may hold the devices that the process saw while events hold numbers of the node), else it is unknown.
    """
    facts = {
        each.index: DeviceFacts(
            name=each.name,
            total_memory_bytes=each.total_memory_bytes,
            num_sms=each.num_sms,
            compute_capability=each.compute_capability,
        )
        for each in trace.devices
    }
    kinds = {(each.name, each.num_sms, each.compute_capability) for each in facts.values()}
    like = next(iter(facts.values())) if len(kinds) == 1 else DeviceFacts(name="")
    seen = trace.device_events[KernelWork.device].unique().sort().to_list()
    return {device: match_gpu(facts.get(device, like), catalogue) for device in seen}


def chosen_devices(trace: RankTrace, gpu: Gpu) -> dict[int, GpuMatch]:
    """Return the GPU that the user named, for every device of a trace; the reason says if the trace names another."""
    return {device: _chosen(gpu, named) for device, named in match_devices(trace).items()}


def _chosen(gpu: Gpu, named: GpuMatch) -> GpuMatch:
    """Return the user's choice for a device beside what the trace names it."""
    possible = {each.gpu_id for each in ((named.gpu,) if named.gpu is not None else named.candidates)}
    name = named.facts.name.strip()
    is_other = bool(name) and bool(possible) and gpu.gpu_id not in possible
    but = f", though the trace names {name!r}" if is_other else ""
    return GpuMatch(facts=DeviceFacts(name=gpu.title), gpu=gpu, reason=f"{gpu.title}, as the user chose{but}")


def compute_roofline(
    trace: RankTrace, devices: Mapping[int, GpuMatch] | None = None, *, step_time: pl.DataFrame | None = None
) -> Roofline:
    """Return the roofline of one rank.

    Args:
        trace: The rank's tables; shapes are needed (`record_shapes=True`), or nothing has a place.
        devices: What each device is; as `match_devices` says when None.
        step_time: What `scope.analysis.step_time.compute_step_time` returned; None for all of the recording.
    """
    matches = match_devices(trace) if devices is None else dict(devices)
    work = compute_kernel_work(trace)
    placed = _placed(_with_time_alone(work), matches)
    points = RooflinePoints.check(_points(placed))
    inside = placed if step_time is None else placed.filter(starts_within(step_time))
    step_points = points if inside.height == placed.height else RooflinePoints.check(_points(inside))
    compute_ns = int(points[RooflinePoints.duration_ns].sum())
    placed_ns = int(points.filter(pl.col(RooflinePoints.reason).is_null())[RooflinePoints.duration_ns].sum())
    return Roofline(
        points=points,
        step_points=step_points,
        devices=tuple(matches.values()),
        device_ids=tuple(matches),
        compute_ns=compute_ns,
        placed_ns=placed_ns,
        coverage_ratio=placed_ns / compute_ns if compute_ns else None,
        saving_ns=int(points[RooflinePoints.saving_ns].sum()),
        absent={} if compute_ns else {"coverage_ratio": "no compute kernels"},
    )


def _with_time_alone(work: pl.DataFrame) -> pl.DataFrame:
    """Add how long each kernel ran while no other stream of its device computed."""
    length = pl.col(KernelWork.end_ns) - pl.col(KernelWork.start_ns)
    lanes = work.select(KernelWork.device, KernelWork.stream).unique()
    if lanes[KernelWork.device].n_unique() == lanes.height:
        # One stream a device, as in most traces: there is no other.
        return work.with_columns(length.alias(_LENGTH), length.alias(_ALONE))
    # While a kernel runs its own stream computes, so others do exactly where two streams or more do.
    lanes = lanes.with_row_index(_LANE)
    on_lanes = work.join(lanes, on=[KernelWork.device, KernelWork.stream], nulls_equal=True)
    busy = spans.union(on_lanes, by=_LANE).join(lanes, on=_LANE)
    pieces = spans.sweep(busy, layers={_STREAMS: pl.lit(value=True)}, by=KernelWork.device)
    shared = spans.union(pieces.filter(pl.col(_STREAMS) > 1), by=KernelWork.device)
    until, since = (
        spans.covered_before(shared, work, column=edge, by=KernelWork.device)
        for edge in (KernelWork.end_ns, KernelWork.start_ns)
    )
    return work.with_columns(length.alias(_LENGTH), (length - (until - since)).alias(_ALONE))


def _placed(work: pl.DataFrame, matches: Mapping[int, GpuMatch]) -> pl.DataFrame:
    """Add each kernel's time at the ceiling and saving, and the reason where it has none."""
    limits = _limits(work, matches)
    work = work.join(limits, on=[KernelWork.device, KernelWork.path], how="left", nulls_equal=True)
    reason = pl.coalesce(KernelWork.reason, _WHY_NOT)
    # A kernel whose FLOPs are unknown (a compiled one) stands under the memory's roof alone.
    compute = (pl.col(KernelWork.flops) / pl.col(_PEAK)).fill_null(0.0) * NS_PER_S
    memory = pl.col(KernelWork.num_bytes) / pl.col(_BANDWIDTH) * NS_PER_S
    ceiling = pl.max_horizontal(compute, memory)
    above = pl.max_horizontal(pl.col(_LENGTH) - pl.col(_CEILING), pl.lit(0.0))
    saving = (above * pl.col(_ALONE) / pl.col(_LENGTH)).fill_nan(0.0).floor().cast(pl.Int64)
    return (
        work.with_columns(reason.alias(KernelWork.reason), (compute - memory).alias(_EXCESS))
        .with_columns(pl.col(KernelWork.reason).is_null().alias(_PLACED))
        .with_columns(pl.when(pl.col(_PLACED)).then(ceiling).alias(_CEILING))
        .with_columns(pl.when(pl.col(_PLACED)).then(saving).alias(_SAVING))
    )


def _limits(work: pl.DataFrame, matches: Mapping[int, GpuMatch]) -> pl.DataFrame:
    """Peak and bandwidth for each device and path, or why there is none."""
    keys = work.select(KernelWork.device, KernelWork.path).unique()
    rows = [(device, path, *_limit(matches.get(device), path)) for device, path in keys.iter_rows()]
    schema = {
        str(KernelWork.device): pl.Int32,
        str(KernelWork.path): pl.String,
        _PEAK: pl.Float64,
        _BANDWIDTH: pl.Float64,
        _WHY_NOT: pl.String,
    }
    return pl.DataFrame(rows, schema=schema, orient="row")


def _limit(match: GpuMatch | None, path: str | None) -> tuple[float | None, float | None, str | None]:
    if path is None:
        return None, None, "the dtype of its arithmetic is unknown"
    gpu = None if match is None else match.usable
    if gpu is None:
        return None, None, "the device is not in the trace" if match is None else match.reason
    if gpu.memory_bytes_per_s is None:
        return None, None, f"memory bandwidth: {gpu.why_absent('memory_tb_per_s')}"
    units, _, dtype = path.partition(" ")
    peak = gpu.matrix_peak(dtype) if units == "matrix" else gpu.vector_peak(dtype)
    bandwidth = gpu.memory_bytes_per_s.value
    if peak is not None:
        return peak.value, bandwidth, None
    if units == "vector":
        # No vector kernel that torch has comes near a machine's balance: memory alone bounds it.
        return None, bandwidth, None
    return None, None, f"peak for {path}: {gpu.why_absent(dtype)}"


def _points(work: pl.DataFrame) -> pl.DataFrame:
    keys = (
        RooflinePoints.device,
        RooflinePoints.kernel,
        RooflinePoints.kernel_class,
        RooflinePoints.operator,
        RooflinePoints.shapes,
        RooflinePoints.path,
        RooflinePoints.reason,
    )
    # A sum over nulls is 0 in polars; here it is unknown.
    points = work.group_by(*keys, maintain_order=True).agg(
        pl.len().cast(pl.UInt32).alias(RooflinePoints.num_kernels),
        pl.col(_LENGTH).sum().alias(RooflinePoints.duration_ns),
        *(
            pl.when((pl.col(column).null_count() == 0) & (pl.col(column).cast(pl.Float64).sum() < _MOST))
            .then(pl.col(column).sum())
            .alias(name)
            for column, name in (
                (KernelWork.flops, RooflinePoints.flops),
                (KernelWork.num_bytes, RooflinePoints.num_bytes),
                (_CEILING, _CEILING),
                (_SAVING, RooflinePoints.saving_ns),
                (_EXCESS, _EXCESS),
            )
        ),
    )
    flops, num_bytes = pl.col(RooflinePoints.flops), pl.col(RooflinePoints.num_bytes)
    duration, ceiling = pl.col(RooflinePoints.duration_ns), pl.col(_CEILING)
    mean_ceiling = ceiling / pl.col(RooflinePoints.num_kernels)
    mean_duration = duration / pl.col(RooflinePoints.num_kernels)
    points = points.with_columns(
        _ratio(flops, num_bytes).alias(RooflinePoints.intensity_flop_per_byte),
        _ratio(flops * 1.0, duration, scale=NS_PER_S).alias(RooflinePoints.achieved_flop_per_s),
        _ratio(num_bytes * 1.0, duration, scale=NS_PER_S).alias(RooflinePoints.achieved_bytes_per_s),
        _ratio(flops * 1.0, ceiling, scale=NS_PER_S).alias(RooflinePoints.ceiling_flop_per_s),
        ceiling.round().cast(pl.Int64).alias(RooflinePoints.time_at_ceiling_ns),
        _ratio(ceiling, duration).alias(RooflinePoints.attained_ratio),
        pl.when(ceiling.is_null())
        .then(None)
        .when((mean_ceiling < _LATENCY_CEILING_NS) & (mean_duration < _LATENCY_DURATION_NS))
        .then(pl.lit("latency"))
        .when(pl.col(_EXCESS) > 0)
        .then(pl.lit("compute"))
        .otherwise(pl.lit("memory"))
        .cast(pl.Enum(BOUNDS))
        .alias(RooflinePoints.bound),
    )
    return points.sort(
        RooflinePoints.duration_ns, pl.col(RooflinePoints.kernel).cast(pl.String), RooflinePoints.num_kernels,
        descending=[True, False, True], maintain_order=True,
    ).select(*RooflinePoints.columns())  # fmt: skip


def _ratio(numerator: pl.Expr, denominator: pl.Expr, *, scale: float = 1.0) -> pl.Expr:
    """A quotient that is null where the denominator is 0."""
    return pl.when(denominator > 0).then(numerator / denominator * scale)
