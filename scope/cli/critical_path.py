"""`scope critical-path`: the chain of work that decided how long the median step took."""

from __future__ import annotations

from typing import Annotated

import typer

from scope.cli.options import JobOptions, OutputOptions, takes_options


@takes_options
def critical_path(
    job: JobOptions,
    output: OutputOptions,
    pieces: Annotated[bool, typer.Option("--pieces", help="Every piece, in the order of time.")] = False,
) -> None:
    """What decided how long a step took.

    The chain of host and device work through the median step, by kind or piece by piece.

    Example: scope critical-path trace.json.gz --pieces --csv
    """
    from scope.cli.tables import print_section
    from scope.report.sections.path import critical_path_table, path_pieces_table

    table = path_pieces_table if pieces else critical_path_table
    print_section(job, output, lambda results: table(results.analysis))
