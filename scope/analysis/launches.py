"""How the host feeds the device: delay from launch to start, depth of the queue, host-bound share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from scope.analysis import spans
from scope.analysis.host_activity import HostSpans, Launched
from scope.analysis.host_overlap import overlap_with_host
from scope.analysis.medians import lower_median_ns
from scope.analysis.result import Distribution, Result, summarize_lengths
from scope.analysis.windows import Parts, cut_at_parts
from scope.trace.columns import Column, Table
from scope.trace.schema import LAUNCH_KINDS, DeviceEvents, Launches

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from scope.analysis.windows import Timeline

_LAUNCHING: Final = ("kernel", "memcpy", "memset", "graph")
_WAITING: Final = ("input", "sync")
_DELAY: Final = "delay_ns"
_DEPTH: Final = "depth"

APIS: Final = ("cuda_runtime", "cuda_driver", "hip", "other")
"""Families of launching calls, told by the call's name."""


class LaunchStats(Table):
    """Launching calls grouped by call; sorted by `num_calls` descending, then by name.

    The delay of a launch is from the start of its call to the start of the first event that it launched, the wait
    behind earlier work on its stream included; it may be negative when the trace's clocks disagree, which
    `num_negative_delays` counts. The length of a call is what the host spent in it: of one that blocks
    (`host_activity.find_blocking_calls`) until its copy has ended, and `blocking_ns` holds what those took.
    """

    name = Column("name", pl.String, "name of the call")
    api = Column("api", pl.Enum(APIS), "family of the call")
    kind = Column("kind", pl.Enum(LAUNCH_KINDS), "what the call launches")
    num_calls = Column("num_calls", pl.UInt32, "calls, those with no event in the trace too")
    num_device_events = Column("num_device_events", pl.UInt32, "device events that they launched")
    call_ns = Column("call_ns", pl.Int64, "sum of the calls' own lengths on the host")
    blocking_ns = Column("blocking_ns", pl.Int64, "of `call_ns`, in copies and sets that waited for the device (syncs)")
    total_delay_ns = Column("total_delay_ns", pl.Int64, "sum of delays; null when none is known", nullable=True)
    min_delay_ns = Column("min_delay_ns", pl.Int64, "shortest delay", nullable=True)
    median_delay_ns = Column("median_delay_ns", pl.Int64, "median delay, the lower of two", nullable=True)
    p90_delay_ns = Column("p90_delay_ns", pl.Int64, "delay that a tenth exceeds", nullable=True)
    max_delay_ns = Column("max_delay_ns", pl.Int64, "longest delay", nullable=True)
    num_negative_delays = Column("num_negative_delays", pl.UInt32, "events that start before their call does")


class QueueDepth(Result, frozen=True, kw_only=True):
    """Launched minus started over one window (or the sum of several), weighted by time.

    A launch is in the queue over the half-open [start of its call, start of its first event), of which the part inside
    the window counts; a graph counts once. So a launch whose event begins the window has left the queue by then, and
    one that enters at the nanosecond at which another leaves never waits with it. Events without a launch are not
    seen, and `num_unseen_events` counts those.
    """

    window_ns: int
    num_launches: int
    """Launches of which some event starts in the window."""
    num_unseen_events: int
    """Events that start in the window and have no launch in the trace."""
    waited_ns: int
    """Sum over launches of the time in the queue inside the window: the integral of the depth."""
    max_depth: int
    """Most launches that wait at the same time."""
    empty_ns: int
    """Time in which nothing is launched and not yet started."""
    host_bound_ns: int
    """Empty time in which the thread that launches next is busy: neither in a blocking call nor fetching data."""
    mean_depth: float | None
    """`waited_ns / window_ns`."""
    host_bound_ratio: float | None
    """`host_bound_ns / window_ns`."""

    def _check_sums(self) -> None:
        assert 0 <= self.host_bound_ns <= self.empty_ns <= self.window_ns
        assert self.waited_ns >= self.window_ns - self.empty_ns


class LaunchDelays(Result, frozen=True, kw_only=True):
    """Delays from the start of the launching call to the start of its first event, over a set of launches."""

    delay: Distribution | None
    num_negative_delays: int
    """Launches whose event starts before their call does: the clocks of host and device disagree by that much."""


def summarize_launches(timelines: Sequence[Timeline]) -> pl.DataFrame:
    """Return the table `LaunchStats` of one or several ranks."""
    if not timelines:
        return LaunchStats.empty()
    delay, name = pl.col(_DELAY), pl.col(LaunchStats.name)
    table = (
        pl.concat([_calls_of(timeline) for timeline in timelines])
        .lazy()
        .group_by(LaunchStats.name, LaunchStats.kind)
        .agg(
            pl.len().cast(pl.UInt32).alias(LaunchStats.num_calls),
            pl.col(LaunchStats.num_device_events).sum().cast(pl.UInt32),
            pl.col(LaunchStats.call_ns, LaunchStats.blocking_ns).sum(),
            pl.when(delay.count() > 0).then(delay.sum()).alias(LaunchStats.total_delay_ns),
            delay.min().alias(LaunchStats.min_delay_ns),
            lower_median_ns(delay).alias(LaunchStats.median_delay_ns),
            delay.quantile(0.9, interpolation="lower").cast(pl.Int64).alias(LaunchStats.p90_delay_ns),
            delay.max().alias(LaunchStats.max_delay_ns),
            (delay < 0).sum().cast(pl.UInt32).alias(LaunchStats.num_negative_delays),
        )
        .with_columns(name.cast(pl.String))
        .with_columns(_api(name).cast(LaunchStats.api.dtype).alias(LaunchStats.api))
        .select(LaunchStats.columns())
        .sort(-pl.col(LaunchStats.num_calls).cast(pl.Int64), name)
        .collect()
    )
    return LaunchStats.check(table)


def compute_launch_delays(timelines: Sequence[Timeline]) -> LaunchDelays:
    """Return the delays of all launches of one or several ranks."""
    delays = pl.concat([pl.Series(_DELAY, [], dtype=pl.Int64), *(_delays(each)[_DELAY] for each in timelines)])
    delay = summarize_lengths(delays)
    absent = {} if delay else {"delay": "no launch in the trace has an event on the device"}
    return LaunchDelays(delay=delay, num_negative_delays=int((delays < 0).sum()), absent=absent)


def _calls_of(timeline: Timeline) -> pl.DataFrame:
    """Return one rank's launching calls with their delay, null where no event is in the trace."""
    calls = timeline.launches.filter(pl.col(Launches.kind).is_in(_LAUNCHING))
    blocks = pl.col(Launches.launch_id).is_in(timeline.blocking[Launches.launch_id].implode())
    return calls.join(_delays(timeline), on=Launches.launch_id, how="left").select(
        LaunchStats.name,
        LaunchStats.kind,
        LaunchStats.num_device_events,
        spans.SPAN_NS.alias(LaunchStats.call_ns),
        (spans.SPAN_NS * blocks).alias(LaunchStats.blocking_ns),
        _DELAY,
    )


def _api(name: pl.Expr) -> pl.Expr:
    """Return the family of a call by its name."""
    return (
        pl.when(name.str.starts_with("hip"))
        .then(pl.lit("hip"))
        .when(name.str.starts_with("cuda"))
        .then(pl.lit("cuda_runtime"))
        .when(name.str.contains("^cu[A-Z]"))
        .then(pl.lit("cuda_driver"))
        .otherwise(pl.lit("other"))
    )


def compute_part_queues(timeline: Timeline) -> dict[int, QueueDepth]:
    """Return depth and host-bound share of every part of every device's window, by `part_id`.

    Sums over parts are exact; a launch is counted in the part in which its first event starts.
    """
    entered = pl.min_horizontal(Launched.call_ns, Launched.first_start_ns)
    queued = timeline.launched.select(
        Launched.device,
        entered.alias(Parts.start_ns),
        pl.col(Launched.first_start_ns).alias(Parts.end_ns),
        pl.lit(value=True).alias(_DEPTH),
    )
    # A launch that never queued, its event starting with its call or before, still ends the time before it.
    at_once = timeline.launched.filter(pl.col(Launched.first_start_ns) <= pl.col(Launched.call_ns)).select(
        Launched.device,
        pl.col(Launched.call_ns).alias(Parts.start_ns),
        (pl.col(Launched.call_ns) + 1).alias(Parts.end_ns),
        pl.lit(value=False).alias(_DEPTH),
    )
    pieces = cut_at_parts(pl.concat([queued, at_once]), timeline.parts, layers={_DEPTH: pl.col(_DEPTH)})
    depth = pl.col(_DEPTH)
    sums = pieces.group_by(Parts.part_id).agg(
        (spans.SPAN_NS * depth).sum().alias("waited_ns"),
        depth.max().alias("max_depth"),
        spans.SPAN_NS.filter(depth == 0).sum().alias("empty_ns"),
    )
    unseen = timeline.events.filter(timeline.events[DeviceEvents.launch_id].is_null())
    launches = _count_by_part(timeline, timeline.launched, Launched.first_start_ns)
    events = _count_by_part(timeline, unseen, DeviceEvents.start_ns)
    bound = _host_bound(timeline, pieces.filter(depth == 0))
    measured = {row[Parts.part_id]: row for row in sums.iter_rows(named=True)}
    return {
        part: _queue_depth(
            {
                **_NO_QUEUE,
                **measured.get(part, {}),
                "window_ns": window_ns,
                "num_launches": launches[part],
                "num_unseen_events": events[part],
                "host_bound_ns": bound.get(part, 0),
            }
        )
        for part, window_ns in timeline.parts.select(Parts.part_id, spans.SPAN_NS).iter_rows()
    }


_NO_QUEUE: Final = {"waited_ns": 0, "max_depth": 0, "empty_ns": 0}


def sum_queues(parts: Iterable[QueueDepth]) -> QueueDepth:
    """Return the figures of several windows together; the depth is the largest of theirs."""
    each = list(parts)
    row = {name: sum(getattr(part, name) for part in each) for name in _SUMMED}
    return _queue_depth({**row, "max_depth": max((part.max_depth for part in each), default=0)})


_SUMMED: Final = ("window_ns", "num_launches", "num_unseen_events", "waited_ns", "empty_ns", "host_bound_ns")


def _delays(timeline: Timeline) -> pl.DataFrame:
    """Return the delay of every launch that has an event."""
    first = timeline.launched.group_by(Launched.launch_id).agg(
        pl.col(Launched.call_ns).first(), pl.col(Launched.first_start_ns).min()
    )
    return first.select(Launched.launch_id, (pl.col(Launched.first_start_ns) - pl.col(Launched.call_ns)).alias(_DELAY))


def _count_by_part(timeline: Timeline, frame: pl.DataFrame, column: str) -> dict[int, int]:
    """Return for every part how many rows of the frame, of its device, have their instant in it.

    The last part of a device has those after it too.
    """
    counts: dict[int, int] = {}
    for windows in timeline.devices:
        parts = timeline.parts.filter(pl.col(Parts.device) == windows.device)
        instants = frame[column].filter(frame[Parts.device] == windows.device).sort()
        # Of a part without length and the next, which begin together, the next has what lies there.
        first = [*instants.search_sorted(parts[Parts.start_ns], side="left"), len(instants)]
        counts |= {part: end - begin for part, begin, end in zip(parts[Parts.part_id], first, first[1:], strict=False)}
    return counts


def _host_bound(timeline: Timeline, empty: pl.DataFrame) -> dict[int, int]:
    """Return by part the empty time in which the thread that launches next neither waits nor fetches data.

    Empty time after the last launch counts for nobody: no thread is known to be preparing one.

    Args:
        timeline: One rank's events.
        empty: Stretches of empty time, each within a part.
    """
    calls = timeline.launched.select(Launched.device, Launched.thread, pl.col(Launched.call_ns).alias(Parts.end_ns))
    stretches = (
        empty.sort(Parts.end_ns)
        .join_asof(
            calls.sort(Parts.end_ns), on=Parts.end_ns, by=Launched.device, strategy="forward", check_sortedness=False
        )
        .drop_nulls(Launched.thread)
        .sort(Launched.device, Parts.start_ns)
        .select(*_STRETCH, Parts.part_id)
    )
    bound = dict(_lengths_by_part(stretches))
    waits = timeline.host_spans.filter(pl.col(HostSpans.activity).is_in(_WAITING))
    waited = spans.union(overlap_with_host(stretches, waits), by=Parts.part_id)
    for part, length_ns in _lengths_by_part(waited):
        bound[part] -= length_ns
    return bound


def _lengths_by_part(disjoint: pl.DataFrame) -> Iterator[tuple[int, int]]:
    return disjoint.group_by(Parts.part_id).agg(spans.SPAN_NS.sum()).iter_rows()


_STRETCH: Final = (Launched.device, Launched.thread, Parts.start_ns, Parts.end_ns)


def _queue_depth(row: Mapping[str, int]) -> QueueDepth:
    window_ns = row["window_ns"]
    reason = "the window has no length"
    return QueueDepth(
        window_ns=window_ns,
        num_launches=row["num_launches"],
        num_unseen_events=row["num_unseen_events"],
        waited_ns=row["waited_ns"],
        max_depth=row["max_depth"],
        empty_ns=row["empty_ns"],
        host_bound_ns=row["host_bound_ns"],
        mean_depth=row["waited_ns"] / window_ns if window_ns else None,
        host_bound_ratio=row["host_bound_ns"] / window_ns if window_ns else None,
        absent={} if window_ns else {"mean_depth": reason, "host_bound_ratio": reason},
    )
