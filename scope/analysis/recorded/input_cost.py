"""What waiting for data costs a recorded run, and on which ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import polars as pl

from scope.analysis.recorded.ranks import busy, set_of_rank, without_wait
from scope.frames.schema import RankSteps

if TYPE_CHECKING:
    from collections.abc import Mapping

INPUT_BOUND_RATIO: Final = 0.1
"""Share of the steps that waiting for data costs, from which a run is called bound by its input."""
MIN_COST_STEPS: Final = 10
"""Steps of which fewer tell nothing of what a usual one costs."""
_RECENT_STEPS: Final = 50
_WORK: Final = "work_ns"
_OVER: Final = "over_ns"
_SET: Final = "peers"


@dataclass(frozen=True, kw_only=True, slots=True)
class InputCost:
    """What waiting for data costs the newest steps, at most.

    Attributes:
        num_steps: The steps.
        mean_ns: What a step would be shorter by if no rank waited for data, on average.
        mean_step_ns: How long a step of its longest rank is, on average.
        share_ratio: The first of these two over the second.
        ranks: Whose data is waited for, sorted: those that cost at least half of what the worst one does.
    """

    num_steps: int
    mean_ns: int
    mean_step_ns: int
    share_ratio: float
    ranks: tuple[int, ...]


def compute_input_cost(steps: pl.LazyFrame, *, peers: Mapping[int, int] | None = None) -> InputCost | None:
    """Return what waiting for data costs the newest steps; None before a step that counts.

    Peers wait for the one that works longest (its step less its wait in communication), whose step is as long as
    theirs. Without input they would wait for the one that works longest then: the difference is what the input of the
    set costs, and a rank is charged with what it works beyond that. A step costs what its costliest set does. Where the
    wait of a peer is not wholly known any of them may be the one that works longest: each is charged with its input.

    Args:
        steps: Table `RankSteps` of one attempt.
        peers: By rank, the number of its set of peers, as `peer_sets` gives it. None: all ranks are peers.
    """
    wait, coverage = pl.col(RankSteps.communication_wait_ns), pl.col(RankSteps.communication_wait_coverage_ratio)
    is_known = (wait.is_not_null() & (coverage.fill_null(1.0) >= 1.0)).all()
    of_peers = (_SET, RankSteps.step)
    by_rank = (
        keep_usual_steps(steps)
        .with_columns(
            set_of_rank(peers or {}).alias(_SET),
            busy().alias(_WORK),
            without_wait(RankSteps.input_ns, "input").alias(RankSteps.input_ns),
        )
        # A rank without such a step, disturbed in it or about to end it, may be the one that works longest.
        .filter(pl.len().over(RankSteps.step) == pl.len().over(RankSteps.step).max())
        .with_columns(
            pl.when(is_known.over(of_peers))
            .then((pl.col(_WORK) - (pl.col(_WORK) - pl.col(RankSteps.input_ns)).max().over(of_peers)).clip(0))
            .otherwise(pl.col(RankSteps.input_ns))
            .alias(_OVER)
        )
        .select(RankSteps.rank, RankSteps.step, RankSteps.duration_ns, _OVER)
        .collect()
    )
    by_step = by_rank.group_by(RankSteps.step).agg(pl.col(_OVER, RankSteps.duration_ns).max())
    over_ns, duration_ns = by_step.select(pl.col(_OVER, RankSteps.duration_ns).sum()).row(0)
    if not duration_ns:
        return None
    charged = by_rank.group_by(RankSteps.rank).agg(pl.col(_OVER).sum()).filter(pl.col(_OVER) > 0)
    worst = charged.filter(2 * pl.col(_OVER) >= pl.col(_OVER).max())
    return InputCost(
        num_steps=by_step.height,
        mean_ns=over_ns // by_step.height,
        mean_step_ns=duration_ns // by_step.height,
        share_ratio=over_ns / duration_ns,
        ranks=tuple(sorted(worst[RankSteps.rank])),
    )


def keep_usual_steps(steps: pl.LazyFrame) -> pl.LazyFrame:
    """Return the newest steps, without the first of each rank, in which a loader starts, and disturbed or folded ones.

    Args:
        steps: Table `RankSteps` of one attempt.
    """
    step = pl.col(RankSteps.step)
    usual = steps.filter(
        pl.col(RankSteps.disturbed).is_null(),
        pl.col(RankSteps.num_steps) == 1,
        step > step.min().over(RankSteps.rank),
    )
    return usual.filter(step > step.max() - _RECENT_STEPS)
