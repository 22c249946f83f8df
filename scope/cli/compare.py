"""`scope compare`: what changed between two runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from scope.cli.options import NO_CACHE, PROCESSES, RANK, REDACT, JobOptions, OutputOptions, takes_output
from scope.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scope.trace.model import Job

_WINDOWS: Final = "--windows STEP STEP"
_SIDES: Final = ("before", "after")
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
@RANK
@PROCESSES
@NO_CACHE
@REDACT
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
    window: int | None,
    windows: tuple[int, int] | None,
    **options: Any,
) -> None:
    """What changed between two runs.

    Steps, kernels, classes, operators and phases: by how much, and how far the two runs match. With --csv the first
    column names the table of each row (with --of KIND there is one table, without that column). --rank is of the side
    that holds FILE, or of both.

    Example: scope compare before/ after/ --of operators
    """
    import msgspec

    from scope.cli.tables import check_output, print_tables, say

    check_output(output)
    if window is not None and windows is not None:
        message = f"--window {window} is the step of both sides, and --windows names one of each: give one of the two"
        raise UsageError(message)
    option = _WINDOWS if window is None else "--window STEP"
    given = [
        JobOptions(paths=[path], window=step, **options)
        for path, step in zip((before, after), windows or (window, window), strict=True)
    ]
    jobs = [_load(each, option=option) for each in _with_own_ranks(given, option=option)]
    from scope.analysis.comparison import compare_jobs
    from scope.report.recorded_slowest import compare_recorded
    from scope.report.redaction import make_redactor, redact
    from scope.report.sections.comparison import CHANGE_KINDS, changes_table, comparison_table

    comparison = compare_jobs(jobs[0], jobs[1], noise_ratio=noise)
    warnings = [warning.replace("--window STEP", _WINDOWS) for job in jobs for warning in job.warnings]
    sides = [_side(name, each, job) for name, each, job in zip(_SIDES, given, jobs, strict=True)]
    sides += compare_recorded(jobs[0], jobs[1])
    if given[0].redact:
        redactor = make_redactor(*jobs, folders=(before, after))
        comparison, warnings, sides = redact((comparison, warnings, sides), redactor)
    say(warnings)
    tables = [changes_table(comparison, kind) for kind in CHANGE_KINDS if of in ("all", kind)]
    if of == "all":
        tables.insert(0, comparison_table(comparison))
    if output.json or output.csv:
        # Neither has a place for it.
        say(sides)
    else:
        tables[0] = msgspec.structs.replace(tables[0], notes=(*sides, *tables[0].notes))
    print_tables(tables, output)


def _with_own_ranks(sides: Sequence[JobOptions], *, option: str) -> list[JobOptions]:
    """Return the options of both sides, each with those ranks that the user gave for its files.

    Raises:
        UsageError: Neither side has a file that was given a rank.
    """
    entries = sides[0].rank
    if not entries:
        return list(sides)
    from scope.cli.job import parse_ranks
    from scope.report.windows import choose_traces
    from scope.trace.loading import expand

    files = [expand(choose_traces(side.paths, step=side.window, option=option)[0])[0] for side in sides]
    names = [{name for path in each for name in (str(path), path.name)} for each in files]
    unknown = sorted(parse_ranks(entries).keys() - names[0] - names[1])
    if unknown:
        message = f"--rank: no such file on either side: {', '.join(unknown)}"
        raise UsageError(message)
    return [
        replace(side, rank=[entry for entry in entries if entry.rpartition("=")[0] in own])
        for side, own in zip(sides, names, strict=True)
    ]


def _load(side: JobOptions, *, option: str) -> Job:
    """Return one side; what the reader of traces says of a window names the option that the user gave."""
    from scope.cli.job import load_job

    try:
        return load_job(side, window_option=option)
    except UsageError as error:
        named = f"{option.split()[0]} {side.window}:"
        raise UsageError(str(error).replace(f"--window {side.window}:", named)) from error


def _side(name: str, side: JobOptions, job: Job) -> str:
    """Return which traces one side of a comparison is: `before: old/, ranks 0-3 (rank0.json and 3 more)`."""
    from scope.report.sections.quality import format_ranks

    known = tuple(trace.rank for trace in job.ranks if trace.rank is not None)
    parts = [f"rank{'s' if len(known) > 1 else ''} {format_ranks(known)}"] if known else []
    if len(known) < len(job.ranks):
        parts.append(f"{len(job.ranks) - len(known)} of unknown rank")
    path = Path(side.paths[0]).absolute() if side.redact else side.paths[0]
    first, *others = (Path(trace.path).name for trace in job.ranks)
    return f"{name}: {path}, {' and '.join(parts)} ({first}{f' and {len(others)} more' if others else ''})"
