"""`scope critical-path`: the chain of work that decided how long the median step took."""

from __future__ import annotations

import click

from scope.cli.options import JobOptions, OutputOptions, takes_job, takes_output


@click.command()
@takes_job
@takes_output
@click.option("--pieces", is_flag=True, help="Every piece, in the order of time.")
def critical_path(job: JobOptions, output: OutputOptions, *, pieces: bool) -> None:
    """What decided how long a step took.

    The chain of host and device work through the median step, by kind or piece by piece.

    Example: scope critical-path trace.json.gz --pieces --csv
    """
    from scope.cli.tables import print_section
    from scope.report.sections.path import critical_path_table, path_pieces_table

    table = path_pieces_table if pieces else critical_path_table
    print_section(job, output, lambda results: table(results.analysis), parts={"critical_path"})
