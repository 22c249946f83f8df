"""Entry point of the `scope` command; the only place that prints errors and sets exit codes.

A command is an object in a module of its own, named in `scope.cli.registry`. Its module is imported to build its help,
so it imports what is heavy (polars, the analyses) inside the function.
"""

from __future__ import annotations

import os
import sys
from typing import Final

import click

import scope
from scope.cli.registry import LazyGroup
from scope.errors import ScopeError

_INTERRUPTED: Final = 130
_BROKEN_PIPE: Final = 141


@click.group(cls=LazyGroup, name="scope", context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(scope.__version__, message="scope %(version)s")
def app() -> None:
    """Where does the time of a training run go: live, from its traces, and by alert."""


def main() -> None:
    """Run the command line; every `ScopeError` becomes one line on stderr and its exit code."""
    try:
        with app.make_context("scope", sys.argv[1:]) as context:
            app.invoke(context)
    except click.exceptions.Exit as end:
        sys.exit(end.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except ScopeError as error:
        print(f"scope: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
    except BrokenPipeError:
        # The reader of our output went away; without this, Python complains once more when it closes stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(_BROKEN_PIPE)
