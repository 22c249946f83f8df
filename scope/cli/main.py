"""Entry point of the `scope` command; the only place that prints errors and sets exit codes.

A command is a function in a module of its own. Its module is imported to build the help, so it imports what is heavy
(polars, the analyses) inside the function.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated, Final

import typer

import scope
from scope.cli.dashboard import dashboard
from scope.cli.demo import demo
from scope.cli.doctor import doctor
from scope.cli.exporter import exporter
from scope.cli.post_mortem import add_post_mortem_commands
from scope.cli.run import run
from scope.cli.runs import runs
from scope.cli.show import show
from scope.errors import ScopeError

_INTERRUPTED: Final = 130
_BROKEN_PIPE: Final = 141

app = typer.Typer(
    name="scope",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Where does the time of a training run go: live, from its traces, and by alert.",
)


def _print_version(value: bool) -> None:
    if value:
        print(f"scope {scope.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Hold the options that stand before a command."""


add_post_mortem_commands(app)
app.command("run")(run)
app.command("show")(show)
app.command("doctor")(doctor)
app.add_typer(runs, name="runs")

app.command("demo")(demo)

# These two are processes with options and help of their own.
_PASSED_ON = {"allow_extra_args": True, "ignore_unknown_options": True}
app.command("exporter", add_help_option=False, context_settings=_PASSED_ON)(exporter)
app.command("dashboard", add_help_option=False, context_settings=_PASSED_ON)(dashboard)


def main() -> None:
    """Run the command line; every `ScopeError` becomes one line on stderr and its exit code."""
    try:
        app()
    except ScopeError as error:
        print(f"scope: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
    except BrokenPipeError:
        # The reader of our output went away; without this, Python complains once more when it closes stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(_BROKEN_PIPE)
