"""Findings as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from scope.report.sections.base import column, whole_table
from scope.report.table import Absent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scope.report.findings import Finding
    from scope.report.table import ReportColumn, ReportTable

_UNKNOWN: Final = Absent("what it costs is not known")
_NOWHERE: Final = Absent("it singles out none")

FINDING_COLUMNS: Final[tuple[ReportColumn, ...]] = (
    column("number", "number", "Its place among them, from 1 on: what others call it by.", unit="count"),
    column("share_ratio", "share", "The cost as a share of step time (of the window without steps)."),
    column("cost_ns", "cost", "Time that it costs, summed over devices; an upper bound of the saving."),
    column("kind", "kind", "What it is about."),
    column("title", "finding", "One line with the figures that matter."),
    column("where", "where", "Ranks, steps, collectives, calls and kernels that it singles out."),
    column("evidence", "evidence", "The figures it rests on."),
    column("action", "what to do", "What to do."),
)


def findings_table(findings: Sequence[Finding]) -> ReportTable:
    """Return findings in their order."""
    rows = [
        (
            number,
            _UNKNOWN if finding.share_ratio is None else finding.share_ratio,
            _UNKNOWN if finding.cost_ns is None else finding.cost_ns,
            finding.kind,
            finding.title,
            finding.where.text() or _NOWHERE,
            ", ".join(each.text() for each in finding.evidence),
            finding.action,
        )
        for number, finding in enumerate(findings, start=1)
    ]
    return whole_table("findings", "Findings", FINDING_COLUMNS, rows, notes=() if rows else ("Nothing stands out.",))
