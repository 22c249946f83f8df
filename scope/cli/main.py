"""Entry point of the `scope` command; the only place that prints errors and sets exit codes.

A command is an object in a module of its own, named in `scope.cli.registry`. Its module is imported to build its help,
so it imports what is heavy (polars, the analyses) inside the function.
"""

from __future__ import annotations

import sys
from typing import Final

import click

import scope
from scope.cli.registry import LazyGroup
from scope.cli.streams import discard_output, prepare_output
from scope.errors import ScopeError

_INTERRUPTED: Final = 130
_BROKEN_PIPE: Final = 141
_SYSTEM_ERROR: Final = 74
"""What `sysexits.h` calls an error of input or output, such as a full disk."""


@click.group(cls=LazyGroup, name="scope", context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(scope.__version__, message="scope %(version)s")
def app() -> None:
    """Where does the time of a training run go: live, from its traces, and by alert."""


def main() -> None:
    """Run the command line; every `ScopeError` becomes one line on stderr and its exit code."""
    prepare_output()
    try:
        with app.make_context("scope", sys.argv[1:]) as context:
            app.invoke(context)
        # Here, and not when the interpreter ends, where an error could only be shown as a traceback.
        sys.stdout.flush()
    except click.exceptions.Exit as end:
        sys.exit(end.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except ScopeError as error:
        _complain(error)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
    except BrokenPipeError:
        # The reader of our output went away.
        discard_output()
        sys.exit(_BROKEN_PIPE)
    except OSError as error:
        _complain(f"{error.filename or 'the output'}: {error.strerror or error}")
        discard_output()
        sys.exit(_SYSTEM_ERROR)


def _complain(problem: object) -> None:
    """Print a problem as one line; the paths and names in it are the user's, and must not move the cursor."""
    from scope.report.inert import visible

    print(f"scope: {visible(str(problem))}", file=sys.stderr)
