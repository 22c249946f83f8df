"""`scope roofline`: how close each kernel comes to what its GPU can do."""

from __future__ import annotations

import click

from scope.cli.options import JobOptions, OutputOptions, takes_job, takes_output


@click.command()
@takes_job
@takes_output
@click.option("--coverage", is_flag=True, help="How much is placed, and on which GPU that rests.")
def roofline(job: JobOptions, output: OutputOptions, *, coverage: bool) -> None:
    """How close kernels come to their limits.

    FLOPs and bytes of every kernel against its GPU; needs traces recorded with record_shapes=True.

    Example: scope roofline trace.json.gz --gpu h100-sxm
    """
    from scope.cli.tables import print_section
    from scope.report.sections.roofline import coverage_table, roofline_table

    table = coverage_table if coverage else roofline_table
    print_section(job, output, lambda results: table(results.rooflines), parts={"rooflines"})
