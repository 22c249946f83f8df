"""`scope runs`: list, label and delete run directories."""

from __future__ import annotations

import datetime
import time
from typing import TYPE_CHECKING, Final

import click

from scope.cli.options import FILE

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from scope.run.blackbox import BlackBoxState
    from scope.run.listing import RunEntry
    from scope.run.schema import RankInfo


_HEADING: Final = ("run", "label", "started", "ranks", "last step", "state", "size", "folder", "tags")


@click.group()
def runs() -> None:
    """List, label and delete recorded runs.

    Example: scope runs list runs
    """


@runs.command("list")
@click.argument("folder", type=FILE, default="runs", help="Folder of run directories.")
@click.option("--json", is_flag=True, help="Print JSON records.")
def list_(folder: Path, *, json: bool) -> None:
    """List the runs in a folder, the latest last.

    The label is what alerts, metrics and Grafana call a run by.

    Example: scope runs list runs --json
    """
    from scope.report.encoding import encode_json
    from scope.report.inert import readable_problem
    from scope.run.listing import list_runs
    from scope.run.naming import label_run

    entries, problems = list_runs(folder)
    if json:
        records = [
            {
                "run_id": entry.info.run_id,
                "label": label_run(entry.info),
                "path": str(entry.path),
                "started_ns": entry.info.started_ns,
                "attempts": entry.attempts,
                "ranks": entry.ranks,
                "last_step": entry.last_step,
                "ended": entry.ended,
                "standing": _standing(entry),
                "unrecorded": entry.unrecorded,
                "bytes": entry.num_bytes,
                "tags": entry.info.tags,
            }
            for entry in entries
        ]
        click.echo(encode_json(records))
    else:
        for line in _align([_HEADING, *map(_cells, entries)]) if entries else ():
            click.echo(line)
    for problem in problems:
        click.echo(f"scope: {readable_problem(problem)}", err=True)
    if not entries and not json:
        click.echo(f"no runs in {folder}; record one with: scope run -- torchrun train.py", err=True)


@runs.command("tag")
@click.argument("run", type=FILE, help="A run directory.")
@click.argument("tags", nargs=-1, required=True, metavar="NAME=VALUE...", help="An empty value removes the tag.")
def tag(run: Path, tags: tuple[str, ...]) -> None:
    """Label a run.

    Example: scope runs tag runs/first model=7b note=
    """
    from scope.report.inert import readable
    from scope.run.identity import parse_tags
    from scope.run.listing import tag_run

    info = tag_run(run, parse_tags(tags))
    click.echo(readable(" ".join(f"{name}={value}" for name, value in info.tags.items())))


@runs.command("delete")
@click.argument("run", type=FILE, help="A run directory.")
@click.option("--force", is_flag=True, help="Also when ranks have not ended.")
def delete(run: Path, *, force: bool) -> None:
    """Delete what was recorded in a run directory, and the folder if nothing else lies in it.

    Example: scope runs delete runs/first
    """
    from scope.report.inert import visible
    from scope.run.listing import delete_run
    from scope.units import format_bytes

    num_bytes, left = delete_run(run, force=force)
    kept = f"; kept, since it is not of the run: {', '.join(map(visible, left[:5]))}" if left else ""
    more = f" and {len(left) - 5} more" if len(left) > 5 else ""
    click.echo(f"{run}: {format_bytes(num_bytes)} deleted{kept}{more}")


def _cells(entry: RunEntry) -> tuple[str, ...]:
    """Return what is told of a run, by column; why there are no ranks stands last, where nothing was recorded."""
    from scope.report.inert import readable, readable_problem
    from scope.run.naming import label_run
    from scope.units import format_bytes

    started = datetime.datetime.fromtimestamp(entry.info.started_ns // 10**9, tz=datetime.UTC)
    ranks = "1 rank" if entry.ranks == 1 else f"{entry.ranks} ranks"
    step = "no step" if entry.last_step is None else f"{entry.last_step}"
    if entry.attempts > 1 and entry.last_step is None:
        step += " of the last attempt"
    notes = [f"{name}={value}" for name, value in entry.info.tags.items()]
    if entry.unrecorded is not None:
        ranks = step = "-"
        notes.append(f"nothing recorded: {entry.unrecorded}")
    size, folder = format_bytes(entry.num_bytes), readable_problem(str(entry.path))
    told = (f"{started:%Y-%m-%d %H:%M}Z", ranks, step, _standing(entry), size, folder)
    return (readable(entry.info.run_id), label_run(entry.info), *told, readable(" ".join(notes)))


def _align(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Return the rows as lines, each column as wide as its widest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()


def _standing(entry: RunEntry) -> str:
    """Return how a run stands in a word, as `scope show` and the dashboard have it."""
    if entry.unrecorded is not None:
        return "nothing recorded"
    from scope.analysis.recorded.standing import ProcessTable, assess_run
    from scope.errors import RunError
    from scope.run.reader import RunReader

    infos: list[RankInfo] = []
    states: dict[int, BlackBoxState] = {}
    for rank in RunReader(entry.path).ranks():
        try:
            infos.append(rank.info())
            box = rank.state(with_ring=False)
        except RunError:
            continue
        if box is not None:
            states[infos[-1].rank] = box
    if entry.ranks and not infos:
        return "unreadable"
    state = assess_run(
        infos,
        states,
        last_step_ns=entry.last_step_ns,
        usual_ns=entry.usual_ns,
        now_ns=time.time_ns(),
        processes=ProcessTable.of_run(entry.path),
    )
    return state.outcome
