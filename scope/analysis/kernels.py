"""Which kernels took the time: by name, class, operator and module."""

from __future__ import annotations

from typing import Final, Literal

import polars as pl

from scope.trace.columns import Column, Table
from scope.trace.schema import CATEGORIES, KERNEL_CLASSES

KernelKey = Literal["name", "kernel_class", "operator", "module"]
"""What device events can be grouped by: their name, class, innermost operator, or innermost `nn.Module`."""

KERNEL_KEYS: Final[tuple[KernelKey, ...]] = ("name", "kernel_class", "operator", "module")


class KernelStats(Table):
    """Device events grouped; sorted by `total_ns` descending, then by key, so ties have one order.

    Lengths are those of raw events and count fully in the window in which the event starts; events that run at the
    same time count each, so shares are of the sum of lengths (`device_time_ratio`), not of the window.
    """

    key = Column("key", pl.String, "what they were grouped by; null where it is unknown", nullable=True)
    category = Column("category", pl.Enum(CATEGORIES), "the category with most time in the group")
    kernel_class = Column("kernel_class", pl.Enum(KERNEL_CLASSES), "the class with most time in the group")
    num_events = Column("num_events", pl.UInt32, "events")
    total_ns = Column("total_ns", pl.Int64, "sum of lengths")
    min_ns = Column("min_ns", pl.Int64, "shortest")
    median_ns = Column("median_ns", pl.Int64, "median, the lower of two")
    max_ns = Column("max_ns", pl.Int64, "longest")
    device_time_ratio = Column("device_time_ratio", pl.Float64, "share of the sum of lengths of all events, 0 to 1")
