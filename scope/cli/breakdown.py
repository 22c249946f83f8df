"""`scope breakdown`: where the time of each rank and device went."""

from __future__ import annotations

import click

from scope.cli.options import JobOptions, OutputOptions, takes_job, takes_output


@click.command()
@takes_job
@takes_output
def breakdown(job: JobOptions, output: OutputOptions) -> None:
    """Where each rank's time went.

    Compute, exposed communication, exposed copies and idle of every rank and device; they sum to the window.

    Example: scope breakdown traces/ --csv
    """
    from scope.cli.tables import print_section
    from scope.report.sections.breakdown import breakdown_table

    print_section(job, output, lambda results: breakdown_table(results.analysis))
