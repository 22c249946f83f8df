"""Why devices stood idle, and whether the host kept them fed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from scope.analysis.idle import IDLE_CAUSES
from scope.report.sections.base import column, figures, no_device_note, whole_table
from scope.report.sections.breakdown import is_host_alone
from scope.units import format_duration

if TYPE_CHECKING:
    from collections.abc import Iterator

    from scope.analysis.job import Analysis
    from scope.report.table import ReportColumn, ReportTable

_MEANINGS: Final = {
    "input": "The launching thread fetched data.",
    "sync": "It sat in a blocking call or copy that began before the device ran dry.",
    "allocation": "It allocated or freed device memory in the driver.",
    "profiler": "The profiler itself held it up.",
    "gc": "Python's garbage collector ran.",
    "host": "Anything else the launching thread did: Python, host code of operators.",
    "launch_latency": "From the start of the launching call to the start of the event.",
    "back_to_back": "Short gaps (below 10 us) before an event that was launched in time.",
    "blocked": "Longer gaps before an event that was launched in time: it waited for another stream, say.",
    "unknown": "Gaps before an event whose launch the trace does not hold.",
}

IDLE_COLUMNS: Final[tuple[ReportColumn, ...]] = (
    column("label", "rank", "`rank 3`, or `file 2` where no rank is known."),
    column("idle_ns", "idle", "Time in which nothing ran on the device; the causes sum to it exactly."),
    *(column(f"{cause}_ns", cause.replace("_", " "), _MEANINGS[cause]) for cause in IDLE_CAUSES),
)
QUEUE_COLUMNS: Final[tuple[ReportColumn, ...]] = (
    column("label", "rank", "`rank 3`, or `file 2` where no rank is known."),
    column("window_ns", "window", "Length of the window, the sum over devices."),
    column("num_launches", "launches", "Launches of which an event starts in the window."),
    column("mean_depth", "mean queue", "Launched and not yet started, weighted by time.", unit="number"),
    column("max_depth", "longest queue", "Most launches that waited at once.", unit="count"),
    column("empty_ns", "queue empty", "Time in which nothing was launched and not yet started."),
    column("host_bound_ns", "host-bound", "Empty time in which the thread that launches next was busy."),
    column("host_bound_ratio", "host-bound share", "host_bound_ns / window_ns."),
    column("num_unseen_events", "unseen", "Events in the window whose launch the trace does not hold."),
)
_NO_EVENTS: Final = "the trace holds no device events"


def idle_table(analysis: Analysis) -> ReportTable:
    """Return the idle time of each rank by cause."""
    if all(rank.idle is None for rank in analysis.ranks):
        notes = (*_why_empty(analysis, what="Why they were idle is not known"), *_idle_in_all(analysis))
        return whole_table("idle", "Why devices stood idle", IDLE_COLUMNS, (), notes=notes)
    keys = tuple(each.key for each in IDLE_COLUMNS[1:])
    rows = [
        (rank.label, *figures(rank.idle, keys, reason=rank.absent.get("idle", _NO_EVENTS))) for rank in analysis.ranks
    ]
    num_single = len(rows)
    if num_single > 1:
        rows.append(("all ranks", *figures(analysis.idle, keys, reason=analysis.absent.get("idle", _NO_EVENTS))))
    return whole_table("idle", "Why devices stood idle", IDLE_COLUMNS, rows, num_totals=len(rows) - num_single)


def queue_table(analysis: Analysis) -> ReportTable:
    """Return how deep the queue of each rank's devices was, and how long the host let it run empty."""
    if all(rank.queue is None for rank in analysis.ranks):
        notes = _why_empty(analysis, what="No queue")
        return whole_table("queue", "How the host fed its devices", QUEUE_COLUMNS, (), notes=notes)
    keys = tuple(each.key for each in QUEUE_COLUMNS[1:])
    rows = [
        (rank.label, *figures(rank.queue, keys, reason=rank.absent.get("queue", _NO_EVENTS))) for rank in analysis.ranks
    ]
    return whole_table("queue", "How the host fed its devices", QUEUE_COLUMNS, rows)


def _idle_in_all(analysis: Analysis) -> Iterator[str]:
    """Yield how much idle time there is whose causes are not known."""
    if analysis.breakdown is not None:
        where = " on the host" if is_host_alone(analysis) else ""
        idle, window = (format_duration(each) for each in (analysis.breakdown.idle_ns, analysis.breakdown.window_ns))
        yield f"Idle{where} in all, whatever the cause: {idle} of {window} (scope breakdown has it by rank)."


def _why_empty(analysis: Analysis, *, what: str) -> tuple[str, ...]:
    return no_device_note(analysis, what=what, kind="launches")
