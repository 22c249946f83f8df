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
from scope.structs import Record
from scope.trace.schema import Annotations, CollectiveCalls, DeviceEvents, Launches, Ops, Steps

if TYPE_CHECKING:
    from collections.abc import Mapping

    from scope.trace.model import Job, RankTrace

_WITHOUT_TAGS: Final = ("nccl", "rccl")
_LISTS_OTHERS: Final = "lists_other_groups"
_IS_FOREIGN: Final = "is_of_foreign_group"
_SENDER: Final = "sender_rank"
_STATE: Final = pl.Enum(MATCH_STATES)
_ROOT: Final = "root_rank"


class Matched(Record, frozen=True, kw_only=True):
    """Every call of the ranks that are known, with its collective."""

    calls: pl.DataFrame
    """The columns of `MatchedCalls` that need no clock (instants are the rank's own), those of `CollectiveCalls`, and
    `PLACE`, `RESTS_ON_RECORDED_CLOCKS`, `IS_SYMMETRIC`, the rank's window, `group_id`."""
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
    frames = [_calls_of(trace, job.world_size) for trace in known]
    calls = pl.concat(frames, how="vertical") if frames else _calls_schema().to_frame()
    calls = _with_groups(calls, job.world_size)
    calls = _with_places(calls, {trace.rank: trace.host for trace in job.ranks if trace.rank is not None})
    return _numbered(calls)


def _calls_schema() -> pl.Schema:
    schema = pl.Schema(
        {
            **CollectiveCalls.schema(),
            MatchedCalls.rank: MatchedCalls.rank.dtype,
            MatchedCalls.step_number: pl.Int64,
            MatchedCalls.window_start_ns: pl.Int64,
            _LISTS_OTHERS: pl.Boolean,
        }
    )
    schema[CollectiveCalls.group_ranks] = CollectiveCalls.group_ranks.dtype
    return schema


def _calls_of(trace: RankTrace, world_size: int | None) -> pl.DataFrame:
    """Return one rank's calls with its rank, the number of the step, its window, and the ranks of elided groups."""
    named = {group.name: list(group.ranks) for group in trace.process_groups if group.ranks}
    elided = (
        pl.col(CollectiveCalls.group_name)
        .cast(pl.String)
        .replace_strict(list(named), list(named.values()), default=None, return_dtype=CollectiveCalls.group_ranks.dtype)
    )
    steps = trace.steps.select(Steps.step_id, pl.col(Steps.number).alias(MatchedCalls.step_number))
    return trace.collective_calls.join(
        steps, left_on=CollectiveCalls.step_id, right_on=Steps.step_id, how="left", maintain_order="left"
    ).with_columns(
        pl.coalesce(CollectiveCalls.group_ranks, elided) if named else pl.col(CollectiveCalls.group_ranks),
        pl.lit(trace.rank, dtype=MatchedCalls.rank.dtype).alias(MatchedCalls.rank),
        pl.lit(_window_start(trace), dtype=pl.Int64).alias(MatchedCalls.window_start_ns),
        pl.lit(_lists_others(trace, world_size)).alias(_LISTS_OTHERS),
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


def _with_groups(calls: pl.DataFrame, world_size: int | None) -> pl.DataFrame:
    """Add the key of each call's group, its ranks and its root as global ranks, and whether the group is assumed."""
    # Nobody calls in a group of others: of such a call neither the name nor the ranks are believed.
    is_foreign = ~pl.col(CollectiveCalls.group_ranks).list.contains(pl.col(MatchedCalls.rank)).fill_null(value=True)
    calls = calls.with_columns(
        is_foreign.alias(_IS_FOREIGN),
        *(
            pl.when(~is_foreign).then(name).alias(name)
            for name in (CollectiveCalls.group_name, CollectiveCalls.group_ranks, CollectiveCalls.group_size)
        ),
    )
    world = None if world_size is None else list(range(world_size))
    everyone = pl.lit(world, dtype=CollectiveCalls.group_ranks.dtype)
    is_named = pl.col(CollectiveCalls.group_name).is_not_null()
    size = pl.col(CollectiveCalls.group_size)
    is_whole_world = pl.lit(value=False) if world_size is None else (size == world_size).fill_null(value=False)
    tells_other_size = pl.lit(value=False) if world_size is None else (size != world_size).fill_null(value=False)
    is_unsaid = pl.col(CollectiveCalls.group_ranks).is_null() & ~is_named
    is_elsewhere = pl.col(_IS_FOREIGN) | ((pl.col(_LISTS_OTHERS) | tells_other_size) & ~is_whole_world)
    is_assumed = is_unsaid & ~is_whole_world & ~is_elsewhere
    calls = calls.with_columns(
        is_assumed.alias(GroupRows.is_assumed),
        (is_unsaid & is_elsewhere).alias(MatchedCalls.is_of_unknown_group),
        (pl.col(CollectiveCalls.is_group_inferred) | (is_unsaid & is_whole_world)).alias(GroupRows.is_inferred),
        pl.when(pl.col(CollectiveCalls.group_ranks).is_not_null())
        .then(CollectiveCalls.group_ranks)
        .when(is_assumed | is_whole_world)
        .then(everyone)
        .alias(CollectiveCalls.group_ranks),
    )
    calls = calls.with_columns(
        pl.coalesce(pl.col(CollectiveCalls.group_ranks).list.len().cast(pl.Int32), CollectiveCalls.group_size).alias(
            CollectiveCalls.group_size
        ),
        _group_key().alias(GROUP_KEY),
        pl.col(CollectiveCalls.operation).is_in(SYMMETRIC).alias(IS_SYMMETRIC),
        pl.col(CollectiveCalls.operation).is_in(PAIRS).alias(GroupRows.is_pair),
    )
    return _with_pairs(calls)


def _group_key() -> pl.Expr:
    ranks = pl.col(CollectiveCalls.group_ranks).cast(pl.List(pl.String)).list.join(",").fill_null("?")
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
        .otherwise(pl.concat_str(name.fill_null("?"), ranks, separator="|"))
    )


def _with_pairs(calls: pl.DataFrame) -> pl.DataFrame:
    """Give point-to-point calls the pair as their group, and every rooted call the global rank of its root."""
    ranks = pl.col(CollectiveCalls.group_ranks)
    # Where the ranks are elided, the numbering of the group is that of the world only in a group of the whole world,
    # whose ranks were filled in before; elsewhere the peer stays unknown.
    source = ranks.list.get(pl.col(CollectiveCalls.source_rank), null_on_oob=True)
    destination = ranks.list.get(pl.col(CollectiveCalls.destination_rank), null_on_oob=True)
    is_send, is_recv = (pl.col(CollectiveCalls.operation) == each for each in PAIRS)
    rank = pl.col(MatchedCalls.rank)
    sender = pl.when(is_send).then(rank).when(is_recv).then(source)
    receiver = pl.when(is_recv).then(rank).when(is_send).then(destination)
    calls = calls.with_columns(
        sender.alias(_SENDER), receiver.alias(CollectiveCalls.destination_rank), source.alias(_ROOT)
    )
    is_pair = pl.col(GroupRows.is_pair)
    ends = pl.concat_list(_SENDER, CollectiveCalls.destination_rank)
    knows_pair = pl.col(_SENDER).is_not_null() & pl.col(CollectiveCalls.destination_rank).is_not_null()
    # NCCL and RCCL pay no heed to tags: their messages match in the order in which they are sent.
    in_order = pl.col(CollectiveCalls.library).cast(pl.String).is_in(_WITHOUT_TAGS)
    tag = pl.when(~in_order).then(CollectiveCalls.tag).cast(pl.String).fill_null("")
    pair_key = pl.concat_str(
        GROUP_KEY, pl.lit("|"), _SENDER, pl.lit(">"), CollectiveCalls.destination_rank, pl.lit("#"), tag
    )
    return calls.with_columns(
        pl.when(is_pair).then(pair_key).otherwise(GROUP_KEY).alias(GROUP_KEY),
        pl.when(is_pair & knows_pair)
        .then(ends.list.sort())
        .when(~is_pair)
        .then(ranks)
        .alias(CollectiveCalls.group_ranks),
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
    is_unknown = pl.col(GROUP_KEY).is_null() | (pl.col(CollectiveCalls.group_ranks).is_null() & is_crowded)
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


def _numbered(calls: pl.DataFrame) -> Matched:
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
    groups = _groups(calls)
    calls = calls.join(groups.select(GROUP_KEY, GroupRows.group_id), on=GROUP_KEY, how="left", nulls_equal=True)
    ordered = calls.sort(MatchedCalls.collective_id, MatchedCalls.rank, CollectiveCalls.call_id, nulls_last=True)
    return Matched(calls=ordered.drop(GROUP_KEY, OCCURRENCE, _SENDER, _ROOT), groups=groups.drop(GROUP_KEY))


def _with_one_root(calls: pl.DataFrame) -> pl.DataFrame:
    """Take no rank for the root of a collective whose ranks say different ones: some writers name the caller there."""
    roots = pl.col(_ROOT).drop_nulls().n_unique().over(MatchedCalls.collective_id)
    is_told_apart = (roots > 1) & ~pl.col(GroupRows.is_pair) & (pl.col(MatchedCalls.state) == "matched")
    return calls.with_columns(pl.when(~is_told_apart).then(MatchedCalls.is_root).alias(MatchedCalls.is_root))


def _groups(calls: pl.DataFrame) -> pl.DataFrame:
    first = pl.col(CollectiveCalls.start_ns).min()
    return (
        calls.group_by(GROUP_KEY)
        .agg(
            first,
            pl.col(CollectiveCalls.group_name).cast(pl.String).first().alias(GroupRows.name),
            pl.col(CollectiveCalls.group_description).cast(pl.String).first().alias(GroupRows.description),
            pl.col(CollectiveCalls.group_ranks).first().alias(GroupRows.ranks),
            pl.col(CollectiveCalls.group_size).first().alias(GroupRows.num_ranks),
            pl.col(GroupRows.is_assumed).first(),
            pl.col(GroupRows.is_inferred).any(),
            pl.col(GroupRows.is_pair).first(),
        )
        .sort(CollectiveCalls.start_ns, GROUP_KEY)
        .with_row_index(GroupRows.group_id)
        .drop(CollectiveCalls.start_ns)
    )
