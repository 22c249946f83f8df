"""`scope copies`: copies and sets by direction: bytes, bandwidth, and what nothing hid."""

from __future__ import annotations

import click

from scope.cli.options import JobOptions, OutputOptions, takes_job, takes_output, takes_step


@click.command()
@takes_job
@takes_output
@takes_step
def copies(job: JobOptions, output: OutputOptions, *, step: int | None) -> None:
    """Copies and sets by direction.

    Bytes, bandwidth, and what neither compute nor communication hid.

    Example: scope copies trace.json.gz
    """
    from scope.cli.tables import print_section
    from scope.report.sections.host import copies_table

    print_section(job, output, lambda results: copies_table(results.analysis), tables_step=step)
