"""From the options of a command to the results that it prints: reading with a progress bar, analysing, redacting."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from scope.cli.layout import Layout, check_layout, read_layout, regular_nodes
from scope.cli.tables import say
from scope.errors import MissingExtraError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Generator, Sequence

    from scope.cli.options import JobOptions
    from scope.report.build import Choices
    from scope.report.results import Part, Results
    from scope.trace.model import Job

_TRACES_FOLDER: Final = "traces"
"""Where the traces of a recorded run lie; what reads runs is imported only for those."""

_LARGE_BYTES: Final = 20_000_000
"""Compressed bytes above which reading takes long enough to show that it goes on."""


def require(package: str, *, extra: str) -> None:
    """Raise `MissingExtraError` with the command that installs the extra, unless a package is there."""
    from importlib.util import find_spec

    if find_spec(package) is None:
        message = f"this needs {package}, which is not installed: pip install 'stepscope[{extra}]'"
        raise MissingExtraError(message)


def load_job(options: JobOptions, paths: Sequence[str] | None = None, *, window_option: str = "--window STEP") -> Job:
    """Read the traces that the user named, with a progress bar where reading takes long.

    Args:
        options: What the user said.
        paths: Other paths than those of the options, for a second job.
        window_option: What the command calls the option of the window.

    Returns:
        The job. What says which windows of recorded runs were read stands on stderr; where the report is redacted,
        among the warnings of the job: what is to be replaced in it is not known before the traces are read.
    """
    require("polars", extra="trace")
    from scope.trace import ReadOptions, load, read_patterns

    read = ReadOptions(
        python_calls=options.modules,
        patterns=() if options.classes is None else read_patterns(options.classes),
        use_cache=not options.no_cache,
    )
    given = paths or options.paths
    chosen, window, sentences = _choose_traces(given, options.window, option=window_option, whole=options.redact)
    if not options.redact:
        say(sentences)
    with _progress(chosen) as progress:
        job = load(
            chosen,
            window=window,
            ranks=parse_ranks(options.rank),
            options=read,
            processes=options.processes or os.cpu_count() or 1,
            progress=progress,
        )
    if options.redact:
        job = msgspec.structs.replace(job, warnings=(*sentences, *job.warnings))
    if not any(Path(trace.path).parent.name == _TRACES_FOLDER for trace in job.ranks):
        return job
    from scope.report.recorded_groups import with_recorded_groups

    return with_recorded_groups(job)


def _choose_traces(
    paths: Sequence[str], step: int | None, *, option: str, whole: bool
) -> tuple[Sequence[str], int | None, Sequence[str]]:
    """Return the traces to read, the window to look for among them, and which windows of recorded runs these are.

    Args:
        paths: What the user named.
        step: The window that the user wants.
        option: What the command calls the option of the window.
        whole: Whether runs are called by their whole paths, which can be told from other words of a sentence.
    """
    if not any(Path(path).is_dir() for path in paths):
        return paths, step, ()
    # A path that is no folder is no run, and what reads runs takes as long to import as a tenth of polars.
    from scope.report.windows import choose_traces

    named = [str(Path(path).absolute()) for path in paths] if whole else paths
    chosen, sentences = choose_traces(named, step=step, option=option)
    return (chosen, None, sentences) if sentences else (paths, step, ())


def load_results(
    options: JobOptions,
    *,
    parts: Collection[Part],
    path_step: int | None = None,
    tables_step: int | None = None,
) -> Results:
    """Read and analyse the traces that the user named, redacted when the user asks for it.

    Args:
        options: What the user said.
        parts: Which analyses to run beside those that always run.
        path_step: Number of the step whose critical path is wanted; None for that of median length.
        tables_step: Number of the step that the tables of kernels, launches, copies and blocking calls are of.
    """
    check_layout(ranks_per_node=options.ranks_per_node, topology=options.topology)
    require("polars", extra="trace")
    job = load_job(options)
    from scope.report.build import compute_results

    choices = msgspec.structs.replace(make_choices(options, job), path_step=path_step, tables_step=tables_step)
    results = compute_results(job, choices, parts=parts)
    if options.redact:
        from scope.report.redaction import make_redactor, redact

        results = redact(results, make_redactor(job, folders=options.paths))
    return results


def make_choices(options: JobOptions, job: Job) -> Choices:
    """Return what the user said about a job, for the analyses."""
    from scope.analysis.options import Options
    from scope.hardware import choose_gpu, load_catalogue
    from scope.report.build import Choices

    layout = Layout() if options.topology is None else read_layout(options.topology)
    nodes = layout.nodes
    if options.ranks_per_node is not None:
        known = [trace.rank for trace in job.ranks if trace.rank is not None]
        size = job.world_size or max(known, default=-1) + 1
        nodes = regular_nodes(size, ranks_per_node=options.ranks_per_node)
    links = None
    if layout.node_bytes_per_s is not None or layout.nic_bytes_per_s is not None:
        from scope.analysis.collective_roofline import LinkRates

        links = LinkRates(
            node_bytes_per_s=layout.node_bytes_per_s, nic_bytes_per_s=layout.nic_bytes_per_s, source="--topology"
        )
    catalogue = load_catalogue(options.gpu_file) if options.gpu_file or options.gpu else None
    return Choices(
        options=Options(
            memory_as_compute=options.memory_as_compute,
            sets_as_compute=options.sets_as_compute,
            linked_only=options.linked_only,
        ),
        nodes=nodes,
        links=links,
        gpu=None if options.gpu is None else choose_gpu(options.gpu, catalogue),
        catalogue=catalogue,
    )


def parse_ranks(entries: Sequence[str]) -> dict[str, int]:
    """Return the ranks that the user gave as `FILE=N`.

    Raises:
        UsageError: An entry has another form, or a file is named twice.

    Examples:
        >>> parse_ranks(["a.json=3"])
        {'a.json': 3}
    """
    ranks: dict[str, int] = {}
    for entry in entries:
        name, equals, number = entry.rpartition("=")
        if not equals or not name or not number.isdecimal():
            message = f"--rank {entry}: expected FILE=N, a file and the number of its rank"
            raise UsageError(message)
        if name in ranks:
            message = f"--rank: {name} is named twice"
            raise UsageError(message)
        ranks[name] = int(number)
    return ranks


@contextmanager
def _progress(paths: Sequence[str]) -> Generator[Callable[[int, int, str], None] | None]:
    """Show a progress bar on stderr where a person looks and reading takes long; yield what reports progress to it."""
    if not sys.stderr.isatty() or not _is_long(paths):
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True, markup=False, highlight=False)
    columns = (TextColumn("reading traces"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=None)

        def advance(done: int, total: int, _path: str) -> None:
            bar.update(task, completed=done, total=total)

        yield advance


def _is_long(paths: Sequence[str]) -> bool:
    """Return whether there are several files, or large ones."""
    if len(paths) != 1:
        return True
    path = Path(paths[0])
    return not path.is_file() or path.stat().st_size > _LARGE_BYTES
