"""`scope launches`: launching calls, and the delay from each call to the start of what it launched."""

from __future__ import annotations

import click

from scope.cli.options import JobOptions, OutputOptions, takes_job, takes_output, takes_step


@click.command()
@takes_job
@takes_output
@takes_step
def launches(job: JobOptions, output: OutputOptions, *, step: int | None) -> None:
    """Launching calls and their delay.

    The delay is from the start of each call to the start of what it launched, the wait behind earlier work included.
    Of the host time, that of copies which waited until they had ended stands apart (see scope syncs).

    Example: scope launches trace.json.gz
    """
    from scope.cli.tables import print_section
    from scope.report.sections.host import launches_table

    print_section(job, output, lambda results: launches_table(results.analysis), tables_step=step)
