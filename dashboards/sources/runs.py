"""Recorded runs, read on where they have grown; what is computed from them is kept until they grow again."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar, cast

import polars as pl
import streamlit as st

from scope.analysis.recorded import (
    RunSummary,
    bin_rank_steps,
    compute_rank_excess,
    summarize_collectives,
    summarize_run,
    summarize_steps,
)
from scope.frames import Run, open_run
from scope.frames.schema import Ranks, RankSteps

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from scope.run.blackbox import BlackBoxState
    from scope.run.schema import RunInfo, Verdict

_LIVE_S: Final = 30.0
_MAX_OPEN_RUNS: Final = 8
_MAX_HEAT_RANKS: Final = 256
_MAX_HEAT_STEPS: Final = 600
_Value = TypeVar("_Value")


@dataclass
class LiveRun:
    """A run that pages look at again and again, from many threads.

    Attributes:
        run: The open run.
        refresh_s: Shortest time between two looks at the disk.
    """

    run: Run
    refresh_s: float
    steps: pl.DataFrame = field(default_factory=RankSteps.empty, init=False)
    ranks: pl.DataFrame = field(default_factory=Ranks.empty, init=False)
    _lock: threading.RLock = field(default_factory=threading.RLock, init=False)
    _looked_at: float = field(default=float("-inf"), init=False)
    _results: dict[str, object] = field(default_factory=dict[str, object], init=False)

    def refresh(self) -> None:
        """Read what was written since the last look; results are kept when no step came."""
        with self._lock:
            if time.monotonic() - self._looked_at < self.refresh_s:
                return
            ranks, steps = self.run.ranks, self.run.steps()
            if steps.height != self.steps.height or not ranks.equals(self.ranks):
                self.ranks, self.steps = ranks, steps
                self._results.clear()
            self._looked_at = time.monotonic()

    @property
    def info(self) -> RunInfo:
        """`run.json`."""
        return self._kept("info", self.run.info)

    @property
    def attempt(self) -> int:
        """The last attempt; 0 before any rank has begun."""
        last = self.ranks[Ranks.attempt].max()
        return last if isinstance(last, int) else 0

    @property
    def last_ns(self) -> int | None:
        """End of the last step of any rank."""
        last = self.steps[RankSteps.end_ns].max()
        return last if isinstance(last, int) else None

    @property
    def last_step(self) -> int:
        """Number of the last step that any rank has finished; 0 before the first."""
        last = self.steps[RankSteps.step].max()
        return last if isinstance(last, int) else 0

    @property
    def is_live(self) -> bool:
        """Whether a rank has not ended, and has finished a step lately."""
        if self.info.synthetic or not self.ranks[Ranks.ended_ns].null_count() or self.last_ns is None:
            return False
        return time.time() - self.last_ns / 1e9 < max(_LIVE_S, 10 * self.refresh_s)

    @property
    def of_attempt(self) -> pl.LazyFrame:
        """The steps of the last attempt."""
        return self.steps.lazy().filter(pl.col(RankSteps.attempt) == self.attempt)

    @property
    def problems(self) -> Sequence[str]:
        """Files that could not be read."""
        return self.run.problems

    def summary(self) -> RunSummary:
        """Return the run at a glance; at least one rank must have begun."""
        return self._kept("summary", lambda: summarize_run(self.ranks, self.steps.lazy()))

    def by_step(self) -> pl.DataFrame:
        """Return the table `StepSummary` of all attempts."""
        return self._kept("by_step", lambda: summarize_steps(self.steps.lazy()))

    def excess(self) -> pl.DataFrame:
        """Return the table `RankExcess` of the last attempt."""
        return self._kept("excess", lambda: compute_rank_excess(self.of_attempt))

    def heat(self) -> pl.DataFrame:
        """Return the busy time by rank and step, in bins that a screen can show."""
        return self._kept(
            "heat", lambda: bin_rank_steps(self.of_attempt, max_ranks=_MAX_HEAT_RANKS, max_steps=_MAX_HEAT_STEPS)
        )

    def collectives(self) -> pl.DataFrame:
        """Return the table `CollectiveSummary`."""
        return self._kept("collectives", lambda: summarize_collectives(self.run.collective_totals().lazy()))

    def calls(self) -> pl.DataFrame:
        """Return the calls that were recorded one by one."""
        return self._kept("calls", self.run.collectives)

    def events(self) -> pl.DataFrame:
        """Return what is rare."""
        return self._kept("events", self.run.events)

    def traces(self) -> pl.DataFrame:
        """Return the captured windows."""
        return self._kept("traces", self.run.traces)

    def black_boxes(self) -> dict[int, BlackBoxState]:
        """Return what each rank's black box says now."""
        with self._lock:
            return self.run.black_boxes()

    def verdicts(self) -> Sequence[Verdict]:
        """Return what diagnosis found."""
        with self._lock:
            return self.run.verdicts()

    def _kept(self, name: str, compute: Callable[[], _Value]) -> _Value:
        with self._lock:
            if name not in self._results:
                self._results[name] = compute()
            return cast("_Value", self._results[name])


@st.cache_resource(max_entries=_MAX_OPEN_RUNS, show_spinner=False)
def _open(place: str, refresh_s: float) -> LiveRun:
    return LiveRun(open_run(Path(place)), refresh_s)


def load_run(place: str, *, refresh_s: float) -> LiveRun:
    """Return a run with all that has been written so far.

    Raises:
        RunError: The folder is no run directory any more.
    """
    run = _open(place, refresh_s)
    run.refresh()
    return run
