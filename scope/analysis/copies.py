"""Copies and sets: how many bytes, how fast, and how much of it nothing hid."""

from __future__ import annotations

import polars as pl

from scope.trace.columns import Column, Table
from scope.trace.schema import COPY_KINDS


class CopyStats(Table):
    """Copies and sets of one direction and name; sorted by `total_ns` descending, then by kind and name."""

    copy_kind = Column("copy_kind", pl.Enum(COPY_KINDS), "direction; null where the trace doesn't say", nullable=True)
    name = Column("name", pl.String, "name in the trace, which may tell pageable from pinned memory")
    num_copies = Column("num_copies", pl.UInt32, "copies or sets")
    num_sized = Column("num_sized", pl.UInt32, "of these, how many say their bytes and take longer than 0 ns")
    total_ns = Column("total_ns", pl.Int64, "sum of lengths")
    exposed_ns = Column("exposed_ns", pl.Int64, "time in which one of them runs and no compute or communication does")
    total_bytes = Column("total_bytes", pl.Int64, "bytes of those that say; null when none does", nullable=True)
    max_bytes = Column("max_bytes", pl.Int64, "bytes of the largest", nullable=True)
    bandwidth_bytes_per_s = Column(
        "bandwidth_bytes_per_s",
        pl.Float64,
        "bytes over length of the sized ones; null for none",
        nullable=True,
    )
