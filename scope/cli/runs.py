"""`scope runs`: list, label and delete run directories."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Annotated

import typer

runs = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="List, label and delete recorded runs.")


@runs.command("list")
def list_(
    folder: Annotated[Path, typer.Argument(help="Folder of run directories.")] = Path("runs"),
    *,
    json: Annotated[bool, typer.Option("--json", help="Print JSON records.")] = False,
) -> None:
    """List the runs in a folder, the latest last.

    Example: scope runs list runs --json
    """
    from scope.report.encoding import encode_json
    from scope.report.inert import visible
    from scope.run.listing import list_runs
    from scope.units import format_bytes

    entries, problems = list_runs(folder)
    if json:
        records = [
            {
                "run_id": entry.info.run_id,
                "path": str(entry.path),
                "started_ns": entry.info.started_ns,
                "attempts": entry.attempts,
                "ranks": entry.ranks,
                "last_step": entry.last_step,
                "ended": entry.ended,
                "bytes": entry.num_bytes,
                "tags": entry.info.tags,
            }
            for entry in entries
        ]
        typer.echo(encode_json(records))
    for entry in [] if json else entries:
        started = datetime.datetime.fromtimestamp(entry.info.started_ns // 10**9, tz=datetime.UTC)
        state = "ended" if entry.ended else "running or killed"
        tags = " ".join(f"{visible(name)}={visible(value)}" for name, value in entry.info.tags.items())
        step = "-" if entry.last_step is None else entry.last_step
        typer.echo(
            f"{visible(entry.info.run_id):<32} {started:%Y-%m-%d %H:%M}Z  {entry.ranks} ranks  step {step}  {state}  "
            f"{format_bytes(entry.num_bytes)}  {tags}".rstrip()
        )
    for problem in problems:
        typer.echo(f"scope: {problem}", err=True)
    if not entries and not json:
        typer.echo(f"no runs in {folder}; record one with: scope run -- torchrun train.py", err=True)


@runs.command("tag")
def tag(
    run: Annotated[Path, typer.Argument(help="A run directory.")],
    tags: Annotated[list[str], typer.Argument(help="name=value; an empty value removes the tag.")],
) -> None:
    """Label a run.

    Example: scope runs tag runs/first model=7b note=
    """
    from scope.run.identity import read_tags
    from scope.run.listing import tag_run

    info = tag_run(run, read_tags(",".join(tags)))
    typer.echo(" ".join(f"{name}={value}" for name, value in info.tags.items()))


@runs.command("delete")
def delete(
    run: Annotated[Path, typer.Argument(help="A run directory.")],
    *,
    force: Annotated[bool, typer.Option("--force", help="Also when ranks have not ended.")] = False,
) -> None:
    """Delete a run directory with all its files.

    Example: scope runs delete runs/first
    """
    from scope.run.listing import delete_run
    from scope.units import format_bytes

    typer.echo(f"{run}: {format_bytes(delete_run(run, force=force))} deleted")
