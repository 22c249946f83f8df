"""Prints one table as text, CSV or JSON."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Final

from scope.errors import InputError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable
    from pathlib import Path

    from scope.cli.options import JobOptions, OutputOptions
    from scope.report.results import Part, Results
    from scope.report.table import ReportTable

_ROWS_OF_TEXT: Final = 20


def print_section(
    job: JobOptions,
    output: OutputOptions,
    make: Callable[[Results], ReportTable],
    *,
    parts: Collection[Part] = (),
    path_step: int | None = None,
    tables_step: int | None = None,
) -> None:
    """Analyse a job and print one table of it.

    Args:
        job: Which traces.
        output: In which form.
        make: Makes the table.
        parts: Which analyses the table needs beside those that always run.
        path_step: Number of the step whose critical path is wanted; None for that of median length.
        tables_step: Number of the step that a table of kernels, launches, copies or blocking calls is of.
    """
    check_output(output)
    from msgspec.structs import replace

    from scope.cli.job import load_results

    results = load_results(job, parts=parts, path_step=path_step, tables_step=tables_step)
    say(results.analysis.warnings)
    table = make(results)
    if tables_step is not None:
        table = replace(table, title=f"{table.title} of step {tables_step}")
    print_tables([table], output)


def say(sentences: Iterable[str]) -> None:
    """Write to stderr what holds for the whole job and no table has a place for, such as which window was read."""
    from scope.report.inert import visible

    for sentence in sentences:
        sys.stderr.write(f"scope: {visible(sentence)}\n")


def check_output(output: OutputOptions) -> None:
    """Raise `UsageError` when two forms are asked for at once."""
    if output.json and output.csv:
        message = "--json and --csv are two forms of one output; give one of them"
        raise UsageError(message)


def print_tables(tables: list[ReportTable], output: OutputOptions) -> None:
    """Print tables in the form that the user wants.

    One table is a list of records in JSON; several are an object of such lists by the name of the table. CSV has one
    header in any case; of several tables its first column names the table of each row.
    """
    check_output(output)
    if output.json or output.csv:
        _say_why_empty(tables)
        kept = [table.limited(output.limit or None) for table in tables]
        write(_json(kept) if output.json else _csv(kept))
        return
    from scope.report.text import make_console, print_table

    console = make_console()
    limit = _ROWS_OF_TEXT if output.limit is None else output.limit or None
    for table in tables:
        print_table(table.limited(limit), console)


def _json(tables: list[ReportTable]) -> str:
    from scope.report.encoding import encode_json
    from scope.report.rows import to_records

    return encode_json(to_records(tables[0]) if len(tables) == 1 else {each.name: to_records(each) for each in tables})


def _csv(tables: list[ReportTable]) -> str:
    from scope.report.rows import to_csv, to_csv_of_several

    return to_csv(tables[0]) if len(tables) == 1 else to_csv_of_several(tables)


def _say_why_empty(tables: list[ReportTable]) -> None:
    """Write to stderr why a table has no rows: JSON records and CSV have no place for it."""
    for table in tables:
        say(() if table.rows else table.notes)


def write(text: str) -> None:
    """Write text to stdout as UTF-8, whatever the locale."""
    sys.stdout.buffer.write(text.encode("utf-8", errors="backslashreplace"))
    sys.stdout.buffer.flush()


def check_writable(path: Path, *, force: bool) -> None:
    """Raise `UsageError` for a file that is there already, before long work is done for nothing."""
    if path.exists() and not force:
        message = f"{path} is there already; --force replaces it"
        raise UsageError(message)


def write_file(path: Path, text: str, *, force: bool) -> None:
    """Write a file whole or not at all, and say so on stderr; one that is there is replaced only when the user says so.

    Raises:
        UsageError: The file is there and `force` is not given.
        InputError: It cannot be written; what was there before is there still.
    """
    content = text.encode("utf-8", errors="backslashreplace")
    try:
        if path.exists() and not path.is_file():
            # A pipe or a device is written to; a file must not take its place.
            path.write_bytes(content)
        else:
            _replace_whole(path, content, force=force)
    except OSError as error:
        message = f"{path}: cannot be written: {error.strerror or error}"
        raise InputError(message) from error
    sys.stderr.write(f"wrote {path}\n")


def _replace_whole(path: Path, content: bytes, *, force: bool) -> None:
    """Write a new file beside the place, and give it the name when all of it is on the disk."""
    target = path.resolve()
    fresh = target.with_name(f".scope-{os.getpid()}.part")
    try:
        with fresh.open("xb") as file:
            file.write(content)
            file.flush()
            # A network file system may tell only now that the disk is full.
            os.fsync(file.fileno())
        check_writable(path, force=force)
        fresh.rename(target)
    finally:
        fresh.unlink(missing_ok=True)
