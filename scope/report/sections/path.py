"""The chain of work that decided how long a step took."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from scope.analysis.critical_path import PATH_KINDS, PathPieces
from scope.report.sections.base import column, frame_column, whole_table
from scope.report.sections.breakdown import device_name
from scope.report.table import Absent

if TYPE_CHECKING:
    from collections.abc import Iterator

    from scope.analysis.critical_path import CriticalPath
    from scope.analysis.job import Analysis, RankAnalysis
    from scope.report.table import Cell, ReportColumn, ReportTable

_PLACE: Final = (
    column("label", "rank", "`rank 3`, or `file 2` where no rank is known."),
    column("device", "device", "Device index in the trace."),
    column("step", "step", "n of `ProfilerStep#n`.", unit="id"),
)
_BEGINS: Final = (
    "A path begins with the step on the host, or at an event that waited for work of an earlier step, and ends with "
    "the step's last event; a window of scope steps lies on the device, from first to next first compute kernel."
)
PATH_COLUMNS: Final[tuple[ReportColumn, ...]] = (
    *_PLACE,
    column(
        "length_ns",
        "length",
        "Length of the critical path, which the kinds sum to exactly: from the step's start on the host, or from an "
        "event that waited for work of an earlier step, to the end of the step's last event. The step's window on its "
        "device is another length: from its first compute kernel to that of the next step.",
    ),
    *(
        column(f"{kind}_ns", kind.replace("_", " "), f"Pieces of the path of kind {kind.replace('_', ' ')}.")
        for kind in PATH_KINDS
    ),
    column("num_inferred", "inferred", "Edges between streams that the trace does not record."),
)
PIECE_COLUMNS: Final[tuple[ReportColumn, ...]] = (
    *_PLACE,
    column("at_ns", "at", "Start, since the start of the path."),
    column("length_ns", "length", "Length of the piece."),
    frame_column(PathPieces.kind, "kind"),
    frame_column(PathPieces.name, "name"),
    frame_column(PathPieces.thread, "thread", unit="text"),
    frame_column(PathPieces.stream, "stream", unit="text"),
)


def critical_path_table(analysis: Analysis, *, step: int | None = None) -> ReportTable:
    """Return the length of each device's critical path by kind of piece.

    Args:
        analysis: The results of a job.
        step: Number of the step that the paths are of; None for each device's step of median length.
    """
    rows: list[tuple[Cell, ...]] = []
    for rank in analysis.ranks:
        for path in _paths(rank):
            kinds = (path.ns_by_kind[kind] for kind in PATH_KINDS)
            rows.append((*_place(rank, path), path.length_ns, *kinds, path.num_inferred))
    title = f"Critical path of {'the median step' if step is None else f'step {step}'}"
    return whole_table("critical-path", title, PATH_COLUMNS, rows, notes=_notes(analysis, has_paths=bool(rows)))


def path_pieces_table(analysis: Analysis) -> ReportTable:
    """Return the pieces of every critical path in the order of time."""
    rows = [row for rank in analysis.ranks for path in _paths(rank) for row in _pieces(rank, path)]
    return whole_table(
        "critical-path",
        "Pieces of the critical path",
        PIECE_COLUMNS,
        rows,
        notes=_notes(analysis, has_paths=bool(rows)),
    )


def _notes(analysis: Analysis, *, has_paths: bool) -> Iterator[str]:
    """Yield where paths begin, and why devices have none."""
    if has_paths:
        yield _BEGINS
    yield from _missing(analysis)


def _missing(analysis: Analysis) -> Iterator[str]:
    """Yield why devices have no path."""
    for rank in analysis.ranks:
        if not rank.devices:
            yield f"{rank.label}: the trace holds no device."
        for device in rank.devices:
            if device.critical_path is None:
                reason = device.absent.get("critical_path", "no path")
                yield f"{rank.label}, device {device_name(device.device)}: {reason}."


def _paths(rank: RankAnalysis) -> Iterator[CriticalPath]:
    return (device.critical_path for device in rank.devices if device.critical_path is not None)


def _pieces(rank: RankAnalysis, path: CriticalPath) -> Iterator[tuple[Cell, ...]]:
    columns = (PathPieces.start_ns, PathPieces.end_ns, PathPieces.kind, PathPieces.name)
    for start, end, kind, name, thread, stream in path.pieces.select(
        *columns, PathPieces.thread, PathPieces.stream
    ).iter_rows():
        yield (
            *_place(rank, path),
            start - path.start_ns,
            end - start,
            kind,
            Absent("a gap has no name") if name is None else name,
            Absent("not on the host") if thread is None else str(thread),
            Absent("not on a device") if stream is None else str(stream),
        )


def _place(rank: RankAnalysis, path: CriticalPath) -> tuple[Cell, ...]:
    return (rank.label, device_name(path.device), path.step_number)
