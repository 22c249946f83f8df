"""Calls that make the host wait for the device, and the idle time that they leave behind."""

from __future__ import annotations

import polars as pl

from scope.trace.columns import Column, Table
from scope.trace.schema import LAUNCH_KINDS


class SyncStats(Table):
    """Blocking calls grouped by call and operator; sorted by `call_ns` descending, then by names.

    A call blocks when it is a synchronisation, or a copy whose call returns no earlier than the copy ends.
    """

    name = Column("name", pl.String, "name of the call")
    kind = Column("kind", pl.Enum(LAUNCH_KINDS), "sync, memcpy or memset")
    operator = Column("operator", pl.String, "innermost operator around the call; null for none", nullable=True)
    root_operator = Column("root_operator", pl.String, "outermost operator around the call", nullable=True)
    num_calls = Column("num_calls", pl.UInt32, "calls")
    call_ns = Column("call_ns", pl.Int64, "sum of the lengths of the calls")
    max_call_ns = Column("max_call_ns", pl.Int64, "the longest call")
    idle_ns = Column("idle_ns", pl.Int64, "device idle time of cause `sync` during these calls")
