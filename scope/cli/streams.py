"""Standard output that can neither fail on a character nor hide that it could not be written."""

from __future__ import annotations

import codecs
import os
import sys
from typing import Final, TextIO

_PLAIN: Final = {"█": "#", "→": "->", "–": "-", "…": ".", "µ": "u", "×": "x"}
_HANDLER: Final = "scope.plain"


def _in_plain(error: UnicodeError) -> tuple[str, int]:
    """Write in ASCII what an encoding lacks: our own marks by what resembles them, names by their code points."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end]
    plain = "".join(_PLAIN.get(each) or each.encode("ascii", "backslashreplace").decode() for each in text)
    return plain, error.end


def prepare_output() -> None:
    """Let standard output write what the locale's encoding lacks in ASCII instead of raising.

    Streams that the caller closed are held by a stand-in, else the next file that is opened would get their numbers; a
    command that is started finds them closed. Writing to standard output is then an error, as to any program.
    """
    _hold_closed()
    codecs.register_error(_HANDLER, _in_plain)
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors=_HANDLER)


def _hold_closed() -> None:
    # In this order: each gets the lowest free number, which is its own.
    for number, flags in ((0, os.O_RDONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, flags | os.O_CLOEXEC)
    if sys.stdout is None:  # pyright: ignore[reportUnnecessaryComparison] - Python's way to say that it is closed
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    if sys.stderr is None:  # pyright: ignore[reportUnnecessaryComparison]
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False, buffering=1)  # noqa: SIM115


def discard_output() -> None:
    """Let what is still buffered for standard output go nowhere; else Python complains once more when it closes it."""
    _discard(sys.stdout)


def discard_errors() -> None:
    """Let what is still buffered for standard error go nowhere; else Python ends with a code of its own."""
    _discard(sys.stderr)


def _discard(stream: TextIO) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
