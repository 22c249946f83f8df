"""What `scope show` says of checkpoints: what was written, how fast, by whom it was held up, and which saves failed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import polars as pl

from scope.frames.schema import Events
from scope.report.sections.quality import format_ranks
from scope.report.standing import count
from scope.units import format_bandwidth, format_bytes, format_duration

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_ONE: Final = (Events.attempt, Events.step, "asynchronous")
"""What events of one checkpoint have in common; several of a step are one as well."""


def summarize_checkpoints(events: pl.DataFrame) -> pl.DataFrame:
    """Return one row a checkpoint over all ranks that wrote it in the same step: bytes, slowest rank, spread.

    `spread_ns` is the longest less the shortest time of a rank, null where one alone wrote; `bytes_per_s` all bytes /
    the longest.
    """
    return (
        _of_kind(events, "checkpoint", bytes=pl.Int64)
        .group_by(*_ONE)
        .agg(
            pl.col(Events.rank).n_unique().alias("num_ranks"),
            pl.when(pl.col("bytes").is_not_null().all()).then(pl.col("bytes").sum()).alias("bytes"),
            pl.col(Events.duration_ns).max().alias("longest_ns"),
            pl.when(pl.col(Events.rank).n_unique() > 1)
            .then(pl.col(Events.duration_ns).max() - pl.col(Events.duration_ns).min())
            .alias("spread_ns"),
            pl.col(Events.rank).sort_by(Events.duration_ns).last().alias("slowest_rank"),
        )
        .with_columns((pl.col("bytes") * 1e9 / pl.col("longest_ns")).alias("bytes_per_s"))
        .sort(*_ONE)
    )


def summarize_failed_checkpoints(events: pl.DataFrame) -> pl.DataFrame:
    """Return one row a checkpoint that failed, over all ranks in the same step: the ranks and types of exceptions."""
    return (
        _of_kind(events, "checkpoint_failed", error=pl.String)
        .group_by(*_ONE)
        .agg(
            pl.col(Events.rank).unique().sort().alias("ranks"),
            pl.col("error").unique().sort().alias("errors"),
        )
        .sort(*_ONE)
    )


def _of_kind(events: pl.DataFrame, kind: str, **detail: type[pl.DataType]) -> pl.DataFrame:
    """Return the events of a kind with columns of their details."""
    decoded = pl.col(Events.detail).str.json_decode(pl.Struct({"asynchronous": pl.Boolean, **detail}))
    return events.filter(pl.col(Events.kind) == kind).with_columns(decoded.struct.unnest())


def checkpoint_lines(written: Sequence[Mapping[str, Any]], failed: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Say how many there were, and of the last what it took."""
    if written:
        last = written[-1]
        size = format_bytes(last["bytes"]) if last["bytes"] is not None else "size unknown"
        rate = f" at {format_bandwidth(last['bytes_per_s'])}" if last["bytes_per_s"] is not None else ""
        spread = f", spread {format_duration(last['spread_ns'])}" if last["spread_ns"] is not None else ""
        yield (
            f"{count(len(written), 'checkpoint')}; the last in step {last['step']}: {size}{rate}, "
            f"{format_duration(last['longest_ns'])} on rank {last['slowest_rank']}{spread}"
        )
    if failed:
        last = failed[-1]
        yield (
            f"{count(len(failed), 'checkpoint')} failed; the last in step {last['step']}: "
            f"{', '.join(last['errors'])} on rank{'s' * (len(last['ranks']) > 1)} {format_ranks(tuple(last['ranks']))}"
        )
