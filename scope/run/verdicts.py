"""Which findings of a `verdicts.jsonl` hold now."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable

    from scope.run.schema import Verdict

VerdictKey: TypeAlias = "tuple[str, tuple[int, ...], str | None]"
"""Kind, ranks and group: what tells one finding from another."""


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
