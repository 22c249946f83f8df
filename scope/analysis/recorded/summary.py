"""The run as a whole: is it going, how fast against what it could be, and what is wasted on what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import polars as pl

from scope.analysis.recorded.steps import StepSummary, compute_phase_totals, summarize_steps
from scope.analysis.result import Distribution, Result
from scope.definitions import goodput_ratio, model_flops_utilization
from scope.frames.schema import Ranks, RankSteps
from scope.units import NS_PER_S

_RECENT_STEPS: Final = 50


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSummary(Result):
    """A run at a glance; its speed rests on the last 50 undisturbed steps of the last attempt."""

    attempt: int
    num_ranks: int
    world_size: int | None
    missing_ranks: tuple[int, ...]
    """Ranks of the last attempt that have recorded nothing."""
    last_step: int | None
    num_steps: int
    """Steps of all attempts, repeated ones counted again."""
    step_time: Distribution | None
    """Length of the slowest rank's step."""
    steps_per_s: float | None
    tokens_per_s: float | None
    mfu_ratio: float | None
    hfu_ratio: float | None
    goodput_ratio: float | None
    phases_ns: Mapping[str, int]
    """Host time of all ranks by phase over the whole run; sums to the length of all steps."""
    communication_wait_ns: int | None
    """Overlay on the phases: host time of all ranks blocked in communication."""
    gc_ns: int
    recorder_ns: int
    num_dropped: int


def summarize_run(ranks: pl.DataFrame, steps: pl.LazyFrame, *, now_ns: int | None = None) -> RunSummary:
    """Return the run at a glance.

    Args:
        ranks: Table `Ranks`.
        steps: Table `RankSteps`.
        now_ns: Time that goodput of a run that goes on is counted to; None for the end of its last step.
    """
    by_step = summarize_steps(steps)
    attempt = int(ranks[Ranks.attempt].max() or 0)  # type: ignore[arg-type]
    current = ranks.filter(pl.col(Ranks.attempt) == attempt)
    recent = _recent_steps(by_step, steps, attempt)
    absent: dict[str, str] = {}
    speed = _speed(recent, current, absent)
    totals = steps.select(
        pl.when(pl.col(RankSteps.communication_wait_ns).is_not_null().any())
        .then(pl.col(RankSteps.communication_wait_ns).sum())
        .alias("wait"),
        pl.col(RankSteps.gc_ns).sum(),
        pl.col(RankSteps.recorder_ns).sum(),
        pl.col(RankSteps.num_dropped).sum(),
    ).collect()
    if totals["wait"][0] is None:
        absent["communication_wait_ns"] = "no wait site was seen"
    goodput = _goodput(ranks, by_step, now_ns)
    if goodput is None:
        absent["goodput_ratio"] = "no step has ended yet"
    world_size = current[Ranks.world_size].max()
    if world_size is None:
        absent["world_size"] = "no rank has said it yet"
    if by_step.is_empty():
        absent["last_step"] = "no step has ended yet"
    return RunSummary(
        absent=absent,
        attempt=attempt,
        num_ranks=current.height,
        world_size=None if world_size is None else int(world_size),  # type: ignore[arg-type]
        missing_ranks=_missing(current, world_size),
        last_step=None if by_step.is_empty() else int(by_step[StepSummary.step][-1]),
        num_steps=int(by_step[StepSummary.num_steps].sum()),
        goodput_ratio=goodput,
        phases_ns=compute_phase_totals(steps),
        communication_wait_ns=totals["wait"][0],
        gc_ns=int(totals[RankSteps.gc_ns][0]),
        recorder_ns=int(totals[RankSteps.recorder_ns][0]),
        num_dropped=int(totals[RankSteps.num_dropped][0]),
        **speed,
    )
