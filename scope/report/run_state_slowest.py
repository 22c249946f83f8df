"""Which ranks of a recorded run work longer than those that do the same work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from scope.analysis.doctor.diagnosis import describe_ranks
from scope.analysis.recorded import compute_rank_excess, is_nobody_compared, peer_sets, say_where
from scope.units import format_duration

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from scope.analysis.recorded import Watched

_NUM_SLOWEST: Final = 5


def find_slowest(watched: Watched) -> tuple[list[dict[str, Any]], dict[int, int]]:
    """Return the ranks that work longest beside their peers, and the set of peers of each rank by its number.

    As the dashboard does: each rank beside those that do the same work, in the last attempt.

    Args:
        watched: What is seen of the run.
    """
    peers = peer_sets(watched.infos)
    return compute_rank_excess(watched.steps, peers=peers).head(_NUM_SLOWEST).to_dicts(), peers


def find_notable(rows: Sequence[Mapping[str, Any]], peers: Mapping[int, int]) -> list[int]:
    """Return the ranks that `slowest_lines` names."""
    return [] if is_nobody_compared(peers) else [row["rank"] for row in rows if row["is_notable"]]


def slowest_lines(
    rows: Sequence[Mapping[str, Any]], peers: Mapping[int, int], *, stepless: Sequence[int] = ()
) -> Iterator[str]:
    """Return the ranks that work notably longer than their peers, a line each; or that there is none, or no peer.

    Args:
        rows: What `find_slowest` returns.
        peers: By rank, the number of its set of peers.
        stepless: Ranks that make no steps, and are compared with nobody.
    """
    without = f" ({describe_ranks(list(stepless))} without steps not compared)" if stepless else ""
    slower = [row for row in rows if row["is_notable"]]
    if is_nobody_compared(peers):
        yield "ranks are not compared: each is alone at its place of the mesh, like a pipeline stage without replicas"
        return
    if not slower:
        if len(rows) > 1:
            yield f"no rank works notably longer than its peers{without}"
        return
    yield f"slowest ranks, waiting not counted{without}"
    for row in slower:
        yield (
            f"  rank {row['rank']}: {format_duration(row['busy_ns'])} a step, "
            f"{format_duration(row['excess_ns'])} more than its peers, {say_where(row['phase'], most='most of it')}"
        )
