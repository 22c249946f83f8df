"""All analyses of one rank."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import polars as pl
from msgspec.structs import replace

from scope.analysis import spans
from scope.analysis.breakdown import (
    Breakdown,
    compute_clipped_breakdowns,
    compute_launched_breakdowns,
    compute_part_breakdowns,
    sum_breakdowns,
)
from scope.analysis.idle import IdleCauses, compute_part_idle_causes, sum_idle_causes
from scope.analysis.job import DeviceAnalysis, PartAnalysis, RankAnalysis
from scope.analysis.launches import QueueDepth, compute_part_queues, sum_queues
from scope.analysis.tables import Tables
from scope.analysis.windows import Parts
from scope.structs import Record
from scope.trace.schema import DeviceEvents

if TYPE_CHECKING:
    from collections.abc import Iterable

    from scope.analysis.critical_path import CriticalPath
    from scope.analysis.windows import DeviceWindows, StepWindow, Timeline, Window
    from scope.trace.model import TraceQuality

_T = TypeVar("_T")

NO_EVENTS = "the trace holds no device events and no host timeline"
HOST_ONLY = "a host timeline has no launches"
NO_LAUNCHES = "the trace holds no launches"
NOT_ASKED = "not asked for"
NOTHING_LAUNCHED = "nothing was launched in the step on this device"
NO_WINDOW = "the step has no window on this device"


class _Figures(Record, frozen=True, kw_only=True):
    """What was computed for all parts of all devices at once."""

    timeline: Timeline
    breakdowns: dict[int, Breakdown]
    launched: dict[tuple[int, int], Breakdown] | None
    """None where they were not asked for."""
    clipped: dict[int, Breakdown]
    idle: dict[int, IdleCauses]
    queues: dict[int, QueueDepth]
    no_launches: str | None
    """Why there are no idle causes and queues, where there are none."""
    path_step: int | None
    """Number of the step whose critical path is wanted; None for that of median length."""


def analyze_rank(
    timeline: Timeline, idle: pl.DataFrame, *, by_launch: bool = True, path_step: int | None = None
) -> RankAnalysis:
    """Return every analysis of one rank.

    Args:
        timeline: One rank's events.
        idle: What `scope.analysis.idle.find_idle_spans` returned for them.
        by_launch: Compute for each step the breakdown of what was launched in it too.
        path_step: Number of the step whose critical path is wanted; None for that of median length.
    """
    trace = timeline.trace
    no_launches = HOST_ONLY if trace.is_host_timeline else NO_LAUNCHES if trace.launches.is_empty() else None
    figures = _Figures(
        timeline=timeline,
        breakdowns=compute_part_breakdowns(timeline),
        launched=compute_launched_breakdowns(timeline) if by_launch else None,
        clipped=compute_clipped_breakdowns(timeline),
        idle={} if no_launches else compute_part_idle_causes(timeline, idle),
        queues={} if no_launches else compute_part_queues(timeline),
        no_launches=no_launches,
        path_step=path_step,
    )
    devices = tuple(_analyze_device(figures, windows) for windows in timeline.devices)
    absent = {
        **({} if trace.rank is not None else {"rank": "neither the file nor its name says"}),
        **({} if trace.host is not None else {"host": "the trace does not say"}),
        **({} if devices else {"breakdown": NO_EVENTS}),
    }
    reason = no_launches if devices else NO_EVENTS
    if reason is not None:
        absent |= {"idle": reason, "queue": reason}
    return RankAnalysis(
        label=trace.label,
        rank=trace.rank,
        path=trace.path,
        host=trace.host,
        is_host_timeline=trace.is_host_timeline,
        quality=trace.quality if trace.is_host_timeline else _with_attribution(trace.quality, timeline.events),
        devices=devices,
        breakdown=sum_breakdowns(_present(each.whole.breakdown for each in devices)) if devices else None,
        idle=None if reason else sum_idle_causes(_present(each.whole.idle for each in devices)),
        queue=None if reason else sum_queues(_present(each.whole.queue for each in devices)),
        tables=Tables([(timeline, idle)]),
        absent=absent,
    )


def _analyze_device(figures: _Figures, windows: DeviceWindows) -> DeviceAnalysis:
    device = windows.device
    parts = figures.timeline.parts.filter(pl.col(Parts.device) == device)
    ids = {(place, step): part for part, place, step in parts.select(_PART_KEY).iter_rows()}
    clipped = figures.clipped.get(device)
    path, no_path = _critical_path(figures.timeline, windows, figures.path_step)
    absent: dict[str, str] = {}
    if clipped is None:
        absent["clipped"] = "no event of this device runs into the next one of its stream"
    if path is None:
        absent["critical_path"] = no_path
    if windows.before is None or windows.after is None:
        absent |= dict.fromkeys(("before", "after"), "no step has a window on this device")
    return DeviceAnalysis(
        device=device,
        windows=windows,
        whole=_whole(figures, windows, [int(part) for part in parts[Parts.part_id]]),
        before=_outside(figures, windows.before, ids.get(("before", None)), is_before=True),
        steps=tuple(_step(figures, step, ids.get(("step", step.step_id))) for step in windows.steps),
        after=_outside(figures, windows.after, ids.get(("after", None)), is_before=False),
        clipped=clipped,
        critical_path=path,
        absent=absent,
    )


_PART_KEY = (Parts.part_id, Parts.place, Parts.step_id)
_NOT_A_STEP = {"step": "not a step", "launched": "only steps launch"}


def _launch_figures(figures: _Figures) -> dict[str, str]:
    """Return why idle causes and queue are absent, if they are."""
    return {} if figures.no_launches is None else {"idle": figures.no_launches, "queue": figures.no_launches}


def _whole(figures: _Figures, windows: DeviceWindows, parts: list[int]) -> PartAnalysis:
    """Return the figures of the whole window as the sum of those of its parts."""
    has_launches = figures.no_launches is None
    return PartAnalysis(
        place="whole",
        window=windows.whole,
        step=None,
        breakdown=sum_breakdowns(figures.breakdowns[part] for part in parts),
        launched=None,
        idle=sum_idle_causes(figures.idle[part] for part in parts) if has_launches else None,
        queue=sum_queues(figures.queues[part] for part in parts) if has_launches else None,
        absent={**_NOT_A_STEP, **_launch_figures(figures)},
    )


def _outside(figures: _Figures, window: Window | None, part: int | None, *, is_before: bool) -> PartAnalysis | None:
    """Return the figures of what lies before the first step, or after the last."""
    if window is None or part is None:
        return None
    return PartAnalysis(
        place="before" if is_before else "after",
        window=window,
        step=None,
        breakdown=figures.breakdowns[part],
        launched=None,
        idle=figures.idle.get(part),
        queue=figures.queues.get(part),
        absent={**_NOT_A_STEP, **_launch_figures(figures)},
    )


def _step(figures: _Figures, step: StepWindow, part: int | None) -> PartAnalysis:
    """Return the figures of one step, which may have no window on the device."""
    launched = None if figures.launched is None else figures.launched.get((step.device, step.step_id))
    absent = _launch_figures(figures)
    if part is None:
        absent |= dict.fromkeys(("window", "breakdown", "idle", "queue"), NO_WINDOW)
    if launched is None:
        absent["launched"] = (
            NOT_ASKED if figures.launched is None else "nothing was launched in the step on this device"
        )
    return PartAnalysis(
        place="step",
        window=step.window,
        step=step,
        breakdown=None if part is None else figures.breakdowns[part],
        launched=launched,
        idle=None if part is None else figures.idle.get(part),
        queue=None if part is None else figures.queues.get(part),
        absent=absent,
    )


def _critical_path(timeline: Timeline, windows: DeviceWindows, number: int | None) -> tuple[CriticalPath | None, str]:
    """Return the critical path of a step, of the one of median length if none is named, or why there is none."""
    if not timeline.options.critical_path:
        return None, NOT_ASKED
    if timeline.trace.is_host_timeline:
        return None, "a host timeline has no launches to follow"
    step_id = _median_step(windows) if number is None else _step_numbered(windows, number)
    if step_id is None and number is None:
        return None, "no step that was recorded whole has a window on this device"
    # A summary has no path, and its modules are a tenth of the code of all analyses.
    from scope.analysis.critical_path import compute_critical_path

    path = None if step_id is None else compute_critical_path(timeline, device=windows.device, step_id=step_id)
    return path, NOTHING_LAUNCHED


def _median_step(windows: DeviceWindows) -> int | None:
    """Return the step of median length, cut steps apart."""
    whole = [(step.window.length_ns, step.step_id) for step in windows.steps if step.window and not step.is_cut]
    return sorted(whole)[(len(whole) - 1) // 2][1] if whole else None


def _step_numbered(windows: DeviceWindows, number: int) -> int | None:
    """Return the step of a number that has a window on the device, be it cut or not."""
    return next((step.step_id for step in windows.steps if step.number == number and step.window), None)


def _with_attribution(quality: TraceQuality, events: pl.DataFrame) -> TraceQuality:
    """Return the quality with the share of device time whose operator is known; a host timeline has no device time."""
    total = int(events.select(spans.SPAN_NS.sum()).item())
    if not total:
        return quality
    known = int(events.filter(pl.col(DeviceEvents.op_id).is_not_null()).select(spans.SPAN_NS.sum()).item())
    return replace(quality, attributed_ratio=known / total)


def _present(values: Iterable[_T | None]) -> list[_T]:
    """Return the values that are there."""
    return [value for value in values if value is not None]
