"""Which `nn.Module` each device event worked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from scope.analysis import spans
from scope.analysis.lineage import inherit
from scope.analysis.recompute import find_nodes, find_recomputed
from scope.trace.schema import DeviceEvents, Ops, PythonCalls

if TYPE_CHECKING:
    from scope.trace.model import RankTrace

_DEPTH: Final = "depth_at"
_BEGUN: Final = "num_begun"
_ENDED: Final = "num_ended"
_CALL: Final = "call_row"
_ROW: Final = "row"
_TIME: Final = "time_ns"
_THREAD: Final = "at_thread"


def find_modules(trace: RankTrace, events: pl.DataFrame) -> pl.Series:
    """Return for every event the name of the innermost `nn.Module` call around its operator, else around its launch.

    An operator inside a node of the backward graph counts for the module of the node's forward operator. One that the
    node computes again, as under activation checkpointing, is of another module: of the one that was called inside the
    node, where its thread's calls are in the trace. Where they are and the node has none, it computes nothing again: it
    builds the graph of a double backward. Null where no module is seen.
    """
    ops = trace.ops
    modules = trace.python_calls.filter(pl.col(PythonCalls.module_id).is_not_null(), spans.SPAN_NS > 0)
    op_id, forward_op_id = events[DeviceEvents.op_id], ops[Ops.forward_op_id]
    is_node = pl.when(forward_op_id.is_not_null()).then(ops[Ops.op_id])
    node = inherit(pl.select(is_node).to_series(), ops[Ops.parent_id]).gather(op_id)
    by_op, by_launch = _moments(ops, op_id), _moments(trace.launches, events[DeviceEvents.launch_id])
    moments = by_op.select(at.zip_with(op_id.is_not_null(), by_launch[at.name]) for at in by_op)
    in_node = node.is_not_null().arg_true()
    forwards = _moments(ops, forward_op_id.gather(node.gather(in_node)))
    found = innermost_calls(modules, pl.concat([moments, forwards]))
    own, of_node = found.head(events.height), _nulls(found, events.height).scatter(in_node, found.tail(len(in_node)))
    began_inside = modules[PythonCalls.start_ns].gather(own) >= ops[Ops.start_ns].gather(node)
    is_own = node.is_null() | began_inside.fill_null(value=False)
    is_again = find_recomputed(ops, find_nodes(ops)).gather(op_id).is_not_null()
    has_calls = ops[Ops.thread].gather(op_id).is_in(modules[PythonCalls.thread].unique().implode())
    is_unknown = is_again & (~has_calls | node.is_in(node.filter(is_own).unique().implode()))
    return modules[PythonCalls.name].gather(
        pl.select(pl.when(is_own).then(own).when(~is_unknown).then(of_node)).to_series()
    )


def _moments(calls: pl.DataFrame, rows: pl.Series) -> pl.DataFrame:
    """Return where and when some operators or launching calls began."""
    starts = calls.select(pl.col(Ops.thread).alias(_THREAD), pl.col(Ops.start_ns).alias(_TIME))
    return starts.select(pl.all().gather(rows))


def _nulls(like: pl.Series, height: int) -> pl.Series:
    return like.clear().extend_constant(None, height)


def innermost_calls(calls: pl.DataFrame, moments: pl.DataFrame) -> pl.Series:
    """Return for every moment the row of the innermost call of its thread that is running; null where none is.

    Args:
        calls: Rows of `PythonCalls` that last; those of one thread are nested or disjoint.
        moments: Columns `at_thread` and `time_ns`, both may be null.
    """
    ordered = calls.with_row_index(_CALL).sort(PythonCalls.start_ns, -pl.col(PythonCalls.end_ns))
    begun = ordered.select(
        pl.col(PythonCalls.thread).alias(_THREAD), pl.col(PythonCalls.start_ns).alias(_TIME), _CALL
    ).with_columns(pl.int_range(1, pl.len() + 1).over(_THREAD).alias(_BEGUN))
    ended = (
        ordered.select(pl.col(PythonCalls.thread).alias(_THREAD), pl.col(PythonCalls.end_ns).alias(_TIME))
        .sort(_TIME)
        .with_columns(pl.int_range(1, pl.len() + 1).over(_THREAD).alias(_ENDED))
    )
    depth = (pl.col(_BEGUN).fill_null(0) - pl.col(_ENDED).fill_null(0)).alias(_DEPTH)
    # Of nested calls the innermost is, among those as deep as the thread is now, the one that began last.
    levels = begun.join_asof(ended, on=_TIME, by=_THREAD, check_sortedness=False).select(_THREAD, _TIME, _CALL, depth)
    found = (
        moments.with_row_index(_ROW)
        .sort(_TIME)
        .join_asof(begun.drop(_CALL), on=_TIME, by=_THREAD, check_sortedness=False)
        .join_asof(ended, on=_TIME, by=_THREAD, check_sortedness=False)
        .with_columns(depth)
        .join_asof(levels, on=_TIME, by=[_THREAD, _DEPTH], check_sortedness=False)
        .sort(_ROW)
    )
    return found.select(pl.when(pl.col(_DEPTH) > 0).then(pl.col(_CALL))).to_series()
