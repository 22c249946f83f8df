"""Which forward operator each operator of backward belongs to: by arrows, else by autograd's numbers."""

from __future__ import annotations

from collections import Counter
from itertools import groupby
from typing import TYPE_CHECKING, Final

import polars as pl

from scope.trace.raw import RawFlows, RawOps, RawSpans
from scope.trace.rawspans import NO_ROW

if TYPE_CHECKING:
    from collections.abc import Iterable

NUMBERED: Final = (RawOps.sequence_number, RawOps.forward_thread, RawSpans.thread, RawSpans.start_ns)
"""The columns that number operators."""

_ROW: Final = "row"
_FORWARD_ROW: Final = "forward_row"
_BEGUN: Final = "forward_start_ns"
_PAIR: Final = (RawOps.forward_thread, RawSpans.thread)
_MOST_THREADS: Final = 64
"""A number that more threads than these count says nothing, and would be compared with each of them."""


def forward_ops(raw: pl.DataFrame, flows: pl.DataFrame) -> pl.Series:
    """Return the row of the forward operator of each operator of backward.

    Args:
        raw: Operators, by their starts, those that begin together the longer first.
        flows: Ends of arrows.
    """
    pairs, _ = _numbered_pairs(raw)
    pairs.update(_flow_pairs(raw, flows))
    if not pairs:
        return pl.Series([None] * raw.height, dtype=NO_ROW)
    table = pl.DataFrame(
        {_ROW: list(pairs), _FORWARD_ROW: list(pairs.values())}, schema={_ROW: NO_ROW, _FORWARD_ROW: NO_ROW}
    )
    rows = pl.DataFrame({_ROW: pl.int_range(raw.height, dtype=NO_ROW, eager=True)})
    return rows.join(table, on=_ROW, how="left", maintain_order="left")[_FORWARD_ROW]


def are_doubtful(numbered: pl.DataFrame) -> bool:
    """Say whether numbers alone leave open to which forward operator some of backward belong.

    Args:
        numbered: Columns `NUMBERED` of the operators.
    """
    _, is_doubtful = _numbered_pairs(numbered)
    return is_doubtful


def _numbered_pairs(raw: pl.DataFrame) -> tuple[dict[int, int], bool]:
    """Match backward to forward operators by the number and the thread that autograd gave them.

    Every thread counts for itself, and autograd names the forward's by a number that no other record bears. Which
    thread it is, is known by the operators of backward whose numbers it has.

    Returns:
        Row of the forward operator by row of the one of backward; and whether some may belong to several.
    """
    if raw.height in (raw[RawOps.sequence_number].null_count(), raw[RawOps.forward_thread].null_count()):
        return {}, False
    numbered = raw.select(NUMBERED).with_row_index(_ROW).filter(pl.col(RawOps.sequence_number) >= 0)
    is_backward = (pl.col(RawOps.forward_thread) > 0).fill_null(value=False)
    # Views and other operators share the next number with the one that is recorded: the last of them is it.
    forward = (
        numbered.filter(~is_backward)
        .group_by(RawOps.sequence_number, RawSpans.thread)
        .agg(pl.col(_ROW).last().alias(_FORWARD_ROW), pl.col(RawSpans.start_ns).min().alias(_BEGUN))
        .filter(pl.len().over(RawOps.sequence_number) <= _MOST_THREADS)
    )
    backward = numbered.filter(is_backward).drop(RawSpans.thread)
    both = backward.join(forward, on=RawOps.sequence_number).filter(pl.col(_BEGUN) <= pl.col(RawSpans.start_ns))
    votes = both.group_by(_PAIR).len()
    pairs, is_doubtful = _likeliest(votes.iter_rows())
    chosen = pl.DataFrame(pairs, schema=dict.fromkeys(map(str, _PAIR), pl.Int64), orient="row")
    both = both.join(chosen, on=_PAIR, how="semi")
    return dict(zip(both[_ROW].to_list(), both[_FORWARD_ROW].to_list(), strict=True)), is_doubtful


def _likeliest(votes: Iterable[tuple[int, int, int]]) -> tuple[list[tuple[int, int]], bool]:
    """Pair autograd's numbers of threads with threads, each with one at most, where most operators speak for it.

    Args:
        votes: Autograd's number of a thread, a thread, and how many operators speak for the two being one.

    Returns:
        The pairs; and whether as many operators spoke for several, of which none is then among them.
    """
    pairs: list[tuple[int, int]] = []
    numbers: set[int] = set()
    threads: set[int] = set()
    is_doubtful = False
    for _, tied in groupby(sorted(votes, key=_num_votes, reverse=True), key=_num_votes):
        free = [(number, thread) for number, thread, _ in tied if number not in numbers and thread not in threads]
        of_numbers, of_threads = Counter(number for number, _ in free), Counter(thread for _, thread in free)
        sure = [(number, thread) for number, thread in free if of_numbers[number] == of_threads[thread] == 1]
        is_doubtful = is_doubtful or len(sure) < len(free)
        pairs += sure
        numbers |= of_numbers.keys()
        threads |= of_threads.keys()
    return pairs, is_doubtful


def _num_votes(vote: tuple[int, int, int]) -> int:
    return vote[2]


def _flow_pairs(raw: pl.DataFrame, flows: pl.DataFrame) -> dict[int, int]:
    """Match the ends of forward-to-backward arrows to the operators that begin where they stand."""
    if not flows[RawFlows.is_backward].any():
        return {}
    flows = flows.filter(pl.col(RawFlows.is_backward))
    ops = raw.select(RawSpans.thread, pl.col(RawSpans.start_ns).alias(RawFlows.time_ns)).with_row_index(_ROW)
    ops = ops.unique([RawSpans.thread, RawFlows.time_ns], keep="last", maintain_order=True)
    placed = flows.join(ops, on=[RawFlows.thread, RawFlows.time_ns], how="inner").drop_nulls(RawFlows.id)
    starts = placed.filter(pl.col(RawFlows.is_start)).unique(RawFlows.id, keep="first", maintain_order=True)
    ends = placed.filter(~pl.col(RawFlows.is_start)).unique(RawFlows.id, keep="first", maintain_order=True)
    both = ends.join(starts, on=RawFlows.id, suffix="_forward")
    return dict(zip(both[_ROW].to_list(), both[f"{_ROW}_forward"].to_list(), strict=True))
