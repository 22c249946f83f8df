"""Recorded runs with all that pages show of them, each opened once for all visitors."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

import polars as pl

from dashboards.sources.growing import identify
from dashboards.sources.standing import StandingRun
from scope.analysis.recorded import (
    InputCost,
    RunSummary,
    bin_rank_steps,
    compute_goodput,
    compute_input_cost,
    compute_kept,
    compute_phase_totals,
    compute_rank_excess,
    peer_sets,
    summarize_collectives,
    summarize_run,
    summarize_traffic,
    with_goodput,
)
from scope.frames import open_run
from scope.frames.schema import RankSteps
from scope.report.run_state import compute_custom_phases, spell_out_phases
from scope.report.watching import add_earlier_boxes

if TYPE_CHECKING:
    from dashboards.sources.growing import Identity

_MAX_OPEN_RUNS: Final = 8
_MAX_HEAT_RANKS: Final = 256
_MAX_HEAT_STEPS: Final = 600
_OWN_PHASES: Final = 12
"""Phases of the program's own that are named, which may be any number."""


@dataclass
class LiveRun(StandingRun):
    """A run with the figures and tables of its pages."""

    def steps_of(self, rank: int) -> pl.DataFrame:
        """Return the steps of one rank in the last attempt (table `RankSteps`)."""
        return self.of_attempt.filter(pl.col(RankSteps.rank) == rank).collect()

    def ranks_in(self, step: int) -> pl.DataFrame:
        """Return one step of the last attempt on every rank (table `RankSteps`)."""
        found = self.of_attempt.filter(pl.col(RankSteps.step) == step, pl.col(RankSteps.num_steps) == 1)
        return found.sort(RankSteps.rank).collect()

    def summary(self) -> RunSummary:
        """Return the run at a glance, its goodput until now or its end; at least one rank must have begun."""
        summary = self.kept("summary", self._summarize, always=True)
        kept_ns = self.kept("kept steps", lambda: compute_kept(self.steps.lazy()))
        state = self.state()
        # A run that hangs makes no step and loses goodput all the same; one that fell silent has ended then.
        now_ns = time.time_ns() if state.is_live or state.last_sign_ns is None else state.last_sign_ns
        goodput = compute_goodput(kept_ns, self.ranks, now_ns=now_ns, began_ns=self.info.started_ns)
        return with_goodput(summary, goodput)

    def _summarize(self) -> RunSummary:
        boxes = add_earlier_boxes(self.run, self.black_boxes(), attempt=self.attempt)
        return summarize_run(self.ranks, self.steps.lazy(), boxes=boxes, events=self.run.events())

    def phases_ns(self) -> dict[str, int]:
        """Return host nanoseconds of all ranks by phase, the longest of the program's own by their names.

        All are of the same steps; `summary` may be of earlier ones, which these would not add up to.
        """
        return self.kept("phases", lambda: _spell_out_phases(self.steps.lazy()))

    def excess(self) -> pl.DataFrame:
        """Return the table `RankExcess` of the last attempt, each rank against its peers."""
        return self.kept("excess", lambda: compute_rank_excess(self.of_attempt, peers=self.peers()))

    def input_cost(self) -> InputCost | None:
        """Return what waiting for data costs the newest steps of the last attempt."""
        return self.kept("input", lambda: compute_input_cost(self.of_attempt, peers=self.peers()))

    def peers(self) -> dict[int, int]:
        """Return the set of peers of each rank in the last attempt; empty when no data parallel axis is known."""
        return self.kept(
            "peers", lambda: peer_sets(info for info in self.run.rank_infos if info.attempt == self.attempt)
        )

    def heat(self) -> pl.DataFrame:
        """Return the busy time by rank and step, in bins that a screen can show."""
        return self.kept(
            "heat", lambda: bin_rank_steps(self.of_attempt, max_ranks=_MAX_HEAT_RANKS, max_steps=_MAX_HEAT_STEPS)
        )

    def collectives(self) -> pl.DataFrame:
        """Return the table `CollectiveSummary`."""
        return self.kept(
            "collectives", lambda: summarize_collectives(self.run.collective_sums().lazy(), calls=self.calls)
        )

    def traffic(self) -> pl.DataFrame:
        """Return the table `AxisTraffic`."""
        return self.kept("traffic", lambda: summarize_traffic(self.run.collective_sums(), self.ranks))

    def calls(self) -> pl.DataFrame:
        """Return the calls that were recorded one by one."""
        return self.kept("calls", self.run.collectives)

    def memory_by_rank(self) -> pl.DataFrame:
        """Return the largest memory of any step of each rank in the last attempt."""
        peaks = (
            RankSteps.allocated_peak_bytes,
            RankSteps.reserved_peak_bytes,
            RankSteps.resident_peak_bytes,
            RankSteps.other_memory_bytes,
        )
        return self.kept(
            "memory",
            lambda: self.of_attempt.group_by(RankSteps.rank).agg(pl.col(peaks).max()).sort(RankSteps.rank).collect(),
        )

    def memory_by_phase(self, rank: int) -> pl.DataFrame:
        """Return the largest memory of each phase of one rank in the last attempt, over its unfolded steps."""
        return self.kept(f"memory of {rank}", lambda: self.run.phase_memory(attempt=self.attempt, rank=rank))

    def traces(self) -> pl.DataFrame:
        """Return the captured windows."""
        return self.kept("traces", self.run.traces)


def _spell_out_phases(steps: pl.LazyFrame) -> dict[str, int]:
    return spell_out_phases(compute_phase_totals(steps), compute_custom_phases(steps), most=_OWN_PHASES)


def open_live(place: str, *, refresh_s: float) -> LiveRun:
    """Return a run, the same one for all visitors until another run lies there; only `run.json` is read yet.

    Raises:
        RunError: The folder is no run directory any more.
    """
    return _open(place, identify(Path(place)), refresh_s=refresh_s)


@lru_cache(maxsize=_MAX_OPEN_RUNS)
def _open(place: str, identity: Identity, *, refresh_s: float) -> LiveRun:
    del identity
    return LiveRun(run=open_run(Path(place)), refresh_s=refresh_s)
