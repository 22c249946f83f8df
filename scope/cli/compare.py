"""`scope compare`: what changed between two runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from scope.cli.options import JobOptions, OutputOptions, takes_output
from scope.errors import UsageError

if TYPE_CHECKING:
    from scope.trace.model import Job

_WINDOWS: Final = "--windows STEP STEP"
_CHANGES: Final = ("all", "kernels", "classes", "operators", "phases")


@click.command()
@click.argument("before", help="The base: a trace, a folder of traces, a glob or a run directory.")
@click.argument("after", help="The run that is held against it.")
@takes_output
@click.option("--of", type=click.Choice(_CHANGES), default="all", show_default=True, help="What to compare.")
@click.option(
    "--windows",
    type=(int, int),
    metavar="STEP STEP",
    help="Of several profiler windows of BEFORE and of AFTER, those that begin at these steps.",
)
@click.option(
    "--window",
    type=int,
    metavar="STEP",
    help="Of several profiler windows of BEFORE and of AFTER, the one of each that begins at this step.",
)
@click.option("--no-cache", is_flag=True, help="Neither use nor keep parsed tables.")
@click.option(
    "--noise",
    type=click.FloatRange(0.0, 1.0),
    default=0.02,
    show_default=True,
    help="Changes up to this share count as none.",
)
def compare(
    before: str,
    after: str,
    output: OutputOptions,
    *,
    of: str,
    noise: float,
    no_cache: bool,
    window: int | None,
    windows: tuple[int, int] | None,
) -> None:
    """What changed between two runs.

    Steps, kernels, classes, operators and phases: by how much, and how far the two runs match. With --csv the first
    column names the table of each row (with --of KIND there is one table, without that column).

    Example: scope compare before/ after/ --of operators
    """
    import msgspec

    from scope.cli.tables import check_output, print_tables, say

    check_output(output)
    if window is not None and windows is not None:
        message = f"--window {window} is the step of both sides, and --windows names one of each: give one of the two"
        raise UsageError(message)
    option = _WINDOWS if window is None else "--window STEP"
    jobs = [
        _load(path, step, option=option, no_cache=no_cache)
        for path, step in zip((before, after), windows or (window, window), strict=True)
    ]
    for job in jobs:
        say([warning.replace("--window STEP", _WINDOWS) for warning in job.warnings])
    from scope.analysis.comparison import compare_jobs
    from scope.report.sections.comparison import CHANGE_KINDS, changes_table, comparison_table

    comparison = compare_jobs(jobs[0], jobs[1], noise_ratio=noise)
    tables = [changes_table(comparison, kind) for kind in CHANGE_KINDS if of in ("all", kind)]
    if of == "all":
        tables.insert(0, comparison_table(comparison))
    sides = [_side(name, path, job) for name, path, job in zip(("before", "after"), (before, after), jobs, strict=True)]
    if output.json or output.csv:
        # Neither has a place for it.
        say(sides)
    else:
        tables[0] = msgspec.structs.replace(tables[0], notes=(*sides, *tables[0].notes))
    print_tables(tables, output)


def _load(path: str, window: int | None, *, option: str, no_cache: bool) -> Job:
    """Return one side; what the reader of traces says of a window names the option that the user gave."""
    from scope.cli.job import load_job

    try:
        return load_job(JobOptions(paths=[path], window=window, no_cache=no_cache), window_option=option)
    except UsageError as error:
        raise UsageError(str(error).replace(f"--window {window}:", f"{option.split()[0]} {window}:")) from error


def _side(name: str, path: str, job: Job) -> str:
    """Return which traces one side of a comparison is: `before: old/, ranks 0-3 (rank0.json and 3 more)`."""
    from scope.report.sections.quality import format_ranks

    known = tuple(trace.rank for trace in job.ranks if trace.rank is not None)
    parts = [f"rank{'s' if len(known) > 1 else ''} {format_ranks(known)}"] if known else []
    if len(known) < len(job.ranks):
        parts.append(f"{len(job.ranks) - len(known)} of unknown rank")
    first, *others = (Path(trace.path).name for trace in job.ranks)
    return f"{name}: {path}, {' and '.join(parts)} ({first}{f' and {len(others)} more' if others else ''})"
