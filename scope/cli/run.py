"""`scope run`: run a command and record its ranks."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer


def run(
    command: Annotated[list[str], typer.Argument(help="The command, after two dashes.", metavar="-- COMMAND...")],
    *,
    run_dir: Annotated[Path | None, typer.Option(help="Run directory; runs/RUN_ID when absent.")] = None,
    run_id: Annotated[str | None, typer.Option(help="Name of the run.")] = None,
    spool: Annotated[Path | None, typer.Option(help="Folder on this node that ranks write to.")] = None,
    tag: Annotated[list[str] | None, typer.Option(help="A label of the run: name=value. May be repeated.")] = None,
    max_run_bytes: Annotated[str, typer.Option(help="Budget of a rank; old steps are folded.")] = "256MiB",
    capture: Annotated[
        str | None, typer.Option(help="What may start a profiler window: schedule,file,anomaly,signal or off.")
    ] = None,
    capture_ranks: Annotated[str | None, typer.Option(help="Ranks that take windows, such as 0,7.")] = None,
    capture_stack: Annotated[bool, typer.Option(help="Record Python stacks in windows.")] = False,
    preflight: Annotated[
        bool, typer.Option(help="Stop the job before its first process group when NCCL variables differ between ranks.")
    ] = False,
) -> None:
    """Run a training command and record every rank of it, with no change to the script.

    Exit code and signals are the command's own. An empty file RUN_DIR/capture.request asks for a profiler window.

    Example:
        scope run --run-dir runs/first -- torchrun --nproc-per-node 8 train.py
    """
    from scope.run.identity import read_tags
    from scope.run.launch import LaunchPlan, launch
    from scope.units import parse_size

    variables = {"SCOPE_CAPTURE": capture, "SCOPE_CAPTURE_RANKS": capture_ranks}
    variables["SCOPE_CAPTURE_STACK"] = "1" if capture_stack else None
    variables["SCOPE_PREFLIGHT"] = "1" if preflight else None
    plan = LaunchPlan(
        command=command,
        run_dir=run_dir,
        run_id=run_id,
        spool=spool,
        tags=read_tags(",".join(tag or [])),
        max_run_bytes=parse_size(max_run_bytes),
        variables={name: value for name, value in variables.items() if value is not None},
    )
    result = launch(plan, os.environ)
    if not result.num_ranks:
        _say("nothing was recorded: no rank of this command imported torch in an interpreter that can see scope")
    elif result.unpublished:
        _say(f"not all of it could be published; the rest is in {result.unpublished}")
    else:
        _say(f"{result.num_ranks} ranks were recorded: scope show {result.run_dir}")
    _end_like(result.returncode)


def _say(message: str) -> None:
    print(f"scope: {message}", file=sys.stderr)


def _end_like(returncode: int) -> None:
    """End as the command ended, a signal included, so that a caller sees no difference."""
    if returncode < 0:
        if -returncode not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-returncode, signal.SIG_DFL)
        os.kill(os.getpid(), -returncode)
    raise typer.Exit(returncode)
