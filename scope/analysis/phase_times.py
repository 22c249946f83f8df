"""Host time of the user's phases in a trace: every instant counts for the innermost phase of its thread.

So the times of a thread's phases sum to the union of their spans, as those of live phases sum to the step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from scope.trace.nesting import innermost, nest
from scope.trace.schema import Annotations

if TYPE_CHECKING:
    from scope.trace.model import RankTrace

OWN_NS: Final = "own_ns"
_NOT_A_PHASE: Final = r"^ProfilerStep#|^(nccl|rccl|hccl|xccl|gloo|mpi|ucc):"
_ROW: Final = "row"
_PIECE_END: Final = "piece_end_ns"


def find_phases(trace: RankTrace) -> pl.DataFrame:
    """Return the user's ranges on the host with `own_ns`, their time without that of the phases inside them.

    Neither steps nor what libraries of communication annotate are phases. Sorted by start; columns of `Annotations`.
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
    return ordered.with_columns(_own_lengths(ordered))


def _own_lengths(phases: pl.DataFrame) -> pl.Series:
    """Return the time for which each phase is the innermost of its thread."""
    threads, starts, ends = (phases[name] for name in (Annotations.thread, Annotations.start_ns, Annotations.end_ns))
    instants = pl.concat(
        [
            phases.select(Annotations.thread, Annotations.start_ns),
            phases.select(Annotations.thread, pl.col(Annotations.end_ns).alias(Annotations.start_ns)),
        ]
    )
    pieces = instants.unique().sort(Annotations.thread, Annotations.start_ns)
    ranges = pl.DataFrame([threads, starts, ends, nest(threads, starts, ends).parents])
    lengths = (
        pieces.with_columns(
            pl.col(Annotations.start_ns).shift(-1).over(Annotations.thread).alias(_PIECE_END),
            innermost(pieces, ranges).alias(_ROW),
        )
        .filter(pl.col(_ROW).is_not_null(), pl.col(_PIECE_END).is_not_null())
        .group_by(_ROW)
        .agg((pl.col(_PIECE_END) - pl.col(Annotations.start_ns)).sum().alias(OWN_NS))
    )
    rows = pl.DataFrame([pl.int_range(phases.height, dtype=pl.UInt32, eager=True).alias(_ROW)])
    return rows.join(lengths, on=_ROW, how="left", maintain_order="left")[OWN_NS].fill_null(0)
