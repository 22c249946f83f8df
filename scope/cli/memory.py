"""`scope memory`: how much memory was in use at the peak, and by which operators."""

from __future__ import annotations

import click

from scope.cli.options import JobOptions, OutputOptions, takes_job, takes_output
from scope.errors import UsageError


@click.command()
@takes_job
@takes_output
@click.option("--holders", is_flag=True, help="What was in use at the peak, by operator.")
@click.option("--steps", is_flag=True, help="The peak of every profiler step.")
def memory(job: JobOptions, output: OutputOptions, *, holders: bool, steps: bool) -> None:
    """Peak memory, and who held it.

    Of the whole window, or of every step. Needs traces recorded with profile_memory=True.

    Example: scope memory trace.json.gz --holders
    """
    from scope.cli.tables import print_section
    from scope.report.sections.memory import holders_table, memory_table, step_memory_table

    if holders and steps:
        message = "--holders and --steps are two tables; give one of them"
        raise UsageError(message)
    if steps:
        print_section(job, output, step_memory_table)
        return
    table = holders_table if holders else memory_table
    print_section(job, output, lambda results: table(results.analysis))
