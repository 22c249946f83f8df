"""Collectives of which ranks say what cannot be: other types of elements, other sizes, or more received than given.

What libraries allow is no contradiction: parts of an all_to_all differ from rank to rank, and so may those of an
all_gather and a reduce_scatter of lists, of which each rank says its own part times the number of ranks. Messages
between two ranks are matched by their sizes, so that those cannot differ.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from scope.analysis.collective_tables import MatchedCalls
from scope.cost.dtypes import normalise_dtype
from scope.trace.schema import CollectiveCalls

TYPES_DIFFER: Final = "its ranks say different types of elements"
SIZES_DIFFER: Final = "its ranks say different sizes"
PARTS_DIFFER: Final = "its ranks do not get what others say they give"
CONTRADICTIONS: Final = (TYPES_DIFFER, SIZES_DIFFER, PARTS_DIFFER)
"""Reasons of a collective that has neither a size nor a bandwidth, the first that holds."""

CONTRADICTION: Final = "contradiction"
PARTED_BYTES: Final = "bytes_of_all_parts"
"""The sum of what the ranks give or get, where their parts differ and all are known."""
IS_PARTED: Final = "is_of_different_parts"

_WITHOUT_MESSAGE: Final = ("barrier", "unknown")
_INPUT_IS_COMMON: Final = ("all_reduce", "reduce", "gather")
_TYPE: Final = "element_type"
_COMMON: Final = "bytes_that_all_say"
_IS_PRODUCT: Final = "is_part_times_ranks"
_PART: Final = "part_bytes"
_PEER: Final = "peer_rank"
_GIVEN: Final = "given_bytes"
_ROOT_IS_WRONG: Final = "root_has_another_number_of_parts"


def contradictions(calls: pl.DataFrame) -> pl.DataFrame:
    """Return what is wrong with each collective, and of those of different parts the sum of the parts.

    Args:
        calls: The columns of `CollectiveCalls`, with collective, rank and role of each call.

    Returns:
        `collective_id`, `CONTRADICTION` (null where there is none), `IS_PARTED` and `PARTED_BYTES`.
    """
    operation = pl.col(CollectiveCalls.operation)
    put_in, received = pl.col(CollectiveCalls.in_bytes), pl.col(CollectiveCalls.out_bytes)
    num_ranks = pl.col(CollectiveCalls.group_size).cast(pl.Int64)
    gathers = operation == "all_gather"
    reduces = operation == "reduce_scatter"
    part = pl.when(gathers).then(put_in).when(reduces).then(received)
    whole = pl.when(gathers).then(received).when(reduces).then(put_in)
    told = calls.with_columns(
        pl.when(~operation.is_in(_WITHOUT_MESSAGE)).then(_element_type(calls)).alias(_TYPE),
        pl.when(operation.is_in(_INPUT_IS_COMMON))
        .then(put_in)
        .when(operation == "broadcast")
        .then(pl.max_horizontal(put_in, received))
        .when(operation == "scatter")
        .then(received)
        .otherwise(whole)
        .alias(_COMMON),
        part.alias(_PART),
        (whole == part * num_ranks).fill_null(value=False).alias(_IS_PRODUCT),
        _root_is_wrong(num_ranks).alias(_ROOT_IS_WRONG),
    )
    differ = pl.col(_COMMON).min() != pl.col(_COMMON).max()
    is_parted = differ.fill_null(value=False) & pl.col(_IS_PRODUCT).all()
    is_whole = (pl.col(MatchedCalls.rank).n_unique() == pl.col(CollectiveCalls.group_size).first()) & (
        pl.col(_PART).null_count() == 0
    )
    found = told.group_by(MatchedCalls.collective_id).agg(
        is_parted.alias(IS_PARTED),
        pl.when(is_parted & is_whole).then(pl.col(_PART).sum()).alias(PARTED_BYTES),
        pl.when(pl.col(_TYPE).drop_nulls().n_unique() > 1)
        .then(pl.lit(TYPES_DIFFER))
        .when((differ & ~is_parted).fill_null(value=False))
        .then(pl.lit(SIZES_DIFFER))
        .when(pl.col(_ROOT_IS_WRONG).any() | _is_unlike_given())
        .then(pl.lit(PARTS_DIFFER))
        .alias(CONTRADICTION),
    )
    wrong = _exchanges_that_disagree(calls)
    return found.with_columns(
        pl.when(pl.col(CONTRADICTION).is_null() & pl.col(MatchedCalls.collective_id).is_in(wrong.implode()))
        .then(pl.lit(PARTS_DIFFER))
        .otherwise(CONTRADICTION)
        .alias(CONTRADICTION)
    )


def _element_type(calls: pl.DataFrame) -> pl.Expr:
    """Return the one name of each call's type, however it is spelt; null where it is not said or not known."""
    names = calls[CollectiveCalls.dtype].unique().drop_nulls().cast(pl.String)
    normalised = {name: normalise_dtype(name) for name in names}
    text = pl.col(CollectiveCalls.dtype).cast(pl.String)
    return text.replace_strict(normalised, default=None, return_dtype=pl.String)


def _root_is_wrong(num_ranks: pl.Expr) -> pl.Expr:
    """Return whether the root of a gather or scatter has another number of parts than there are ranks."""
    operation = pl.col(CollectiveCalls.operation)
    put_in, received = pl.col(CollectiveCalls.in_bytes), pl.col(CollectiveCalls.out_bytes)
    product = pl.when(operation == "gather").then(put_in * num_ranks != received)
    product = product.when(operation == "scatter").then(received * num_ranks != put_in)
    return (pl.col(MatchedCalls.is_root) & product).fill_null(value=False)


def _is_unlike_given() -> pl.Expr:
    """Return, of the calls of one all_to_all, whether all ranks together get other than they give."""
    put_in, received = pl.col(CollectiveCalls.in_bytes), pl.col(CollectiveCalls.out_bytes)
    is_known = (
        (pl.col(CollectiveCalls.operation) == "all_to_all").all()
        & (put_in.null_count() + received.null_count() == 0)
        & (pl.col(MatchedCalls.rank).n_unique() == pl.col(CollectiveCalls.group_size).first())
    )
    return (is_known & (put_in.sum() != received.sum())).fill_null(value=False)


def _exchanges_that_disagree(calls: pl.DataFrame) -> pl.Series:
    """Return the all_to_all of which a rank says another size of what it gets from one than that one says it gives."""
    uneven = calls.filter(pl.col(CollectiveCalls.operation) == "all_to_all")
    given = _parts(uneven, CollectiveCalls.in_split, CollectiveCalls.in_bytes).rename({_PART: _GIVEN})
    got = _parts(uneven, CollectiveCalls.out_split, CollectiveCalls.out_bytes).rename(
        {MatchedCalls.rank: _PEER, _PEER: MatchedCalls.rank}
    )
    both = given.join(got, on=(MatchedCalls.collective_id, MatchedCalls.rank, _PEER))
    return both.filter(pl.col(_GIVEN) != pl.col(_PART))[MatchedCalls.collective_id].unique()


def _parts(calls: pl.DataFrame, split: str, size: str) -> pl.DataFrame:
    """Return the bytes that each rank's split says of each peer; splits count rows of as many bytes each."""
    rows, ranks = pl.col(split), pl.col(CollectiveCalls.group_ranks)
    total = rows.list.sum()
    is_told = (rows.list.len() == ranks.list.len()) & (total > 0) & (pl.col(size) % total == 0)
    return (
        calls.filter(is_told)
        .select(
            MatchedCalls.collective_id,
            MatchedCalls.rank,
            ranks.alias(_PEER),
            rows.alias(_PART),
            (pl.col(size) // total).alias(size),
        )
        .explode(_PEER, _PART)
        .select(MatchedCalls.collective_id, MatchedCalls.rank, _PEER, pl.col(_PART) * pl.col(size))
    )
