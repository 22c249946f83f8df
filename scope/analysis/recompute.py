"""How much of backward is forward computed again (activation checkpointing)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from scope.analysis import spans
from scope.analysis.lineage import inherit
from scope.analysis.result import Result
from scope.analysis.step_time import compute_step_time, starts_within
from scope.structs import Record
from scope.trace.schema import DeviceEvents, Ops

if TYPE_CHECKING:
    from collections.abc import Iterable

    from scope.analysis.windows import Timeline

_NODE: Final = "autograd::engine::evaluate_function: "
_TOTAL: Final = "total_ns"
_IN_STEPS: Final = "in_steps_ns"


class Recompute(Result, frozen=True, kw_only=True):
    """Device time (host time on a host timeline) of operators that backward runs again.

    An operator is recomputed when it stands inside a node of the autograd engine and records an autograd sequence
    number of its own, which only operators that build a graph do. Double backward (`create_graph=True`) does so too
    and cannot be told apart.
    """

    num_ops: int | None
    """Outermost recomputed operators."""
    recompute_ns: int | None
    """Sum of the lengths of the compute that they launched; of the operators themselves on a host timeline."""
    compute_ns: int
    """The same sum over all compute; unlike a breakdown's, events that run at the same time count each."""
    recompute_ratio: float | None
    """`recompute_ns / compute_ns`."""
    step_num_ops: int | None
    """Those of `num_ops` of whose compute some starts in step time (`scope.analysis.step_time`)."""
    step_recompute_ns: int | None
    """The part of `recompute_ns` that starts in step time."""
    step_compute_ns: int
    """The part of `compute_ns` that starts in step time."""

    def _check_sums(self) -> None:
        assert self.recompute_ns is None or 0 <= self.recompute_ns <= self.compute_ns
        assert self.step_recompute_ns is None or 0 <= self.step_recompute_ns <= self.step_compute_ns
        assert self.step_num_ops is None or self.num_ops is None or 0 <= self.step_num_ops <= self.num_ops


def compute_recompute(timeline: Timeline) -> Recompute:
    """Return how much of one rank's compute is forward that backward computed again."""
    ops = timeline.trace.ops
    compute = timeline.events.filter(pl.col(DeviceEvents.category) == "compute")
    step_time = compute_step_time(timeline.devices)
    whole = _Lengths.of(compute, step_time)
    nodes = find_nodes(ops)
    if nodes.is_empty():
        return _unknown(whole, "no backward in the trace: it holds no operators of the autograd engine")
    if ops[Ops.sequence_number].null_count() == ops.height:
        return _unknown(whole, "the trace holds no autograd sequence numbers")
    outermost = find_recomputed(ops, nodes)
    counted = outermost == ops[Ops.op_id]
    if timeline.step_id is not None:
        counted &= ops[Ops.step_id] == timeline.step_id
    inside = ops[Ops.op_id].filter(outermost.is_not_null())
    recomputed = compute.filter(pl.col(DeviceEvents.op_id).is_in(inside.implode()))
    launching = outermost.gather(recomputed.filter(starts_within(step_time))[DeviceEvents.op_id])
    step_num_ops = launching.filter(counted.gather(launching)).n_unique()
    return _recompute((int(counted.sum()), step_num_ops), _Lengths.of(recomputed, step_time), whole)


def sum_recompute(ranks: Iterable[Recompute]) -> Recompute:
    """Return the figures of several ranks together; ranks of which nothing is known are left out of all sums."""
    each = list(ranks)
    known = [rank for rank in each if rank.num_ops is not None]
    chosen = known or each
    whole = _Lengths(sum(rank.compute_ns for rank in chosen), sum(rank.step_compute_ns for rank in chosen))
    if not known:
        reasons = sorted({rank.absent["recompute_ns"] for rank in each})
        return _unknown(whole, "; ".join(reasons) or "no ranks")
    again = _Lengths(sum(rank.recompute_ns or 0 for rank in known), sum(rank.step_recompute_ns or 0 for rank in known))
    num_ops = (sum(rank.num_ops or 0 for rank in known), sum(rank.step_num_ops or 0 for rank in known))
    return _recompute(num_ops, again, whole)


class _Lengths(Record, frozen=True):
    """Sums of lengths of events: of all, and of those that start in step time."""

    total_ns: int
    step_ns: int

    @staticmethod
    def of(events: pl.DataFrame, step_time: pl.DataFrame) -> _Lengths:
        within = pl.when(starts_within(step_time)).then(spans.SPAN_NS).otherwise(0)
        total, in_steps = events.select(spans.SPAN_NS.sum().alias(_TOTAL), within.sum().alias(_IN_STEPS)).row(0)
        return _Lengths(int(total), int(in_steps))


def _unknown(whole: _Lengths, reason: str) -> Recompute:
    unknown = ("num_ops", "recompute_ns", "recompute_ratio", "step_num_ops", "step_recompute_ns")
    return Recompute(
        num_ops=None,
        recompute_ns=None,
        compute_ns=whole.total_ns,
        recompute_ratio=None,
        step_num_ops=None,
        step_recompute_ns=None,
        step_compute_ns=whole.step_ns,
        absent=dict.fromkeys(unknown, reason),
    )


def _recompute(num_ops: tuple[int, int], again: _Lengths, whole: _Lengths) -> Recompute:
    """Return the figures; `num_ops` are all outermost operators, and those with compute in step time."""
    return Recompute(
        num_ops=num_ops[0],
        recompute_ns=again.total_ns,
        compute_ns=whole.total_ns,
        recompute_ratio=again.total_ns / whole.total_ns if whole.total_ns else None,
        step_num_ops=num_ops[1],
        step_recompute_ns=again.step_ns,
        step_compute_ns=whole.step_ns,
        absent={} if whole.total_ns else {"recompute_ratio": "no compute in the trace"},
    )


def find_nodes(ops: pl.DataFrame) -> pl.DataFrame:
    """Return the nodes of the autograd engine among operators."""
    names = ops[Ops.name].unique()
    return ops.filter(pl.col(Ops.name).is_in(names.filter(names.cast(pl.String).str.starts_with(_NODE)).implode()))


def find_recomputed(ops: pl.DataFrame, nodes: pl.DataFrame) -> pl.Series:
    """Return for each operator the outermost of those that backward runs again in which it stands; null for none."""
    parents, op_id = ops[Ops.parent_id], ops[Ops.op_id]
    is_node = op_id.is_in(nodes[Ops.op_id].implode())
    # What stands in a node runs on its thread, where in most traces nothing else than the nodes builds a graph.
    on_thread = ops[Ops.thread].is_in(nodes[Ops.thread].unique().implode())
    graph_builders = op_id.filter(on_thread & ops[Ops.sequence_number].is_not_null() & ~is_node)
    # A node's own operator, of the node's name, bears the sequence number of its forward operator.
    expected = _NODE + ops[Ops.name].gather(graph_builders).cast(pl.String)
    around = ops[Ops.name].gather(parents.gather(graph_builders)).cast(pl.String)
    builders = graph_builders.filter((around != expected).fill_null(value=True))
    if not builders.is_empty():
        node = inherit(_where(is_node, op_id), parents)
        builders = builders.filter(node.gather(builders).is_not_null())
    if builders.is_empty():
        return pl.Series([None], dtype=op_id.dtype).new_from_index(0, len(op_id))
    again = op_id.is_in(builders.implode())
    owner = inherit(_where(again, op_id), parents)
    outermost = again & owner.gather(parents).is_null()
    return inherit(_where(outermost, op_id), parents)


def _where(mask: pl.Series, values: pl.Series) -> pl.Series:
    """Return the values where the mask holds, null elsewhere."""
    return values.zip_with(mask, pl.Series([None], dtype=values.dtype))
