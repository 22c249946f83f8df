"""Own time of ranks between collectives of their group: what neither other ranks nor links of other groups took."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from scope.analysis.collective_tables import CollectiveRows, GroupRows, MatchedCalls
from scope.analysis.matching import SYMMETRIC
from scope.analysis.rank_activity import ACTIVITIES, totals_at

if TYPE_CHECKING:
    from scope.analysis.collectives import Collectives

PREVIOUS: Final = "previous_arrival_ns"
OWN: Final = "own_ns"

_OWN_GROUP: Final = "own_group_id"
_SYMMETRIC: Final = "is_symmetric"
_SINCE: Final = "since_ns"
_BEGIN_STEP: Final = "first_step_number"
_BEGIN_ALIKE: Final = "recordings_begin_alike"
_FROM: Final = "_from"
_ROOTED: Final = "waited_for_root_ns"
_SHARED: Final = "transfers_of_own_group_ns"


def compute_own_times(judged: pl.DataFrame, collectives: Collectives, activity: pl.DataFrame) -> pl.DataFrame:
    """Add to each call the arrival at the previous common collective and what the rank did since, by activity.

    The previous common collective is the last symmetric one before it that every rank of its group took part in,
    whatever the group. Without one the time since the rank's own recording began counts, where all of them began at the
    same step: at one place of the program, however late a rank was there. Else own time is null.
    """
    common = _common_calls(judged, collectives)
    begins = collectives.calls.group_by(MatchedCalls.rank).agg(
        pl.col(MatchedCalls.step_number).min().alias(_BEGIN_STEP)
    )
    keys = (MatchedCalls.rank, CollectiveRows.group_id)
    calls = judged.sort(MatchedCalls.arrival_ns).join_asof(
        common.filter(_SYMMETRIC)
        .select(*keys, MatchedCalls.arrival_ns, pl.col(MatchedCalls.arrival_ns).alias(PREVIOUS))
        .sort(MatchedCalls.arrival_ns),
        on=MatchedCalls.arrival_ns,
        by=keys,
        allow_exact_matches=False,
        check_sortedness=False,
    )
    # All ranks must count from the same collective, or all from where their recordings begin.
    has_previous = (pl.col(PREVIOUS).null_count() == 0).over(MatchedCalls.collective_id)
    begin_alike = (pl.col(_BEGIN_STEP).n_unique() == 1).over(MatchedCalls.collective_id)
    first = pl.col(MatchedCalls.arrival_ns).min().over(MatchedCalls.collective_id)
    calls = (
        calls.join(begins, on=MatchedCalls.rank, how="left")
        .with_columns(pl.when(has_previous).then(PREVIOUS).alias(PREVIOUS), begin_alike.alias(_BEGIN_ALIKE))
        .with_columns(pl.coalesce(PREVIOUS, MatchedCalls.window_start_ns, first).alias(_SINCE))
    )
    calls = totals_at(activity, calls, instant=_SINCE).rename({name: f"{name}{_FROM}" for name in ACTIVITIES})
    calls = totals_at(activity, calls, instant=MatchedCalls.arrival_ns)
    since = calls.with_columns((pl.col(name) - pl.col(f"{name}{_FROM}")).alias(name) for name in ACTIVITIES)
    waits = common.filter(~pl.col(_SYMMETRIC), pl.col(MatchedCalls.wait_ns) > 0).with_columns(
        (pl.col(MatchedCalls.arrival_ns) + pl.col(MatchedCalls.wait_ns)).alias(MatchedCalls.end_ns)
    )
    since = _with_time_within(since, waits, activity, spent=ACTIVITIES[1], name=_ROOTED)
    since = _with_time_within(since, common, activity, spent=ACTIVITIES[2], name=_SHARED)
    apart = pl.col(ACTIVITIES[1]) + pl.col(ACTIVITIES[2]) - pl.col(_ROOTED) - pl.col(_SHARED)
    is_known = pl.col(PREVIOUS).is_not_null() | pl.col(_BEGIN_ALIKE)
    own = pl.col(MatchedCalls.arrival_ns) - pl.col(_SINCE) - apart
    return since.with_columns(pl.when(is_known).then(own).alias(OWN))


def _with_time_within(
    calls: pl.DataFrame, stretches: pl.DataFrame, activity: pl.DataFrame, *, spent: str, name: str
) -> pl.DataFrame:
    """Add the time of an activity within stretches of a rank and group that end since the previous common collective.

    Args:
        calls: The judged calls.
        stretches: Columns rank, group, arrival and end; where two overlap, what both share counts once.
        activity: What `build_activity` returned.
        spent: The activity.
        name: Name of the new column.
    """
    keys = (MatchedCalls.rank, CollectiveRows.group_id)
    end = pl.col(MatchedCalls.end_ns)
    apart = stretches.sort(MatchedCalls.end_ns).with_columns(
        pl.max_horizontal(MatchedCalls.arrival_ns, end.shift().over(keys)).alias(MatchedCalls.arrival_ns)
    )
    begun, ended = (
        totals_at(activity, apart, instant=instant)[spent] for instant in (MatchedCalls.arrival_ns, MatchedCalls.end_ns)
    )
    sums = apart.select(*keys, end, (ended - begun).alias(name)).with_columns(pl.col(name).cum_sum().over(keys))
    for instant, total in ((_SINCE, f"{name}{_FROM}"), (MatchedCalls.arrival_ns, name)):
        known = calls.filter(pl.col(instant).is_not_null()).sort(instant)
        found = known.drop(MatchedCalls.end_ns).join_asof(
            sums.rename({name: total}),
            left_on=instant,
            right_on=MatchedCalls.end_ns,
            by=keys,
            check_sortedness=False,
        )
        calls = calls.join(
            found.select(MatchedCalls.collective_id, MatchedCalls.rank, total),
            on=(MatchedCalls.collective_id, MatchedCalls.rank),
            how="left",
        ).with_columns(pl.col(total).fill_null(0))
    return calls.with_columns(pl.col(name) - pl.col(f"{name}{_FROM}"))


def _common_calls(judged: pl.DataFrame, collectives: Collectives) -> pl.DataFrame:
    """Return, by rank and judged group, arrival, wait and end in collectives of that group or one that contains it."""
    groups = collectives.groups.filter(~pl.col(GroupRows.is_pair) & pl.col(GroupRows.ranks).is_not_null())
    members = {
        group: frozenset(ranks) for group, ranks in groups.select(GroupRows.group_id, GroupRows.ranks).iter_rows()
    }
    of_rank: dict[int, list[int]] = {}
    for group, ranks in members.items():
        for rank in ranks:
            of_rank.setdefault(rank, []).append(group)
    wanted = judged.select(MatchedCalls.rank, CollectiveRows.group_id).unique().iter_rows()
    covers: dict[tuple[int, int], bool] = {}
    rows: list[tuple[int, int, int]] = []
    for rank, group in wanted:
        for wider in of_rank[rank]:
            if (wider, group) not in covers:
                covers[wider, group] = members[wider] >= members[group]
            if covers[wider, group]:
                rows.append((rank, group, wider))
    pairs = pl.DataFrame(
        rows,
        schema={MatchedCalls.rank: pl.Int32, _OWN_GROUP: pl.UInt32, CollectiveRows.group_id: pl.UInt32},
        orient="row",
    )
    is_symmetric = pl.col(CollectiveRows.operation).is_in(SYMMETRIC)
    return (
        collectives.calls.join(
            collectives.collectives.select(
                CollectiveRows.collective_id, CollectiveRows.group_id, is_symmetric.alias(_SYMMETRIC)
            ),
            on=MatchedCalls.collective_id,
        )
        .join(pairs, on=(MatchedCalls.rank, CollectiveRows.group_id))
        .select(
            MatchedCalls.rank,
            pl.col(_OWN_GROUP).alias(CollectiveRows.group_id),
            MatchedCalls.arrival_ns,
            MatchedCalls.wait_ns,
            MatchedCalls.end_ns,
            _SYMMETRIC,
        )
    )
