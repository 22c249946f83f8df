"""What costs a recorded run most of its steps: input, the wait for communication."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from scope.analysis.doctor.diagnosis import describe_ranks
from scope.analysis.recorded import MIN_COST_STEPS, compute_input_cost, keep_usual_steps, peer_sets
from scope.frames.schema import RankSteps
from scope.report.findings.time import EXPOSED_SHARE, INPUT_SHARE
from scope.units import format_duration, format_ratio

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from scope.analysis.recorded import Watched

_TITLES: Final = {"input": "input takes", "communication_wait": "waiting for communication takes"}
_FASTER_INPUT: Final = "more DataLoader workers (num_workers), prefetch_factor above 2, or faster storage"
_LATE_OR_LINKS: Final = "tells late ranks from slow links"


def find_costs(watched: Watched) -> list[dict[str, Any]]:
    """Return what takes notably much of the newest steps, the largest share first.

    Input counts from 3 % of the steps on, waiting for communication from 5 % on, as in findings on traces. Input is
    what the steps would be shorter by without it (`compute_input_cost`), on the `ranks` whose it is; the wait that of
    all ranks over the length of their steps. Fewer than 10 steps tell nothing.

    Args:
        watched: What is seen of the run.
    """
    wait = pl.col(RankSteps.communication_wait_ns)
    row = (
        keep_usual_steps(watched.steps)
        .select(
            pl.col(RankSteps.step).n_unique().alias("num_steps"),
            pl.len().alias("num_rows"),
            pl.col(RankSteps.duration_ns).sum(),
            pl.col(RankSteps.device_ns).is_not_null().any().alias("has_devices"),
            wait.sum(),
        )
        .collect()
        .row(0, named=True)
    )
    total, waited = row[RankSteps.duration_ns], row[RankSteps.communication_wait_ns]
    if row["num_steps"] < MIN_COST_STEPS or not total:
        return []
    of_all = {"has_devices": row["has_devices"]}
    found: list[dict[str, Any]] = []
    cost = compute_input_cost(watched.steps, peers=peer_sets(watched.infos))
    if cost is not None and cost.num_steps >= MIN_COST_STEPS and cost.share_ratio >= INPUT_SHARE:
        found.append({"cost": "input", **asdict(cost), **of_all})
    if waited >= EXPOSED_SHARE * total:
        of_a_step = {"mean_ns": waited // row["num_rows"], "mean_step_ns": total // row["num_rows"]}
        share = {"share_ratio": waited / total, **of_a_step, "num_steps": row["num_steps"]}
        found.append({"cost": "communication_wait", **share, "ranks": None, **of_all})
    return sorted(found, key=lambda each: -each["share_ratio"])


def cost_lines(
    costs: Sequence[Mapping[str, Any]], *, slow_ranks: Sequence[int] = (), has_window: bool = False
) -> Iterator[str]:
    """Return a sentence without a full stop on each of what `find_costs` returns.

    Args:
        costs: What `find_costs` returns.
        slow_ranks: Ranks that are told beside it to work longer than their peers.
        has_window: The run has profiler windows.
    """
    for each in costs:
        title = _TITLES[each["cost"]]
        action = _FASTER_INPUT if each["cost"] == "input" else _find_who_is_late(slow_ranks, has_window=has_window)
        share = f"{format_ratio(each['share_ratio'])} of the newest {each['num_steps']} undisturbed steps"
        whose = " and rank" if each["ranks"] is None else f" on {describe_ranks(list(each['ranks']))}"
        # A device may have work queued while its host fetches the next batch.
        device = "; a profiler window tells whether devices wait meanwhile" if each["has_devices"] else ""
        # The median step, said elsewhere, is another base: a few long steps lift the mean alone.
        mean = f"on average {format_duration(each['mean_ns'])} of {format_duration(each['mean_step_ns'])} a step"
        yield f"{title} {share}, {mean}{whose}{device}: {action}"


def _find_who_is_late(slow_ranks: Sequence[int], *, has_window: bool) -> str:
    if slow_ranks:
        longer = "which works longer than its" if len(slow_ranks) == 1 else "which work longer than their"
        return f"others wait for {describe_ranks(list(slow_ranks))}, {longer} peers"
    if has_window:
        return f"scope stragglers on its profiler windows {_LATE_OR_LINKS}"
    return f"scope stragglers on a profiler window, of which there is none yet, {_LATE_OR_LINKS}"
