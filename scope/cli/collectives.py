"""`scope collectives`: collectives across ranks."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from scope.cli.options import JobOptions, OutputOptions, takes_options

if TYPE_CHECKING:
    from scope.report.results import Results
    from scope.report.table import ReportTable


class View(StrEnum):
    """Which table of collectives."""

    SUMMARY = "summary"
    EACH = "each"
    LINKS = "links"
    WAITS = "waits"
    CLOCK = "clock"
    EXPOSED = "exposed"


@takes_options
def collectives(
    job: JobOptions,
    output: OutputOptions,
    view: Annotated[
        View,
        typer.Option(
            help="summary: by group, operation and size; each: one by one; links: bandwidth against ceilings; waits: "
            "by rank; clock: how far clocks stand apart; exposed: what compute did not hide."
        ),
    ] = View.SUMMARY,
) -> None:
    """Collectives: transfer, wait, bandwidth.

    Matched across ranks; bandwidth is decimal and one way, as in nccl-tests.

    Example: scope collectives traces/ --ranks-per-node 8 --view links
    """
    from scope.cli.tables import print_section

    print_section(job, output, lambda results: _table(results, view), parts={"collectives", "exposed"})


def _table(results: Results, view: View) -> ReportTable:
    from scope.errors import InputError
    from scope.report.sections import collectives as sections

    if view is View.EXPOSED:
        return sections.exposed_table(results.exposed)
    if results.collectives is None:
        message = f"no collectives: {results.absent['collectives']}"
        raise InputError(message)
    if view is View.LINKS:
        if results.collective_roofline is None:
            message = f"no bandwidth: {results.absent['collective_roofline']}"
            raise InputError(message)
        return sections.collective_roofline_table(results.collective_roofline)
    tables = {
        View.SUMMARY: sections.collectives_table,
        View.EACH: sections.collective_calls_table,
        View.WAITS: sections.rank_waits_table,
        View.CLOCK: sections.clock_table,
    }
    return tables[view](results.collectives)
