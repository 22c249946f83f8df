"""Message sizes and bandwidths of collectives, by the formulas of `scope.definitions`."""

from __future__ import annotations

from typing import Final

import polars as pl

from scope.analysis.collective_tables import CollectiveRows, MatchedCalls
from scope.definitions import bus_factor
from scope.trace.schema import CollectiveCalls
from scope.units import NS_PER_S

BANDWIDTH_REASON: Final = "bandwidth_reason"
RESIDUAL_NS: Final = "residual_ns"
"""Largest clock residual of the ranks of a collective."""

_OUTPUT_IS_FULL: Final = ("all_gather", "gather")
_SEEN_BY_RECEIVERS: Final = ("broadcast", "scatter", "send", "recv")
_NO_MESSAGE: Final = ("barrier", "unknown")
_FACTOR: Final = "bus_factor"
_SENT: Final = "largest_sent_bytes"
_IS_UNEVEN: Final = "is_uneven"


def with_bandwidth(collectives: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Add message bytes, algbw and busbw to collectives, and the reason where one of them is null.

    algbw = message / transfer; busbw = algbw x the factor of the operation. Of an uneven all_to_all the message is the
    largest input of a rank, and busbw the largest sum that one rank sends to others / transfer. No bandwidth is stated
    where the clocks agree less well than the transfer is long.

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
        pl.when(_IS_UNEVEN).then(sent).otherwise(algbw * pl.col(_FACTOR)).alias(CollectiveRows.busbw_bytes_per_s),
        pl.when(has_message & message.is_null())
        .then(pl.lit("the trace does not say its size"))
        .when(is_blurred)
        .then(pl.lit("the clocks agree less well than the transfer is long"))
        .when(pl.col(_IS_UNEVEN) & pl.col(_SENT).is_null())
        .then(pl.lit("the trace does not say what each rank sends to each"))
        .alias(BANDWIDTH_REASON),
    )


def _messages(calls: pl.DataFrame) -> pl.DataFrame:
    """Return the full message of each collective, and of uneven all_to_all the most that one rank sends to others."""
    operation = pl.col(CollectiveCalls.operation)
    put_in, received = pl.col(CollectiveCalls.in_bytes), pl.col(CollectiveCalls.out_bytes)
    size = (
        pl.when(operation.is_in(_NO_MESSAGE))
        .then(None)
        .when(operation.is_in(_OUTPUT_IS_FULL))
        .then(received)
        .when(operation.is_in(_SEEN_BY_RECEIVERS))
        .then(pl.max_horizontal(put_in, received))
        .otherwise(put_in)
    )
    is_uneven = (operation == "all_to_all") & (pl.col(CollectiveCalls.variant) == "uneven")
    return (
        calls.filter(pl.col(MatchedCalls.collective_id).is_not_null())
        .with_columns(size.alias(CollectiveRows.message_bytes), is_uneven.alias(_IS_UNEVEN))
        .group_by(MatchedCalls.collective_id)
        .agg(
            pl.col(CollectiveRows.message_bytes).max(),
            pl.col(_IS_UNEVEN).any(),
        )
        .join(_sent(calls.filter(is_uneven)), on=MatchedCalls.collective_id, how="left")
    )


def _sent(uneven: pl.DataFrame) -> pl.DataFrame:
    """Return the largest sum of bytes that one rank of each uneven all_to_all sends to others.

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
        .agg(pl.when(rows.sum() > 0).then(rows.filter(others).sum() * size // rows.sum()).otherwise(0).alias(_SENT))
        .group_by(MatchedCalls.collective_id)
        .agg(pl.col(_SENT).max())
    )


def _factors(collectives: pl.DataFrame) -> pl.DataFrame:
    """Return the bus factor of every operation and group size that occurs."""
    pairs = collectives.select(CollectiveRows.operation, CollectiveRows.num_ranks).unique()
    factors = [
        None if num_ranks is None else bus_factor(operation, num_ranks=num_ranks)
        for operation, num_ranks in pairs.iter_rows()
    ]
    return pairs.with_columns(pl.Series(_FACTOR, factors, dtype=pl.Float64))
