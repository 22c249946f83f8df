"""`scope run`: run a command and record its ranks."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from typing import TYPE_CHECKING, Final

import click

from scope.cli.options import UNASKED_PATH
from scope.cli.streams import discard_errors
from scope.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from scope.run.launch import LaunchPlan, LaunchResult

_SIGNALLED: Final = 128
"""Added to the number of a signal, it is the exit code that shells give a command that ended by it."""
_NO_STEP: Final = (
    "a step ends with one of an optimizer of torch.optim, or with recorder.end_step(); children that "
    "os.fork() makes of a process which has imported torch are not recorded"
)


def _check_capture(context: click.Context, option: click.Parameter, value: str | None) -> str | None:
    """Return what an option about windows says, which the ranks read again; refuse what makes no sense."""
    from scope.run.windows import parse_ranks, parse_reasons

    del context
    try:
        if value is not None:
            (parse_ranks if option.name == "capture_ranks" else parse_reasons)(value)
    except UsageError as error:
        raise click.BadParameter(str(error)) from error
    return value


def _read_size(context: click.Context, option: click.Parameter, value: str) -> int:
    """Return the bytes of a size; refuse what is none, by the name of the option."""
    from scope.units import parse_size

    del context, option
    try:
        return parse_size(value)
    except UsageError as error:
        raise click.BadParameter(str(error)) from error


@click.command()
@click.argument("command", nargs=-1, required=True, metavar="-- COMMAND...", help="The command, after two dashes.")
@click.option("--run-dir", type=UNASKED_PATH, help="Run directory; runs/RUN_ID when absent.")
@click.option("--run-id", help="Name of the run.")
@click.option("--spool", type=UNASKED_PATH, help="Folder on this node that ranks write to.")
@click.option("--tag", multiple=True, help="A label of the run: name=value. May be repeated.")
@click.option(
    "--max-run-bytes",
    callback=_read_size,
    default="256MiB",
    envvar="SCOPE_MAX_RUN_BYTES",
    metavar="SIZE",
    show_default=True,
    show_envvar=True,
    help="Budget of a rank; old steps are folded.",
)
@click.option(
    "--capture",
    callback=_check_capture,
    metavar="REASONS",
    help="What may start a profiler window: schedule, file, anomaly, signal with commas between, or off. "
    "[default: schedule,file,anomaly]",
)
@click.option(
    "--capture-ranks",
    callback=_check_capture,
    metavar="RANKS",
    help="Ranks that take windows, such as 0-7,12, or all; findings across ranks need all. [default: 0]",
)
@click.option("--capture-stack", is_flag=True, help="Record Python stacks in windows.")
@click.option(
    "--preflight",
    is_flag=True,
    help="Stop the job before its first process group when NCCL variables differ between ranks.",
)
def run(
    command: tuple[str, ...],
    *,
    run_dir: Path | None,
    run_id: str | None,
    spool: Path | None,
    tag: tuple[str, ...],
    max_run_bytes: int,
    capture: str | None,
    capture_ranks: str | None,
    capture_stack: bool,
    preflight: bool,
) -> None:
    """Run a training command and record every rank of it, with no change to the script.

    Exit code and signals are the command's own. An empty file RUN_DIR/capture.request asks for a profiler window,
    which begins a few seconds later, at the same step on all ranks that take one; a number in it is that step.

    Example: scope run --run-dir runs/a -- torchrun --nproc-per-node 8 train.py
    """
    from scope.run.identity import parse_tags
    from scope.run.launch import LaunchPlan
    from scope.run.unpublished import publishing_command

    variables = {"SCOPE_CAPTURE": capture, "SCOPE_CAPTURE_RANKS": capture_ranks}
    variables["SCOPE_CAPTURE_STACK"] = "1" if capture_stack else None
    variables["SCOPE_PREFLIGHT"] = "1" if preflight else None
    plan = LaunchPlan(
        command=list(command),
        run_dir=run_dir,
        run_id=run_id,
        spool=spool,
        tags=parse_tags(tag),
        max_run_bytes=max_run_bytes,
        variables={name: value for name, value in variables.items() if value is not None},
    )
    result = _launch(plan)
    if result.unrecorded:
        _say(f"the command ran unrecorded: {result.unrecorded}")
    elif result.is_left:
        _say(f"no rank has begun yet; what the command left in the background is recorded in {result.run_dir}")
    elif not result.num_ranks:
        for problem in result.problems:
            _say(problem)
        _say("nothing was recorded: no rank of this command imported torch in an interpreter that can see scope")
    elif result.unpublished:
        for problem in result.problems:
            _say(problem)
        _say(f"not all of it could be published (yet); the rest is in {result.unpublished}")
        _say(f"when that is mended: {publishing_command(result.unpublished, result.run_dir)}")
    else:
        recorded = "1 rank was" if result.num_ranks == 1 else f"{result.num_ranks} ranks were"
        _say(f"{recorded} recorded: scope show {result.run_dir}")
    if result.num_ranks and not result.has_steps:
        _say(f"no step was seen: {result.no_steps_reason or _NO_STEP}")
    _end_like(result.returncode)


def _launch(plan: LaunchPlan) -> LaunchResult:
    """Run the command in the run directory that was asked for, or beside it where that is another run's just now."""
    from scope.run.earlier import claim_run
    from scope.run.identity import RUN_DIR, may_have_peers
    from scope.run.launch import find_run_dir, launch
    from scope.run.paths import is_network_path

    asked = find_run_dir(plan)
    is_ours = asked is not None and os.environ.get(RUN_DIR) == str(asked)  # the command of another `scope run`
    if asked is None or is_ours or is_network_path(asked) or may_have_peers(os.environ, plan.command):
        return launch(plan, os.environ, is_last=True, tell=_say)
    with claim_run(asked) as claim:
        if claim.message is not None:
            _say(claim.message)
        return launch(dataclasses.replace(plan, run_dir=claim.run), os.environ, is_last=True, tell=_say)


def _say(message: str) -> None:
    """Tell the user something, who may have closed what it would be written to: the command's end is not changed."""
    try:
        click.echo(f"scope: {message}", err=True)
    except (OSError, ValueError):
        with contextlib.suppress(OSError, ValueError):
            discard_errors()


def _end_like(returncode: int) -> None:
    """End as the command ended, a signal included, so that a caller sees no difference."""
    from scope.run.command import end_by_signal

    if returncode < 0:
        end_by_signal(-returncode)
        # The first process of a container does not end by its own signal; shells name one so.
        raise click.exceptions.Exit(_SIGNALLED - returncode)
    raise click.exceptions.Exit(returncode)
