"""The host timeline: compute and communication of training on CPUs, as events of the device `HOST`.

Compute is the time that the threads of the steps and of autograd spend in operators: every instant counts for the
innermost operator that runs, so that the self times of a thread's operators sum to the union of their spans. Not
compute are operators that start a collective or wait for one, and the self time of those around `c10d::*`, which may
block there without saying so. Communication is the ranges of the collectives themselves (`gloo:*`). Host ranges and
device events are never mixed: a trace has either.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from scope.trace.classes import operator_class
from scope.trace.nesting import innermost
from scope.trace.schema import CollectiveCalls, DeviceEvents, Ops, Steps

if TYPE_CHECKING:
    from scope.trace.model import RankTrace

HOST: Final = -1
"""The device index under which a host timeline is shown."""

_AUTOGRAD: Final = "autograd::"
_BLOCKING: Final = r"^c10d::|^record_param_comms$"
_FUNCTIONAL: Final = r"^_?c10d_functional::"
_GRAPH_NODE: Final = r"^autograd::|Backward\d*$"
"""Nodes of the backward graph, whose self time is the engine's and not the work that their name tells."""
_OF_DEVICES: Final = ("communication", "memory")
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


def merge_operators(events: pl.DataFrame) -> pl.DataFrame:
    """Return the events of a host timeline with the pieces of each operator put together: one row an operator.

    Its span begins with its first piece and is as long as the self time of all pieces together, so that counts are
    those of operators and lengths their self times. Where it lies in time is then no longer true of its end.
    """
    is_piece = pl.col(DeviceEvents.category) == "compute"
    lengths = (pl.col(DeviceEvents.end_ns) - pl.col(DeviceEvents.start_ns)).sum().over(DeviceEvents.op_id)
    whole = (
        events.filter(is_piece)
        .with_columns(
            (pl.col(DeviceEvents.start_ns).min().over(DeviceEvents.op_id) + lengths).alias(DeviceEvents.end_ns)
        )
        .unique(DeviceEvents.op_id, keep="first", maintain_order=True)
    )
    return pl.concat([whole, events.filter(~is_piece)]).sort(DeviceEvents.event_id)


def _compute(ops: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """Return the pieces of time in which an operator that computes is the innermost of its thread."""
    name = pl.col(Ops.name).cast(pl.String)
    autograd = ops.filter(name.str.starts_with(_AUTOGRAD))[Ops.thread]
    threads = pl.concat([autograd, steps[Steps.thread]]).unique()
    chosen = ops if threads.is_empty() else ops.filter(pl.col(Ops.thread).is_in(threads.implode()))
    instants = pl.concat(
        [chosen.select(Ops.thread, Ops.start_ns), chosen.select(Ops.thread, pl.col(Ops.end_ns).alias(Ops.start_ns))]
    )
    pieces = instants.unique().sort(Ops.thread, Ops.start_ns)
    pieces = pieces.with_columns(
        pl.col(Ops.start_ns).shift(-1).over(Ops.thread).alias(Ops.end_ns),
        innermost(pieces, ops.select(Ops.thread, Ops.start_ns, Ops.end_ns, Ops.parent_id)).alias(Ops.op_id),
    )
    facts = ops.filter(~name.str.contains(_NOT_COMPUTE), ~pl.col(Ops.op_id).is_in(_around_blocking(ops).implode()))
    return pieces.join(facts.select(Ops.op_id, Ops.name, Ops.step_id), on=Ops.op_id).select(
        pl.col(Ops.thread).alias(DeviceEvents.stream),
        pl.lit("compute", dtype=DeviceEvents.category.dtype).alias(DeviceEvents.category),
        _classes(facts[Ops.name]).alias(DeviceEvents.kernel_class),
        pl.col(Ops.name).alias(DeviceEvents.name),
        pl.col(Ops.start_ns).alias(DeviceEvents.start_ns),
        pl.col(Ops.end_ns).alias(DeviceEvents.end_ns),
        pl.col(Ops.op_id).alias(DeviceEvents.op_id),
        pl.col(Ops.step_id).alias(DeviceEvents.step_id),
    )


def _classes(names: pl.Series) -> pl.Expr:
    """Return the class of each operator that computes, by its own name; `other` where that does not tell."""
    distinct = names.cast(pl.String).unique()
    nodes = distinct.str.contains(_GRAPH_NODE)
    found = [None if is_node else operator_class(name) for name, is_node in zip(distinct, nodes, strict=True)]
    known = {name: each for name, each in zip(distinct, found, strict=True) if each and each not in _OF_DEVICES}
    # A copy on the host is compute, as all its operators are.
    return (
        pl.col(Ops.name)
        .cast(pl.String)
        .replace_strict(list(known), list(known.values()), default="other", return_dtype=pl.String)
        .cast(DeviceEvents.kernel_class.dtype)
    )


def _around_blocking(ops: pl.DataFrame) -> pl.Series:
    """Return the operators that contain a call of c10d, whose wait is no operator of its own.

    Functional collectives have one (`wait_tensor`), so what is around them computes.
    """
    name = ops[Ops.name].cast(pl.String)
    is_functional = name.str.contains(_FUNCTIONAL)
    parent = ops[Ops.parent_id]
    around = pl.Series(dtype=Ops.op_id.dtype)
    turn = parent.filter(name.str.contains(_BLOCKING)).drop_nulls().unique()
    while len(turn):
        turn = turn.filter(~is_functional.gather(turn) & ~turn.is_in(around.implode()))
        around = pl.concat([around, turn])
        turn = parent.gather(turn).drop_nulls().unique()
    return around


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
