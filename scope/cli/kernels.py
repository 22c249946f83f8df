"""`scope kernels`: which kernels took the time."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Final

import typer

from scope.cli.options import JobOptions, OutputOptions, takes_options

if TYPE_CHECKING:
    from scope.analysis.kernels import KernelKey


class GroupBy(StrEnum):
    """What device events are grouped by."""

    NAME = "name"
    CLASS = "class"
    OPERATOR = "operator"
    MODULE = "module"


@takes_options
def kernels(
    job: JobOptions,
    output: OutputOptions,
    by: Annotated[GroupBy, typer.Option(help="Group by this; modules need --modules.")] = GroupBy.NAME,
) -> None:
    """Which kernels took the time.

    Device events of all ranks by name, class, operator or module.

    Example: scope kernels trace.json.gz --by operator --limit 10
    """
    from scope.cli.tables import print_section
    from scope.report.sections.kernels import kernels_table

    print_section(job, output, lambda results: kernels_table(results.analysis, by=_KEYS[by]))


_KEYS: Final[dict[GroupBy, KernelKey]] = {
    GroupBy.NAME: "name",
    GroupBy.CLASS: "kernel_class",
    GroupBy.OPERATOR: "operator",
    GroupBy.MODULE: "module",
}
