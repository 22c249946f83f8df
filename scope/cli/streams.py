"""Standard output that can neither fail on a character nor hide that it could not be written."""

from __future__ import annotations

import codecs
import os
import sys
from typing import Final

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
    """Let standard output write what the locale's encoding lacks in ASCII instead of raising."""
    codecs.register_error(_HANDLER, _in_plain)
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors=_HANDLER)


def discard_output() -> None:
    """Let what is still buffered go nowhere; else Python complains once more when it closes standard output."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
