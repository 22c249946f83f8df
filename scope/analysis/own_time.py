"""Own time of ranks between collectives of their group: what neither other ranks nor links of other groups took."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from scope.analysis.collective_tables import CollectiveRows, GroupRows, MatchedCalls
from scope.analysis.operations import SYMMETRIC
from scope.analysis.rank_activity import ACTIVITIES, PIECE_LENGTH, PIECE_START, totals_at
from scope.analysis.readiness import READY

if TYPE_CHECKING:
    from scope.analysis.collectives import Collectives

PREVIOUS: Final = "previous_ready_ns"
OWN: Final = "own_ns"

_OWN_GROUP: Final = "own_group_id"
_SYMMETRIC: Final = "is_symmetric"
_SINCE: Final = "since_ns"
_BEGIN_STEP: Final = "first_step_number"
_BEGIN_ALIKE: Final = "recordings_begin_alike"
_FROM: Final = "_from"
_ROOTED: Final = "waited_for_root_ns"
_SHARED: Final = "transfers_of_own_group_ns"
_HELD_UP: Final = "is_held_up"
_COMPUTED: Final = "computed_until_ns"
_OTHER_END: Final = "end_of_other_ns"
_CALL_KEYS: Final = (MatchedCalls.rank, CollectiveRows.group_id, MatchedCalls.collective_id)


def compute_own_times(
    judged: pl.DataFrame, collectives: Collectives, activity: pl.DataFrame, ready: pl.DataFrame
) -> pl.DataFrame:
    """Add to each call when the rank was ready for it and for the previous common collective, and what it did between.

    The previous common collective is the last symmetric one before it that every rank of its group took part in,
    whatever the group, and of which it is known when each was ready. Without one the time since the rank's own
    recording began counts, where all of them began at the same step: at one place of the program, however late a rank
    was there. Else own time is null, as it is for collectives of which it is not known when all ranks were ready.

    Args:
        judged: The calls, columns of `MatchedCalls` and the group.
        collectives: What `compute_collectives` returned.
        activity: What `build_activity` returned.
        ready: What `scope.analysis.readiness.compute_ready` returned.
    """
    judged = _known(judged, ready)
    common = _common_calls(judged, collectives, ready)
    begins = collectives.calls.group_by(MatchedCalls.rank).agg(
        pl.col(MatchedCalls.step_number).min().alias(_BEGIN_STEP)
    )
    keys = (MatchedCalls.rank, CollectiveRows.group_id)
    calls = judged.join(_previous(common, activity), on=(MatchedCalls.collective_id, *keys), how="left")
    # All ranks must count from the same collective, or all from where their recordings begin.
    has_previous = (pl.col(PREVIOUS).null_count() == 0).over(MatchedCalls.collective_id)
    begin_alike = (pl.col(_BEGIN_STEP).n_unique() == 1).over(MatchedCalls.collective_id)
    first = pl.col(MatchedCalls.arrival_ns).min().over(MatchedCalls.collective_id)
    calls = (
        calls.join(begins, on=MatchedCalls.rank, how="left")
        .with_columns(
            pl.when(has_previous).then(PREVIOUS).alias(PREVIOUS),
            (pl.col(_ROOTED) - pl.when(has_previous).then(f"{_ROOTED}{_FROM}").otherwise(0)).alias(_ROOTED),
            begin_alike.alias(_BEGIN_ALIKE),
        )
        .with_columns(pl.coalesce(PREVIOUS, MatchedCalls.window_start_ns, first).alias(_SINCE))
    )
    calls = totals_at(activity, calls, instant=_SINCE).rename({name: f"{name}{_FROM}" for name in ACTIVITIES})
    calls = totals_at(activity, calls, instant=READY)
    since = calls.with_columns((pl.col(name) - pl.col(f"{name}{_FROM}")).alias(name) for name in ACTIVITIES)
    since = _with_shared_transfers(
        since, _standing_still(_held_up(common), _others(common, collectives), activity), activity
    )
    apart = pl.col(ACTIVITIES[1]) + pl.col(ACTIVITIES[2]) - pl.col(_ROOTED) - pl.col(_SHARED)
    is_known = pl.col(PREVIOUS).is_not_null() | pl.col(_BEGIN_ALIKE)
    own = pl.col(READY) - pl.col(_SINCE) - apart
    return since.with_columns(pl.when(is_known).then(own).alias(OWN))


def _known(calls: pl.DataFrame, ready: pl.DataFrame) -> pl.DataFrame:
    """Add when the rank was ready to the calls of collectives of which that is known of all ranks; drop the others."""
    told = calls.join(ready, on=(MatchedCalls.rank, MatchedCalls.call_id), how="left")
    return told.filter((pl.col(READY).null_count() == 0).over(MatchedCalls.collective_id))


def _previous(common: pl.DataFrame, activity: pl.DataFrame) -> pl.DataFrame:
    """Return, by call of a common collective, what came before it: the last symmetric one, and waits for roots since.

    Returns:
        When the rank was ready for the last symmetric one, exposed waits for roots up to that one, and up to this call.
    """
    keys = (MatchedCalls.rank, CollectiveRows.group_id)
    end = pl.col(MatchedCalls.arrival_ns) + pl.col(MatchedCalls.wait_ns)
    is_wait = ~pl.col(_SYMMETRIC) & (pl.col(MatchedCalls.wait_ns) > 0)
    until = pl.when(is_wait.fill_null(value=False)).then(end).otherwise(MatchedCalls.arrival_ns)
    ordered = common.sort(READY, MatchedCalls.arrival_ns, MatchedCalls.collective_id).with_columns(
        until.alias(MatchedCalls.end_ns)
    )
    # What two waits share counts once.
    last_end = pl.col(MatchedCalls.end_ns).cum_max().shift().over(keys)
    ordered = ordered.with_columns(pl.max_horizontal(MatchedCalls.arrival_ns, last_end).alias(MatchedCalls.arrival_ns))
    begun, ended = (
        totals_at(activity, ordered, instant=instant)[ACTIVITIES[1]]
        for instant in (MatchedCalls.arrival_ns, MatchedCalls.end_ns)
    )
    ordered = ordered.with_columns((ended - begun).clip(lower_bound=0).alias(_ROOTED)).with_columns(
        (pl.col(_ROOTED).cum_sum().over(keys) - pl.col(_ROOTED)).alias(_ROOTED)
    )
    symmetric = pl.when(_SYMMETRIC)
    return ordered.select(
        MatchedCalls.collective_id,
        *keys,
        symmetric.then(READY).shift().forward_fill().over(keys).alias(PREVIOUS),
        symmetric.then(_ROOTED).shift().forward_fill().over(keys).fill_null(0).alias(f"{_ROOTED}{_FROM}"),
        _ROOTED,
    )


def _with_shared_transfers(calls: pl.DataFrame, stretches: pl.DataFrame, activity: pl.DataFrame) -> pl.DataFrame:
    """Add the exposed transfer in collectives of a rank and group that ended since the previous common collective.

    Args:
        calls: The judged calls.
        stretches: Columns rank, group, arrival and end; where two overlap, what both share counts once.
        activity: What `build_activity` returned.
    """
    name, spent = _SHARED, ACTIVITIES[2]
    keys = (MatchedCalls.rank, CollectiveRows.group_id)
    end = pl.col(MatchedCalls.end_ns)
    apart = stretches.sort(MatchedCalls.end_ns).with_columns(
        pl.max_horizontal(MatchedCalls.arrival_ns, end.shift().over(keys)).alias(MatchedCalls.arrival_ns)
    )
    begun, ended = (
        totals_at(activity, apart, instant=instant)[spent] for instant in (MatchedCalls.arrival_ns, MatchedCalls.end_ns)
    )
    sums = apart.select(*keys, end, (ended - begun).alias(name)).with_columns(pl.col(name).cum_sum().over(keys))
    for instant, total in ((_SINCE, f"{name}{_FROM}"), (READY, name)):
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


def _standing_still(stretches: pl.DataFrame, others: pl.DataFrame, activity: pl.DataFrame) -> pl.DataFrame:
    """Return the stretches, without what comes before the last compute that followed a call of another group in them.

    A rank that goes on under a collective (of gradients, say) stood still for the call beside it, which ranks of other
    such groups make at other instants.

    Args:
        stretches: Columns rank, group, arrival and end.
        others: Columns rank, group and `_OTHER_END`, the ends of calls of groups that do not contain it.
        activity: What `build_activity` returned.
    """
    computed = activity.filter(pl.col(ACTIVITIES[0]) > 0, pl.col(PIECE_LENGTH) > 0).select(
        MatchedCalls.rank, PIECE_START, (pl.col(PIECE_START) + pl.col(PIECE_LENGTH)).alias(_COMPUTED)
    )
    last = stretches.sort(MatchedCalls.end_ns).join_asof(
        computed.sort(PIECE_START),
        left_on=MatchedCalls.end_ns,
        right_on=PIECE_START,
        by=MatchedCalls.rank,
        allow_exact_matches=False,
        check_sortedness=False,
    )
    beside = last.filter(pl.col(_COMPUTED).is_not_null()).sort(_COMPUTED)
    beside = beside.join_asof(
        others.sort(_OTHER_END),
        left_on=_COMPUTED,
        right_on=_OTHER_END,
        by=(MatchedCalls.rank, CollectiveRows.group_id),
        check_sortedness=False,
    )
    goes_on = beside.filter(pl.col(_OTHER_END) > pl.col(MatchedCalls.arrival_ns)).select(
        *_CALL_KEYS, pl.min_horizontal(_COMPUTED, MatchedCalls.end_ns).alias(_SINCE)
    )
    since = pl.coalesce(_SINCE, MatchedCalls.arrival_ns).alias(MatchedCalls.arrival_ns)
    return stretches.join(goes_on, on=_CALL_KEYS, how="left").with_columns(since).drop(_SINCE)


def _others(common: pl.DataFrame, collectives: Collectives) -> pl.DataFrame:
    """Return, by rank and judged group, the ends of calls of groups that do not contain that one."""
    pairs = common.select(MatchedCalls.rank, CollectiveRows.group_id).unique()
    calls = collectives.calls.select(
        MatchedCalls.rank, MatchedCalls.collective_id, pl.col(MatchedCalls.end_ns).alias(_OTHER_END)
    )
    return (
        calls.join(pairs, on=MatchedCalls.rank).join(common, on=_CALL_KEYS, how="anti").drop(MatchedCalls.collective_id)
    )


def _held_up(common: pl.DataFrame) -> pl.DataFrame:
    """Return the calls of collectives that ended before any rank was ready for the next: they last alike for all.

    A rank that gets ready for the next one under the end of a collective is not held up by it, as others may be.
    """
    keys = (MatchedCalls.rank, CollectiveRows.group_id)
    ordered = common.sort(READY, MatchedCalls.arrival_ns, MatchedCalls.collective_id)
    is_held_up = (pl.col(READY).shift(-1).over(keys) >= pl.col(MatchedCalls.end_ns)).fill_null(value=True)
    marked = ordered.with_columns(is_held_up.alias(_HELD_UP))
    return marked.filter(pl.col(_HELD_UP).all().over(MatchedCalls.collective_id, CollectiveRows.group_id))


def _common_calls(judged: pl.DataFrame, collectives: Collectives, ready: pl.DataFrame) -> pl.DataFrame:
    """Return, by rank and judged group, the instants of calls in collectives of that group or one that contains it."""
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
        # A rank that was given by hand, or is wrong in its file, may be in no group.
        for wider in of_rank.get(rank, ()):
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
        _known(collectives.calls.filter(pl.col(MatchedCalls.collective_id).is_not_null()), ready)
        .join(
            collectives.collectives.filter(CollectiveRows.is_complete).select(
                CollectiveRows.collective_id, CollectiveRows.group_id, is_symmetric.alias(_SYMMETRIC)
            ),
            on=MatchedCalls.collective_id,
        )
        .join(pairs, on=(MatchedCalls.rank, CollectiveRows.group_id))
        .select(
            MatchedCalls.rank,
            MatchedCalls.collective_id,
            pl.col(_OWN_GROUP).alias(CollectiveRows.group_id),
            READY,
            MatchedCalls.arrival_ns,
            MatchedCalls.wait_ns,
            MatchedCalls.end_ns,
            _SYMMETRIC,
        )
    )
