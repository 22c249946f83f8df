"""A diagnosis: what differs or is wrong, where, and what to do."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

Severity = Literal["critical", "warning", "info"]
SEVERITIES: Final = ("critical", "warning", "info")


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One statement of `scope doctor`.

    Attributes:
        check: Short name of the check, stable for scripts.
        severity: `critical`: the job will fail or crawl; `warning`: it loses speed or safety; `info`: good to know.
        what: What differs or is wrong.
        where: Hosts, ranks, devices.
        action: What to do.
        values: The values found, by where.
    """

    check: str
    severity: Severity
    what: str
    where: str
    action: str
    values: dict[str, str] = {}


def sort_diagnoses(found: list[Diagnosis]) -> list[Diagnosis]:
    """Return diagnoses worst first, and by check and place within a severity."""
    return sorted(found, key=lambda one: (SEVERITIES.index(one.severity), one.check, one.where))


def join_names(names: list[str], *, most: int = 8) -> str:
    """Return names as text, the rest counted.

    Examples:
        >>> join_names(["a", "b", "c"], most=2)
        'a, b and 1 more'
    """
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def describe_ranks(ranks: list[int]) -> str:
    """Return ranks as ranges.

    Examples:
        >>> describe_ranks([0, 1, 2, 5])
        'ranks 0-2, 5'
    """
    parts: list[str] = []
    ordered = sorted(set(ranks))
    start = 0
    for place in range(1, len(ordered) + 1):
        if place == len(ordered) or ordered[place] != ordered[place - 1] + 1:
            first, last = ordered[start], ordered[place - 1]
            parts.append(str(first) if first == last else f"{first}-{last}")
            start = place
    return ("rank " if len(ordered) == 1 else "ranks ") + ", ".join(parts)
