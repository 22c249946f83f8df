"""What is true of a simulated rank's device, worked out one nanosecond boundary at a time.

Deliberately the plainest possible code: no interval algebra, no table library, nothing shared with the analyses.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from scope.testing.program import Compute, Copy

if TYPE_CHECKING:
    from collections.abc import Iterable

    from scope.testing.simulate import Issued

DeviceSpan = tuple[str, int, int]
"""Category, start and recorded end on the true clock."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrueBreakdown:
    """How one device's window divides."""

    window_ns: int
    compute_ns: int
    exposed_communication_ns: int
    exposed_memory_ns: int
    idle_ns: int
    communication_ns: int
    overlap_ns: int
    """Communication that compute hides."""


def device_spans(issued: Iterable[Issued]) -> list[DeviceSpan]:
    """Return every device event of a rank with its category."""
    found: list[DeviceSpan] = []
    for each in issued:
        category = "communication"
        if isinstance(each.instruction, Compute):
            category = "compute"
        elif isinstance(each.instruction, Copy):
            category = "memory"
        found += [(category, event.start_ns, event.recorded_end_ns) for event in each.events]
    return found


def true_breakdown(issued: Iterable[Issued]) -> TrueBreakdown:
    """Return the breakdown of a rank's whole device window.

    Args:
        issued: What the rank did; at least one device event.
    """
    spans = device_spans(issued)
    changes: list[tuple[int, str, int]] = []
    for category, start, end in spans:
        changes += [(start, category, 1), (end, category, -1)]
    changes.sort()
    active = {"compute": 0, "communication": 0, "memory": 0}
    totals: dict[str, int] = dict.fromkeys(
        ("compute", "communication", "memory", "idle", "all_communication", "overlap"), 0
    )
    now = changes[0][0]
    for instant, category, change in changes:
        length = instant - now
        holder = next((name for name in ("compute", "communication", "memory") if active[name]), "idle")
        totals[holder] += length
        if active["communication"]:
            totals["all_communication"] += length
            totals["overlap"] += length if active["compute"] else 0
        active[category] += change
        now = instant
    return TrueBreakdown(
        window_ns=max(end for _, _, end in spans) - min(start for _, start, _ in spans),
        compute_ns=totals["compute"],
        exposed_communication_ns=totals["communication"],
        exposed_memory_ns=totals["memory"],
        idle_ns=totals["idle"],
        communication_ns=totals["all_communication"],
        overlap_ns=totals["overlap"],
    )
