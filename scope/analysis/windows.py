"""Which stretch of a device's time belongs to which step, and the events that stand on it.

One device is one timeline. Its window runs from the start of its first event to the largest end. A step's window on
the device begins at the first compute kernel launched in the step on the stream with most compute, and ends where the
next step's begins; the last step's ends with the last event launched in it. So `before` + steps + `after` is the
window exactly, and a copy that is prefetched for a later step belongs to the step during which it runs.

A host timeline (training on CPUs) is one timeline more, device `HOST`: a step's window begins where the step begins on
the host and ends where the next begins; the last ends where it ends on the host.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec
import polars as pl

from scope.analysis import spans
from scope.analysis.host import HOST, host_events
from scope.analysis.host_activity import HostActivity
from scope.analysis.result import Result
from scope.structs import Record
from scope.trace.columns import Column, Table
from scope.trace.schema import DeviceEvents, Launches, Steps

if TYPE_CHECKING:
    from collections.abc import Mapping

    from scope.analysis.options import Options
    from scope.trace.model import RankTrace

Place = Literal["before", "step", "after", "whole"]
"""Where a part of the window lies; `whole` is the single part of a window in which no step has a window."""

PLACES: Final[tuple[Place, ...]] = ("before", "step", "after", "whole")


_LANE: Final = "lane"
_BUSY: Final = "busy_ns"
_PART_END: Final = "part_end_ns"
_STEP_COLUMNS: Final = (Steps.step_id, Steps.number, Steps.start_ns, Steps.end_ns, Steps.is_cut)


class Parts(Table):
    """The parts that each device's window falls into, in the order of time; they are adjacent and cover it."""

    part_id = Column("part_id", pl.UInt32, "row number")
    device = Column("device", pl.Int32, "device index in the trace; `HOST` for a host timeline")
    place = Column("place", pl.Enum(PLACES), "where it lies")
    step_id = Column("step_id", pl.UInt32, "the step, where `place` is step", nullable=True)
    start_ns = Column("start_ns", pl.Int64, "first nanosecond")
    end_ns = Column("end_ns", pl.Int64, "end, not part of it; equal to the start for a part that is empty")


class Window(Result, frozen=True, kw_only=True):
    """A half-open stretch of time [start_ns, end_ns)."""

    start_ns: int
    end_ns: int

    @property
    def length_ns(self) -> int:
        """Nanoseconds from start to end."""
        return self.end_ns - self.start_ns

    def _check_sums(self) -> None:
        assert self.start_ns <= self.end_ns, f"a window ends at {self.end_ns}, before {self.start_ns}"


class StepWindow(Result, frozen=True, kw_only=True):
    """One profiler step on one device."""

    step_id: int
    """Row of the rank's table of steps."""
    number: int
    """n of `ProfilerStep#n`."""
    device: int
    is_cut: bool
    """The recording began or ended inside the step, so its figures are those of a part of it."""
    host: Window
    """The step on the host."""
    window: Window | None
    """The step's stretch of the device's time."""
    ends_with: Literal["next step", "last event", "host step"] | None
    """What ended the window: the next step, or for the last one its last event or the step's end on the host."""


class DeviceWindows(Result, frozen=True, kw_only=True):
    """The window of one device and its parts."""

    device: int
    whole: Window
    main_stream: int | None
    """The stream with most compute (the lowest of several equals); steps begin on it."""
    before: Window | None
    """From the start of the window to the first step."""
    steps: tuple[StepWindow, ...]
    """Every step of the trace, in the order of their start on the host, those without a window too."""
    after: Window | None
    """From the end of the last step to the end of the window."""

    def _check_sums(self) -> None:
        if self.before is None or self.after is None:
            return
        windows = sorted(
            (step.window for step in self.steps if step.window is not None), key=lambda each: each.start_ns
        )
        parts = [self.before, *windows, self.after]
        assert parts[0].start_ns == self.whole.start_ns
        assert parts[-1].end_ns == self.whole.end_ns
        assert sum(part.length_ns for part in parts) == self.whole.length_ns


class Timeline(Record, frozen=True, kw_only=True):
    """One rank's events as the analyses see them: chosen by the options, with the parts of each device's window."""

    trace: RankTrace
    options: Options
    events: pl.DataFrame
    """Columns of `DeviceEvents`, sorted by start; for a host timeline made of host ranges, with device `HOST`."""
    devices: tuple[DeviceWindows, ...]
    """Sorted by device; empty for a trace with no events."""
    parts: pl.DataFrame
    """The table `Parts`."""
    host: HostActivity
    launches: pl.DataFrame
    """The rank's table `Launches`, or of a timeline that was narrowed to a step the calls of the step."""
    all_events: pl.DataFrame
    """The events before a timeline was narrowed to a step; else the same as `events`."""
    step_id: int | None = None
    """The step that the timeline was narrowed to; None for a whole one."""

    @property
    def launched(self) -> pl.DataFrame:
        """The table `scope.analysis.host_activity.Launched` of the events."""
        return self.host.launched

    @property
    def blocking(self) -> pl.DataFrame:
        """The rows of `launches` that made their thread wait for the device."""
        return self.host.blocking

    @property
    def host_spans(self) -> pl.DataFrame:
        """The table `scope.analysis.host_activity.HostSpans`."""
        return self.host.spans


def build_timeline(trace: RankTrace, *, options: Options) -> Timeline:
    """Choose one rank's events and cut each device's window into its parts.

    Args:
        trace: One rank's tables.
        options: Which events count.
    """
    events = host_events(trace) if trace.is_host_timeline else trace.device_events
    if options.linked_only and not trace.is_host_timeline:
        events = events.filter(pl.col(DeviceEvents.launch_id).is_not_null())
    main_streams = _main_streams(events)
    begins = _step_begins(trace, events, main_streams)
    bounds = events.group_by(DeviceEvents.device).agg(
        pl.col(DeviceEvents.start_ns).min(), pl.col(DeviceEvents.end_ns).max()
    )
    # Steps of the host may begin before, and end after, the work that was recorded; on a device they consist of it.
    beyond = list(begins.values()) if trace.is_host_timeline else []
    devices = tuple(
        _device_windows(trace, device, _around((start_ns, end_ns), *beyond), main_streams.get(device), begins)
        for device, start_ns, end_ns in bounds.sort(DeviceEvents.device).iter_rows()
    )
    return Timeline(
        trace=trace,
        options=options,
        events=events,
        devices=devices,
        parts=_parts(devices),
        host=HostActivity(trace),
        launches=trace.launches,
        all_events=events,
    )


def narrow_to_step(timeline: Timeline, *, step_id: int) -> Timeline:
    """Return a timeline that holds of the events those that start in the step's windows, and of the calls its own.

    It serves the tables that group events or calls (kernels, launches, copies, blocking calls, recompute). What is
    measured along the line of time (breakdown, idle causes, queue) has figures for every part already.
    """
    step = timeline.parts.filter(pl.col(Parts.step_id) == step_id)
    starts = step.select(Parts.device, Parts.start_ns, pl.col(Parts.end_ns).alias(_PART_END))
    begun = timeline.events.join(starts, on=Parts.device, suffix="_of_part", maintain_order="left").filter(
        pl.col(DeviceEvents.start_ns) >= pl.col(f"{Parts.start_ns}_of_part"),
        pl.col(DeviceEvents.start_ns) < pl.col(_PART_END),
    )
    launches = timeline.launches.filter(pl.col(Launches.step_id) == step_id)
    return msgspec.structs.replace(
        timeline,
        events=begun.select(timeline.events.columns),
        launches=launches,
        host=HostActivity(timeline.trace, whole=timeline.host, step_id=step_id),
        step_id=step_id,
    )


def _around(*bounds: tuple[int, int]) -> Window:
    return Window(start_ns=min(start for start, _ in bounds), end_ns=max(end for _, end in bounds))


def _main_streams(events: pl.DataFrame) -> dict[int, int]:
    """Return the stream with most compute of each device that has any."""
    keys = (DeviceEvents.device, DeviceEvents.stream)
    compute = events.filter(pl.col(DeviceEvents.category) == "compute")
    if not compute.is_empty() and all(spans.is_constant(compute[key]) for key in keys):
        return dict(compute.head(1).select(keys).iter_rows())
    numbered = compute.sort(keys).with_columns(pl.struct(keys).rle_id().alias(_LANE))
    lanes = numbered.group_by(_LANE).agg(pl.col(key).first() for key in keys)
    busy = spans.union(numbered, by=_LANE).group_by(_LANE).agg(spans.SPAN_NS.sum().alias(_BUSY))
    ranked = lanes.join(busy, on=_LANE, how="left").sort(pl.col(_BUSY).fill_null(0), -pl.col(DeviceEvents.stream))
    return dict(ranked.select(keys).iter_rows())


_Begins = dict[tuple[int, int], tuple[int, int]]
"""By device and step: where the step's window begins, and the end of the last event that belongs to the step."""


def _step_begins(trace: RankTrace, events: pl.DataFrame, main_streams: dict[int, int]) -> _Begins:
    if trace.is_host_timeline:
        rows = trace.steps.select(Steps.step_id, Steps.start_ns, Steps.end_ns).iter_rows()
        return {(HOST, step): (start_ns, end_ns) for step, start_ns, end_ns in rows}
    main = pl.col(DeviceEvents.device).replace_strict(main_streams, default=None, return_dtype=pl.Int64)
    opens = (pl.col(DeviceEvents.category) == "compute") & (pl.col(DeviceEvents.stream) == main)
    found = (
        events.filter(pl.col(DeviceEvents.step_id).is_not_null())
        .group_by(DeviceEvents.device, DeviceEvents.step_id)
        .agg(pl.col(DeviceEvents.start_ns).filter(opens).min(), pl.col(DeviceEvents.end_ns).max())
        .drop_nulls(DeviceEvents.start_ns)
    )
    return {(device, step): (start_ns, end_ns) for device, step, start_ns, end_ns in found.iter_rows()}


def _device_windows(
    trace: RankTrace, device: int, whole: Window, main_stream: int | None, begins: _Begins
) -> DeviceWindows:
    is_host = device == HOST
    inside = {step: bounds for (owner, step), bounds in begins.items() if owner == device}
    order = sorted(inside, key=lambda step: (inside[step][0], step))
    ends = [inside[step][0] for step in order[1:]] + [inside[order[-1]][1]] if order else []
    windows = {step: Window(start_ns=inside[step][0], end_ns=end) for step, end in zip(order, ends, strict=True)}
    steps = tuple(
        _step_window(row, device, windows.get(row[0]), is_last=bool(order) and row[0] == order[-1])
        for row in trace.steps.select(*_STEP_COLUMNS).iter_rows()
    )
    absent = {} if is_host or main_stream is not None else {"main_stream": "no compute on this device"}
    if is_host:
        absent["main_stream"] = "a host timeline has threads, not streams"
    if order:
        before = Window(start_ns=whole.start_ns, end_ns=windows[order[0]].start_ns)
        after = Window(start_ns=windows[order[-1]].end_ns, end_ns=whole.end_ns)
    else:
        before = after = None
        absent |= dict.fromkeys(("before", "after"), "no step has a window on this device")
    return DeviceWindows(
        device=device,
        whole=whole,
        main_stream=None if is_host else main_stream,
        before=before,
        steps=steps,
        after=after,
        absent=absent,
    )


def _step_window(row: tuple[Any, ...], device: int, window: Window | None, *, is_last: bool) -> StepWindow:
    step_id, number, start_ns, end_ns, is_cut = row
    if window is None:
        reason = "nothing ran in it" if device == HOST else "launched no compute kernel on the stream with most compute"
        absent = {"window": reason, "ends_with": "no window"}
        ends_with = None
    else:
        absent = {}
        last: Literal["host step", "last event"] = "host step" if device == HOST else "last event"
        ends_with = last if is_last else "next step"
    return StepWindow(
        step_id=step_id,
        number=number,
        device=device,
        is_cut=is_cut,
        host=Window(start_ns=start_ns, end_ns=end_ns),
        window=window,
        ends_with=ends_with,
        absent=absent,
    )


def _parts(devices: tuple[DeviceWindows, ...]) -> pl.DataFrame:
    rows: list[tuple[int, Place, int | None, int, int]] = []
    for each in devices:
        if each.before is None or each.after is None:
            rows.append((each.device, "whole", None, each.whole.start_ns, each.whole.end_ns))
            continue
        rows.append((each.device, "before", None, each.before.start_ns, each.before.end_ns))
        seen = [(step.window, step.step_id) for step in each.steps if step.window is not None]
        for window, step_id in sorted(seen, key=lambda pair: (pair[0].start_ns, pair[1])):
            rows.append((each.device, "step", step_id, window.start_ns, window.end_ns))
        rows.append((each.device, "after", None, each.after.start_ns, each.after.end_ns))
    numbered = [(index, *row) for index, row in enumerate(rows)]
    return pl.DataFrame(numbered, schema=Parts.schema(), orient="row")


def cut_at_parts(
    covered: pl.DataFrame, parts: pl.DataFrame, *, layers: Mapping[str, pl.Expr], by: str = Parts.device
) -> pl.DataFrame:
    """Sweep spans and cut the pieces at the edges of the parts.

    Args:
        covered: Spans with the column `by`.
        parts: Columns `part_id`, `by`, `start_ns`, `end_ns`; the parts of one value of `by` must be disjoint.
        layers: As for `scope.analysis.spans.sweep`, on the columns of `covered`.
        by: A column whose every value has a line of time of its own.

    Returns:
        The pieces inside the parts with their `part_id`, those that no layer covers too.
    """
    edges = parts.select(by, Parts.start_ns, Parts.end_ns)
    pieces = spans.sweep(pl.concat([covered, edges], how="diagonal_relaxed"), layers=layers, by=by)
    solid = parts.filter(spans.SPAN_NS > 0)
    if spans.is_constant(pieces[by]):
        return pieces.with_columns(find_parts(pieces[Parts.start_ns], solid)).drop_nulls(Parts.part_id)
    owners = solid.select(by, Parts.part_id, Parts.start_ns, pl.col(Parts.end_ns).alias(_PART_END))
    joined = pieces.sort(Parts.start_ns).join_asof(
        owners.sort(Parts.start_ns), on=Parts.start_ns, by=by, check_sortedness=False
    )
    return joined.filter(pl.col(Parts.end_ns) <= pl.col(_PART_END)).drop(_PART_END)


def find_parts(instants: pl.Series, parts: pl.DataFrame) -> pl.Series:
    """Return the part in which each instant of one device lies, null where none does; named `part_id`.

    Args:
        instants: Sorted.
        parts: Columns `part_id`, `start_ns`, `end_ns`; disjoint and sorted. There are few, so to look each of their
            edges up costs less than to look every instant up.
    """
    edges = [instants.search_sorted(parts[edge], side="left") for edge in (Parts.start_ns, Parts.end_ns)]
    part_ids = parts[Parts.part_id]
    nothing = pl.Series(Parts.part_id, [None], dtype=part_ids.dtype)
    runs: list[pl.Series] = []
    done = 0
    for row, (first, end) in enumerate(zip(*edges, strict=True)):
        runs += [nothing.new_from_index(0, first - done), part_ids.new_from_index(row, end - first)]
        done = end
    runs.append(nothing.new_from_index(0, len(instants) - done))
    return pl.concat(runs, rechunk=True).alias(Parts.part_id)
