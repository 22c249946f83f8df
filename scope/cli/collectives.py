"""`scope collectives`: collectives across ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

import click

from scope.cli.options import JobOptions, OutputOptions, takes_job, takes_output

if TYPE_CHECKING:
    from scope.report.results import Results
    from scope.report.table import ReportTable

_View = Literal["summary", "each", "links", "waits", "clock", "exposed"]
_VIEWS: Final[tuple[_View, ...]] = ("summary", "each", "links", "waits", "clock", "exposed")


@click.command()
@takes_job
@takes_output
@click.option(
    "--view",
    type=click.Choice(_VIEWS),
    default="summary",
    show_default=True,
    help="summary: by group, operation and size; each: one by one; links: bandwidth against ceilings; waits: by rank; "
    "clock: how far clocks stand apart; exposed: what compute did not hide.",
)
def collectives(job: JobOptions, output: OutputOptions, *, view: _View) -> None:
    """Collectives: transfer, wait, bandwidth.

    Matched across ranks; bandwidth is decimal and one way, as in nccl-tests.

    Example: scope collectives traces/ --ranks-per-node 8 --view links
    """
    from scope.cli.tables import print_section

    print_section(job, output, lambda results: _table(results, view), parts={"collectives", "stragglers", "exposed"})


def _table(results: Results, view: _View) -> ReportTable:
    from scope.report.sections import collectives as sections

    if view == "exposed":
        return sections.exposed_table(results.exposed)
    if results.collectives is None:
        return sections.no_collectives_table(view, results.absent["collectives"])
    if view == "links":
        if results.collective_roofline is None:
            return sections.no_collectives_table(view, results.absent["collective_roofline"])
        return sections.collective_roofline_table(results.collective_roofline)
    tables = {
        "summary": sections.collectives_table,
        "each": sections.collective_calls_table,
        "waits": sections.rank_waits_table,
        "clock": sections.clock_table,
    }
    return tables[view](results.collectives)
