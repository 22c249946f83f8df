"""The places of calls that no `Seq` numbers: their ordinals in their group, aligned between its ranks.

Every rank is aligned with the one that has most calls (`scope.analysis.alignment`). What is certain goes first: where
the numbers of the steps or the series alone decide, or clocks that are known to each other, since the ranks share a
host or symmetric collectives that have their places join them. These may join more clocks, so it goes in rounds. Last,
clocks of which nothing is known are taken to agree, which is marked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from scope.analysis.alignment import CallSeries, align
from scope.analysis.clock_estimates import (
    OFFSET,
    drifted,
    estimate_clocks,
    find_bounding_calls,
    middle_of,
    with_estimates,
)
from scope.analysis.collective_tables import MatchedCalls
from scope.analysis.operations import IS_SYMMETRIC
from scope.structs import Record
from scope.trace.schema import CollectiveCalls

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from scope.analysis.clock_estimates import ClockEstimate

GROUP_KEY: Final = "group_key"
"""Column: which group the call ran in."""
PLACE: Final = "place"
"""Column: `Seq`, or the aligned ordinal; null where it can't be told."""
OCCURRENCE: Final = "occurrence"
"""Column: how many calls of its rank with the same key and place come before, as in parts of a coalesced call."""
RESTS_ON_RECORDED_CLOCKS: Final = "rests_on_recorded_clocks"
"""Column: the ordinal is aligned by clocks that were taken to agree."""

_SAME_SIZE: Final = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "send", "recv")
_SIGNATURE: Final = "signature"
_ORDINAL: Final = "ordinal"
_FOUND: Final = "_found"
_KEY: Final = (MatchedCalls.rank, CollectiveCalls.call_id)


class _Clocks(Record, frozen=True, kw_only=True):
    """What is known of the ranks' clocks from the calls that have their places."""

    estimates: Mapping[int, ClockEstimate]
    middle_ns: int

    def are_known(self, rank: int, other: int) -> bool:
        """Return whether it is known how far the clocks of two ranks stand apart."""
        return self.estimates[rank].reference_rank == self.estimates[other].reference_rank


def with_ordinals(calls: pl.DataFrame, *, hosts: Mapping[int, str | None]) -> pl.DataFrame:
    """Return calls with the place of those that have none, and `RESTS_ON_RECORDED_CLOCKS`.

    Args:
        calls: Calls of all ranks with `GROUP_KEY`, `PLACE` and state, sorted by rank and start. Only those whose state
            is `matched` get a place.
        hosts: Host of every rank, None where unknown; ranks of one host share its clock.
    """
    calls = calls.with_columns(pl.lit(value=False).alias(RESTS_ON_RECORDED_CLOCKS))
    while not (waiting := _without_places(calls)).is_empty():
        found = _ordinals(waiting, _known_clocks(calls, hosts))
        certain = found.filter(~pl.col(RESTS_ON_RECORDED_CLOCKS))
        if certain.is_empty():
            return _with_found(calls, found)
        calls = _with_found(calls, certain)
    return calls


def _without_places(calls: pl.DataFrame) -> pl.DataFrame:
    """Return all calls of the groups of which some rank has no place for any of its calls."""
    is_open = pl.col(PLACE).is_null().all().over(GROUP_KEY, MatchedCalls.rank)
    return calls.filter(pl.col(MatchedCalls.state) == "matched").filter(is_open.any().over(GROUP_KEY))


def _known_clocks(calls: pl.DataFrame, hosts: Mapping[int, str | None]) -> _Clocks:
    """Return the clocks as symmetric collectives show them; ranks leave other operations when they please."""
    first_of: dict[str, int] = {}
    clock_of = {rank: rank if host is None else first_of.setdefault(host, rank) for rank, host in sorted(hosts.items())}
    placed = calls.filter((pl.col(MatchedCalls.state) == "matched") & pl.col(PLACE).is_not_null() & IS_SYMMETRIC)
    key = (GROUP_KEY, CollectiveCalls.operation, PLACE, OCCURRENCE)
    placed = placed.with_columns(pl.int_range(pl.len()).over(MatchedCalls.rank, *key[:-1]).alias(OCCURRENCE))
    collectives = placed.select(key).unique().with_row_index(MatchedCalls.collective_id)
    usable = find_bounding_calls(placed.join(collectives, on=key)).with_columns(
        pl.col(MatchedCalls.rank).replace(clock_of)
    )
    middle_ns = middle_of(usable)
    estimates = estimate_clocks(usable, sorted(set(clock_of.values())), middle_ns)
    return _Clocks(estimates={rank: estimates[clock] for rank, clock in clock_of.items()}, middle_ns=middle_ns)


def _corrected(calls: pl.DataFrame, clocks: _Clocks) -> pl.DataFrame:
    """Return calls with their instants on the clock of the reference rank that theirs is known against."""
    instants = (CollectiveCalls.start_ns, CollectiveCalls.end_ns)
    shifted = [pl.col(name) - pl.col(OFFSET) for name in instants]
    return with_estimates(calls, clocks.estimates).with_columns(
        each - drifted(each, clocks.middle_ns) for each in shifted
    )


def _ordinals(waiting: pl.DataFrame, clocks: _Clocks) -> pl.DataFrame:
    """Return the ordinals of the calls of every rank that can be aligned with the one that has most calls."""
    groups = _corrected(waiting, clocks).with_columns(_kind().hash().alias(_SIGNATURE)).partition_by(GROUP_KEY)
    none = _placed(waiting.clear(), (), is_recorded=False)
    return pl.concat([none, *(each for group in groups for each in _align_ranks(group, clocks))])


def _kind() -> pl.Expr:
    """Return what calls of one collective have in common."""
    size = pl.when(
        pl.col(CollectiveCalls.operation).is_in(_SAME_SIZE) & (pl.col(CollectiveCalls.variant) != "uneven")
    ).then(pl.max_horizontal(CollectiveCalls.in_bytes, CollectiveCalls.out_bytes))
    # On a host timeline the ranks that get a part of a scatter do not say its type, which the root's input does.
    dtype = pl.when(pl.col(CollectiveCalls.operation) != "scatter").then(pl.col(CollectiveCalls.dtype).cast(pl.String))
    return pl.struct(CollectiveCalls.operation, dtype.alias(CollectiveCalls.dtype), size.alias(_SIGNATURE))


def _align_ranks(group: pl.DataFrame, clocks: _Clocks) -> Iterator[pl.DataFrame]:
    parts = {int(rank): part for (rank,), part in group.partition_by(MatchedCalls.rank, as_dict=True).items()}
    reference = max(parts, key=lambda rank: (parts[rank].height, -rank))
    series = _series(parts[reference])
    for rank, part in parts.items():
        if part[PLACE].null_count() < part.height:
            continue
        if rank == reference:
            yield _placed(part, range(part.height), is_recorded=False)
            continue
        is_known = clocks.are_known(reference, rank)
        alignment = align(series, _series(part), knows_clocks=is_known)
        if alignment is not None:
            yield _placed(part, alignment.places, is_recorded=alignment.rests_on_clocks and not is_known)


def _series(part: pl.DataFrame) -> CallSeries:
    return CallSeries(
        signatures=part[_SIGNATURE].to_list(),
        arrivals_ns=part[CollectiveCalls.start_ns].to_list(),
        ends_ns=part[CollectiveCalls.end_ns].to_list(),
        steps=part[MatchedCalls.step_number].to_list(),
        are_symmetric=part[IS_SYMMETRIC].to_list(),
    )


def _placed(part: pl.DataFrame, places: Sequence[int | None], *, is_recorded: bool) -> pl.DataFrame:
    return part.select(
        *_KEY,
        pl.Series(_ORDINAL, places, dtype=pl.Int64),
        pl.lit(is_recorded).alias(RESTS_ON_RECORDED_CLOCKS),
    )


def _with_found(calls: pl.DataFrame, found: pl.DataFrame) -> pl.DataFrame:
    joined = calls.join(found, on=_KEY, how="left", maintain_order="left", suffix=_FOUND)
    return joined.with_columns(
        pl.coalesce(PLACE, _ORDINAL).alias(PLACE),
        pl.col(RESTS_ON_RECORDED_CLOCKS) | pl.col(RESTS_ON_RECORDED_CLOCKS + _FOUND).fill_null(value=False),
    ).drop(_ORDINAL, RESTS_ON_RECORDED_CLOCKS + _FOUND)
