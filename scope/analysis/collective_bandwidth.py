"""Message sizes and bandwidths of collectives, by the formulas of `scope.definitions`."""

from __future__ import annotations

from typing import Final

import polars as pl

from scope.analysis.collective_tables import CollectiveRows, MatchedCalls
from scope.analysis.contradictions import CONTRADICTION, IS_PARTED, PARTED_BYTES, TYPES_DIFFER, contradictions
from scope.definitions import bus_factor
from scope.trace.schema import CollectiveCalls
from scope.units import NS_PER_S

BANDWIDTH_REASON: Final = "bandwidth_reason"
RESIDUAL_NS: Final = "residual_ns"
"""Largest clock residual of the ranks of a collective."""

_OUTPUT_IS_FULL: Final = ("all_gather", "gather")
_SEEN_BY_RECEIVERS: Final = ("broadcast", "send", "recv")
_NO_MESSAGE: Final = ("barrier", "unknown")
_FACTOR: Final = "bus_factor"
_SENT: Final = "largest_sent_bytes"
_SENDER_INPUT: Final = "input_of_largest_sender_bytes"
_IS_UNEVEN: Final = "is_uneven"
_IS_EQUAL: Final = "is_equal_on_all_ranks"
_RANKS: Final = "ranks_seen"
_RANKS_KNOWN: Final = "ranks_of_known_splits"


def with_bandwidth(collectives: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Add message bytes, algbw and busbw to collectives, and the reason where one of them is null.

    algbw = message / transfer; busbw = algbw x the factor of the operation. Of an all_to_all whose ranks put in or get
    different sizes (it is uneven, whatever its name says) busbw is the
    largest sum that one rank sends to others / transfer, and the message is the whole input of that rank (the larger of
    equals). Where the splits of a rank are unknown neither is known, unless all put in as much. The message of an
    all_gather or reduce_scatter whose ranks give parts of different sizes is the sum of all, and it has no busbw. Where
    ranks contradict each other (`scope.analysis.contradictions`) it is unknown, and so is a type that they do not
    agree on. No bandwidth is stated where the clocks agree less well than the transfer is long.

    Args:
        collectives: One row per collective with transfer, ranks and `RESIDUAL_NS`.
        calls: The calls with their sizes and `collective_id`.
    """
    joined = collectives.join(
        _messages(calls), left_on=CollectiveRows.collective_id, right_on=MatchedCalls.collective_id, how="left"
    ).join(_factors(collectives), on=(CollectiveRows.operation, CollectiveRows.num_ranks), how="left", nulls_equal=True)
    transfer, message = pl.col(CollectiveRows.transfer_ns), pl.col(CollectiveRows.message_bytes)
    is_blurred = pl.col(RESIDUAL_NS).fill_null(0) > transfer
    algbw = pl.when(~is_blurred).then(message * float(NS_PER_S) / transfer)
    sent = pl.when(~is_blurred).then(pl.col(_SENT) * float(NS_PER_S) / transfer)
    has_message = ~pl.col(CollectiveRows.operation).is_in(_NO_MESSAGE)
    return joined.sort(CollectiveRows.collective_id).with_columns(
        algbw.alias(CollectiveRows.algbw_bytes_per_s),
        pl.when(_IS_UNEVEN)
        .then(sent)
        .when(~pl.col(IS_PARTED))
        .then(algbw * pl.col(_FACTOR))
        .alias(CollectiveRows.busbw_bytes_per_s),
        pl.when(pl.col(CONTRADICTION).ne_missing(TYPES_DIFFER)).then(CollectiveRows.dtype).alias(CollectiveRows.dtype),
        pl.when(pl.col(CONTRADICTION).is_not_null())
        .then(CONTRADICTION)
        .when(pl.col(_IS_UNEVEN) & pl.col(_SENT).is_null())
        .then(pl.lit("the trace does not say what each rank sends to each"))
        .when(IS_PARTED)
        .then(pl.lit("parts of different sizes have no bus factor"))
        .when(has_message & message.is_null())
        .then(pl.lit("the trace says no usable size"))
        .when(is_blurred)
        .then(pl.lit("the clocks agree less well than the transfer is long"))
        .alias(BANDWIDTH_REASON),
    )


def _messages(calls: pl.DataFrame) -> pl.DataFrame:
    """Return the full message of each collective, and of an uneven one the most that one rank sends to others."""
    message = pl.col(CollectiveRows.message_bytes)
    matched = calls.filter(pl.col(MatchedCalls.collective_id).is_not_null()).with_columns(
        full_message().alias(CollectiveRows.message_bytes), _is_uneven().alias(_IS_UNEVEN)
    )
    return (
        matched.group_by(MatchedCalls.collective_id)
        .agg(
            message.max(),
            (message.min() == message.max()).alias(_IS_EQUAL),
            pl.col(_IS_UNEVEN).any(),
            pl.col(MatchedCalls.rank).n_unique().alias(_RANKS),
        )
        .join(_sent(matched.filter(_IS_UNEVEN)), on=MatchedCalls.collective_id, how="left")
        .join(contradictions(matched), on=MatchedCalls.collective_id, how="left")
        # A rank whose splits are unknown may be the one that sends most.
        .with_columns(
            pl.when((pl.col(_RANKS_KNOWN) == pl.col(_RANKS)) & pl.col(CONTRADICTION).is_null()).then(name).alias(name)
            for name in (_SENT, _SENDER_INPUT)
        )
        .with_columns(
            pl.when(pl.col(CONTRADICTION).is_not_null())
            .then(None)
            .when(IS_PARTED)
            .then(PARTED_BYTES)
            .when(~pl.col(_IS_UNEVEN) | pl.col(_IS_EQUAL))
            .then(message)
            .otherwise(_SENDER_INPUT)
            .alias(CollectiveRows.message_bytes)
        )
    )


def full_message() -> pl.Expr:
    """Return the full message of a call, of the columns of `CollectiveCalls`; null where the call does not tell it."""
    operation = pl.col(CollectiveCalls.operation)
    put_in, received = pl.col(CollectiveCalls.in_bytes), pl.col(CollectiveCalls.out_bytes)
    return (
        pl.when(operation.is_in(_NO_MESSAGE))
        .then(None)
        .when(operation.is_in(_OUTPUT_IS_FULL))
        .then(received)
        .when(operation.is_in(_SEEN_BY_RECEIVERS))
        .then(pl.max_horizontal(put_in, received))
        .otherwise(put_in)
    )


def _is_uneven() -> pl.Expr:
    """Return whether a collective is an uneven all_to_all: a call says so, or the sizes of its calls show it."""
    put_in, received = pl.col(CollectiveCalls.in_bytes), pl.col(CollectiveCalls.out_bytes)
    differ = (put_in != received) | (put_in.min() != put_in.max()) | (received.min() != received.max())
    says = (pl.col(CollectiveCalls.variant) == "uneven") | differ.fill_null(value=False)
    return (pl.col(CollectiveCalls.operation) == "all_to_all") & says.any().over(MatchedCalls.collective_id)


def _sent(uneven: pl.DataFrame) -> pl.DataFrame:
    """Return the largest sum of bytes that one rank of each uneven all_to_all sends to others, and that rank's input.

    Splits count rows, of as many bytes as the input has for each of them.
    """
    split, ranks = pl.col(CollectiveCalls.in_split), pl.col(CollectiveCalls.group_ranks)
    parts = uneven.filter(ranks.list.len() == split.list.len()).select(
        MatchedCalls.collective_id, MatchedCalls.rank, ranks, split, CollectiveCalls.in_bytes
    )
    others = pl.col(CollectiveCalls.group_ranks) != pl.col(MatchedCalls.rank)
    size, rows = pl.col(CollectiveCalls.in_bytes).first(), pl.col(CollectiveCalls.in_split)
    return (
        parts.explode(CollectiveCalls.group_ranks, CollectiveCalls.in_split)
        .group_by(MatchedCalls.collective_id, MatchedCalls.rank)
        .agg(
            pl.when(rows.sum() > 0).then(rows.filter(others).sum() * size // rows.sum()).otherwise(0).alias(_SENT),
            size.alias(_SENDER_INPUT),
        )
        .group_by(MatchedCalls.collective_id)
        .agg(
            pl.col(_SENT).max(),
            pl.col(_SENDER_INPUT).filter(pl.col(_SENT) == pl.col(_SENT).max()).max(),
            pl.len().alias(_RANKS_KNOWN),
        )
    )


def _factors(collectives: pl.DataFrame) -> pl.DataFrame:
    """Return the bus factor of every operation and group size that occurs."""
    pairs = collectives.select(CollectiveRows.operation, CollectiveRows.num_ranks).unique()
    factors = [
        None if num_ranks is None else bus_factor(operation, num_ranks=num_ranks)
        for operation, num_ranks in pairs.iter_rows()
    ]
    return pairs.with_columns(pl.Series(_FACTOR, factors, dtype=pl.Float64))
