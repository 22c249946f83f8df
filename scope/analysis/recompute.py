"""How much of backward is forward computed again (activation checkpointing)."""

from __future__ import annotations

from dataclasses import dataclass

from scope.analysis.result import Result


@dataclass(frozen=True, kw_only=True, slots=True)
class Recompute(Result):
    """Device time (host time on a host timeline) of operators that backward runs again.

    An operator is recomputed when it stands inside a node of the autograd engine and records an autograd sequence
    number of its own, which only operators that build a graph do. Double backward (`create_graph=True`) does so too
    and cannot be told apart.
    """

    num_ops: int
    """Outermost recomputed operators."""
    recompute_ns: int | None
    """Sum of the lengths of the compute that they launched; of the operators themselves on a host timeline."""
    compute_ns: int
    """The same sum over all compute."""
    recompute_ratio: float | None
    """`recompute_ns / compute_ns`."""
