"""What the host called: launches with their delay, calls that block, copies with their bandwidth."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from scope.analysis.copies import CopyStats
from scope.analysis.launches import LaunchStats
from scope.analysis.syncs import SyncStats
from scope.report.sections.base import column, frame_column, frame_rows, no_device_note, whole_table

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import polars as pl

    from scope.analysis.job import Analysis, RankAnalysis
    from scope.report.table import Cell, ReportColumn, ReportTable
    from scope.trace.columns import Column

_RANK: Final = column("label", "rank", "`rank 3`, or `file 2` where no rank is known.")
_LAUNCHES: Final = (
    LaunchStats.name,
    LaunchStats.num_calls,
    LaunchStats.num_device_events,
    LaunchStats.call_ns,
    LaunchStats.blocking_ns,
    LaunchStats.median_delay_ns,
    LaunchStats.p90_delay_ns,
    LaunchStats.max_delay_ns,
    LaunchStats.min_delay_ns,
    LaunchStats.total_delay_ns,
    LaunchStats.num_negative_delays,
    LaunchStats.kind,
    LaunchStats.api,
)
_LAUNCH_HEADINGS: Final = (
    "call", "calls", "events", "host time", "blocking", "median delay", "p90 delay", "longest delay", "shortest delay",
    "sum of delays", "negative", "launches", "api",
)  # fmt: skip
_SYNCS: Final = (
    SyncStats.name,
    SyncStats.root_operator,
    SyncStats.operator,
    SyncStats.num_calls,
    SyncStats.call_ns,
    SyncStats.max_call_ns,
    SyncStats.idle_ns,
    SyncStats.kind,
)
_SYNC_HEADINGS: Final = ("call", "within", "operator", "calls", "host time", "longest", "device idle", "kind")
_COPIES: Final = (
    CopyStats.name,
    CopyStats.copy_kind,
    CopyStats.num_copies,
    CopyStats.total_ns,
    CopyStats.exposed_ns,
    CopyStats.total_bytes,
    CopyStats.bandwidth_bytes_per_s,
    CopyStats.max_bytes,
    CopyStats.num_sized,
)
_COPY_HEADINGS: Final = (
    "copy", "direction", "count", "total", "exposed", "bytes", "bandwidth", "largest", "sized",
)  # fmt: skip


def _columns(sources: Sequence[Column], headings: Sequence[str]) -> tuple[ReportColumn, ...]:
    named = (frame_column(source, heading) for source, heading in zip(sources, headings, strict=True))
    return (_RANK, *named)


LAUNCH_COLUMNS: Final = _columns(_LAUNCHES, _LAUNCH_HEADINGS)
SYNC_COLUMNS: Final = _columns(_SYNCS, _SYNC_HEADINGS)
COPY_COLUMNS: Final = _columns(_COPIES, _COPY_HEADINGS)


def launches_table(analysis: Analysis) -> ReportTable:
    """Return the launching calls of every rank with the delay to their first event."""
    no_event = "no event that these calls launched is in the trace"
    delays = [name for name in _LAUNCHES if "delay_ns" in name]
    rows = [*_rows(analysis, "launches", _LAUNCHES, dict.fromkeys(delays, no_event))]
    notes = () if rows else no_device_note(analysis, what="No launches", kind="launching call")
    return whole_table("launches", "Launching calls", LAUNCH_COLUMNS, rows, notes)


def syncs_table(analysis: Analysis) -> ReportTable:
    """Return the calls that made the host wait for the device."""
    no_operator = "the call stands outside any operator"
    reasons = {SyncStats.operator: no_operator, SyncStats.root_operator: no_operator}
    rows = [*_rows(analysis, "syncs", _SYNCS, reasons)]
    notes = () if rows else no_device_note(analysis, what="No blocking calls", kind="call that blocks")
    return whole_table("syncs", "Calls that block the host", SYNC_COLUMNS, rows, notes)


def copies_table(analysis: Analysis) -> ReportTable:
    """Return copies and sets by direction, with what nothing hid."""
    no_bytes = "the trace does not say the bytes"
    sized = (CopyStats.total_bytes, CopyStats.max_bytes, CopyStats.bandwidth_bytes_per_s)
    reasons = {**dict.fromkeys(sized, no_bytes), CopyStats.copy_kind: "the trace does not say the direction"}
    rows = [*_rows(analysis, "copies", _COPIES, reasons)]
    notes = () if rows else no_device_note(analysis, what="No copies", kind="copy or set")
    return whole_table("copies", "Copies and sets", COPY_COLUMNS, rows, notes)


def _rows(
    analysis: Analysis, table: str, sources: Sequence[Column], reasons: Mapping[Column, str]
) -> Iterator[tuple[Cell, ...]]:
    for rank in analysis.ranks:
        for row in frame_rows(_frame(rank, table), sources, reasons=reasons):
            yield (rank.label, *row)


def _frame(rank: RankAnalysis, table: str) -> pl.DataFrame:
    return {"launches": rank.launches, "syncs": rank.syncs, "copies": rank.copies}[table]
