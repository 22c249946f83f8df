"""Which kernels took the time: by name, class, operator and module."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

import polars as pl

from scope.analysis import spans
from scope.analysis.host import merge_operators
from scope.analysis.medians import lower_median_ns
from scope.analysis.modules import find_modules
from scope.trace.columns import Column, Table
from scope.trace.schema import CATEGORIES, KERNEL_CLASSES, DeviceEvents, Ops

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scope.analysis.windows import Timeline
    from scope.trace.model import RankTrace

_MIXED: Final = "is_mixed"

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


class KeyedEvents(Table):
    """Device events with the key that they are grouped by."""

    key = Column("key", pl.Categorical(), "what they are grouped by", nullable=True)
    category = Column("category", pl.Enum(CATEGORIES), "category")
    kernel_class = Column("kernel_class", pl.Enum(KERNEL_CLASSES), "class")
    length_ns = Column("length_ns", pl.Int64, "length of the event")


def key_events(timeline: Timeline, *, by: KernelKey) -> pl.DataFrame:
    """Return the table `KeyedEvents` of one rank; on a host timeline one row an operator, of its self time.

    Args:
        timeline: One rank's events.
        by: What to group by. `module` needs the Python calls in the trace; without them every key is null.
    """
    events = merge_operators(timeline.events) if timeline.trace.is_host_timeline else timeline.events
    return events.select(
        _keys(timeline.trace, events, by).alias(KeyedEvents.key),
        DeviceEvents.category,
        DeviceEvents.kernel_class,
        spans.SPAN_NS.alias(KeyedEvents.length_ns),
    )


def summarize_kernels(events: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """Return the table `KernelStats` of the events of one or several ranks.

    Args:
        events: Tables `KeyedEvents`, all by the same key.
    """
    length = pl.col(KeyedEvents.length_ns)
    both = pl.concat(events) if events else KeyedEvents.empty()
    kind = (KeyedEvents.category, KeyedEvents.kernel_class)
    figures = both.group_by(KeyedEvents.key).agg(
        pl.len().cast(pl.UInt32).alias(KernelStats.num_events),
        length.sum().alias(KernelStats.total_ns),
        length.min().alias(KernelStats.min_ns),
        lower_median_ns(length).alias(KernelStats.median_ns),
        length.max().alias(KernelStats.max_ns),
        pl.col(kind).first(),
        pl.any_horizontal(pl.col(each).to_physical().min() != pl.col(each).to_physical().max() for each in kind).alias(
            _MIXED
        ),
    )
    if figures[_MIXED].any():
        figures = figures.drop(kind).join(_largest_kinds(both), on=KeyedEvents.key, nulls_equal=True)
    total = pl.col(KernelStats.total_ns)
    table = (
        figures.with_columns(pl.col(KeyedEvents.key).cast(pl.String))
        .sort(-total, pl.col(KernelStats.key))
        .with_columns(
            pl.when(total.sum() > 0).then(total / total.sum()).otherwise(0.0).alias(KernelStats.device_time_ratio)
        )
        .select(KernelStats.columns())
    )
    return KernelStats.check(table)


def _largest_kinds(events: pl.DataFrame) -> pl.DataFrame:
    """Return the category and class of the largest share of each key; ties go to the first in the enums' order."""
    length, kind = pl.col(KeyedEvents.length_ns), (KeyedEvents.category, KeyedEvents.kernel_class)
    return (
        events.group_by(KeyedEvents.key, *kind)
        .agg(length.sum())
        .sort(-length, *(pl.col(each).to_physical() for each in kind))
        .group_by(KeyedEvents.key, maintain_order=True)
        .agg(pl.col(kind).first())
    )


def _keys(trace: RankTrace, events: pl.DataFrame, by: KernelKey) -> pl.Series:
    """Return the key of every event."""
    if by == "name":
        return events[DeviceEvents.name]
    if by == "kernel_class":
        return events[DeviceEvents.kernel_class].cast(pl.String).cast(pl.Categorical())
    if by == "operator":
        return trace.ops[Ops.name].gather(events[DeviceEvents.op_id])
    return find_modules(trace, events)
