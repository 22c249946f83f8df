"""How close each kernel comes to what its GPU can do."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from scope.analysis.roofline import RooflinePoints
from scope.report.sections.base import column, frame_column, frame_rows, whole_table
from scope.report.table import Absent
from scope.units import format_duration, format_ratio

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from scope.analysis.roofline import Roofline
    from scope.report.table import Cell, ReportColumn, ReportTable, Unit
    from scope.trace.columns import Column

_SPACES: Final = re.compile(r"\s+")
_SHOWN: Final[tuple[tuple[Column, str, Unit], ...]] = (
    (RooflinePoints.kernel, "kernel", "text"),
    (RooflinePoints.operator, "operator", "text"),
    (RooflinePoints.duration_ns, "total", "ns"),
    (RooflinePoints.num_kernels, "count", "count"),
    (RooflinePoints.attained_ratio, "of ceiling", "ratio"),
    (RooflinePoints.bound, "bound by", "text"),
    (RooflinePoints.saving_ns, "saving", "ns"),
    (RooflinePoints.achieved_flop_per_s, "achieved", "flop_per_s"),
    (RooflinePoints.intensity_flop_per_byte, "intensity", "flop_per_byte"),
    (RooflinePoints.achieved_bytes_per_s, "bandwidth", "bytes_per_s"),
    (RooflinePoints.ceiling_flop_per_s, "ceiling", "flop_per_s"),
    (RooflinePoints.path, "units", "text"),
    (RooflinePoints.shapes, "shapes", "text"),
    (RooflinePoints.flops, "FLOPs", "count"),
    (RooflinePoints.num_bytes, "bytes", "bytes"),
    (RooflinePoints.time_at_ceiling_ns, "at the ceiling", "ns"),
    (RooflinePoints.kernel_class, "class", "text"),
    (RooflinePoints.device, "device", "id"),
)
_SOURCES: Final = tuple(source for source, _, _ in _SHOWN)
_SHAPES: Final = 1 + _SOURCES.index(RooflinePoints.shapes)
_ATTAINED: Final = 1 + _SOURCES.index(RooflinePoints.attained_ratio)
_SAVING: Final = 1 + _SOURCES.index(RooflinePoints.saving_ns)
_BEYOND: Final = "they run beyond this ceiling (its model, its peak or a cache), so what they could save is not known"

_LEAST_SHARE: Final = 0.001
"""Reasons of less than this share of the compute time stand together."""
_NO_DEVICES: Final = "No roofline: no device events in these traces; recorded on CPUs, or without the GPU's activity."

ROOFLINE_COLUMNS: Final[tuple[ReportColumn, ...]] = (
    column("label", "rank", "`rank 3`, or `file 2` where no rank is known."),
    *(frame_column(source, heading, unit=unit) for source, heading, unit in _SHOWN),
    column("reason", "remark", "Why it has no place under the roofline."),
)
COVERAGE_COLUMNS: Final[tuple[ReportColumn, ...]] = (
    column("label", "rank", "`rank 3`, or `file 2` where no rank is known."),
    column("gpu", "GPU", "What the devices are, or why that is not known."),
    column("coverage_ratio", "placed", "Compute time that has a place under the roofline / compute time."),
    column("saving_ns", "saving", "Sum of the savings: at most this much shorter with every kernel at its ceiling."),
    column("compute_ns", "compute", "Sum of the lengths of all compute kernels."),
    column("placed_ns", "placed time", "Sum of the lengths of those that have a place."),
    column("unplaced", "without a place", "Why the rest has none, each reason with its share of the compute time."),
)


def roofline_table(rooflines: Mapping[str, Roofline]) -> ReportTable:
    """Return every (kernel, operator, shapes, units) with its place under the roofline, the longest first.

    Args:
        rooflines: By the label of the rank.
    """
    rows = sorted(
        (row for label, roofline in rooflines.items() for row in _rows(label, roofline)),
        key=lambda row: -_duration(row),
    )
    return whole_table("roofline", "Roofline of kernels", ROOFLINE_COLUMNS, rows, notes=_notes(rooflines))


def coverage_table(rooflines: Mapping[str, Roofline]) -> ReportTable:
    """Return how much of each rank's compute the roofline places, and on which GPU it stands."""
    rows: list[tuple[Cell, ...]] = []
    for label, roofline in rooflines.items():
        coverage = roofline.coverage_ratio
        cell = Absent(roofline.absent.get("coverage_ratio", "not known")) if coverage is None else coverage
        gpus = "; ".join(dict.fromkeys(match.reason for match in roofline.devices)) or Absent("no device")
        why = "; ".join(_unplaced([roofline])) or Absent("every kernel has a place")
        rows.append((label, gpus, cell, roofline.saving_ns, roofline.compute_ns, roofline.placed_ns, why))
    return whole_table("roofline", "What the roofline places", COVERAGE_COLUMNS, rows, () if rows else (_NO_DEVICES,))


def _rows(label: str, roofline: Roofline) -> Iterator[tuple[Cell, ...]]:
    reasons = roofline.points[RooflinePoints.reason].to_list()
    for reason, row in zip(reasons, frame_rows(roofline.points, _SOURCES), strict=True):
        why = Absent(reason or "its FLOPs are not known: only the memory's roof applies")
        cells = [why if isinstance(cell, Absent) else cell for cell in (label, *row)]
        shapes = cells[_SHAPES]
        attained = cells[_ATTAINED]
        if isinstance(attained, float) and attained > 1:
            cells[_SAVING] = Absent(_BEYOND)
        if isinstance(shapes, str):
            cells[_SHAPES] = _SPACES.sub("", shapes)
        yield (*cells, reason or Absent("none; these kernels have a place under the roofline"))


def _duration(row: tuple[Cell, ...]) -> int:
    value = row[1 + _SOURCES.index(RooflinePoints.duration_ns)]
    return value if isinstance(value, int) else 0


def _unplaced(rooflines: Sequence[Roofline]) -> Iterator[str]:
    """Yield why kernels have no place, with their share of all compute time, the largest first."""
    lengths: dict[str, int] = {}
    for each in rooflines:
        for reason, length_ns in each.unplaced_ns().items():
            lengths[reason] = lengths.get(reason, 0) + length_ns
    compute = sum(each.compute_ns for each in rooflines)
    ranked = sorted(lengths.items(), key=lambda item: (-item[1], item[0]))
    shown = [(reason, length_ns) for reason, length_ns in ranked if length_ns >= _LEAST_SHARE * compute]
    for reason, length_ns in shown:
        yield f"{format_ratio(length_ns / compute) if compute else format_duration(length_ns)}, {reason}"
    if len(ranked) > len(shown):
        yield f"less than 0.1 % each, {'; '.join(reason for reason, _ in ranked[len(shown) :])}"


def _notes(rooflines: Mapping[str, Roofline]) -> Iterator[str]:
    if not rooflines:
        yield _NO_DEVICES
    compute = sum(each.compute_ns for each in rooflines.values())
    placed = sum(each.placed_ns for each in rooflines.values())
    if rooflines and not compute:
        yield "No kernel computes: there is nothing to place under the roofline."
    if compute:
        yield f"{format_ratio(placed / compute)} of {format_duration(compute)} of compute is placed under the roofline."
        yield from (f"Not placed: {reason}." for reason in _unplaced(list(rooflines.values())))
    for reason in dict.fromkeys(match.reason for each in rooflines.values() for match in each.devices):
        yield f"GPU: {reason}."
