"""The results of one job: what the analyses say of each part of a window, device, rank, and of all ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from scope.analysis.result import Result
from scope.units import format_duration

if TYPE_CHECKING:
    from collections.abc import Sequence

    import polars as pl

    from scope.analysis.breakdown import Breakdown
    from scope.analysis.critical_path import CriticalPath
    from scope.analysis.idle import IdleCauses
    from scope.analysis.launches import LaunchDelays, QueueDepth
    from scope.analysis.memory import MemoryPeak
    from scope.analysis.options import Options
    from scope.analysis.recompute import Recompute
    from scope.analysis.tables import KernelTables, Tables
    from scope.analysis.windows import DeviceWindows, Place, StepWindow, Window
    from scope.trace.model import TraceQuality

_MOST_NAMED: Final = 4
"""Ranks whose label stands in a `repr`."""


class PartAnalysis(Result, frozen=True, kw_only=True):
    """One part of a device's window (before, a step, after) or the whole of it."""

    place: Place
    window: Window | None
    """None for a step with no window on this device."""
    step: StepWindow | None
    """The step, where `place` is step."""
    breakdown: Breakdown | None
    launched: Breakdown | None
    """For a step: the events launched in it, whenever they ran; its window runs from the first to the last of them."""
    idle: IdleCauses | None
    queue: QueueDepth | None


class DeviceAnalysis(Result, frozen=True, kw_only=True):
    """One device of one rank; a host timeline is the device `scope.analysis.windows.HOST`."""

    device: int
    windows: DeviceWindows
    whole: PartAnalysis
    before: PartAnalysis | None
    steps: tuple[PartAnalysis, ...]
    after: PartAnalysis | None
    clipped: Breakdown | None
    """The breakdown with every event cut at the next start on its stream; only where events overrun."""
    critical_path: CriticalPath | None
    """Of the step of median length."""


class _WithTables(Result, frozen=True, kw_only=True):
    """A result with tables, each computed when it is first looked at."""

    tables: Tables

    @property
    def delays(self) -> LaunchDelays:
        """Delays from launch to start."""
        return self.tables.delays

    @property
    def kernels(self) -> KernelTables:
        """Device events grouped in four ways."""
        return self.tables.kernels

    @property
    def launches(self) -> pl.DataFrame:
        """The table `LaunchStats`."""
        return self.tables.launches

    @property
    def copies(self) -> pl.DataFrame:
        """The table `CopyStats`."""
        return self.tables.copies

    @property
    def syncs(self) -> pl.DataFrame:
        """The table `SyncStats`."""
        return self.tables.syncs

    @property
    def recompute(self) -> Recompute:
        """How much of backward is forward computed again."""
        return self.tables.recompute


class RankAnalysis(_WithTables, frozen=True, kw_only=True):
    """One rank's file."""

    label: str
    rank: int | None
    path: str
    host: str | None
    is_host_timeline: bool
    quality: TraceQuality
    devices: tuple[DeviceAnalysis, ...]
    breakdown: Breakdown | None
    """Sum over the devices."""
    idle: IdleCauses | None
    """Sum over the devices."""
    queue: QueueDepth | None
    """Sum over the devices."""
    tables: Tables

    def __repr__(self) -> str:
        """Name the rank and its devices instead of every figure."""
        devices = "1 device" if len(self.devices) == 1 else f"{len(self.devices)} devices"
        steps = max((len(device.steps) for device in self.devices), default=0)
        return f"RankAnalysis({self.label!r}, {devices}, {steps} steps, path={self.path!r})"

    @property
    def memory(self) -> tuple[MemoryPeak, ...]:
        """One a device whose memory was recorded; empty when the trace holds no memory events."""
        return self.tables.memory


class StepSummary(Result, frozen=True, kw_only=True):
    """One step over all ranks and devices in which it has a window."""

    number: int
    num_devices: int
    is_cut: bool
    """Some rank has only a part of it."""
    breakdown: Breakdown
    """Sum over the devices, as are idle causes and queue."""
    idle: IdleCauses | None
    queue: QueueDepth | None
    min_window_ns: int
    median_window_ns: int
    max_window_ns: int
    slowest: str
    """Label of the rank with the longest window; the first of several equals."""


def summed_ranks(ranks: Sequence[RankAnalysis]) -> tuple[RankAnalysis, ...]:
    """Return the ranks whose figures are added up: those with devices, or all where there is no device.

    What ranges on the host took says nothing of a device, so that a sum of both would be of neither.
    """
    on_device = tuple(rank for rank in ranks if not rank.is_host_timeline)
    return on_device if any(rank.breakdown is not None for rank in on_device) else tuple(ranks)


class Analysis(_WithTables, frozen=True, kw_only=True):
    """Everything that `scope analyze` says about a job; the root of a report."""

    options: Options
    ranks: tuple[RankAnalysis, ...]
    breakdown: Breakdown | None
    """Sum over all devices; over all host timelines where there is no device."""
    host_breakdown: Breakdown | None
    """Sum over the host timelines beside devices, which are never added to them; None where there are not both."""
    idle: IdleCauses | None
    queue: QueueDepth | None
    steps: tuple[StepSummary, ...]
    """By number, over the ranks that `breakdown` sums."""
    tables: Tables
    """Over all ranks; those of one rank stand with the rank."""
    world_size: int | None
    missing_ranks: tuple[int, ...]
    warnings: tuple[str, ...]

    def __repr__(self) -> str:
        """Name the ranks and the steps instead of every figure."""
        labels = [rank.label for rank in self.ranks]
        shown = labels if len(labels) <= _MOST_NAMED else [*labels[: _MOST_NAMED - 1], "...", labels[-1]]
        world = "" if self.world_size is None else f" of {self.world_size}"
        window = "" if self.breakdown is None else f", {format_duration(self.breakdown.window_ns)} of window"
        return f"Analysis({', '.join(shown)}{world}, {len(self.steps)} steps{window})"
