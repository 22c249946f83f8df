"""How long ranks stood waiting, exposed, in the collectives that a straggler is charged for."""

from __future__ import annotations

from typing import Final

import polars as pl

from scope.analysis import spans
from scope.analysis.collective_tables import CollectiveRows, MatchedCalls
from scope.analysis.own_time import OWN
from scope.analysis.rank_activity import ACTIVITIES, totals_at
from scope.analysis.spans import Spans
from scope.trace.columns import Column, Table

_WAITING: Final = ACTIVITIES[1]
_KEYS: Final = (MatchedCalls.rank, MatchedCalls.step_number)


class StragglerWaits(Table):
    """What ranks waited for each straggler, sorted by straggler, waiting rank and step.

    All of the wait for the last arrival counts, also what a second late rank would have cost (the imposed wait leaves
    that out), as far as the straggler's own time exceeds that of the rank that waits: the rest is no doing of its own
    (a slow link that held it up, say). No time counts in which the waiting rank computed.
    """

    straggler = Column("straggler", pl.Int32, "rank that is waited for")
    rank = Column("rank", pl.Int32, "rank that waits")
    step_number = Column("step_number", pl.Int64, "n of the waiting rank's `ProfilerStep#n`", nullable=True)
    exposed_wait_ns = Column("exposed_wait_ns", pl.Int64, "time in those waits in which it computed nothing")


def compute_straggler_waits(calls: pl.DataFrame, charged: pl.DataFrame, activity: pl.DataFrame) -> pl.DataFrame:
    """Return the table `StragglerWaits`.

    Args:
        calls: The calls of the judged collectives, columns of `MatchedCalls` and own times.
        charged: Columns `collective_id` and `last_rank` of the collectives that somebody is charged for.
        activity: What `scope.analysis.rank_activity.build_activity` returned.
    """
    end = pl.col(MatchedCalls.arrival_ns) + pl.col(MatchedCalls.wait_ns)
    late = pl.col(OWN).filter(pl.col(MatchedCalls.rank) == pl.col(CollectiveRows.last_rank)).first()
    own_wait = pl.min_horizontal(MatchedCalls.wait_ns, late.over(MatchedCalls.collective_id) - pl.col(OWN))
    waits = (
        calls.join(charged.select(MatchedCalls.collective_id, CollectiveRows.last_rank), on=MatchedCalls.collective_id)
        .with_columns(own_wait.alias(MatchedCalls.wait_ns), end.alias(Spans.end_ns))
        .filter(pl.col(MatchedCalls.wait_ns) > 0)
        .select(
            pl.col(CollectiveRows.last_rank).alias(StragglerWaits.straggler),
            *_KEYS,
            (pl.col(Spans.end_ns) - pl.col(MatchedCalls.wait_ns)).alias(Spans.start_ns),
            Spans.end_ns,
        )
    )
    parts = [
        # A delay that nested groups feel at once is one wait.
        spans.union(part, by=MatchedCalls.rank).with_columns(
            pl.lit(part[name].item(0), dtype=name.dtype).alias(name)
            for name in (StragglerWaits.straggler, StragglerWaits.step_number)
        )
        for part in waits.partition_by(StragglerWaits.straggler, StragglerWaits.step_number)
    ]
    if not parts:
        return StragglerWaits.empty()
    joined = pl.concat(parts)
    begun, ended = (
        totals_at(activity, joined, instant=instant)[_WAITING] for instant in (Spans.start_ns, Spans.end_ns)
    )
    keys = (StragglerWaits.straggler, *_KEYS)
    return StragglerWaits.check(
        joined.with_columns((ended - begun).alias(StragglerWaits.exposed_wait_ns))
        .group_by(keys)
        .agg(pl.col(StragglerWaits.exposed_wait_ns).sum())
        .sort(keys)
        .select(StragglerWaits.schema().names())
    )
