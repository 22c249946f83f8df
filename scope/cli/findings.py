"""`scope findings`: what costs time, and what to do about it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scope.cli.options import JobOptions, OutputOptions, takes_options

if TYPE_CHECKING:
    from scope.report.results import Results
    from scope.report.table import ReportTable


@takes_options
def findings(job: JobOptions, output: OutputOptions) -> None:
    """What costs time, and what to do about it.

    Where it is, and how one can tell; the costliest first.

    Example: scope findings traces/ --csv
    """
    from scope.cli.tables import print_section
    from scope.report.build import ALL_PARTS

    print_section(job, output, _table, parts=ALL_PARTS)


def _table(results: Results) -> ReportTable:
    from scope.report.findings import find_all
    from scope.report.sections.findings import findings_table

    return findings_table(find_all(results))
