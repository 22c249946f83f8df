"""How much of backward is forward computed again (activation checkpointing)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from scope.analysis import spans
from scope.analysis.lineage import inherit
from scope.analysis.result import Result
from scope.trace.schema import DeviceEvents, Ops

if TYPE_CHECKING:
    from collections.abc import Iterable

    from scope.analysis.windows import Timeline

_NODE: Final = "autograd::engine::evaluate_function: "


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

    def _check_sums(self) -> None:
        assert self.recompute_ns is None or 0 <= self.recompute_ns <= self.compute_ns


def compute_recompute(timeline: Timeline) -> Recompute:
    """Return how much of one rank's compute is forward that backward computed again."""
    ops = timeline.trace.ops
    compute = timeline.events.filter(pl.col(DeviceEvents.category) == "compute")
    compute_ns = int(compute.select(spans.SPAN_NS.sum()).item())
    names = ops[Ops.name].unique()
    nodes = ops.filter(pl.col(Ops.name).is_in(names.filter(names.cast(pl.String).str.starts_with(_NODE)).implode()))
    if nodes.is_empty():
        return _unknown(compute_ns, "no backward in the trace: it holds no operators of the autograd engine")
    if ops[Ops.sequence_number].null_count() == ops.height:
        return _unknown(compute_ns, "the trace holds no autograd sequence numbers")
    inside, outermost = _find_recomputed(ops, nodes)
    if timeline.step_id is not None:
        outermost &= (ops[Ops.step_id] == timeline.step_id).fill_null(value=False)
    recomputed = compute.filter(pl.col(DeviceEvents.op_id).is_in(inside.implode()))
    return _recompute(int(outermost.sum()), int(recomputed.select(spans.SPAN_NS.sum()).item()), compute_ns)


def sum_recompute(ranks: Iterable[Recompute]) -> Recompute:
    """Return the figures of several ranks together; ranks of which nothing is known are left out of both sums."""
    each = list(ranks)
    known = [(rank.num_ops, rank.recompute_ns, rank.compute_ns) for rank in each]
    sums = [(ops, again, all_ns) for ops, again, all_ns in known if ops is not None and again is not None]
    if not sums:
        reasons = sorted({rank.absent["recompute_ns"] for rank in each})
        return _unknown(sum(rank.compute_ns for rank in each), "; ".join(reasons) or "no ranks")
    return _recompute(*(sum(column) for column in zip(*sums, strict=True)))


def _unknown(compute_ns: int, reason: str) -> Recompute:
    absent: dict[str, str] = dict.fromkeys(("num_ops", "recompute_ns", "recompute_ratio"), reason)
    return Recompute(num_ops=None, recompute_ns=None, compute_ns=compute_ns, recompute_ratio=None, absent=absent)


def _recompute(num_ops: int, recompute_ns: int, compute_ns: int) -> Recompute:
    return Recompute(
        num_ops=num_ops,
        recompute_ns=recompute_ns,
        compute_ns=compute_ns,
        recompute_ratio=recompute_ns / compute_ns if compute_ns else None,
        absent={} if compute_ns else {"recompute_ratio": "no compute in the trace"},
    )


def _find_recomputed(ops: pl.DataFrame, nodes: pl.DataFrame) -> tuple[pl.Series, pl.Series]:
    """Return the ids of all operators in those that backward runs again, and for each operator if it is outermost."""
    parents, op_id = ops[Ops.parent_id], ops[Ops.op_id]
    is_node = op_id.is_in(nodes[Ops.op_id].implode())
    in_node = inherit(_where(is_node, op_id), parents).is_not_null()
    graph_builders = op_id.filter(in_node & ops[Ops.sequence_number].is_not_null() & ~is_node)
    # A node's own operator, of the node's name, bears the sequence number of its forward operator.
    expected = _NODE + ops[Ops.name].gather(graph_builders).cast(pl.String)
    around = ops[Ops.name].gather(parents.gather(graph_builders)).cast(pl.String)
    builders = graph_builders.filter((around != expected).fill_null(value=True))
    if builders.is_empty():
        return builders, pl.Series([False]).new_from_index(0, len(op_id))
    again = op_id.is_in(builders.implode())
    owner = inherit(_where(again, op_id), parents)
    outermost = again & owner.gather(parents).is_null()
    return op_id.filter(owner.is_not_null()), outermost


def _where(mask: pl.Series, values: pl.Series) -> pl.Series:
    """Return the values where the mask holds, null elsewhere."""
    return values.zip_with(mask, pl.Series([None], dtype=values.dtype))
