"""Where a device's time went: compute, exposed communication, exposed memory, idle; and what overlapped."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from scope.analysis import spans
from scope.analysis.result import Result
from scope.analysis.windows import Parts, cut_at_parts
from scope.trace.schema import DeviceEvents

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from scope.analysis.options import Options
    from scope.analysis.windows import Timeline

_COMPUTE: Final = "compute"
_COMMUNICATION: Final = "communication"
_MEMORY: Final = "memory"
_PEER: Final = "peer"
_GROUP: Final = "group"

NO_COMMUNICATION: Final = "no communication in this window"


class Breakdown(Result, frozen=True, kw_only=True):
    """The time of one or several windows, by what ran; lengths are of unions, so nothing counts twice.

    `compute_ns + exposed_communication_ns + exposed_memory_ns + idle_ns == window_ns`, exactly.
    """

    window_ns: int
    """Length of the window, or the sum of the lengths of several."""
    compute_ns: int
    """Union of compute."""
    exposed_communication_ns: int
    """Union of communication, minus compute."""
    exposed_memory_ns: int
    """Union of copies and sets, minus compute and communication."""
    idle_ns: int
    """The rest: nothing ran."""
    communication_ns: int
    """Union of communication, whether exposed or not."""
    memory_ns: int
    """Union of copies and sets, whether exposed or not; 0 where an option counts them as compute."""
    overlap_ns: int
    """Union of communication intersected with the union of compute."""
    peer_copy_ns: int
    """Union of copies between devices (P2P): part of `memory_ns`, which move data as communication does."""
    overlap_ratio: float | None
    """`overlap_ns / communication_ns`."""

    @property
    def busy_ns(self) -> int:
        """Time in which anything ran."""
        return self.window_ns - self.idle_ns

    def _check_sums(self) -> None:
        parts = self.compute_ns + self.exposed_communication_ns + self.exposed_memory_ns + self.idle_ns
        assert parts == self.window_ns, f"parts sum to {parts} of {self.window_ns} ns"
        assert self.exposed_communication_ns + self.overlap_ns == self.communication_ns
        assert min(self.compute_ns, self.exposed_memory_ns, self.idle_ns, self.overlap_ns) >= 0
        assert self.peer_copy_ns <= self.memory_ns or self.memory_ns == 0


def sum_breakdowns(parts: Iterable[Breakdown]) -> Breakdown:
    """Return the breakdown of several windows together; every length is the sum of theirs."""
    each = list(parts)
    return _breakdown({name: sum(getattr(part, name) for part in each) for name in _LENGTHS})


def compute_part_breakdowns(timeline: Timeline) -> dict[int, Breakdown]:
    """Return the breakdown of every part of every device's window, by `part_id`.

    Spans are cut at the edges of the parts, so the parts of a device sum to its window exactly.
    """
    return _measure(timeline.events, timeline.parts, timeline.options)


def compute_clipped_breakdowns(timeline: Timeline) -> dict[int, Breakdown]:
    """Return the breakdown of each device on which events overrun, with every event cut at the next on its stream.

    The window shrinks to what is left. Devices on which no event overruns are not in the result.
    """
    events = timeline.events
    overrun = events[DeviceEvents.end_ns] > events[DeviceEvents.clipped_end_ns]
    if not overrun.any():
        return {}
    devices = events[DeviceEvents.device].filter(overrun).unique()
    clipped = events.filter(pl.col(DeviceEvents.device).is_in(devices.implode())).with_columns(
        pl.col(DeviceEvents.clipped_end_ns).alias(DeviceEvents.end_ns)
    )
    return _measure_groups(clipped, pl.col(DeviceEvents.device), timeline.options)


def compute_launched_breakdowns(timeline: Timeline) -> dict[tuple[int, int], Breakdown]:
    """Return, by device and step, the breakdown of the events launched in the step, whenever they ran.

    Its window runs from the start of the first of these events to the largest end, so windows of neighbouring steps
    may overlap. A step that launched nothing on a device is not in the result.
    """
    launched = timeline.events.filter(pl.col(DeviceEvents.step_id).is_not_null())
    num_steps = max(timeline.trace.steps.height, 1)
    group = pl.col(DeviceEvents.device).cast(pl.Int64) * num_steps + pl.col(DeviceEvents.step_id)
    found = _measure_groups(launched, group, timeline.options)
    return {divmod(number, num_steps): breakdown for number, breakdown in found.items()}


_LENGTHS: Final = (
    "window_ns",
    "compute_ns",
    "exposed_communication_ns",
    "exposed_memory_ns",
    "idle_ns",
    "communication_ns",
    "memory_ns",
    "overlap_ns",
    "peer_copy_ns",
)


def counts_as_compute(options: Options) -> pl.Expr:
    """Return which rows of `DeviceEvents` count as compute."""
    category = pl.col(DeviceEvents.category)
    moved = (category == "memory") & pl.lit(value=options.memory_as_compute)
    sets = (pl.col(DeviceEvents.kind) == "memset") & pl.lit(value=options.sets_as_compute)
    return (category == "compute") | moved | sets


def _layers(options: Options) -> dict[str, pl.Expr]:
    """Return which events count as what."""
    category = pl.col(DeviceEvents.category)
    computes = counts_as_compute(options)
    peer = pl.col(DeviceEvents.copy_kind) == "P2P"
    return {
        _COMPUTE: computes,
        _COMMUNICATION: category == "communication",
        _MEMORY: (category == "memory") & ~computes,
        _PEER: peer,
    }


def _measure_groups(events: pl.DataFrame, group: pl.Expr, options: Options) -> dict[int, Breakdown]:
    """Return the breakdown of each group of events over the window from its first to its last event."""
    grouped = events.with_columns(group.cast(pl.Int64).alias(_GROUP))
    windows = grouped.group_by(_GROUP).agg(pl.col(Parts.start_ns).min(), pl.col(Parts.end_ns).max())
    return _measure(grouped, windows.with_columns(pl.col(_GROUP).alias(Parts.part_id)), options, by=_GROUP)


def _measure(
    events: pl.DataFrame, parts: pl.DataFrame, options: Options, *, by: str = DeviceEvents.device
) -> dict[int, Breakdown]:
    """Return the breakdown of every part; the parts of one value of `by` must not overlap."""
    layers = _layers(options)
    flagged = events.select(by, Parts.start_ns, Parts.end_ns, *(layer.alias(name) for name, layer in layers.items()))
    pieces = cut_at_parts(flagged, parts, layers={name: pl.col(name) for name in layers}, by=by)
    # What runs over a piece is one of a few sets of layers: a sum for each, and the figures are sums of these. Part and
    # set make one number, because to group by several columns takes thrice as long.
    running = [(pl.col(name) > 0).cast(pl.UInt32) * (1 << bit) for bit, name in enumerate(layers)]
    number = pl.sum_horizontal(pl.col(Parts.part_id) * (1 << len(layers)), *running).alias(_GROUP)
    sums = pieces.group_by(number).agg(spans.SPAN_NS.sum())
    windows = dict(parts.select(Parts.part_id, spans.SPAN_NS).iter_rows())
    lengths = {part: dict.fromkeys(_LENGTHS, 0) | {"window_ns": window_ns} for part, window_ns in windows.items()}
    for key, length_ns in sums.iter_rows():
        part, bits = divmod(key, 1 << len(layers))
        for figure in _figures({name for bit, name in enumerate(layers) if bits >> bit & 1}):
            lengths[part][figure] += length_ns
    return {part: _breakdown(figures) for part, figures in lengths.items()}


def _figures(running: set[str]) -> Iterator[str]:
    """Yield the figures that a piece of time counts to, by what runs over it."""
    if not running & {_COMPUTE, _COMMUNICATION, _MEMORY}:
        yield "idle_ns"
    if _COMPUTE in running:
        yield "compute_ns"
    if _COMMUNICATION in running:
        yield "communication_ns"
        yield "overlap_ns" if _COMPUTE in running else "exposed_communication_ns"
    if _MEMORY in running:
        yield "memory_ns"
        if not running & {_COMPUTE, _COMMUNICATION}:
            yield "exposed_memory_ns"
    if _PEER in running:
        yield "peer_copy_ns"


def _breakdown(lengths: Mapping[str, int]) -> Breakdown:
    communication_ns = lengths["communication_ns"]
    ratio = lengths["overlap_ns"] / communication_ns if communication_ns else None
    absent = {} if communication_ns else {"overlap_ratio": NO_COMMUNICATION}
    return Breakdown(**lengths, overlap_ratio=ratio, absent=absent)
