"""`scope copies`: copies and sets by direction: bytes, bandwidth, and what nothing hid."""

from __future__ import annotations

import click

from scope.cli.options import JobOptions, OutputOptions, takes_job, takes_output


@click.command()
@takes_job
@takes_output
def copies(job: JobOptions, output: OutputOptions) -> None:
    """Copies and sets by direction.

    Bytes, bandwidth, and what neither compute nor communication hid.

    Example: scope copies trace.json.gz
    """
    from scope.cli.tables import print_section
    from scope.report.sections.host import copies_table

    print_section(job, output, lambda results: copies_table(results.analysis))
