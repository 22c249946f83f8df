"""`scope syncs`: calls that make the host wait for the device, and the idle time that they leave behind."""

from __future__ import annotations

import click

from scope.cli.options import JobOptions, OutputOptions, takes_job, takes_output, takes_step


@click.command()
@takes_job
@takes_output
@takes_step
def syncs(job: JobOptions, output: OutputOptions, *, step: int | None) -> None:
    """Calls that block the host.

    With the operators around them and the idle time that they leave on the device.

    Example: scope syncs trace.json.gz
    """
    from scope.cli.tables import print_section
    from scope.report.sections.host import syncs_table

    print_section(job, output, lambda results: syncs_table(results.analysis), tables_step=step)
