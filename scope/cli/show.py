"""`scope show`: the state of a recorded run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from scope.cli.options import FILE

if TYPE_CHECKING:
    from pathlib import Path

_MAX_PROBLEMS = 5


@click.command()
@click.argument("run", type=FILE, help="A run directory (it holds run.json).")
@click.option("--json", is_flag=True, help="Print one JSON document.")
def show(run: Path, *, json: bool) -> None:
    """Say how a recorded run is doing: step, rate, phases, collectives, memory, MFU, slowest ranks.

    Example: scope show runs/first
    """
    from scope.report.encoding import encode_json
    from scope.report.inert import readable_problem
    from scope.report.nearby import open_run_near
    from scope.report.run_state import describe_run, render_run

    opened = open_run_near(run)
    state = describe_run(opened)
    click.echo(encode_json(state) if json else render_run(state), nl=json)
    for problem in opened.problems[:_MAX_PROBLEMS]:
        click.echo(f"scope: {readable_problem(problem)}", err=True)
    if len(opened.problems) > _MAX_PROBLEMS:
        click.echo(f"scope: and {len(opened.problems) - _MAX_PROBLEMS} more problems", err=True)
