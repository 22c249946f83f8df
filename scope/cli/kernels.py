"""`scope kernels`: which kernels took the time."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import click

from scope.cli.options import JobOptions, OutputOptions, takes_job, takes_output, takes_step

if TYPE_CHECKING:
    from scope.analysis.kernels import KernelKey

_KEYS: Final[dict[str, KernelKey]] = {
    "name": "name",
    "class": "kernel_class",
    "operator": "operator",
    "module": "module",
}


@click.command()
@takes_job
@takes_output
@takes_step
@click.option(
    "--by",
    type=click.Choice(list(_KEYS)),
    default="name",
    show_default=True,
    help="Group by this; module reads Python stacks too, as --modules does.",
)
def kernels(job: JobOptions, output: OutputOptions, *, by: str, step: int | None) -> None:
    """Which kernels took the time.

    Device events of all ranks by name, class, operator or module, in the whole window or in one step.

    Example: scope kernels trace.json.gz --by operator --limit 10
    """
    from scope.cli.tables import print_section
    from scope.report.sections.kernels import kernels_table

    if by == "module":
        job = replace(job, modules=True)
    print_section(
        job,
        output,
        lambda results: kernels_table(results.analysis, by=_KEYS[by], stacks_read=job.modules),
        tables_step=step,
    )
