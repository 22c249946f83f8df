"""`scope steps`: where the time of each step went."""

from __future__ import annotations

import click

from scope.cli.options import JobOptions, OutputOptions, takes_job, takes_output


@click.command()
@takes_job
@takes_output
@click.option("--by-rank", is_flag=True, help="One row a rank, device and step.")
def steps(job: JobOptions, output: OutputOptions, *, by_rank: bool) -> None:
    """Where each step's time went.

    On the devices, over all ranks or rank by rank.

    Example: scope steps traces/ --by-rank --csv
    """
    from scope.cli.tables import print_section
    from scope.report.sections.breakdown import rank_steps_table, steps_table

    table = rank_steps_table if by_rank else steps_table
    print_section(job, output, lambda results: table(results.analysis))
