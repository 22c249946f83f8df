"""How much own times of ranks scatter by chance.

What a rank does differently from its peers each time is no chance: noise is how its distance from their median changes
from one time to the next, at one place of the step. Where a place was seen too few times to tell, noise is how far the
ranks lie from their median; of both the smaller counts.
"""

from __future__ import annotations

from math import sqrt
from typing import Final

import polars as pl

from scope.analysis.collective_tables import CollectiveRows, MatchedCalls
from scope.analysis.own_time import OWN
from scope.analysis.readiness import READY

SCATTER: Final = "scatter_ns"

_MIN_TIMES: Final = 3
"""A place of the step that was seen fewer times does not tell what changes."""

_DISTANCE: Final = "distance_ns"
_PLACE: Final = "place_in_step"
_TIMES: Final = "num_times"


def group_scatter(own: pl.DataFrame) -> pl.DataFrame:
    """Return, by group, the median distance of own times from what is usual.

    Args:
        own: The judged calls, columns of `MatchedCalls`, the group, `READY` and `OWN`.

    Returns:
        Columns `group_id` and `SCATTER`; 0 for groups of two ranks that were seen too few times, since neither of two
        shows what is usual.
    """
    collective, group = MatchedCalls.collective_id, CollectiveRows.group_id
    num_ranks = pl.len().over(collective)
    calls = own.with_columns(
        (pl.col(OWN) - pl.col(OWN).median().over(collective)).alias(_DISTANCE),
        pl.col(READY).rank("ordinal").over(group, MatchedCalls.step_number, MatchedCalls.rank).alias(_PLACE),
    )
    across = (
        calls.filter(num_ranks > 2)
        .group_by(group, collective)
        .agg(pl.col(_DISTANCE).abs().median())
        .group_by(group)
        .agg(pl.col(_DISTANCE).median().alias(SCATTER))
    )
    by_place = (group, MatchedCalls.rank, _PLACE)
    # A change holds the chance of two times, hence the root of two.
    change = pl.col(_DISTANCE).diff().over(by_place).abs() / sqrt(2)
    changes = (
        calls.sort(READY)
        .with_columns(change.alias(_DISTANCE), pl.len().over(by_place).alias(_TIMES))
        .filter(pl.col(_TIMES) >= _MIN_TIMES)
        .group_by(group, MatchedCalls.rank)
        .agg(pl.col(_DISTANCE).median())
        .group_by(group)
        .agg(pl.col(_DISTANCE).median().alias(f"{SCATTER}_in_time"))
    )
    return (
        own.select(group)
        .unique()
        .join(across, on=group, how="left")
        .join(changes, on=group, how="left")
        .select(group, pl.min_horizontal(pl.col(SCATTER).fill_null(0.0), f"{SCATTER}_in_time").alias(SCATTER))
    )
