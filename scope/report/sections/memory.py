"""How much memory was in use at the peak, and which operators held it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from scope.analysis.memory import (
    COUNTED_FROM_RECORDING,
    NOTHING_RESERVES,
    MemoryHolders,
    StepMemory,
    compute_step_memory,
)
from scope.report.sections.base import column, figure, frame_column, frame_rows, whole_table
from scope.report.table import Absent

if TYPE_CHECKING:
    from collections.abc import Iterator

    from scope.analysis.job import Analysis, RankAnalysis
    from scope.analysis.memory import MemoryPeak
    from scope.report.results import Results
    from scope.report.table import Cell, ReportColumn, ReportTable
    from scope.trace.model import RankTrace

_HOST: Final = 0
_PLACE: Final = (
    column("label", "rank", "`rank 3`, or `file 2` where no rank is known."),
    column("device", "device", "Device index in the trace, or `host`."),
)
_PEAKS: Final = (
    column("peak_allocated_bytes", "peak allocated", "Largest number of bytes in use by tensors."),
    column("peak_reserved_bytes", "peak reserved", "Largest number of bytes that the allocator held."),
)
_OFFSET: Final = column(
    "peak_offset_ns",
    "peak after",
    "First instant of the peak, since the window of the rank's devices began; negative before that.",
)
_FIGURES: Final = (
    column("start_allocated_bytes", "at start", "In use before the first recorded event."),
    column("end_allocated_bytes", "at end", "In use after the last recorded event."),
    column("growth_bytes", "growth", "Bytes allocated minus bytes released while recording."),
    column("seen_bytes", "seen", "In use at the peak and allocated while recording; of the host all that is known."),
    column("unseen_bytes", "unseen", "In use at the peak, but allocated before the recording began."),
    column("num_events", "events", "Allocations and releases that were recorded."),
)
_INSTANT: Final = column("peak_ns", "peak at (epoch ns)", "First instant of the peak, ns since the epoch.", unit="id")
PEAK_COLUMNS: Final[tuple[ReportColumn, ...]] = (*_PLACE, *_PEAKS, _OFFSET, *_FIGURES, _INSTANT)
HOLDER_COLUMNS: Final[tuple[ReportColumn, ...]] = (
    *_PLACE,
    frame_column(MemoryHolders.operator, "operator"),
    frame_column(MemoryHolders.held_bytes, "held"),
    frame_column(MemoryHolders.num_blocks, "blocks"),
)
_STEP_SOURCES: Final = (
    StepMemory.number,
    StepMemory.peak_allocated_bytes,
    StepMemory.peak_reserved_bytes,
    StepMemory.growth_bytes,
    StepMemory.num_events,
)
_STEP_HEADINGS: Final = ("step", "peak allocated", "peak reserved", "growth", "events")
STEP_COLUMNS: Final[tuple[ReportColumn, ...]] = (
    *_PLACE,
    *(frame_column(source, heading) for source, heading in zip(_STEP_SOURCES, _STEP_HEADINGS, strict=True)),
)
_NO_WINDOW: Final = "nothing ran on a device of the rank, so there is no window"
_NOT_RECORDED: Final = "No memory events in the trace: record it with profile_memory=True."


def memory_table(analysis: Analysis) -> ReportTable:
    """Return the peak of each rank's devices."""
    rows = [
        (
            rank.label,
            _device(peak),
            *(figure(peak, each.key) for each in _PEAKS),
            _offset(rank, peak),
            *(figure(peak, each.key) for each in _FIGURES),
            peak.peak_ns,
        )
        for rank in analysis.ranks
        for peak in rank.memory
    ]
    return whole_table("memory", "Memory", PEAK_COLUMNS, rows, notes=() if rows else (_NOT_RECORDED,))


def holders_table(analysis: Analysis) -> ReportTable:
    """Return what was in use at the peak, by the operator that allocated it."""
    sources = (MemoryHolders.operator, MemoryHolders.held_bytes, MemoryHolders.num_blocks)
    unknown = {MemoryHolders.operator: "allocated outside any recorded operator"}
    rows = [
        (rank.label, _device(peak), *row)
        for rank in analysis.ranks
        for peak in rank.memory
        for row in frame_rows(peak.holders, sources, reasons=unknown)
    ]
    return whole_table("memory", "In use at the peak", HOLDER_COLUMNS, rows, notes=() if rows else (_NOT_RECORDED,))


def step_memory_table(results: Results) -> ReportTable:
    """Return the peak of each device in each profiler step, by the step's time on the host."""
    rows = [
        (trace.label, _device_name(*place), *row) for trace in results.job.ranks for place, row in _step_rows(trace)
    ]
    note = _NOT_RECORDED
    if any(rank.memory for rank in results.analysis.ranks):
        note = "No memory event lies in a profiler step: call profiler.step() once a step while recording."
    return whole_table("memory", "Memory by step", STEP_COLUMNS, rows, notes=() if rows else (note,))


def _step_rows(trace: RankTrace) -> Iterator[tuple[tuple[int, int | None], tuple[Cell, ...]]]:
    """Yield type and number of the device beside the figures of each step."""
    table = compute_step_memory(trace)
    no_total = "the trace does not say the total"
    for key, steps in table.group_by(StepMemory.device_type, StepMemory.device, maintain_order=True):
        device_type, device = key
        is_host = device_type == _HOST
        reasons = {
            StepMemory.peak_allocated_bytes: COUNTED_FROM_RECORDING if is_host else no_total,
            StepMemory.peak_reserved_bytes: NOTHING_RESERVES if is_host else no_total,
        }
        for row in frame_rows(steps, _STEP_SOURCES, reasons=reasons):
            yield (device_type, device), row


def _offset(rank: RankAnalysis, peak: MemoryPeak) -> Cell:
    """Return when the peak was in the rank's window."""
    begin_ns = min((device.windows.whole.start_ns for device in rank.devices), default=None)
    return Absent(_NO_WINDOW) if begin_ns is None else peak.peak_ns - begin_ns


def _device(peak: MemoryPeak) -> str:
    return _device_name(peak.device_type, peak.device)


def _device_name(device_type: int, device: int | None) -> str:
    return "host" if device_type == _HOST else str(device)
