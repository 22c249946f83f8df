"""`scope queue`: how deep the queue of launches was, and how long the host let it run empty."""

from __future__ import annotations

import click

from scope.cli.options import JobOptions, OutputOptions, takes_job, takes_output


@click.command()
@takes_job
@takes_output
def queue(job: JobOptions, output: OutputOptions) -> None:
    """How well the host fed its devices.

    How deep the queue of launches was, and how long the host let it run empty.

    Example: scope queue trace.json.gz --json
    """
    from scope.cli.tables import print_section
    from scope.report.sections.idle import queue_table

    print_section(job, output, lambda results: queue_table(results.analysis))
