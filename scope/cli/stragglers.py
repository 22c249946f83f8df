"""`scope stragglers`: ranks that make others wait, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from scope.cli.options import JobOptions, OutputOptions, takes_job, takes_output

if TYPE_CHECKING:
    from scope.report.results import Results
    from scope.report.table import ReportTable


@click.command()
@takes_job
@takes_output
def stragglers(job: JobOptions, output: OutputOptions) -> None:
    """Ranks that make others wait, and why.

    With what fixing each of them alone would save.

    Example: scope stragglers traces/
    """
    from scope.cli.tables import print_section

    print_section(job, output, _table, parts={"stragglers"})


def _table(results: Results) -> ReportTable:
    from scope.report.sections.stragglers import no_stragglers_table, stragglers_table

    if results.stragglers is None:
        return no_stragglers_table(results.absent["stragglers"])
    return stragglers_table(results.stragglers)
