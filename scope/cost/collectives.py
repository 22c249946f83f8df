"""What a collective should cost: bytes over each link, and the time of an alpha-beta model.

Ring and chain algorithms, as nccl-tests counts them; trees and reduction inside the network send less.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from scope import definitions
from scope.errors import UsageError
from scope.units import NS_PER_S

if TYPE_CHECKING:
    from collections.abc import Sequence


def bytes_per_link(operation: str, *, num_ranks: int, message_bytes: int) -> int | None:
    """Return the bytes that one rank sends, rounded up: bus factor x full message; None where there is no factor.

    `broadcast` and `reduce` send the whole message over each link of a chain, whose last rank sends nothing.

    Args:
        operation: One of `scope.trace.schema.OPERATIONS`.
        num_ranks: Ranks of the group.
        message_bytes: The full message S, see `scope.definitions.full_message_bytes`.

    Raises:
        UsageError: Fewer than one rank.
    """
    if definitions.bus_factor(operation, num_ranks=num_ranks) is None:
        return None
    if operation == "all_reduce":
        return _up(2 * (num_ranks - 1) * message_bytes, num_ranks)
    if operation in {"broadcast", "reduce", "send", "recv"}:
        return message_bytes
    return _up((num_ranks - 1) * message_bytes, num_ranks)


def uneven_all_to_all_bytes(splits_bytes: Sequence[Sequence[int]]) -> int:
    """Return the bytes that bound an uneven all_to_all: the largest sum that one rank sends to others.

    Args:
        splits_bytes: For each rank, by its position, what it sends to each rank; its part to itself stays.

    Raises:
        UsageError: A row whose length is not the number of ranks.
    """
    for rank, row in enumerate(splits_bytes):
        if len(row) != len(splits_bytes):
            message = f"rank {rank} has {len(row)} splits in a group of {len(splits_bytes)}"
            raise UsageError(message)
    return max((sum(row) - row[rank] for rank, row in enumerate(splits_bytes)), default=0)


def num_hops(operation: str, *, num_ranks: int) -> int | None:
    """Return the steps that follow each other in the ring or chain; None for an operation that has no model."""
    if definitions.bus_factor(operation, num_ranks=num_ranks) is None:
        return None
    if operation in {"send", "recv"}:
        return 1
    return (2 if operation == "all_reduce" else 1) * (num_ranks - 1)


def expected_time_ns(
    operation: str, *, num_ranks: int, message_bytes: int, bandwidth_bytes_per_s: float, latency_ns: float = 0.0
) -> float | None:
    """Return the time of the alpha-beta model: alpha x hops + bytes / bandwidth; None where there is no model.

    Args:
        operation: One of `scope.trace.schema.OPERATIONS`.
        num_ranks: Ranks of the group.
        message_bytes: The full message.
        bandwidth_bytes_per_s: Of the slowest link, one way.
        latency_ns: alpha, the time of one hop of an empty message.

    Raises:
        UsageError: Fewer than one rank, or a bandwidth that is not positive.
    """
    if bandwidth_bytes_per_s <= 0:
        message = f"a link's bandwidth is positive, not {bandwidth_bytes_per_s}"
        raise UsageError(message)
    sent = bytes_per_link(operation, num_ranks=num_ranks, message_bytes=message_bytes)
    hops = num_hops(operation, num_ranks=num_ranks)
    if sent is None or hops is None:
        return None
    return latency_ns * hops + NS_PER_S * sent / bandwidth_bytes_per_s


def data_parallel_step_bytes(strategy: str, *, num_ranks: int, gradient_bytes: int, num_microbatches: int = 1) -> int:
    """Return the bytes that one rank sends in a step to keep replicas equal.

    Args:
        strategy: `ddp` (one all_reduce), `zero1` or `zero2` (reduce_scatter and all_gather, the same volume), `zero3`
            or `fsdp` (the parameters are gathered twice for every micro-batch, gradients are scattered once for each).
        num_ranks: Data-parallel ranks.
        gradient_bytes: Of one replica; parameters are taken to be as many.
        num_microbatches: Of a step; only `zero3` and `fsdp` pay for each.

    Raises:
        UsageError: An unknown strategy.
    """
    rounds = {"ddp": 2, "zero1": 2, "zero2": 2, "zero3": 3 * num_microbatches, "fsdp": 3 * num_microbatches}
    if strategy not in rounds:
        message = f"no data-parallel strategy is called {strategy!r}; choose one of {', '.join(rounds)}"
        raise UsageError(message)
    return _up(rounds[strategy] * (num_ranks - 1) * gradient_bytes, num_ranks)


def _up(numerator: int, denominator: int) -> int:
    return -(-numerator // denominator)
