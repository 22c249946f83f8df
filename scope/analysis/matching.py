"""Which calls of different ranks are one collective.

The key is the group (name and sorted global ranks), the operation, and `Seq` where the trace has it, else the ordinal
of the call in its group, with the ordinals of the ranks aligned (`scope.analysis.ordinals`). A point-to-point call is
keyed by sender, receiver, tag and ordinal, since libraries count those on each rank apart. Calls without metadata are
matched by library, operation and ordinal over all ranks, which `Groups.is_assumed` says; where the rank's trace lists
groups of other ranks, or the call's sizes tell another number of ranks, its group is unknown and it is ambiguous. So is
a call of which the trace says a group that does not hold its rank.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from scope.analysis.collective_tables import MATCH_STATES, GroupRows, MatchedCalls
from scope.analysis.operations import IS_SYMMETRIC, PAIRS, SYMMETRIC
from scope.analysis.ordinals import GROUP_KEY, OCCURRENCE, PLACE, with_ordinals
from scope.analysis.rank_sets import NUMBER, RankSets
from scope.structs import Record
from scope.trace.eager import taken
from scope.trace.schema import Annotations, CollectiveCalls, DeviceEvents, Launches, Ops, Steps

if TYPE_CHECKING:
    from collections.abc import Mapping

    from scope.trace.model import Job, RankTrace

_WITHOUT_TAGS: Final = ("nccl", "rccl")
_LISTS_OTHERS: Final = "lists_other_groups"
_RANKS: Final = "ranks_number"
_IS_OF_WORLD: Final = "is_of_world"
_KNOWS_RANKS: Final = "knows_ranks"
_ENDS: Final = "ends"
_OF_GROUPS: Final = (GroupRows.num_ranks, GroupRows.is_assumed, GroupRows.is_inferred, GroupRows.is_pair)
_IS_FOREIGN: Final = "is_of_foreign_group"
_SENDER: Final = "sender_rank"
_STATE: Final = pl.Enum(MATCH_STATES)
_ROOT: Final = "root_rank"


class Matched(Record, frozen=True, kw_only=True):
    """Every call of the ranks that are known, with its collective."""

    calls: pl.DataFrame
    """The columns of `MatchedCalls` that need no clock (instants are the rank's own), those of `CollectiveCalls`, and
    `PLACE`, `RESTS_ON_RECORDED_CLOCKS`, `IS_SYMMETRIC`, the rank's window, `group_id`. Of the ranks of groups, which
    `groups` has, those of calls alone that say what goes to each."""
    groups: pl.DataFrame
    """The table `GroupRows` without tiers."""


def match_calls(job: Job) -> Matched:
    """Find the collective of every call.

    Args:
        job: The ranks of a job; those without a rank are left out.

    Returns:
        Calls sorted by collective and rank. `collective_id` numbers the collectives by first arrival on the ranks' own
        clocks, and is null for calls that are ambiguous or unmatchable.
    """
    known = [trace for trace in job.ranks if trace.rank is not None]
    sets = RankSets()
    frames = [_calls_of(trace, job.world_size, sets) for trace in known]
    calls = pl.concat(frames, how="vertical") if frames else _calls_schema().to_frame()
    calls = _with_groups(calls, job.world_size, sets)
    calls = _with_places(calls, {trace.rank: trace.host for trace in job.ranks if trace.rank is not None})
    return _numbered(calls, sets)


def _calls_schema() -> pl.Schema:
    own = pl.Schema(
        {
            **CollectiveCalls.schema(),
            _RANKS: NUMBER,
            MatchedCalls.rank: MatchedCalls.rank.dtype,
            MatchedCalls.step_number: pl.Int64,
            MatchedCalls.window_start_ns: pl.Int64,
            _LISTS_OTHERS: pl.Boolean,
            _IS_FOREIGN: pl.Boolean,
        }
    )
    del own[str(CollectiveCalls.group_ranks)]
    return own


def _calls_of(trace: RankTrace, world_size: int | None, sets: RankSets) -> pl.DataFrame:
    """Return one rank's calls with its rank, the number of the step, its window, and the ranks of elided groups.

    A number stands for the ranks of a group: lists of them, one a call, would be far larger than all else.
    """
    named = {group.name: sets.number(group.ranks) for group in trace.process_groups if group.ranks}
    elided = (
        pl.col(CollectiveCalls.group_name)
        .cast(pl.String)
        .replace_strict(list(named), list(named.values()), default=None, return_dtype=NUMBER)
    )
    own = sets.numbers(trace.collective_calls[CollectiveCalls.group_ranks]).alias(_RANKS)
    calls = trace.collective_calls.drop(CollectiveCalls.group_ranks).with_columns(
        pl.coalesce(own, elided).alias(_RANKS) if named else own
    )
    # Nobody calls in a group of others.
    foreign = [each for each in calls[_RANKS].unique().drop_nulls() if trace.rank not in sets.ranks(each)]
    steps = trace.steps.select(Steps.step_id, pl.col(Steps.number).alias(MatchedCalls.step_number))
    return calls.join(
        steps, left_on=CollectiveCalls.step_id, right_on=Steps.step_id, how="left", maintain_order="left"
    ).select(
        pl.exclude(MatchedCalls.step_number, _RANKS),
        _RANKS,
        pl.lit(trace.rank, dtype=MatchedCalls.rank.dtype).alias(MatchedCalls.rank),
        MatchedCalls.step_number,
        pl.lit(_window_start(trace), dtype=pl.Int64).alias(MatchedCalls.window_start_ns),
        pl.lit(_lists_others(trace, world_size)).alias(_LISTS_OTHERS),
        pl.col(_RANKS).is_in(pl.Series(foreign, dtype=NUMBER).implode()).fill_null(value=False).alias(_IS_FOREIGN),
    )


def _lists_others(trace: RankTrace, world_size: int | None) -> bool:
    """Return whether a trace lists groups of other ranks than all of the job."""
    if world_size is None:
        lists = {group.ranks for group in trace.process_groups}
        return len(lists) > 1 or any(ranks and trace.rank not in ranks for ranks in lists)
    everyone = tuple(range(world_size))
    return any(
        group.ranks != everyone if group.ranks else group.size not in (world_size, None)
        for group in trace.process_groups
    )


def _window_start(trace: RankTrace) -> int | None:
    """Return when the rank's recording begins, as far as its events show."""
    tables = (
        (trace.ops, Ops.start_ns),
        (trace.launches, Launches.start_ns),
        (trace.device_events, DeviceEvents.start_ns),
        (trace.collective_calls, CollectiveCalls.start_ns),
        (trace.steps, Steps.start_ns),
        (trace.annotations.filter(~pl.col(Annotations.on_device)), Annotations.start_ns),
    )
    starts = [frame[start].min() for frame, start in tables]
    return min((start for start in starts if isinstance(start, int)), default=None)


def _with_groups(calls: pl.DataFrame, world_size: int | None, sets: RankSets) -> pl.DataFrame:
    """Add the key of each call's group, its ranks and its root as global ranks, and whether the group is assumed."""
    # Of a call in a group of others neither the name nor the ranks are believed.
    calls = calls.with_columns(
        pl.when(~pl.col(_IS_FOREIGN)).then(name).alias(name)
        for name in (CollectiveCalls.group_name, _RANKS, CollectiveCalls.group_size)
    )
    is_named = pl.col(CollectiveCalls.group_name).is_not_null()
    size = pl.col(CollectiveCalls.group_size)
    is_whole_world = pl.lit(value=False) if world_size is None else (size == world_size).fill_null(value=False)
    tells_other_size = pl.lit(value=False) if world_size is None else (size != world_size).fill_null(value=False)
    is_unsaid = pl.col(_RANKS).is_null() & ~is_named
    is_elsewhere = pl.col(_IS_FOREIGN) | ((pl.col(_LISTS_OTHERS) | tells_other_size) & ~is_whole_world)
    is_assumed = is_unsaid & ~is_whole_world & ~is_elsewhere
    calls = calls.with_columns(
        is_assumed.alias(GroupRows.is_assumed),
        (is_unsaid & is_elsewhere).alias(MatchedCalls.is_of_unknown_group),
        (pl.col(CollectiveCalls.is_group_inferred) | (is_unsaid & is_whole_world)).alias(GroupRows.is_inferred),
        (pl.col(_RANKS).is_null() & (is_assumed | is_whole_world)).alias(_IS_OF_WORLD),
    )
    calls = _with_ranks(calls, world_size, sets)
    calls = calls.with_columns(
        _group_key(sets.keys(calls[_RANKS])).alias(GROUP_KEY),
        pl.col(CollectiveCalls.operation).is_in(SYMMETRIC).alias(IS_SYMMETRIC),
        pl.col(CollectiveCalls.operation).is_in(PAIRS).alias(GroupRows.is_pair),
    )
    return _with_pairs(calls, sets)


def _with_ranks(calls: pl.DataFrame, world_size: int | None, sets: RankSets) -> pl.DataFrame:
    """Give calls of the whole world its ranks, and every call of known ranks the size of its group."""
    if world_size is not None and calls[_IS_OF_WORLD].any():
        everyone = pl.lit(sets.number(range(world_size)), dtype=NUMBER)
        calls = calls.with_columns(pl.when(_IS_OF_WORLD).then(everyone).otherwise(_RANKS).alias(_RANKS))
    size = pl.coalesce(sets.sizes(calls[_RANKS]), CollectiveCalls.group_size)
    return calls.with_columns(size.alias(CollectiveCalls.group_size)).drop(_IS_OF_WORLD)


def _group_key(ranks: pl.Series) -> pl.Expr:
    name = pl.col(CollectiveCalls.group_name).cast(pl.String)
    library, operation = (
        pl.col(CollectiveCalls.library).cast(pl.String),
        pl.col(CollectiveCalls.operation).cast(pl.String),
    )
    return (
        pl.when(MatchedCalls.is_of_unknown_group)
        .then(None)
        .when(GroupRows.is_assumed)
        .then(pl.concat_str(pl.lit("assumed"), library, operation, separator="|"))
        .otherwise(pl.concat_str(name.fill_null("?"), pl.lit(ranks).fill_null("?"), separator="|"))
    )


def _with_pairs(calls: pl.DataFrame, sets: RankSets) -> pl.DataFrame:
    """Give point-to-point calls the pair as their group, and every rooted call the global rank of its root."""
    # Where the ranks are elided, the numbering of the group is that of the world only in a group of the whole world,
    # whose ranks were filled in before; elsewhere the peer stays unknown.
    source = pl.lit(sets.at(calls[_RANKS], calls[CollectiveCalls.source_rank]))
    destination = pl.lit(sets.at(calls[_RANKS], calls[CollectiveCalls.destination_rank]))
    is_send, is_recv = (pl.col(CollectiveCalls.operation) == each for each in PAIRS)
    rank = pl.col(MatchedCalls.rank)
    sender = pl.when(is_send).then(rank).when(is_recv).then(source)
    receiver = pl.when(is_recv).then(rank).when(is_send).then(destination)
    calls = calls.with_columns(
        sender.alias(_SENDER), receiver.alias(CollectiveCalls.destination_rank), source.alias(_ROOT)
    )
    is_pair = pl.col(GroupRows.is_pair)
    knows_pair = pl.col(_SENDER).is_not_null() & pl.col(CollectiveCalls.destination_rank).is_not_null()
    # NCCL and RCCL pay no heed to tags: their messages match in the order in which they are sent.
    in_order = pl.col(CollectiveCalls.library).cast(pl.String).is_in(_WITHOUT_TAGS)
    tag = pl.when(~in_order).then(CollectiveCalls.tag).cast(pl.String).fill_null("")
    pair_key = pl.concat_str(
        GROUP_KEY, pl.lit("|"), _SENDER, pl.lit(">"), CollectiveCalls.destination_rank, pl.lit("#"), tag
    )
    return calls.with_columns(
        pl.when(is_pair).then(pair_key).otherwise(GROUP_KEY).alias(GROUP_KEY),
        pl.when(is_pair).then(knows_pair).otherwise(pl.col(_RANKS).is_not_null()).alias(_KNOWS_RANKS),
        pl.when(is_pair).then(2).otherwise(CollectiveCalls.group_size).cast(pl.Int32).alias(CollectiveCalls.group_size),
        pl.when(is_pair).then(rank == pl.col(_SENDER)).otherwise(rank == pl.col(_ROOT)).alias(MatchedCalls.is_root),
        pl.when(is_pair)
        .then(pl.lit(PAIRS[0]))
        .otherwise(pl.col(CollectiveCalls.operation).cast(pl.String))
        .cast(CollectiveCalls.operation.dtype)
        .alias(CollectiveCalls.operation),
    )


def _with_places(calls: pl.DataFrame, hosts: Mapping[int, str | None]) -> pl.DataFrame:
    """Add the place of each call in its group, and its state; the place is null where it can't be told."""
    has_sequence = (pl.col(CollectiveCalls.sequence).is_not_null() & ~pl.col(GroupRows.is_pair)).all().over(GROUP_KEY)
    # A group whose ranks are elided is told by its name alone; more ranks than it has means several of one name.
    is_crowded = pl.col(MatchedCalls.rank).n_unique().over(GROUP_KEY) > pl.col(CollectiveCalls.group_size)
    is_unknown = pl.col(GROUP_KEY).is_null() | (~pl.col(_KNOWS_RANKS) & is_crowded)
    state = (
        pl.when(MatchedCalls.is_of_unknown_group)
        .then(pl.lit("ambiguous"))
        .when(is_unknown.fill_null(value=False))
        .then(pl.lit("unmatchable"))
        .otherwise(pl.lit("matched"))
    )
    calls = calls.sort(MatchedCalls.rank, CollectiveCalls.start_ns, CollectiveCalls.call_id).with_columns(
        state.cast(_STATE).alias(MatchedCalls.state),
        pl.when(has_sequence).then(CollectiveCalls.sequence).alias(PLACE),
    )
    calls = with_ordinals(calls, hosts=hosts)
    lost = (pl.col(MatchedCalls.state) == "matched") & pl.col(PLACE).is_null()
    repeated = (MatchedCalls.rank, GROUP_KEY, CollectiveCalls.operation, PLACE)
    return calls.with_columns(
        pl.when(lost).then(pl.lit("ambiguous", dtype=_STATE)).otherwise(MatchedCalls.state).alias(MatchedCalls.state),
        pl.int_range(pl.len()).over(repeated).alias(OCCURRENCE),
    )


def _numbered(calls: pl.DataFrame, sets: RankSets) -> Matched:
    """Number groups and collectives in the order of their first arrival, and mark calls that stand alone."""
    key = (GROUP_KEY, CollectiveCalls.operation, PLACE, OCCURRENCE)
    is_matched = pl.col(MatchedCalls.state) == "matched"
    collectives = (
        calls.filter(is_matched)
        .group_by(key)
        .agg(pl.col(CollectiveCalls.start_ns).min(), pl.col(MatchedCalls.rank).n_unique().alias(GroupRows.num_ranks))
        .sort(CollectiveCalls.start_ns, *key)
        .with_row_index(MatchedCalls.collective_id)
        .drop(CollectiveCalls.start_ns)
    )
    calls = calls.join(collectives, on=key, how="left", nulls_equal=True, maintain_order="left")
    calls = _with_one_root(calls)
    is_alone = is_matched & (pl.col(GroupRows.num_ranks) == 1) & pl.col(CollectiveCalls.group_size).ne_missing(1)
    calls = calls.with_columns(
        pl.when(is_alone).then(pl.lit("alone", dtype=_STATE)).otherwise(MatchedCalls.state).alias(MatchedCalls.state),
        pl.when(is_matched).then(MatchedCalls.collective_id).alias(MatchedCalls.collective_id),
    ).drop(GroupRows.num_ranks)
    groups = _groups(calls, sets)
    calls = calls.join(groups.select(GROUP_KEY, GroupRows.group_id), on=GROUP_KEY, how="left", nulls_equal=True)
    ordered = calls.sort(MatchedCalls.collective_id, MatchedCalls.rank, CollectiveCalls.call_id, nulls_last=True)
    ordered = _with_ranks_of_splits(ordered, groups)
    own = (GROUP_KEY, OCCURRENCE, _SENDER, _ROOT, _RANKS, _KNOWS_RANKS)
    return Matched(calls=ordered.drop(own), groups=groups.drop(GROUP_KEY))


def _with_ranks_of_splits(calls: pl.DataFrame, groups: pl.DataFrame) -> pl.DataFrame:
    """Add the ranks of the groups of calls that say how much goes to or comes from each, null for others."""
    is_split = pl.col(CollectiveCalls.in_split).is_not_null() | pl.col(CollectiveCalls.out_split).is_not_null()
    group = calls.select(pl.when(is_split).then(GroupRows.group_id)).to_series()
    return calls.with_columns(taken(groups[GroupRows.ranks], group).alias(CollectiveCalls.group_ranks))


def _with_one_root(calls: pl.DataFrame) -> pl.DataFrame:
    """Take no rank for the root of a collective whose ranks say different ones: some writers name the caller there."""
    roots = pl.col(_ROOT).drop_nulls().n_unique().over(MatchedCalls.collective_id)
    is_told_apart = (roots > 1) & ~pl.col(GroupRows.is_pair) & (pl.col(MatchedCalls.state) == "matched")
    return calls.with_columns(pl.when(~is_told_apart).then(MatchedCalls.is_root).alias(MatchedCalls.is_root))


def _groups(calls: pl.DataFrame, sets: RankSets) -> pl.DataFrame:
    first = pl.col(CollectiveCalls.start_ns).min()
    ends = pl.concat_list(_SENDER, CollectiveCalls.destination_rank).list.sort()
    groups = (
        calls.group_by(GROUP_KEY)
        .agg(
            first,
            pl.col(CollectiveCalls.group_name).cast(pl.String).first().alias(GroupRows.name),
            pl.col(CollectiveCalls.group_description).cast(pl.String).first().alias(GroupRows.description),
            pl.when(GroupRows.is_pair).then(None).otherwise(_RANKS).first().alias(_RANKS),
            pl.when(pl.col(GroupRows.is_pair) & pl.col(_KNOWS_RANKS)).then(ends).first().alias(_ENDS),
            pl.col(CollectiveCalls.group_size).first().alias(GroupRows.num_ranks),
            pl.col(GroupRows.is_assumed).first(),
            pl.col(GroupRows.is_inferred).any(),
            pl.col(GroupRows.is_pair).first(),
        )
        .sort(CollectiveCalls.start_ns, GROUP_KEY)
        .with_row_index(GroupRows.group_id)
        .drop(CollectiveCalls.start_ns)
    )
    listed = [None if number is None else list(sets.ranks(number)) for number in groups[_RANKS]]
    ranks = pl.coalesce(pl.Series(listed, dtype=GroupRows.ranks.dtype), _ENDS).alias(GroupRows.ranks)
    return groups.select(GROUP_KEY, GroupRows.group_id, GroupRows.name, GroupRows.description, ranks, *_OF_GROUPS)
