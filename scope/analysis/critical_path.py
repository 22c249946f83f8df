"""The chain of host and device work that decided how long a step took."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import polars as pl

from scope.analysis.result import Result
from scope.trace.columns import Column, Table

PATH_KINDS: Final = (
    "operator",
    "runtime_call",
    "host_gap",
    "launch_latency",
    "compute",
    "communication",
    "memory",
    "device_gap",
    "sync_return",
)
"""What a piece of the path is: see `PathPieces`."""


class PathPieces(Table):
    """The critical path in the order of time; the pieces are adjacent, so their lengths sum to the path."""

    kind = Column("kind", pl.Enum(PATH_KINDS), "what it is")
    name = Column("name", pl.String, "operator, call or kernel; null for gaps", nullable=True)
    start_ns = Column("start_ns", pl.Int64, "first nanosecond")
    end_ns = Column("end_ns", pl.Int64, "end, not part of it")
    thread = Column("thread", pl.Int64, "host thread, for host pieces", nullable=True)
    stream = Column("stream", pl.Int64, "stream, for device pieces", nullable=True)
    event_id = Column("event_id", pl.UInt32, "device event, for device pieces", nullable=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class CriticalPath(Result):
    """The critical path of one step on one device."""

    device: int
    step_number: int | None
    start_ns: int
    end_ns: int
    length_ns: int
    """`end_ns - start_ns`, the sum of the pieces."""
    pieces: pl.DataFrame
    """The table `PathPieces`."""
    ns_by_kind: dict[str, int]
    """Sum of the lengths of the pieces by kind; every kind is there."""

    def _check_sums(self) -> None:
        assert self.length_ns == self.end_ns - self.start_ns
        assert sum(self.ns_by_kind.values()) == self.length_ns
        if self.pieces.is_empty():
            return
        starts, ends = self.pieces[PathPieces.start_ns], self.pieces[PathPieces.end_ns]
        assert starts[0] == self.start_ns
        assert ends[-1] == self.end_ns
        assert starts[1:].equals(ends[:-1])
