"""The allocator's memory over time, and which operators hold it at the peak."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from scope.analysis.result import Result
from scope.trace.columns import Column, Table


class MemoryTimeline(Table):
    """Memory of one device after each allocation and release, in the order of time."""

    time_ns = Column("time_ns", pl.Int64, "instant")
    allocated_bytes = Column("allocated_bytes", pl.Int64, "in use", nullable=True)
    reserved_bytes = Column("reserved_bytes", pl.Int64, "held by the allocator", nullable=True)


class MemoryHolders(Table):
    """What was in use at the peak, by operator; sorted by bytes descending, then by operator."""

    operator = Column("operator", pl.String, "innermost operator that allocated it; null where unknown", nullable=True)
    num_blocks = Column("num_blocks", pl.UInt32, "blocks in use")
    held_bytes = Column("held_bytes", pl.Int64, "bytes in use")


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryPeak(Result):
    """The largest use of one device's memory within a window."""

    device_type: int
    """torch's DeviceType: 0 is the host, 1 is CUDA or HIP."""
    device: int
    num_events: int
    peak_ns: int
    """The first instant at which the peak is reached."""
    peak_allocated_bytes: int | None
    """Largest `Total Allocated`."""
    peak_reserved_bytes: int | None
    """Largest `Total Reserved`."""
    start_allocated_bytes: int | None
    """In use before the first recorded event."""
    end_allocated_bytes: int | None
    """In use after the last recorded event."""
    growth_bytes: int
    """Bytes allocated minus bytes released in the window."""
    holders: pl.DataFrame
    """The table `MemoryHolders`: blocks that were allocated in the recording and in use at the peak."""
    unseen_bytes: int | None
    """In use at the peak, but allocated before the recording began: the peak minus the sum of `holders`."""

    def _check_sums(self) -> None:
        if self.peak_allocated_bytes is not None and self.unseen_bytes is not None:
            held = int(self.holders[MemoryHolders.held_bytes].sum())
            assert held + self.unseen_bytes == self.peak_allocated_bytes
