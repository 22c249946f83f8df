"""`scope show`: the state of a recorded run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def show(
    run: Annotated[Path, typer.Argument(help="A run directory (it holds run.json).")],
    *,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Say how a recorded run is doing: step, rate, phases, collectives, memory, MFU, slowest ranks.

    Example: scope show runs/first
    """
    from scope.frames import open_run
    from scope.report.encoding import encode_json
    from scope.report.run_state import describe_run, render_run

    opened = open_run(run)
    state = describe_run(opened)
    typer.echo(encode_json(state) if json else render_run(state), nl=json)
    for problem in opened.problems:
        typer.echo(f"scope: {problem}", err=True)
