"""`scope idle`: why devices stood idle: input, blocking calls, allocation, host code, launch latency."""

from __future__ import annotations

import click

from scope.cli.options import JobOptions, OutputOptions, takes_job, takes_output


@click.command()
@takes_job
@takes_output
def idle(job: JobOptions, output: OutputOptions) -> None:
    """Why devices stood idle.

    Input, blocking calls, allocation, host code, launch latency, or a wait for another stream.

    Example: scope idle trace.json.gz
    """
    from scope.cli.tables import print_section
    from scope.report.sections.idle import idle_table

    print_section(job, output, lambda results: idle_table(results.analysis))
