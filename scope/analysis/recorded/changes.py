"""What changed between two sets of steps: two runs, or one run before and after a step."""

from __future__ import annotations

import polars as pl

from scope.frames.schema import PHASE_COLUMNS, RankSteps
from scope.trace.columns import Column, Table

PHASE = "phase"
MEAN_NS = "mean_ns"


class PhaseChanges(Table):
    """One phase a row, the largest change first; phases that neither side has are left out."""

    phase = Column("phase", pl.String, "phase")
    before_ns = Column("before_ns", pl.Int64, "mean host time a step of a rank in the base, to the nearest ns")
    after_ns = Column("after_ns", pl.Int64, "the same in what is judged")
    difference_ns = Column("difference_ns", pl.Int64, "after less before")


def compare_phases(before: pl.LazyFrame, after: pl.LazyFrame) -> pl.DataFrame:
    """Return how the mean host time a step of each phase changed (table `PhaseChanges`).

    Args:
        before: Table `RankSteps`, the base; disturbed steps (captures, the FLOP count) are left out.
        after: The same of what is judged.

    Returns:
        Nothing when one of the two has no undisturbed step.
    """
    both = _means(before).rename({MEAN_NS: PhaseChanges.before_ns})
    both = both.join(_means(after).rename({MEAN_NS: PhaseChanges.after_ns}), on=PHASE)
    known = both.drop_nulls().filter((pl.col(PhaseChanges.before_ns) > 0) | (pl.col(PhaseChanges.after_ns) > 0))
    difference = pl.col(PhaseChanges.after_ns) - pl.col(PhaseChanges.before_ns)
    table = known.with_columns(difference.alias(PhaseChanges.difference_ns)).sort(
        difference.abs(), descending=True, maintain_order=True
    )
    return PhaseChanges.check(table.select(*PhaseChanges.columns()))


def _means(steps: pl.LazyFrame) -> pl.DataFrame:
    usable = steps.filter(pl.col(RankSteps.disturbed).is_null())
    num_steps = pl.col(RankSteps.num_steps).sum()
    means = (
        pl.when(num_steps > 0).then((pl.col(phase).sum() / num_steps).round().cast(pl.Int64)).alias(phase)
        for phase in PHASE_COLUMNS
    )
    return (
        usable.select(*means)
        .collect()
        .unpivot(variable_name=PHASE, value_name=MEAN_NS)
        .with_columns(pl.col(PHASE).str.strip_suffix("_ns"), pl.col(MEAN_NS).cast(pl.Int64))
    )
