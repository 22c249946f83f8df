"""`scope roofline`: how close each kernel comes to what its GPU can do."""

from __future__ import annotations

from typing import Annotated

import typer

from scope.cli.options import JobOptions, OutputOptions, takes_options


@takes_options
def roofline(
    job: JobOptions,
    output: OutputOptions,
    coverage: Annotated[
        bool, typer.Option("--coverage", help="How much is placed, and on which GPU that rests.")
    ] = False,
) -> None:
    """How close kernels come to their limits.

    FLOPs and bytes of every kernel against its GPU; needs traces recorded with record_shapes=True.

    Example: scope roofline trace.json.gz --gpu h100-sxm
    """
    from scope.cli.tables import print_section
    from scope.report.sections.roofline import coverage_table, roofline_table

    table = coverage_table if coverage else roofline_table
    print_section(job, output, lambda results: table(results.rooflines), parts={"rooflines"})
