"""The host timeline: compute and communication of training on CPUs, as events of the device `HOST`.

Compute is the leaf operators of the threads that run the steps or autograd, less those that only start a collective
or wait for one. Communication is the ranges of the collectives themselves (`gloo:*`). Host ranges and device events
are never mixed: a trace has either.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from scope.trace.schema import CollectiveCalls, DeviceEvents, Ops, Steps

if TYPE_CHECKING:
    from scope.trace.model import RankTrace

HOST: Final = -1
"""The device index under which a host timeline is shown."""

_AUTOGRAD: Final = "autograd::"
_NOT_COMPUTE: Final = r"^c10d::|^_?c10d_functional::|^record_param_comms$|::wait(_tensor)?_?$|^(gloo|nccl):"


def host_events(trace: RankTrace) -> pl.DataFrame:
    """Return compute and communication of a host timeline with the columns of `DeviceEvents`, sorted by start.

    `stream` is the thread for compute and -1 for communication, whose threads are the library's own; `event_id`
    numbers the rows.
    """
    compute, communication = _compute(trace.ops, trace.steps), _communication(trace.collective_calls)
    both = pl.concat([DeviceEvents.empty(), compute, communication], how="diagonal_relaxed")
    return (
        both.sort(DeviceEvents.start_ns, DeviceEvents.end_ns, maintain_order=True)
        .with_columns(
            pl.int_range(pl.len(), dtype=pl.UInt32).alias(DeviceEvents.event_id),
            pl.lit(HOST, dtype=pl.Int32).alias(DeviceEvents.device),
            pl.lit("kernel", dtype=DeviceEvents.kind.dtype).alias(DeviceEvents.kind),
            pl.col(DeviceEvents.end_ns).alias(DeviceEvents.clipped_end_ns),
            pl.lit(value=False).alias(DeviceEvents.in_graph),
        )
        .select(pl.col(column).cast(column.dtype) for column in DeviceEvents.columns())
    )


def _compute(ops: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """Return the leaf operators that compute."""
    name = pl.col(Ops.name).cast(pl.String)
    autograd = ops.filter(name.str.starts_with(_AUTOGRAD))[Ops.thread]
    threads = pl.concat([autograd, steps[Steps.thread]]).unique()
    chosen = ops if threads.is_empty() else ops.filter(pl.col(Ops.thread).is_in(threads.implode()))
    return chosen.filter(pl.col(Ops.is_leaf), ~name.str.contains(_NOT_COMPUTE)).select(
        pl.col(Ops.thread).alias(DeviceEvents.stream),
        pl.lit("compute", dtype=DeviceEvents.category.dtype).alias(DeviceEvents.category),
        pl.lit("other", dtype=DeviceEvents.kernel_class.dtype).alias(DeviceEvents.kernel_class),
        pl.col(Ops.name).alias(DeviceEvents.name),
        pl.col(Ops.start_ns).alias(DeviceEvents.start_ns),
        pl.col(Ops.end_ns).alias(DeviceEvents.end_ns),
        pl.col(Ops.op_id).alias(DeviceEvents.op_id),
        pl.col(Ops.step_id).alias(DeviceEvents.step_id),
    )


def _communication(calls: pl.DataFrame) -> pl.DataFrame:
    """Return the collectives that ran on the host."""
    library = pl.col(CollectiveCalls.library).cast(pl.String)
    operation = pl.col(CollectiveCalls.operation).cast(pl.String)
    return calls.filter(pl.col(CollectiveCalls.device).is_null()).select(
        pl.lit(-1, dtype=pl.Int64).alias(DeviceEvents.stream),
        pl.lit("communication", dtype=DeviceEvents.category.dtype).alias(DeviceEvents.category),
        pl.lit("communication", dtype=DeviceEvents.kernel_class.dtype).alias(DeviceEvents.kernel_class),
        (library + ":" + operation).cast(DeviceEvents.name.dtype).alias(DeviceEvents.name),
        pl.col(CollectiveCalls.start_ns).alias(DeviceEvents.start_ns),
        pl.col(CollectiveCalls.end_ns).alias(DeviceEvents.end_ns),
        pl.col(CollectiveCalls.op_id).alias(DeviceEvents.op_id),
        pl.col(CollectiveCalls.step_id).alias(DeviceEvents.step_id),
        pl.col(CollectiveCalls.call_id).alias(DeviceEvents.call_id),
    )
