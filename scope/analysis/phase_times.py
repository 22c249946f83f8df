"""Host time of the user's phases in a trace: every instant counts for one phase.

On one thread that is the innermost. Of several threads that are in phases at once it is that of the thread which runs
the steps, since the step waits for it; where that one is in none, the phase that began last. So the times of phases
sum to the union of their spans, as those of live phases sum to the step, however many threads name phases.
"""

from __future__ import annotations

from heapq import heappop, heappush
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import polars as pl

from scope.trace.nesting import innermost, nest
from scope.trace.schema import Annotations, Steps

if TYPE_CHECKING:
    from scope.trace.model import RankTrace

OWN_NS: Final = "own_ns"
_NOT_A_PHASE: Final = r"^ProfilerStep#|^(nccl|rccl|hccl|xccl|gloo|mpi|ucc):"
_ROW: Final = "row"
_PIECE_END: Final = "piece_end_ns"
_STEP: Final = -1
"""Stands for the row of a phase where a step begins or ends."""


def find_phases(trace: RankTrace, *, within: pl.DataFrame | None = None) -> pl.DataFrame:
    """Return the user's ranges on the host with `own_ns`, the time in which each is the phase that counts.

    Neither steps nor what libraries of communication annotate are phases. Sorted by start; columns of `Annotations`.

    Args:
        trace: One rank.
        within: Steps in which alone time counts, a frame of `Steps`; None for all time. Half-open, as all spans.
    """
    name = pl.col(Annotations.name).cast(pl.String)
    phases = trace.annotations.filter(
        ~pl.col(Annotations.on_device),
        pl.col(Annotations.category).cast(pl.String) == "user_annotation",
        ~name.str.contains(_NOT_A_PHASE),
    )
    ordered = phases.with_columns(pl.col(Annotations.thread).fill_null(-1)).sort(
        Annotations.start_ns, Annotations.end_ns, descending=[False, True], maintain_order=True
    )
    pieces = _innermost_pieces(ordered)
    if within is None and ordered[Annotations.thread].n_unique() <= 1:
        lengths = pieces.group_by(_ROW).agg((pl.col(_PIECE_END) - pl.col(Annotations.start_ns)).sum().alias(OWN_NS))
    else:
        lengths = _lengths_of_one_at_a_time(pieces, trace.steps, within)
    rows = pl.DataFrame([pl.int_range(ordered.height, dtype=pl.UInt32, eager=True).alias(_ROW)])
    own = rows.join(lengths, on=_ROW, how="left", maintain_order="left")[OWN_NS].fill_null(0)
    return ordered.with_columns(own)


def _innermost_pieces(phases: pl.DataFrame) -> pl.DataFrame:
    """Return the pieces of time, thread by thread, in which a phase is the innermost of its thread."""
    threads, starts, ends = (phases[name] for name in (Annotations.thread, Annotations.start_ns, Annotations.end_ns))
    instants = pl.concat(
        [
            phases.select(Annotations.thread, Annotations.start_ns),
            phases.select(Annotations.thread, pl.col(Annotations.end_ns).alias(Annotations.start_ns)),
        ]
    )
    pieces = instants.unique().sort(Annotations.thread, Annotations.start_ns)
    ranges = pl.DataFrame([threads, starts, ends, nest(threads, starts, ends).parents])
    return pieces.with_columns(
        pl.col(Annotations.start_ns).shift(-1).over(Annotations.thread).alias(_PIECE_END),
        innermost(pieces, ranges).alias(_ROW),
    ).filter(pl.col(_ROW).is_not_null(), pl.col(_PIECE_END).is_not_null())


def _lengths_of_one_at_a_time(pieces: pl.DataFrame, steps: pl.DataFrame, within: pl.DataFrame | None) -> pl.DataFrame:
    """Return the time of each phase that counts, by its row."""
    main = set(steps[Steps.thread].to_list())
    edges: list[tuple[int, bool, int, int]] = []
    for thread, start, end, row in pieces.select(
        Annotations.thread, Annotations.start_ns, _PIECE_END, _ROW
    ).iter_rows():
        edges += [(start, True, thread, row), (end, False, thread, row)]
    if within is not None:
        for start, end in within.select(Steps.start_ns, Steps.end_ns).iter_rows():
            edges += [(start, True, 0, _STEP), (end, False, 0, _STEP)]
    own: dict[int, int] = {}
    running = _Running(main)
    num_steps = 1 if within is None else 0
    edges.sort()
    for (start, begins, thread, row), (end, *_) in pairwise([*edges, *edges[-1:]]):
        if row == _STEP:
            num_steps += 1 if begins else -1
        elif begins:
            running.begin(thread, row)
        else:
            running.end(thread)
        if num_steps and end > start and (chosen := running.chosen()) is not None:
            own[chosen] = own.get(chosen, 0) + end - start
    schema = {_ROW: pl.UInt32, OWN_NS: pl.Int64}
    return pl.DataFrame({_ROW: list(own), OWN_NS: list(own.values())}, schema=schema)


class _Running:
    """The innermost phase of each thread at an instant, the one that counts at hand however many threads there are.

    Args:
        main: Threads that run the steps.
    """

    def __init__(self, main: set[int]) -> None:
        self._main = main
        self._row_of: dict[int, int] = {}
        self._ranked: list[tuple[bool, int, int]] = []
        """A heap; those that ended stay in it until they come to its top."""

    def begin(self, thread: int, row: int) -> None:
        self._row_of[thread] = row
        heappush(self._ranked, (thread not in self._main, -row, thread))

    def end(self, thread: int) -> None:
        del self._row_of[thread]

    def chosen(self) -> int | None:
        """Return the row of the phase that counts; rows are in the order of starts."""
        while self._ranked:
            _, row, thread = self._ranked[0]
            if self._row_of.get(thread) == -row:
                return -row
            heappop(self._ranked)
        return None
