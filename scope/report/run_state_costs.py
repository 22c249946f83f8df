"""What costs a recorded run most of its steps: input, the wait for communication."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import polars as pl

from scope.frames.schema import RankSteps
from scope.report.findings.time import EXPOSED_SHARE, INPUT_SHARE
from scope.units import format_duration, format_ratio

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_RECENT_STEPS: Final = 50
_MIN_STEPS: Final = 10
_LIMITS: Final = {RankSteps.input_ns: INPUT_SHARE, RankSteps.communication_wait_ns: EXPOSED_SHARE}
"""From which share of step time on it is told, as in findings on traces."""
_WORDS: Final = {
    "input": (
        "input takes",
        "more DataLoader workers (num_workers), prefetch_factor above 2, or faster storage",
    ),
    "communication_wait": (
        "waiting for communication takes",
        "scope stragglers on a profiler window tells late ranks from slow links",
    ),
}


def find_costs(steps: pl.LazyFrame) -> list[dict[str, Any]]:
    """Return what takes notably much of the newest steps, the largest share first.

    Each is the host's time of all ranks over the length of their steps: in the phase `input` at least 3 %, waiting for
    communication at least 5 %, as findings on traces have it. The first step of each rank, in which a loader starts its
    workers, is left out, as are steps that were disturbed or folded. Fewer than 10 steps tell nothing.

    Args:
        steps: Table `RankSteps` of one attempt.
    """
    usable = steps.filter(
        pl.col(RankSteps.disturbed).is_null(),
        pl.col(RankSteps.num_steps) == 1,
        pl.col(RankSteps.step) > pl.col(RankSteps.step).min().over(RankSteps.rank),
    ).filter(pl.col(RankSteps.step) > pl.col(RankSteps.step).max() - _RECENT_STEPS)
    sums = usable.select(
        pl.col(RankSteps.step).n_unique().alias("num_steps"),
        pl.len().alias("num_rows"),
        pl.col(RankSteps.duration_ns).sum(),
        pl.col(RankSteps.device_ns).is_not_null().any().alias("has_devices"),
        *(pl.col(column).sum() for column in _LIMITS),
    ).collect()
    row = sums.row(0, named=True)
    total = row[RankSteps.duration_ns]
    if row["num_steps"] < _MIN_STEPS or not total:
        return []
    found = [
        {
            "cost": str(column).removesuffix("_ns"),
            "share_ratio": row[column] / total,
            "mean_ns": row[column] // row["num_rows"],
            "num_steps": row["num_steps"],
            "has_devices": row["has_devices"],
        }
        for column, limit in _LIMITS.items()
        if row[column] >= limit * total
    ]
    return sorted(found, key=lambda each: -each["share_ratio"])


def cost_lines(costs: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Return a sentence without a full stop on each of what `find_costs` returns."""
    for each in costs:
        title, action = _WORDS[each["cost"]]
        share = f"{format_ratio(each['share_ratio'])} of the last {each['num_steps']} steps"
        # A device may have work queued while its host fetches the next batch.
        device = "; a profiler window tells whether devices wait meanwhile" if each["has_devices"] else ""
        yield f"{title} {share}, {format_duration(each['mean_ns'])} a step and rank{device}: {action}"
