"""What changed between two runs: steps, kernels, operators and phases, by how much, and how far the two match."""

from __future__ import annotations

from statistics import median_low
from typing import TYPE_CHECKING, Final, Literal

import polars as pl

from scope.analysis.host import host_events, merge_operators
from scope.analysis.options import Options
from scope.analysis.phase_times import OWN_NS, find_phases
from scope.analysis.result import Result
from scope.analysis.spans import SPAN_NS
from scope.analysis.step_time import compute_median_step
from scope.analysis.windows import build_timeline
from scope.trace.columns import Column, Table
from scope.trace.schema import Annotations, DeviceEvents, Ops, Steps

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from scope.trace.model import Job, RankTrace

CHANGES: Final = ("added", "removed", "slower", "faster", "same")
"""`slower`, `faster`: the time changed by more than the noise given; `added`, `removed`: only one run has it."""

UNKNOWN_OPERATOR: Final = "(operator unknown)"
"""What stands for the operator of device events whose launch or operator the trace does not hold; no name to match."""

NO_PHASE: Final = "(outside of phases)"
"""What stands for the host time of steps in which no phase of the user ran; it counts in no match rate."""

# A compiler numbers the kernels of a graph in their order, so one more kernel renames all that follow:
# triton_poi_fused_add_0 of one run may be triton_poi_fused_add_3 of another. Old ones go on with their signature.
_TRITON: Final = r"^(triton_[a-z]+_.+?)_\d+(?:_\d+d[\dcde]*)?$"
_NO_NAMES: Final = (UNKNOWN_OPERATOR, NO_PHASE)
_LENGTH: Final = "length_ns"
_COUNT: Final = "num_occurrences"
_OPERATOR: Final = "operator"
_STEP_END: Final = "step_end_ns"
_ADDED: Final = "is_added"
_REMOVED: Final = "is_removed"


class Changes(Table):
    """One name in both runs, times per step (or per window where a run has no steps) and rank; largest change first."""

    name = Column("name", pl.String, "kernel, operator or phase; Triton kernels without the number of the compiler")
    change = Column("change", pl.Enum(CHANGES), "what happened to it")
    before_ns = Column("before_ns", pl.Float64, "time per rank and step in the first run; 0 if added")
    after_ns = Column("after_ns", pl.Float64, "time per rank and step in the second run; 0 if removed")
    delta_ns = Column("delta_ns", pl.Float64, "after less before")
    ratio = Column("ratio", pl.Float64, "after / before", nullable=True)
    before_count = Column(
        "before_count",
        pl.Float64,
        "occurrences per rank and step in the first run; null outside of phases",
        nullable=True,
    )
    after_count = Column("after_count", pl.Float64, "the same in the second run", nullable=True)


class ChangeSet(Result, frozen=True, kw_only=True):
    """Changes of one kind of thing."""

    changes: pl.DataFrame
    """The table `Changes`."""
    before_ns: float
    """Time per rank and step of all names in the first run."""
    after_ns: float
    match_rate_ratio: float | None
    """Share of the time of both runs that lies in names that both have; what has no name matches nothing."""


class Comparison(Result, frozen=True, kw_only=True):
    """Two runs side by side, the first being the base."""

    kernels: ChangeSet
    """Device events by name; lengths add up, overlap included."""
    classes: ChangeSet
    """Device events by class."""
    operators: ChangeSet
    """Operators by name: device time of what they launched."""
    phases: ChangeSet
    """Annotations of the user by name: host time, each instant counting for one phase (`scope.analysis.phase_times`).

    Per step they sum to the length of the step on the host, with what lies outside of phases.
    """
    before_step_ns: int | None
    """Median step of the first run on its devices (`scope.analysis.step_time.compute_median_step`)."""
    after_step_ns: int | None
    steps_lie_on: Literal["device", "host"] | None
    """What those two are measured on; None where the runs differ in it."""
    before_host_step_ns: int | None
    """Median length of `ProfilerStep` on the host in the first run, over ranks and whole steps."""
    after_host_step_ns: int | None
    before_num_steps: int
    after_num_steps: int
    unit: str
    """What times are divided by: `rank and step`, or `rank` where a run has no whole steps."""
    noise_ratio: float
    """Changes of up to this share of the larger of the two count as none."""
    warnings: tuple[str, ...]


def compare_jobs(before: Job, after: Job, *, noise_ratio: float = 0.02) -> Comparison:
    """Compare two runs by name.

    Times are per rank and step over the whole steps of all ranks; where one of the runs has no whole step, over whole
    windows and per rank. Device events belong to the step that launched them.

    Args:
        before: The base.
        after: The run that is held against it.
        noise_ratio: Changes of up to this share of the larger of the two count as none.
    """
    steps = tuple(_whole_steps(job) for job in (before, after))
    by_step = all(not each.is_empty() for each in steps)
    divisors = tuple(
        float(whole.height if by_step else max(len(job.ranks), 1))
        for job, whole in zip((before, after), steps, strict=True)
    )

    def compare(collect: Callable[[RankTrace, bool], pl.DataFrame]) -> ChangeSet:
        totals = [
            _totals([collect(trace, by_step) for trace in job.ranks], divisor)
            for job, divisor in zip((before, after), divisors, strict=True)
        ]
        return _change_set(totals[0], totals[1], noise_ratio)

    medians = [_median_step(job) for job in (before, after)]
    on_host = [_median_host_step(whole) for whole in steps]
    places = {trace.is_host_timeline for job in (before, after) for trace in job.ranks}
    place = None if len(places) != 1 else "host" if places.pop() else "device"
    names = ("before_host_step_ns", "after_host_step_ns", "before_step_ns", "after_step_ns")
    absent = {
        name: "the run has no whole step" if on_host[index % 2] is None else "no whole step has a window on a device"
        for index, (name, length) in enumerate(zip(names, (*on_host, *medians), strict=True))
        if length is None
    }
    if place is None:
        absent["steps_lie_on"] = "ranks with device events and host timelines are compared, or none at all"
    return Comparison(
        kernels=compare(_kernels),
        classes=compare(_classes),
        operators=compare(_operators),
        phases=compare(_phases),
        before_step_ns=medians[0],
        after_step_ns=medians[1],
        steps_lie_on=place,
        before_host_step_ns=on_host[0],
        after_host_step_ns=on_host[1],
        before_num_steps=steps[0].height,
        after_num_steps=steps[1].height,
        unit="rank and step" if by_step else "rank",
        noise_ratio=noise_ratio,
        warnings=_warnings(before, after, by_step=by_step),
        absent=absent,
    )


def _whole_steps(job: Job) -> pl.DataFrame:
    """Return the steps of all ranks that no edge of a window cuts."""
    frames = [trace.steps for trace in job.ranks]
    steps = pl.concat(frames) if frames else Steps.empty()
    return steps.filter(~pl.col(Steps.is_cut))


def _median_step(job: Job) -> int | None:
    """Return the median step as `scope.analysis.summary.analyze` measures it by default."""
    timelines = (build_timeline(trace, options=Options()) for trace in job.ranks)
    return compute_median_step(device for timeline in timelines for device in timeline.devices)


def _median_host_step(steps: pl.DataFrame) -> int | None:
    lengths = (steps[Steps.end_ns] - steps[Steps.start_ns]).to_list()
    return median_low(lengths) if lengths else None


def _events(trace: RankTrace, by_step: bool) -> pl.DataFrame:
    events = merge_operators(host_events(trace)) if trace.is_host_timeline else trace.device_events
    whole = trace.steps.filter(~pl.col(Steps.is_cut))[Steps.step_id]
    return events.filter(pl.col(DeviceEvents.step_id).is_in(whole.implode())) if by_step else events


def _named(events: pl.DataFrame, name: pl.Expr) -> pl.DataFrame:
    return events.select(name.cast(pl.String).alias(Changes.name), SPAN_NS.alias(_LENGTH))


def _kernels(trace: RankTrace, by_step: bool) -> pl.DataFrame:
    return _named(_events(trace, by_step), _unnumbered(pl.col(DeviceEvents.name)))


def _unnumbered(name: pl.Expr) -> pl.Expr:
    """Return names of which those that a compiler numbers have lost their number."""
    return name.cast(pl.String).str.replace(_TRITON, "$1")


def _classes(trace: RankTrace, by_step: bool) -> pl.DataFrame:
    return _named(_events(trace, by_step), pl.col(DeviceEvents.kernel_class))


def _operators(trace: RankTrace, by_step: bool) -> pl.DataFrame:
    names = trace.ops.select(Ops.op_id, pl.col(Ops.name).alias(_OPERATOR))
    events = _events(trace, by_step).join(names, on=DeviceEvents.op_id, how="left")
    return _named(events, _unnumbered(pl.col(_OPERATOR)).fill_null(UNKNOWN_OPERATOR))


def _phases(trace: RankTrace, by_step: bool) -> pl.DataFrame:
    name = pl.col(Annotations.name).cast(pl.String).alias(Changes.name)
    if not by_step:
        return find_phases(trace).select(name, pl.col(OWN_NS).alias(_LENGTH))
    whole = trace.steps.filter(~pl.col(Steps.is_cut)).sort(Steps.start_ns)
    edges = whole.select(Steps.start_ns, pl.col(Steps.end_ns).alias(_STEP_END))
    host = find_phases(trace, within=whole).join_asof(edges, on=Annotations.start_ns)
    inside = host.filter((pl.col(Annotations.start_ns) < pl.col(_STEP_END)) | (pl.col(OWN_NS) > 0))
    phases = inside.select(name, pl.col(OWN_NS).alias(_LENGTH))
    if phases.is_empty():
        return phases
    # What is left of the steps: with it, phases sum to them exactly.
    left = int((whole[Steps.end_ns] - whole[Steps.start_ns]).sum()) - int(phases[_LENGTH].sum())
    return pl.concat([phases, pl.DataFrame({Changes.name: [NO_PHASE], _LENGTH: [left]}, schema=phases.schema)])


def _totals(parts: Sequence[pl.DataFrame], divisor: float) -> pl.DataFrame:
    """Return time and number of occurrences of each name, divided."""
    rows = pl.concat(parts) if parts else pl.DataFrame(schema={Changes.name: pl.String, _LENGTH: pl.Int64})
    return rows.group_by(Changes.name).agg(
        (pl.col(_LENGTH).sum() / divisor).alias(_LENGTH), (pl.len() / divisor).alias(_COUNT)
    )


def _change_set(before: pl.DataFrame, after: pl.DataFrame, noise_ratio: float) -> ChangeSet:
    first = before.rename({_LENGTH: Changes.before_ns, _COUNT: Changes.before_count})
    second = after.rename({_LENGTH: Changes.after_ns, _COUNT: Changes.after_count})
    both = first.join(second, on=Changes.name, how="full", coalesce=True)
    is_added, is_removed = pl.col(Changes.before_ns).is_null(), pl.col(Changes.after_ns).is_null()
    filled = both.with_columns(is_added.alias(_ADDED), is_removed.alias(_REMOVED)).with_columns(
        pl.col(name).fill_null(0.0)
        for name in (Changes.before_ns, Changes.after_ns, Changes.before_count, Changes.after_count)
    )
    # Time without a name does not occur so many times.
    filled = filled.with_columns(
        pl.when(pl.col(Changes.name) != NO_PHASE).then(count).alias(count)
        for count in (Changes.before_count, Changes.after_count)
    )
    delta = pl.col(Changes.after_ns) - pl.col(Changes.before_ns)
    is_noise = delta.abs() <= noise_ratio * pl.max_horizontal(Changes.before_ns, Changes.after_ns)
    change = (
        pl.when(_ADDED)
        .then(pl.lit("added"))
        .when(_REMOVED)
        .then(pl.lit("removed"))
        .when(is_noise)
        .then(pl.lit("same"))
        .when(delta > 0)
        .then(pl.lit("slower"))
        .otherwise(pl.lit("faster"))
    )
    changes = filled.with_columns(
        change.cast(Changes.change.dtype).alias(Changes.change),
        delta.alias(Changes.delta_ns),
        pl.when(pl.col(Changes.before_ns) > 0)
        .then(pl.col(Changes.after_ns) / pl.col(Changes.before_ns))
        .alias(Changes.ratio),
    ).sort(delta.abs(), Changes.name, descending=[True, False])
    total = pl.col(Changes.before_ns) + pl.col(Changes.after_ns)
    shared, everything = changes.select(
        total.filter(~pl.col(_ADDED), ~pl.col(_REMOVED), ~pl.col(Changes.name).is_in(_NO_NAMES)).sum().alias(_LENGTH),
        total.filter(pl.col(Changes.name) != NO_PHASE).sum().alias(_COUNT),
    ).row(0)
    rate = shared / everything if everything > 0 else None
    return ChangeSet(
        changes=Changes.check(changes.select(Changes.schema().names())),
        before_ns=float(changes[Changes.before_ns].sum()),
        after_ns=float(changes[Changes.after_ns].sum()),
        match_rate_ratio=rate,
        absent={} if rate is not None else {"match_rate_ratio": "neither run has any"},
    )


def _warnings(before: Job, after: Job, *, by_step: bool) -> tuple[str, ...]:
    found: list[str] = []
    if not by_step:
        found.append("a run has no whole profiler step, so times are per rank and grow with the length of the window")
    if len(before.ranks) != len(after.ranks):
        are = "rank is" if len(before.ranks) == 1 else "ranks are"
        found.append(f"{len(before.ranks)} {are} compared with {len(after.ranks)}")
    if {trace.is_host_timeline for trace in before.ranks} != {trace.is_host_timeline for trace in after.ranks}:
        found.append("one run has device events and the other a host timeline: their times don't compare")
    if any(_has_numbered(trace) for job in (before, after) for trace in job.ranks):
        found.append("Triton kernels are matched by name without the compiler's number, those of one name together")
    return tuple(found)


def _has_numbered(trace: RankTrace) -> bool:
    return bool(trace.device_events[DeviceEvents.name].unique().cast(pl.String).str.contains(_TRITON).any())
