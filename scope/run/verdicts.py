"""Which findings of a `verdicts.jsonl` hold now, and when somebody looked last."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final, TypeAlias

from scope.run import paths

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from scope.run.schema import Verdict

VerdictKey: TypeAlias = "tuple[str, tuple[int, ...], str | None]"
"""Kind, ranks and group: what tells one finding from another."""

STANDSTILLS: Final = frozenset(("hang", "mismatch", "stall"))
"""The findings that hold while no step ends."""
KINDS: Final = STANDSTILLS | {"crash", "exception", "silence", "straggler"}
"""The findings of `scope watch`; whoever adds others to the file ends them as well."""


def identify(verdict: Verdict) -> VerdictKey:
    """Return what tells a finding from others of its attempt."""
    return verdict.kind, verdict.ranks, verdict.group


def find_holding(verdicts: Iterable[Verdict], *, attempt: int) -> list[Verdict]:
    """Return the findings of an attempt that have not been resolved, in the order of their first line.

    Args:
        verdicts: The lines of a file, oldest first; a later one replaces an earlier one of its kind, ranks and group.
        attempt: The attempt.
    """
    latest = {identify(verdict): verdict for verdict in verdicts if verdict.attempt == attempt}
    return [verdict for verdict in latest.values() if verdict.resolved_ns is None]


def is_outrun(verdict: Verdict, *, last_step: int | None) -> bool:
    """Return whether a run that stood still by a finding has since ended the step in which it did.

    Args:
        verdict: The finding.
        last_step: Number of the last step of the attempt that ended on any rank; None before the first.
    """
    if verdict.kind not in STANDSTILLS or verdict.step is None:
        return False
    return last_step is not None and last_step >= verdict.step


def note_look(run: Path, *, now_ns: int) -> None:
    """Note that somebody looked for findings, by the time of the file that holds them.

    Raises:
        OSError: There is no such file, or it is somebody else's.
    """
    os.utime(run / paths.VERDICTS_FILE, ns=(now_ns, now_ns), follow_symlinks=False)


def read_look(run: Path) -> int | None:
    """Return when somebody looked last, since the epoch; None where nobody has found anything."""
    try:
        return (run / paths.VERDICTS_FILE).lstat().st_mtime_ns
    except OSError:
        return None
