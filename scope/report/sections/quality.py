"""How far to trust the figures of each rank."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from scope.report.sections.base import column, whole_table
from scope.report.table import Absent
from scope.trace.model import TraceQuality

if TYPE_CHECKING:
    from scope.analysis.job import Analysis, RankAnalysis
    from scope.report.table import Cell, ReportColumn, ReportTable

MISSING_RANKS: Final = "Ranks of the job of which no file was given, as ranges (`1-3, 7`); empty when there is none."
_MEANINGS: Final[dict[str, tuple[str, str]]] = {
    "events_read": ("read", "Records that were read, the dropped ones apart."),
    "events_lost": ("lost", "Records that could not be read, or hold nonsense that no repair makes true."),
    "events_repaired": ("repaired", "Records that were read after a repair."),
    "asynchronous": (
        "asynchronous",
        "Records of work without a thread (phases `b`, `n`, `e`), which are read and stand in no table.",
    ),
    "truncated": ("truncated", "The file ends before its JSON does; what came before was read."),
    "zero_length": ("zero length", "Device events of length 0."),
    "negative_length": ("negative length", "Device events whose length was negative; they count as 0."),
    "device_events_without_launch": ("no launch", "Device events whose launch is not in the file."),
    "launches_without_device_event": ("no event", "Launching calls of which no device event is in the file."),
    "slices_overrun": ("overrun", "Device events that run into the next event of their own stream."),
    "host_overlaps": (
        "host overlaps",
        "Operators that are neither inside nor outside the one before them on their thread.",
    ),
    "steps_found": ("steps", "Profiler steps."),
    "missing_ranks": ("missing ranks", MISSING_RANKS),
    "clock_interval_ns": (
        "clock interval",
        "Width of the interval that holds its offset whatever the ranks did.",
    ),
    "attributed_ratio": ("attributed", "Share of device time whose operator is known."),
    "roofline_coverage_ratio": ("on the roofline", "Share of compute time that the roofline places."),
}
_NOT_KNOWN: Final = {
    "clock_interval_ns": "no collective that was matched across ranks bounds its clock from both sides",
    "host_overlaps": "the operators were not read",
    "attributed_ratio": "no device event to attribute",
    "roofline_coverage_ratio": "no compute kernels ran on a device, so there is none to place",
}

QUALITY_COLUMNS: Final[tuple[ReportColumn, ...]] = (
    column("label", "rank", "`rank 3`, or `file 2` where no rank is known."),
    *(
        column(name, *_MEANINGS[name], unit="flag" if name == "truncated" else None)
        if name.endswith(("_ns", "_ratio")) or name == "truncated"
        else column(name, *_MEANINGS[name], unit="text" if name == "missing_ranks" else "count")
        for name in TraceQuality.__struct_fields__
    ),
)


def quality_table(analysis: Analysis) -> ReportTable:
    """Return what was lost, repaired and not attributed, rank by rank."""
    rows = [(rank.label, *_cells(rank.quality)) for rank in analysis.ranks]
    return whole_table("quality", "How far to trust this", QUALITY_COLUMNS, rows)


def quality_record(rank: RankAnalysis) -> dict[str, Any]:
    """Return the quality of one rank for JSON, with every key of `TraceQuality` and the reasons of its nulls."""
    values: dict[str, Any] = {name: getattr(rank.quality, name) for name in TraceQuality.__struct_fields__}
    values["missing_ranks"] = format_ranks(rank.quality.missing_ranks)
    absent = {name: _NOT_KNOWN[name] for name, value in values.items() if value is None}
    return {**values, "absent": absent}


def format_ranks(ranks: tuple[int, ...]) -> str:
    """Return ranks as ranges.

    Examples:
        >>> format_ranks((0, 1, 2, 7))
        '0-2, 7'
    """
    ranges: list[list[int]] = []
    for rank in sorted(ranks):
        if ranges and rank == ranges[-1][1] + 1:
            ranges[-1][1] = rank
        else:
            ranges.append([rank, rank])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)


def _cells(quality: TraceQuality) -> tuple[Cell, ...]:
    return tuple(_cell(name, getattr(quality, name)) for name in TraceQuality.__struct_fields__)


def _cell(name: str, value: Any) -> Cell:
    if value is None:
        return Absent(_NOT_KNOWN[name])
    return (format_ranks(value) or "none") if name == "missing_ranks" else value
