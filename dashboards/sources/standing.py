"""How a run that grows stands: whether it lives, makes steps, or has ended, and what diagnosis found of it."""

from __future__ import annotations

import dataclasses
import statistics
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import polars as pl

from dashboards.sources.growing import GrowingRun
from scope.analysis.recorded import (
    ProcessTable,
    RunState,
    StepSummary,
    Watched,
    assess_run,
    find_failures,
    summarize_steps,
)
from scope.frames.schema import RankSteps
from scope.report.watching import keep_verdicts
from scope.run.verdicts import find_holding, read_look
from scope.units import NS_PER_S

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scope.run.schema import Verdict

_RECENT_STEPS: Final = 50
_LAST_WRITES_NS: Final = 5 * NS_PER_S
"""A rank that ends notes the instant before it writes the last of its files."""


@dataclass
class StandingRun(GrowingRun):
    """A run of which pages ask how it stands now."""

    _was_read_out: bool = field(default=False, init=False)

    @property
    def is_live(self) -> bool:
        """Whether the processes of the run live, making steps or not, or what they wrote last may yet come."""
        state = self.state()
        return state.is_live or (state.last_sign_ns is not None and not _is_long_over(state.last_sign_ns))

    def state(self) -> RunState:
        """Return how the run stands now; once it has ended, all is read again that was read before its end."""
        with self._lock:
            state = self._assess()
            if state.is_live or state.last_sign_ns is None:
                self._was_read_out = False
            elif not self._was_read_out or _is_long_over(state.last_sign_ns):
                # A page of a run that has ended is not drawn again by itself: what it shows then must be the last.
                if self.read_anew(older_than_ns=state.last_sign_ns + _LAST_WRITES_NS):
                    state = self._assess()
                self._was_read_out = True
            return state

    def _assess(self) -> RunState:
        infos = self.kept("infos", lambda: [info for info in self.run.rank_infos if info.attempt == self.attempt])
        usual_ns = self.kept("usual step", self._usual_ns)
        # An attempt that has made no step yet does not stand still since the last step of the one before.
        last_ns = self.last_ns if not self.attempt else self._last_end(pl.col(RankSteps.attempt) == self.attempt)
        state = assess_run(
            infos,
            self.black_boxes(),
            last_step_ns=last_ns,
            usual_ns=usual_ns,
            now_ns=time.time_ns(),
            processes=ProcessTable.of_run(self.run.path),
        )
        if not self.attempt:
            return state
        earlier = self.kept("end before", lambda: self._last_end(pl.col(RankSteps.attempt) < self.attempt))
        return dataclasses.replace(state, earlier_step_ns=earlier)

    def watched(self) -> Watched:
        """Return the last attempt as it is now, as findings are made of it."""
        with self._lock:
            infos = [info for info in self.run.rank_infos if info.attempt == self.attempt]
            boxes = self.black_boxes()
            return Watched(
                state=self.state(),
                infos=infos,
                boxes=boxes,
                steps=self.of_attempt,
                now_ns=time.time_ns(),
                failures=find_failures(self.events(), attempt=self.attempt, infos=infos, boxes=boxes),
            )

    def _last_end(self, which: pl.Expr) -> int | None:
        """Return the end of the last of some steps of any rank."""
        last = self.steps.lazy().filter(which).select(pl.col(RankSteps.end_ns).max()).collect().item()
        return last if isinstance(last, int) else None

    def _usual_ns(self) -> int | None:
        recent = self.by_step_of_attempt().filter(pl.col(StepSummary.num_steps) == 1).tail(_RECENT_STEPS)
        return statistics.median_low(recent[StepSummary.duration_ns]) if recent.height else None

    def by_step(self) -> pl.DataFrame:
        """Return the table `StepSummary` of all attempts."""
        return self.kept("by_step", lambda: summarize_steps(self.steps.lazy()))

    def by_step_of_attempt(self) -> pl.DataFrame:
        """Return the table `StepSummary` of the last attempt."""
        return self.by_step().filter(pl.col(StepSummary.attempt) == self.attempt)

    def verdicts(self) -> Sequence[Verdict]:
        """Return what diagnosis found of the last attempt and still holds, without what is refuted by now."""
        attempt = self.attempt
        with self._lock:
            held = find_holding(self.run.verdicts(), attempt=attempt)
        if not held:
            return held
        return keep_verdicts(held, self.watched(), looked_ns=read_look(self.run.path))


def _is_long_over(last_sign_ns: int) -> bool:
    """Return whether all has come that ranks wrote around their last sign of life."""
    return time.time_ns() >= last_sign_ns + _LAST_WRITES_NS
