"""Which kernels took the time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from scope.analysis.kernels import KernelKey, KernelStats
from scope.report.sections.base import frame_column, frame_rows, whole_table

if TYPE_CHECKING:
    import polars as pl

    from scope.analysis.job import Analysis
    from scope.analysis.tables import KernelTables
    from scope.report.table import ReportColumn, ReportTable

_HEADINGS: Final[dict[KernelKey, str]] = {
    "name": "kernel",
    "kernel_class": "class",
    "operator": "operator",
    "module": "module",
}
_SHOWN: Final = (
    KernelStats.key,
    KernelStats.total_ns,
    KernelStats.device_time_ratio,
    KernelStats.num_events,
    KernelStats.median_ns,
    KernelStats.max_ns,
    KernelStats.kernel_class,
    KernelStats.category,
    KernelStats.min_ns,
)
_NO_STACKS: Final = "the traces hold no Python stacks: record them with with_stack=True"
_NO_KEY: Final[dict[KernelKey, str]] = {
    "name": "the trace gives no name",
    "kernel_class": "the class is unknown",
    "operator": "no operator is known for the launch (graph replay, or a launch outside the recording)",
    "module": "no module is known for the launch",
}


def kernel_columns(by: KernelKey = "name") -> tuple[ReportColumn, ...]:
    """Return the columns of a table of kernels."""
    # What has one name has one class; of an operator or a module it is that of most of its time.
    kind = ("class", "category") if by in ("name", "kernel_class") else ("most in class", "most in category")
    headings = (_HEADINGS[by], "total", "share", "count", "median", "longest", *kind, "shortest")
    return tuple(frame_column(source, heading) for source, heading in zip(_SHOWN, headings, strict=True))


def kernels_table(analysis: Analysis, *, by: KernelKey = "name", stacks_read: bool = False) -> ReportTable:
    """Return device events of all ranks, grouped; shares are of the sum of their lengths, not of the window.

    Args:
        analysis: The results of a job.
        by: What to group by.
        stacks_read: The traces were read with their Python stacks, so where there is none they hold none.
    """
    frame = _frame(analysis.kernels, by)
    reason = _NO_STACKS if stacks_read else analysis.kernels.absent.get("by_module", _NO_STACKS)
    rows = () if frame is None else [*frame_rows(frame, _SHOWN, reasons={KernelStats.key: _NO_KEY[by]})]
    notes = (f"No modules: {reason}.",) if frame is None else ()
    if not rows and not notes:
        notes = ("No kernels: the traces hold no device event and no host range that counts.",)
    title = {"name": "Kernels", "kernel_class": "Kernel classes", "operator": "Operators", "module": "Modules"}[by]
    return whole_table("kernels", title, kernel_columns(by), rows, notes=notes)


def _frame(tables: KernelTables, by: KernelKey) -> pl.DataFrame | None:
    # Each of them is computed when it is looked at, so only the wanted one may be.
    if by == "name":
        return tables.by_name
    if by == "kernel_class":
        return tables.by_class
    return tables.by_operator if by == "operator" else tables.by_module
