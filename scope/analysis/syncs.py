"""Calls that make the host wait for the device, and the idle time that they leave behind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from scope.analysis import spans
from scope.analysis.host_activity import HostSpans
from scope.analysis.host_overlap import overlap_with_host
from scope.analysis.idle import IdleSpans
from scope.analysis.lineage import find_roots
from scope.analysis.step_time import compute_step_time, judged_steps, starts_within
from scope.trace.columns import Column, Table
from scope.trace.schema import LAUNCH_KINDS, Launches, Ops

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scope.analysis.windows import Timeline

_STRETCH: Final = (IdleSpans.device, IdleSpans.thread, IdleSpans.start_ns, IdleSpans.end_ns)


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
    num_step_calls = Column("num_step_calls", pl.UInt32, "of the calls, those made in the steps that step time is of")
    step_idle_ns = Column("step_idle_ns", pl.Int64, "the part of `idle_ns` that begins in step time")


def summarize_syncs(ranks: Sequence[tuple[Timeline, pl.DataFrame]]) -> pl.DataFrame:
    """Return the table `SyncStats` of one or several ranks.

    Args:
        ranks: Each rank's events and what `scope.analysis.idle.find_idle_spans` returned for them.
    """
    if not ranks:
        return SyncStats.empty()
    keys = (SyncStats.name, SyncStats.kind, SyncStats.operator, SyncStats.root_operator)
    table = (
        pl.concat([_calls_of(timeline, idle) for timeline, idle in ranks])
        .group_by(keys)
        .agg(
            pl.len().cast(pl.UInt32).alias(SyncStats.num_calls),
            pl.col(SyncStats.call_ns).sum(),
            pl.col(SyncStats.call_ns).max().alias(SyncStats.max_call_ns),
            pl.col(SyncStats.idle_ns).sum(),
            pl.col(SyncStats.num_step_calls).sum().cast(pl.UInt32),
            pl.col(SyncStats.step_idle_ns).sum(),
        )
        .select(SyncStats.columns())
        .sort(-pl.col(SyncStats.call_ns), *(key for key in keys if key != SyncStats.kind))
    )
    return SyncStats.check(table)


def _calls_of(timeline: Timeline, idle: pl.DataFrame) -> pl.DataFrame:
    """Return one rank's blocking calls with their operators and the idle time that they leave."""
    ops, calls = timeline.trace.ops, timeline.blocking
    op_id = calls[Launches.op_id]
    roots = find_roots(ops[Ops.parent_id]).gather(op_id)
    judged = {step.step_id for device in timeline.devices for step in judged_steps(device)}
    # Without steps the whole window is step time.
    in_steps = pl.col(Launches.step_id).is_in(judged).fill_null(value=False) if judged else pl.lit(value=True)
    named = calls.select(
        Launches.launch_id,
        pl.col(Launches.name).cast(pl.String).alias(SyncStats.name),
        pl.col(Launches.kind).alias(SyncStats.kind),
        ops[Ops.name].gather(op_id).cast(pl.String).alias(SyncStats.operator),
        ops[Ops.name].gather(roots).cast(pl.String).alias(SyncStats.root_operator),
        spans.SPAN_NS.alias(SyncStats.call_ns),
        in_steps.cast(pl.UInt32).alias(SyncStats.num_step_calls),
    )
    return named.join(_idle_by_call(timeline, idle), on=Launches.launch_id, how="left", maintain_order="left").drop(
        Launches.launch_id
    )


def _idle_by_call(timeline: Timeline, idle: pl.DataFrame) -> pl.DataFrame:
    """Return the idle time of cause `sync` that lies inside each blocking call; of nested calls the outer has it."""
    waited = idle.filter(pl.col(IdleSpans.cause) == "sync").select(_STRETCH)
    host = timeline.host_spans.filter(pl.col(HostSpans.activity) == "sync")
    owned = overlap_with_host(waited, host)
    within = starts_within(compute_step_time(timeline.devices))
    return owned.group_by(HostSpans.launch_id).agg(
        spans.SPAN_NS.sum().alias(SyncStats.idle_ns), spans.SPAN_NS.filter(within).sum().alias(SyncStats.step_idle_ns)
    )
