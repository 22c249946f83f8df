"""Which ranks of a live run make their peers wait, step after step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from scope.analysis.recorded.groups import peer_sets
from scope.analysis.recorded.imposed_wait import RECENT_STEPS, ImposedWait, compute_imposed_wait
from scope.analysis.recorded.ranks import RankExcess, compute_rank_excess, say_where
from scope.analysis.recorded.watched import judge
from scope.frames.schema import RankSteps
from scope.units import NS_PER_S, format_duration

if TYPE_CHECKING:
    from collections.abc import Mapping

    from scope.analysis.recorded.watched import Watched
    from scope.run.schema import Verdict

STRAGGLER_RATIO: Final = 0.05
"""Share of a usual step that one rank usually makes all its peers wait, above which it is named."""
_RECENT_NS: Final = 10 * NS_PER_S
"""What is usual rests on at least the steps of so long: fifty steps of a few milliseconds are one hiccup of a host."""
_MIN_STEPS: Final = 10
_WHERE_TO_LOOK: Final[dict[str | None, str]] = {
    "input": "Compare its data loader, its shard and the storage of its node with a peer's.",
    "other": (
        "Look for what its program does between the phases on this rank alone, such as logging: a profiler window of "
        "it with stacks shows that."
    ),
    None: "Capture a profiler window of it and of a peer with stacks, and compare their clocks and links.",
}
"""What to do by the phase that exceeds the peers' most, where the phase says more than that something is slow."""


def find_stragglers(watched: Watched) -> list[Verdict]:
    """Return who makes its peers wait in usual steps, in each half of them, and works notably longer than its peers.

    In the few steps after a start chance makes one rank the last in most of them: not in both halves, and not by more
    than what varies by itself, which `RankExcess` holds against a rank and `scope show` names it by.
    """
    if watched.state.standing != "running":
        return []
    peers = peer_sets(watched.infos)
    recent = _keep_recent(watched.steps)
    late = _find_late(recent, peers, at_least=_MIN_STEPS)
    for half in _halve(recent):
        if late.is_empty():
            return []
        in_half = _find_late(half, peers, at_least=_MIN_STEPS // 2)
        late = late.join(in_half, on=ImposedWait.rank, how="semi", maintain_order="left")
    excess = compute_rank_excess(recent, peers=peers)
    phases = dict(excess.select(RankExcess.rank, RankExcess.phase).iter_rows())
    found: list[Verdict] = []
    for row in late.iter_rows(named=True):
        rank, imposed_ns = row[ImposedWait.rank], row[ImposedWait.usual_imposed_ns]
        phase = phases.get(rank)
        where = say_where(phase, most="mostly")
        evidence = {
            "imposed_wait_ns": imposed_ns,
            "imposed_wait_ratio": imposed_ns / row[ImposedWait.usual_duration_ns],
            "num_steps": row[ImposedWait.num_steps],
        }
        found.append(
            judge(
                watched,
                "straggler",
                f"rank {rank} makes its peers wait {format_duration(imposed_ns)} a step, {where}",
                severity="warning",
                ranks=(rank,),
                action=_WHERE_TO_LOOK.get(phase, "Compare its phases, clocks and links with a peer's."),
                evidence=evidence,
            )
        )
    return found


def is_mended(watched: Watched, rank: int) -> bool:
    """Return whether a rank that was named as a straggler clearly is none any more.

    It is named by what is beyond doubt, so at the border of that it is not taken back: it is mended when what it
    usually imposes in the recent steps is below half of `STRAGGLER_RATIO`, which enough of them tell. While a run makes
    no steps nobody is; one that has ended has no stragglers.

    Args:
        watched: What is seen of the run.
        rank: Global rank.
    """
    if watched.state.standing != "running":
        return not watched.state.is_live
    peers = peer_sets(watched.infos)
    recent = _keep_recent(watched.steps)
    num_steps: int = recent.select(pl.col(RankSteps.step).n_unique()).collect().item()
    imposed = compute_imposed_wait(recent, peers=peers, recent_steps=max(1, num_steps))
    of_set = imposed.filter(pl.Series([peers.get(each) == peers.get(rank) for each in imposed[ImposedWait.rank]]))
    if of_set.is_empty() or of_set.row(0, named=True)[ImposedWait.num_steps] < _MIN_STEPS:
        return False
    limit = STRAGGLER_RATIO / 2 * pl.col(ImposedWait.usual_duration_ns)
    own = of_set.filter(pl.col(ImposedWait.rank) == rank, pl.col(ImposedWait.usual_imposed_ns) > limit)
    return own.is_empty()


def _keep_recent(steps: pl.LazyFrame) -> pl.LazyFrame:
    """Return the newest steps: 50, or those of the last 10 s where these are more."""
    newest = pl.col(RankSteps.step) > pl.col(RankSteps.step).max() - RECENT_STEPS
    lasted = pl.col(RankSteps.end_ns) > pl.col(RankSteps.end_ns).max() - _RECENT_NS
    return steps.filter(newest | lasted)


def _halve(steps: pl.LazyFrame) -> tuple[pl.LazyFrame, pl.LazyFrame]:
    step = pl.col(RankSteps.step)
    is_early = step < (step.min() + step.max() + 1) // 2
    return steps.filter(is_early), steps.filter(~is_early)


def _find_late(steps: pl.LazyFrame, peers: Mapping[int, int], *, at_least: int) -> pl.DataFrame:
    """Return the ranks that usually make their peers wait in these steps and work notably longer (`ImposedWait`)."""
    num_steps: int = steps.select(pl.col(RankSteps.step).n_unique()).collect().item()
    late = compute_imposed_wait(steps, peers=peers, recent_steps=max(1, num_steps)).filter(
        pl.col(ImposedWait.num_steps) >= at_least,
        pl.col(ImposedWait.usual_imposed_ns) > STRAGGLER_RATIO * pl.col(ImposedWait.usual_duration_ns),
    )
    if late.is_empty():
        return late
    notable = compute_rank_excess(steps, peers=peers).filter(pl.col(RankExcess.is_notable))
    return late.join(notable, left_on=ImposedWait.rank, right_on=RankExcess.rank, how="semi", maintain_order="left")
