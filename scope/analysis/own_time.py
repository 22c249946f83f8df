"""Own time of ranks between collectives of their group: what neither other ranks nor links of other groups took."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from scope.analysis.collective_tables import CollectiveRows, GroupRows, MatchedCalls
from scope.analysis.operations import SYMMETRIC
from scope.analysis.rank_activity import ACTIVITIES, PIECE_LENGTH, PIECE_START, totals_at
from scope.analysis.readiness import READY

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

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
_NUM_OTHERS: Final = "num_of_other_groups"
_NUM_ENDED: Final = "num_ended"
_ENDED_AT: Final = "ended_at_ns"
_ASKED: Final = "asked_group_id"
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
    alike = pl.col(CollectiveRows.group_id).replace(_first_alike(collectives))
    judged = _known(judged, ready).with_columns(pl.col(CollectiveRows.group_id).alias(_ASKED), alike)
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
    since = _with_shared_transfers(since, _standing_still(common, collectives.calls, activity), activity)
    apart = pl.col(ACTIVITIES[1]) + pl.col(ACTIVITIES[2]) - pl.col(_ROOTED) - pl.col(_SHARED)
    is_known = pl.col(PREVIOUS).is_not_null() | pl.col(_BEGIN_ALIKE)
    own = pl.col(READY) - pl.col(_SINCE) - apart
    asked = pl.col(_ASKED).alias(CollectiveRows.group_id)
    return since.with_columns(pl.when(is_known).then(own).alias(OWN), asked).drop(_ASKED)


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


def _standing_still(common: pl.DataFrame, every: pl.DataFrame, activity: pl.DataFrame) -> pl.DataFrame:
    """Return the calls that held all up, without what precedes the last compute that followed another group's call.

    A rank that goes on under a collective (of gradients, say) stood still for the call beside it, which ranks of other
    such groups make at other instants.

    Args:
        common: What `_common_calls` returned.
        every: All calls; those that are not common to a judged group are of groups that do not contain it.
        activity: What `build_activity` returned.
    """
    stretches = _held_up(common)
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
    beside = last.filter(pl.col(_COMPUTED).is_not_null()).with_columns(pl.lit(0, dtype=pl.Int64).alias(_NUM_OTHERS))
    for instant, sign in ((_COMPUTED, 1), (MatchedCalls.arrival_ns, -1)):
        beside = _add_ended(beside, every, by=_CALL_KEYS[:1], instant=instant, sign=sign)
        beside = _add_ended(beside, common, by=_CALL_KEYS[:2], instant=instant, sign=-sign)
    goes_on = beside.filter(pl.col(_NUM_OTHERS) > 0).select(
        *_CALL_KEYS, pl.min_horizontal(_COMPUTED, MatchedCalls.end_ns).alias(_SINCE)
    )
    since = pl.coalesce(_SINCE, MatchedCalls.arrival_ns).alias(MatchedCalls.arrival_ns)
    return stretches.join(goes_on, on=_CALL_KEYS, how="left").with_columns(since).drop(_SINCE)


def _add_ended(
    stretches: pl.DataFrame, calls: pl.DataFrame, *, by: Sequence[str], instant: str, sign: int
) -> pl.DataFrame:
    """Add to `_NUM_OTHERS` how many of the calls of the rank, or of its rank and group, had ended by an instant."""
    ended = calls.sort(MatchedCalls.end_ns).select(
        *by, pl.col(MatchedCalls.end_ns).alias(_ENDED_AT), pl.int_range(1, pl.len() + 1).over(by).alias(_NUM_ENDED)
    )
    found = stretches.sort(instant).join_asof(ended, left_on=instant, right_on=_ENDED_AT, by=by, check_sortedness=False)
    total = pl.col(_NUM_OTHERS) + sign * pl.col(_NUM_ENDED).fill_null(0)
    return found.with_columns(total.alias(_NUM_OTHERS)).drop(_NUM_ENDED, _ENDED_AT)


def _held_up(common: pl.DataFrame) -> pl.DataFrame:
    """Return the calls of collectives that ended before any rank was ready for the next: they last alike for all.

    A rank that gets ready for the next one under the end of a collective is not held up by it, as others may be.
    """
    keys = (MatchedCalls.rank, CollectiveRows.group_id)
    ordered = common.sort(READY, MatchedCalls.arrival_ns, MatchedCalls.collective_id)
    is_held_up = (pl.col(READY).shift(-1).over(keys) >= pl.col(MatchedCalls.end_ns)).fill_null(value=True)
    marked = ordered.with_columns(is_held_up.alias(_HELD_UP))
    return marked.filter(pl.col(_HELD_UP).all().over(MatchedCalls.collective_id, CollectiveRows.group_id))


def _members(collectives: Collectives) -> dict[int, frozenset[int]]:
    """Return the ranks of each group that is no pair."""
    groups = collectives.groups.filter(~pl.col(GroupRows.is_pair) & pl.col(GroupRows.ranks).is_not_null())
    rows = groups.select(GroupRows.group_id, GroupRows.ranks).iter_rows()
    return {group: frozenset(ranks) for group, ranks in rows}


def _first_alike(collectives: Collectives) -> dict[int, int]:
    """Return, by group, the first group of the same ranks: what is common to the one is so to all of them."""
    first: dict[frozenset[int], int] = {}
    return {group: first.setdefault(ranks, group) for group, ranks in _members(collectives).items()}


def covering_groups(members: Mapping[int, frozenset[int]], groups: Iterable[int]) -> dict[int, frozenset[int]]:
    """Return, by group, the groups that all its ranks are in: itself and wider ones.

    Args:
        members: By group, its ranks.
        groups: Those that are asked for.
    """
    of_rank: dict[int, set[int]] = {}
    for group, ranks in members.items():
        for rank in ranks:
            of_rank.setdefault(rank, set()).add(group)
    everywhere = frozenset(members)
    return {group: everywhere.intersection(*(of_rank[rank] for rank in members[group])) for group in groups}


def _common_calls(judged: pl.DataFrame, collectives: Collectives, ready: pl.DataFrame) -> pl.DataFrame:
    """Return, by rank and judged group, the instants of calls in collectives of that group or one that contains it."""
    members = _members(collectives)
    covers = covering_groups(members, judged[CollectiveRows.group_id].unique().to_list())
    wanted = judged.select(MatchedCalls.rank, CollectiveRows.group_id).unique().iter_rows()
    # A rank that was given by hand, or is wrong in its file, may be in no group.
    rows = [(rank, group, wider) for rank, group in wanted for wider in covers[group] if rank in members[wider]]
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
