"""`scope quality`: what was lost, repaired or not attributed while reading: how far to trust the figures."""

from __future__ import annotations

import click

from scope.cli.options import JobOptions, OutputOptions, takes_job, takes_output


@click.command()
@takes_job
@takes_output
def quality(job: JobOptions, output: OutputOptions) -> None:
    """How far to trust the figures.

    What was lost, repaired or not attributed while reading.

    Example: scope quality traces/
    """
    from scope.cli.tables import print_section
    from scope.report.sections.quality import quality_table

    print_section(job, output, lambda results: quality_table(results.analysis), parts={"stragglers", "rooflines"})
