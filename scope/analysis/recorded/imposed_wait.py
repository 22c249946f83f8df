"""How long each rank of a recorded run makes its peers wait."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from scope.analysis.medians import lower_median_ns
from scope.frames.schema import RankSteps
from scope.trace.columns import Column, Table

if TYPE_CHECKING:
    from collections.abc import Mapping

RECENT_STEPS: Final = 50
_SET: Final = "peers"


class ImposedWait(Table):
    """How long each rank made its peers wait in recent steps, the worst first."""

    rank = Column("rank", pl.Int32, "global rank")
    num_steps = Column("num_steps", pl.UInt32, "steps that its peers and it have in common")
    num_last = Column("num_last", pl.UInt32, "of these, in how many it waited least, and so came last")
    imposed_ns = Column("imposed_ns", pl.Int64, "wait of the rank that waited second least less its own, added")
    duration_ns = Column("duration_ns", pl.Int64, "lengths of the steps on their slowest rank, added")
    usual_imposed_ns = Column("usual_imposed_ns", pl.Int64, "median of what it imposed, 0 where it was not last")
    usual_duration_ns = Column("usual_duration_ns", pl.Int64, "median of the lengths")


def compute_imposed_wait(
    steps: pl.LazyFrame, *, peers: Mapping[int, int] | None = None, recent_steps: int = RECENT_STEPS
) -> pl.DataFrame:
    """Return how long each rank made its peers wait in the newest steps that all of them have (`ImposedWait`).

    Peers leave a collective together, so the rank that waited least arrived last, and what mending it alone saves is
    what the second to last still waited: DESIGN's imposed wait, a step as a whole. One step that holds a hang may
    exceed all others together, so what is usual stands beside the sums.

    Args:
        steps: Table `RankSteps` of one attempt. Steps that were disturbed, were folded, or whose wait is unknown are
            left out.
        peers: By rank, the number of its set of peers, as `peer_sets` gives it. None: all ranks are peers.
        recent_steps: How many steps at most.
    """
    wait = pl.col(RankSteps.communication_wait_ns)
    usable = steps.filter(pl.col(RankSteps.disturbed).is_null(), wait.is_not_null(), pl.col(RankSteps.num_steps) == 1)
    ranks = pl.col(RankSteps.rank)
    places = ranks.replace_strict(dict(peers), default=-1, return_dtype=pl.Int64) if peers else pl.lit(-1, pl.Int64)
    by_step = (
        usable.with_columns(places.alias(_SET))
        .sort(RankSteps.step, wait, RankSteps.rank)
        .group_by(_SET, RankSteps.step, maintain_order=True)
        .agg(
            pl.len().alias("num_ranks"),
            ranks.first().alias(ImposedWait.rank),
            (wait.get(1, null_on_oob=True) - wait.first()).alias(ImposedWait.imposed_ns),
            pl.col(RankSteps.duration_ns).max().alias(ImposedWait.duration_ns),
        )
        # A rank whose line has not come yet may be the last.
        .filter(pl.col("num_ranks") > 1, pl.col("num_ranks") == pl.col("num_ranks").max().over(_SET))
        .filter(pl.col(RankSteps.step).rank("ordinal", descending=True).over(_SET) <= recent_steps)
        .with_columns(
            pl.len().over(_SET).alias(ImposedWait.num_steps),
            pl.col(ImposedWait.duration_ns).sum().over(_SET).alias(ImposedWait.duration_ns),
            lower_median_ns(ImposedWait.duration_ns).over(_SET).alias(ImposedWait.usual_duration_ns),
        )
    )
    num_steps, imposed = pl.col(ImposedWait.num_steps).first().cast(pl.Int64), pl.col(ImposedWait.imposed_ns)
    # Where its own values begin to count, behind as many zeros as it was not last.
    place = (num_steps - 1) // 2 - (num_steps - pl.len().cast(pl.Int64))
    table = (
        by_step.group_by(ImposedWait.rank)
        .agg(
            pl.col(ImposedWait.num_steps).first(),
            pl.len().alias(ImposedWait.num_last),
            imposed.sum(),
            pl.col(ImposedWait.duration_ns, ImposedWait.usual_duration_ns).first(),
            pl.when(place >= 0)
            .then(imposed.sort().get(place.clip(lower_bound=0)))
            .otherwise(0)
            .alias(ImposedWait.usual_imposed_ns),
        )
        .sort(ImposedWait.imposed_ns, ImposedWait.rank, descending=[True, False])
        .collect()
    )
    return ImposedWait.check(table.select(*ImposedWait.columns()).cast(ImposedWait.schema()))
