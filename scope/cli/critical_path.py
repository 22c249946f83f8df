"""`scope critical-path`: the chain of work that decided how long a step took."""

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
@click.option("--pieces", is_flag=True, help="Every piece, in the order of time.")
@click.option("--step", type=int, metavar="N", help="Of this step, not of the one of median length.")
def critical_path(job: JobOptions, output: OutputOptions, *, pieces: bool, step: int | None) -> None:
    """What decided how long a step took.

    The chain of host and device work through the median step, or the one named, by kind or piece by piece.

    Example: scope critical-path trace.json.gz --pieces --csv
    """
    from scope.cli.tables import print_section
    from scope.report.sections.path import critical_path_table, path_pieces_table

    def table(results: Results) -> ReportTable:
        found = results.analysis
        return path_pieces_table(found) if pieces else critical_path_table(found, step=step)

    print_section(job, output, table, parts={"critical_path"}, path_step=step)
