"""Why a device stood idle: each gap split by what the thread that launched the next event was doing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import polars as pl

from scope.analysis.result import Result
from scope.trace.columns import Column, Table

IDLE_CAUSES: Final = (
    "input",
    "sync",
    "allocation",
    "profiler",
    "gc",
    "host",
    "launch_latency",
    "back_to_back",
    "blocked",
    "unknown",
)
"""The causes in the order in which they are tried."""


class IdleSpans(Table):
    """The idle time of all devices, cut wherever the cause changes; sorted by device and start, disjoint."""

    device = Column("device", pl.Int32, "device index in the trace")
    start_ns = Column("start_ns", pl.Int64, "first nanosecond")
    end_ns = Column("end_ns", pl.Int64, "end, not part of it")
    cause = Column("cause", pl.Enum(IDLE_CAUSES), "why the device stood idle")
    event_id = Column("event_id", pl.UInt32, "the device event that ended the gap")


@dataclass(frozen=True, kw_only=True, slots=True)
class IdleCauses(Result):
    """Idle time by cause; the causes sum to `idle_ns` exactly."""

    idle_ns: int
    input_ns: int
    """The launching thread fetched data."""
    sync_ns: int
    """It sat in a blocking call or copy that began before the device ran dry."""
    allocation_ns: int
    """It allocated or freed device memory in the driver."""
    profiler_ns: int
    """The profiler itself held it up."""
    gc_ns: int
    """Python's garbage collector ran on it."""
    host_ns: int
    """Anything else it did: Python, operators' host code."""
    launch_latency_ns: int
    """From the start of the launching call to the start of the event."""
    back_to_back_ns: int
    """Gaps below `BACK_TO_BACK_NS` before an event that was launched in time."""
    blocked_ns: int
    """Longer gaps before an event that was launched in time: it waited for another stream, say."""
    unknown_ns: int
    """Gaps before an event whose launch the trace does not hold."""

    def _check_sums(self) -> None:
        parts = sum(getattr(self, f"{cause}_ns") for cause in IDLE_CAUSES)
        assert parts == self.idle_ns, f"causes sum to {parts} of {self.idle_ns} ns idle"
