"""`scope watch`: follow a run, and say who hangs, died or makes the others wait."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import click

from scope.cli.options import FILE

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from scope.frames import Run
    from scope.report.watching import Change
    from scope.run.schema import Verdict

_LINGER_NS: Final = 120 * 10**9
"""How long after the end of an attempt the next one is waited for."""
_MAX_PROBLEMS: Final = 5


@click.command()
@click.argument("run", type=FILE, help="A run directory (it holds run.json).")
@click.option(
    "--every", "every_s", type=click.FloatRange(0.1), default=5, show_default=True, help="Seconds between looks."
)
@click.option("--once", is_flag=True, help="Look once; exit with 1 when something critical holds.")
@click.option("--json", is_flag=True, help="Print one JSON record a line: findings, and their end.")
def watch(run: Path, *, every_s: float, once: bool, json: bool) -> None:
    """Follow a run: say who hangs, died or makes the others wait, and tell alerts and dashboard of it.

    It begins with what holds already, then tells what is new or over. What is found goes into RUN/verdicts.jsonl, which
    the exporter and the dashboard read; one process watches a run, on a host that sees its run directory. It ends two
    minutes after the run.

    Example: scope watch runs/first
    """
    from scope.report.inert import readable_problem
    from scope.report.nearby import open_run_near
    from scope.report.standing import standing_words
    from scope.report.watching import Watcher, find_findings

    opened = open_run_near(run)
    watcher = Watcher(opened)
    told = False
    problems: list[str] = []
    holding: list[Verdict] | None = None
    try:
        while True:
            change = watcher.look()
            _print_problems(opened, problems)
            if holding is None:
                holding = find_findings(opened, change.watched)
                _print_held(holding, change, as_json=json)
            _print(change, as_json=json)
            if watcher.write_error is not None and not told:
                told = True
                click.echo(f"scope: {run}/verdicts.jsonl: cannot be written ({watcher.write_error})", err=True)
            if once:
                break
            if change.watched.state.standing == "not begun" and (why := opened.info().unrecorded) is not None:
                click.echo(f"scope: {run}: nothing was recorded: {readable_problem(why)}", err=True)
                break
            if _is_over(change):
                if not json:
                    click.echo(standing_words(change.watched.state, now_ns=change.watched.now_ns))
                break
            time.sleep(every_s)
    finally:
        watcher.close()
    if once:
        if not json:
            _print_state(change, has_window=not opened.traces().is_empty())
        if any(verdict.severity == "critical" for verdict in holding):
            raise click.exceptions.Exit(1)


def _print_state(change: Change, *, has_window: bool) -> None:
    """Print what `scope show` tells of costs, slow ranks and state."""
    from scope.report.run_state_costs import cost_lines, find_costs
    from scope.report.run_state_slowest import find_notable, find_slowest, slowest_lines
    from scope.report.standing import standing_words

    watched = change.watched
    makes_steps = watched.state.standing not in ("not begun", "no step")
    slowest, peers = find_slowest(watched) if makes_steps else ([], {})
    slow_ranks = find_notable(slowest, peers)
    lines = [*cost_lines(find_costs(watched), slow_ranks=slow_ranks, has_window=has_window)]
    if makes_steps:
        lines += slowest_lines(slowest, peers)
    for words in (*lines, standing_words(watched.state, now_ns=watched.now_ns)):
        click.echo(words)


def _print_problems(run: Run, told: list[str]) -> None:
    """Print what could not be read and is not among what was told, as much as `scope show` does; add it there."""
    from scope.report.inert import readable_problem

    for problem in run.problems:
        if problem in told:
            continue
        told.append(problem)
        if len(told) <= _MAX_PROBLEMS:
            click.echo(f"scope: {readable_problem(problem)}", err=True)
        elif len(told) == _MAX_PROBLEMS + 1:
            click.echo("scope: and more problems; scope doctor tells all", err=True)


def _is_over(change: Change) -> bool:
    state = change.watched.state
    if state.is_live or state.standing == "not begun":
        return False
    in_order = state.standing == "finished" and not state.exit_reasons
    return in_order or change.watched.now_ns - (state.last_sign_ns or 0) > _LINGER_NS


def _print_held(holding: Sequence[Verdict], change: Change, *, as_json: bool) -> None:
    """Print what was found before this process began to watch and holds still."""
    from scope.run.verdicts import identify

    begun = {identify(verdict) for verdict in change.begun}
    for verdict in holding:
        if identify(verdict) not in begun:
            _print_one(verdict, as_json=as_json)


def _print(change: Change, *, as_json: bool) -> None:
    for verdict in change.begun:
        _print_one(verdict, as_json=as_json)
    for verdict in change.over:
        if as_json:
            _print_one(verdict, as_json=True)
        else:
            click.echo(_over_words(verdict, is_live=change.watched.state.is_live))


def _print_one(verdict: Verdict, *, as_json: bool) -> None:
    from scope.report.encoding import encode_json

    click.echo(encode_json(_plain(verdict), indent=0).strip() if as_json else _words(verdict))


def _words(verdict: Verdict) -> str:
    from scope.report.inert import readable

    action = f" {readable(verdict.action)}" if verdict.action else ""
    return f"{verdict.severity} {readable(verdict.kind)}: {readable(verdict.summary)}.{action}"


def _over_words(verdict: Verdict, *, is_live: bool) -> str:
    """Return which finding is over, without its cause and advice, which were told, and whether the run's end did it."""
    from scope.analysis.doctor.diagnosis import describe_ranks
    from scope.report.inert import readable

    whose = f" of {describe_ranks(list(verdict.ranks))}" if verdict.ranks else ""
    group = f" in group {readable(verdict.group)}" if verdict.group is not None else ""
    why = "it holds no more" if is_live else "the run has ended"
    return f"over: {verdict.severity} {readable(verdict.kind)}{whose}{group}: {why}"


def _plain(verdict: Verdict) -> dict[str, object]:
    import msgspec

    return msgspec.to_builtins(verdict)
