"""`scope compare`: what changed between two runs."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from scope.cli.options import OutputOptions, takes_options


class ChangesIn(StrEnum):
    """What is compared."""

    ALL = "all"
    KERNELS = "kernels"
    CLASSES = "classes"
    OPERATORS = "operators"
    PHASES = "phases"


@takes_options
def compare(
    before: Annotated[str, typer.Argument(help="The base: a trace, a folder of traces or a glob.")],
    after: Annotated[str, typer.Argument(help="The run that is held against it.")],
    output: OutputOptions,
    of: Annotated[ChangesIn, typer.Option(help="What to compare.")] = ChangesIn.ALL,
    noise: Annotated[float, typer.Option(min=0.0, max=1.0, help="Changes up to this share count as none.")] = 0.02,
) -> None:
    """What changed between two runs.

    Kernels, classes, operators and phases: by how much, and how far the two runs match.

    Example: scope compare before/ after/ --of operators
    """
    from scope.cli.job import load_job
    from scope.cli.options import JobOptions
    from scope.cli.tables import check_output, print_tables

    check_output(output)
    jobs = [load_job(JobOptions(paths=[path])) for path in (before, after)]
    from scope.analysis.comparison import compare_jobs
    from scope.report.sections.comparison import CHANGE_KINDS, changes_table, comparison_table

    comparison = compare_jobs(jobs[0], jobs[1], noise_ratio=noise)
    tables = [changes_table(comparison, kind) for kind in CHANGE_KINDS if of in (ChangesIn.ALL, kind)]
    print_tables([comparison_table(comparison), *tables] if of is ChangesIn.ALL else tables, output)
