"""Entry point of the `scope` command; the only place that prints errors and sets exit codes.

A command is an object in a module of its own, named in `scope.cli.registry`. Its module is imported to build its help,
so it imports what is heavy (polars, the analyses) inside the function.
"""

from __future__ import annotations

import atexit
import errno
import gc
import os
import sys
import threading
from typing import Final, NoReturn

import click

import scope
from scope.cli.registry import GLOSSARY, LazyGroup
from scope.cli.streams import discard_output, prepare_output
from scope.errors import InputError, LimitError, ScopeError

_INTERRUPTED: Final = 130
_BROKEN_PIPE: Final = 141
_SYSTEM_ERROR: Final = 74
"""What `sysexits.h` calls an error of input or output, such as a full disk."""
_NOT_TO_BE_OPENED: Final = (errno.ENAMETOOLONG, errno.EACCES)
"""What asking whether a path is a folder may raise already: the name is at fault, and no device."""
_COLLECT_AFTER: Final = 50_000
"""Objects made and kept after which Python looks for garbage. What a command imports is none, and at Python's own 700
it would be looked through a hundred times."""


@click.group(cls=LazyGroup, name="scope", epilog=GLOSSARY, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(scope.__version__, message="scope %(version)s")
def app() -> None:
    """Where does the time of a training run go: live, from its traces, and by alert."""


def main() -> None:
    """Run the command line as a process, and end it."""
    gc.set_threshold(_COLLECT_AFTER)
    _leave(run())


def run() -> int:
    """Run the command line; every `ScopeError` becomes one line on stderr. Return the exit code."""
    prepare_output()
    try:
        code = _invoke(sys.argv[1:])
        # Here, and not when the interpreter ends, where an error could only be shown as a traceback.
        sys.stdout.flush()
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except ScopeError as error:
        _complain(error)
        return error.exit_code
    except KeyboardInterrupt:
        return _INTERRUPTED
    except MemoryError:
        _complain("the memory that this process may use ran out: allow it more (ulimit -v), or give it less to read")
        return LimitError.exit_code
    except BrokenPipeError:
        # The reader of our output went away.
        discard_output()
        return _BROKEN_PIPE
    except OSError as error:
        _complain(f"{error.filename or 'the output'}: {error.strerror or error}")
        discard_output()
        return InputError.exit_code if error.errno in _NOT_TO_BE_OPENED else _SYSTEM_ERROR
    return code


def _invoke(arguments: list[str]) -> int:
    """Run the command that the arguments name; return its exit code."""
    try:
        with app.make_context("scope", arguments) as context:
            app.invoke(context)
    except click.exceptions.Exit as end:
        return end.exit_code
    return 0


def _leave(code: int) -> NoReturn:
    """End the process, after a success without taking its modules apart, which takes as long as printing a report.

    What waits for something at the end (a thread that fills the cache, processes that read) ends in the usual way.
    """
    if code == 0 and threading.active_count() == 1 and "multiprocessing" not in sys.modules:
        atexit._run_exitfuncs()  # pyright: ignore[reportPrivateUsage] - what the end of the interpreter calls
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def _complain(problem: object) -> None:
    """Print a problem as one line; the paths and names in it are the user's, and must not move the cursor."""
    from scope.report.inert import readable_problem

    # Longer than any path, so that a path can be copied from it.
    print(f"scope: {readable_problem(str(problem))}", file=sys.stderr)
