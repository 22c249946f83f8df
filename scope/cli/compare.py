"""`scope compare`: what changed between two runs."""

from __future__ import annotations

from typing import Final

import click

from scope.cli.options import JobOptions, OutputOptions, takes_output

_CHANGES: Final = ("all", "kernels", "classes", "operators", "phases")


@click.command()
@click.argument("before", help="The base: a trace, a folder of traces or a glob.")
@click.argument("after", help="The run that is held against it.")
@takes_output
@click.option("--of", type=click.Choice(_CHANGES), default="all", show_default=True, help="What to compare.")
@click.option("--no-cache", is_flag=True, help="Neither use nor keep parsed tables.")
@click.option(
    "--noise",
    type=click.FloatRange(0.0, 1.0),
    default=0.02,
    show_default=True,
    help="Changes up to this share count as none.",
)
def compare(before: str, after: str, output: OutputOptions, *, of: str, noise: float, no_cache: bool) -> None:
    """What changed between two runs.

    Kernels, classes, operators and phases: by how much, and how far the two runs match.

    Example: scope compare before/ after/ --of operators
    """
    from scope.cli.job import load_job
    from scope.cli.tables import check_output, print_tables

    check_output(output)
    jobs = [load_job(JobOptions(paths=[path], no_cache=no_cache)) for path in (before, after)]
    from scope.analysis.comparison import compare_jobs
    from scope.report.sections.comparison import CHANGE_KINDS, changes_table, comparison_table

    comparison = compare_jobs(jobs[0], jobs[1], noise_ratio=noise)
    tables = [changes_table(comparison, kind) for kind in CHANGE_KINDS if of in ("all", kind)]
    print_tables([comparison_table(comparison), *tables] if of == "all" else tables, output)
