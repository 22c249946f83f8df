"""Bandwidth of the large calls among small ones: what calls recorded one by one tell where means do not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from scope.definitions import bus_factor, mean_message_bytes
from scope.frames.schema import Calls
from scope.structs import Record

if TYPE_CHECKING:
    from collections.abc import Mapping

LEAST_MESSAGE_BYTES: Final = 64 << 10
"""Bus bandwidth is given from messages of this size up: the time of smaller ones is latency, whatever the link."""
ROOTED: Final = ("broadcast", "reduce", "gather", "scatter")
"""Operations of which a rank may be done before the others."""

Kind = tuple[str | None, int | None, str, str, bool]
"""Axis, ranks of the group, operation, variant, and whether it is control traffic."""

_GROUP_SIZE: Final = "group_size"
_MESSAGE: Final = "full_message_bytes"
_DURATION: Final = "call_duration_ns"
_KIND: Final = (Calls.mesh_axis, _GROUP_SIZE, Calls.operation, Calls.variant, Calls.control)
_SHAPE: Final = (Calls.operation, _GROUP_SIZE, Calls.in_bytes, Calls.out_bytes)


class LargeCalls(Record, frozen=True, kw_only=True):
    """What the recorded calls of one kind tell."""

    num_recorded: int
    """Calls of all ranks in steps that were recorded one by one."""
    num_large: int
    """Those of `LEAST_MESSAGE_BYTES` and more whose completion was seen."""
    message_bytes: float | None
    """Mean full message of these."""
    busbw_at_least_bytes_per_s: float | None
    """Bus bandwidth of these over issued to completed."""


def find_large_calls(calls: pl.DataFrame) -> Mapping[Kind, LargeCalls]:
    """Return what the calls of each kind tell of those that are large.

    Calls before the first step (parameters that are handed round once) and after the last are left out: totals are of
    steps, and a bandwidth beside them has to be of the same calls.

    Args:
        calls: The table `Calls`.
    """
    named = calls.filter(pl.col(Calls.step).is_not_null()).select(
        pl.col(Calls.mesh_axis, Calls.operation, Calls.variant).cast(pl.String),
        pl.col(Calls.group_ranks).list.len().alias(_GROUP_SIZE),
        Calls.control,
        Calls.attempt,
        Calls.rank,
        Calls.in_bytes,
        Calls.out_bytes,
        (pl.col(Calls.completed_ns) - pl.col(Calls.issued_ns)).alias(_DURATION),
    )
    sized = named.join(_messages(named), on=_SHAPE, how="left", nulls_equal=True)
    is_large = (pl.col(_MESSAGE) >= LEAST_MESSAGE_BYTES) & (pl.col(_DURATION) > 0)
    by_rank = sized.group_by(*_KIND, Calls.attempt, Calls.rank).agg(
        pl.len().alias("num_recorded"),
        is_large.sum().alias("num_large"),
        pl.col(_MESSAGE).filter(is_large).sum(),
        pl.col(_DURATION).filter(is_large).sum(),
    )
    mean = pl.col(_DURATION) / pl.col("num_large")
    rows = by_rank.group_by(_KIND).agg(
        pl.col("num_recorded").sum(),
        pl.col("num_large").sum(),
        pl.col(_MESSAGE).sum(),
        pl.col(_DURATION).sum(),
        mean.filter(pl.col("num_large") > 0).max().alias("longest_ns"),
    )
    return {row[:5]: _large(row[:5], *row[5:]) for row in rows.iter_rows()}


def _messages(named: pl.DataFrame) -> pl.DataFrame:
    """Return the full message of every shape of call that occurs."""
    shapes = named.select(_SHAPE).unique()
    messages = [
        mean_message_bytes(operation, num_calls=1, in_bytes=given, out_bytes=got, num_ranks=size)
        for operation, size, given, got in shapes.iter_rows()
    ]
    return shapes.with_columns(pl.Series(_MESSAGE, messages, dtype=pl.Float64))


def _large(
    kind: Kind, num_recorded: int, num_large: int, message: float, duration_ns: int, longest_ns: float | None
) -> LargeCalls:
    _, size, operation, _, _ = kind
    factor = bus_factor(operation, num_ranks=size) if size else None
    mean = message / num_large if num_large else None
    busbw = None
    if mean is not None and longest_ns is not None and factor is not None:
        # A rank that only sends to the root is done before the others.
        busbw = factor * mean / (longest_ns if operation in ROOTED else duration_ns / num_large) * 1e9
    return LargeCalls(
        num_recorded=num_recorded, num_large=num_large, message_bytes=mean, busbw_at_least_bytes_per_s=busbw
    )
