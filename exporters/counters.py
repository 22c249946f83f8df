"""Counters that outlive the sampling process: what wraps is unwrapped, what is an event is counted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from scope.probe.xid import action_of
from scope.units import NS_PER_S

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable

    from scope.probe.records import Problem, XidEvent

_SAME_EVENT_NS: Final = 10 * NS_PER_S
WRAP_BITS: Final = (32, 40, 48)
_NEAR_END: Final = 0.75


class Unwrapper:
    """Makes a counter that wraps at 2**32, 2**40 or 2**48 monotonic.

    A fall is a wrap when the value before stood in the last quarter of such a range and the value after in the first
    quarter; every other fall is a reset, and the sum begins again with the hardware's value, as `rate()` expects.
    """

    def __init__(self) -> None:
        self._last: dict[Hashable, int] = {}
        self._added: dict[Hashable, int] = {}

    def update(self, key: Hashable, raw: int) -> int:
        """Return the monotonic value for a raw reading."""
        last = self._last.get(key)
        self._last[key] = raw
        if last is not None and raw < last:
            wrapped = next((bits for bits in WRAP_BITS if _has_wrapped(last, raw, 1 << bits)), None)
            if wrapped is None:
                self._added.pop(key, None)
            else:
                self._added[key] = self._added.get(key, 0) + (1 << wrapped)
        return raw + self._added.get(key, 0)


def _has_wrapped(last: int, raw: int, size: int) -> bool:
    return _NEAR_END * size <= last < size and raw < (1 - _NEAR_END) * size


class XidCounts:
    """Counts XIDs by GPU, each event once although NVML and the kernel's log both tell it.

    Attributes:
        counts: Events by (PCI address, XID).
        last_ns: When one was last seen, by the same key.
    """

    def __init__(self) -> None:
        self.counts: dict[tuple[str, int], int] = {}
        self.last_ns: dict[tuple[str, int], int] = {}
        self._unmatched: dict[tuple[str, int], list[tuple[str, int]]] = {}

    def add(self, events: Iterable[XidEvent]) -> None:
        """Count events; one that the other source told within ten seconds is the same one."""
        for event in events:
            key = (event.pci_bus_id, event.xid)
            waiting = [seen for seen in self._unmatched.get(key, []) if abs(event.time_ns - seen[1]) <= _SAME_EVENT_NS]
            twin = next((seen for seen in waiting if seen[0] != event.source), None)
            if twin is not None:
                waiting.remove(twin)
            else:
                waiting.append((event.source, event.time_ns))
                self.counts[key] = self.counts.get(key, 0) + 1
                self.last_ns[key] = max(event.time_ns, self.last_ns.get(key, 0))
            self._unmatched[key] = waiting

    def of(self, address: str) -> dict[int, tuple[int, int, str]]:
        """Return (count, last time, action) by XID of one GPU."""
        return {
            xid: (count, self.last_ns[place, xid], action_of(xid))
            for (place, xid), count in self.counts.items()
            if place == address
        }


class ProblemCounts:
    """Counts what could not be read, by collector and kind; the number of kinds is bounded."""

    _MOST: Final = 200

    def __init__(self) -> None:
        self.counts: dict[tuple[str, str], int] = {}
        self.last: dict[tuple[str, str], str] = {}

    def add(self, problems: Iterable[Problem]) -> None:
        """Count problems and keep the last message of each kind."""
        for problem in problems:
            key = (problem.collector, problem.error)
            if key not in self.counts and len(self.counts) >= self._MOST:
                key = (problem.collector, "other")
            self.counts[key] = self.counts.get(key, 0) + 1
            self.last[key] = f"{problem.where}: {problem.message}" if problem.message else problem.where
