"""A diagnosis: what differs or is wrong, where, and what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

Severity = Literal["critical", "warning", "info"]
_RANK: Final = "rank "
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


def join_owners(names: list[str], *, most: int = 8) -> str:
    """Return what values belong to as text: ranks (`rank 3`) as ranges, hosts and other names one by one.

    Examples:
        >>> join_owners(["rank 0", "rank 1", "rank 2", "rank 5"])
        'ranks 0-2, 5'
        >>> join_owners(["node1", "node2"])
        'node1, node2'
    """
    numbers = [name.removeprefix(_RANK) for name in names if name.startswith(_RANK)]
    if len(numbers) < len(names) or not all(map(str.isdecimal, numbers)):
        return join_names(names, most=most)
    return describe_ranks([int(number) for number in numbers], most=most)


def merge_equal(found: Sequence[Diagnosis]) -> list[Diagnosis]:
    """Return diagnoses in which those that differ only in where they hold are one, in the order of the first."""
    places: dict[tuple[object, ...], list[str]] = {}
    first: dict[tuple[object, ...], Diagnosis] = {}
    for one in found:
        # What lists values speaks of several owners already.
        key = one.check, one.severity, one.what, one.action, one.where if one.values else None
        first.setdefault(key, one)
        places.setdefault(key, []).append(one.where)
    return [msgspec.structs.replace(one, where=join_names(places[key])) for key, one in first.items()]


def describe_ranks(ranks: list[int], *, most: int = 16) -> str:
    """Return ranks as ranges, those beyond so many ranges counted.

    Examples:
        >>> describe_ranks([0, 1, 2, 5])
        'ranks 0-2, 5'
        >>> describe_ranks([0, 2, 4, 5, 6], most=1)
        'ranks 0 and 4 more'
    """
    parts: list[str] = []
    ordered = sorted(set(ranks))
    start = 0
    for place in range(1, len(ordered) + 1):
        if place == len(ordered) or ordered[place] != ordered[place - 1] + 1:
            if len(parts) == most:
                break
            first, last = ordered[start], ordered[place - 1]
            parts.append(str(first) if first == last else f"{first}-{last}")
            start = place
    more = f" and {len(ordered) - start:,} more" if start < len(ordered) else ""
    return ("rank " if len(ordered) == 1 else "ranks ") + ", ".join(parts) + more
