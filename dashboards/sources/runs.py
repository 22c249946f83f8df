"""Recorded runs, read on where they have grown; what is computed from them is kept until they grow again."""

from __future__ import annotations

import dataclasses
import statistics
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar, cast

import polars as pl

from scope.analysis.recorded import (
    InputCost,
    ProcessTable,
    RunState,
    RunSummary,
    StepSummary,
    Watched,
    assess_run,
    bin_rank_steps,
    compute_goodput,
    compute_input_cost,
    compute_kept,
    compute_phase_totals,
    compute_rank_excess,
    find_failures,
    is_refuted,
    peer_sets,
    summarize_collectives,
    summarize_run,
    summarize_steps,
    summarize_traffic,
    with_goodput,
)
from scope.errors import RunError, ScopeError
from scope.frames import Run, open_run
from scope.frames.kept import entry_of, read_kept, write_kept
from scope.frames.schema import Ranks, RankSteps
from scope.report.run_state import compute_custom_phases, spell_out_phases
from scope.report.watching import add_earlier_boxes
from scope.run.reader import read_run_info
from scope.run.verdicts import find_holding
from scope.units import NS_PER_S

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from scope.run.blackbox import BlackBoxState
    from scope.run.schema import RunInfo, Verdict

_RECENT_STEPS: Final = 50
_MAX_OPEN_RUNS: Final = 8
_MAX_HEAT_RANKS: Final = 256
_MAX_HEAT_STEPS: Final = 600
_OWN_PHASES: Final = 12
"""Phases of the program's own that are named, which may be any number."""
_REST_FACTOR: Final = 50.0
"""Reading that took a second is done again after 50 s at the earliest, so that it costs a live page 2 % of a core."""
_RESULT_REST_FACTOR: Final = 250.0
"""A page needs several results, and each may cost 0.4 % of a core."""
_LONG_READ_S: Final = 1.0
"""What took longer to read is kept in the cache folder."""
_LAST_WRITES_NS: Final = 5 * NS_PER_S
"""A rank that ends notes the instant before it writes the last of its files."""
Identity: TypeAlias = tuple[int, int, str, int]
_Value = TypeVar("_Value")


@dataclass(kw_only=True, slots=True)
class _Result:
    """Something computed from a state of the run."""

    value: object
    version: int
    rest_until: float
    read_ns: int
    """When its making began, since the epoch: nothing in it is newer for certain."""


@dataclass
class LiveRun:
    """A run that pages look at again and again, from many threads.

    What is expensive to read or to compute is done again the more rarely the longer it takes, so that a run of a
    thousand ranks does not keep the server busy.

    Attributes:
        run: The open run.
        refresh_s: Shortest time between two looks at the disk.
        clock: Seconds, monotonic.
    """

    run: Run
    refresh_s: float
    clock: Callable[[], float] = time.monotonic
    steps: pl.DataFrame = field(default_factory=RankSteps.empty, init=False)
    ranks: pl.DataFrame = field(default_factory=Ranks.empty, init=False)
    was_read: bool = field(default=False, init=False)
    _identity: Identity | None = field(default=None, init=False)
    _lock: threading.RLock = field(default_factory=threading.RLock, init=False)
    _rest_until: float = field(default=float("-inf"), init=False)
    _version: int = field(default=0, init=False)
    _read_ns: int = field(default=0, init=False)
    _was_read_out: bool = field(default=False, init=False)
    _results: dict[str, _Result] = field(default_factory=dict[str, _Result], init=False)

    def refresh(self) -> None:
        """Read what was written since the last look; results are kept when nothing came.

        Raises:
            RunError: The folder is no run directory any more, or holds another run.
        """
        with self._lock:
            began = self.clock()
            if began < self._rest_until:
                return
            read_ns = time.time_ns()
            found = identify(self.run.path)
            is_first = not self.was_read
            if not is_first and found != self._identity:
                message = f"another run lies in {self.run.path} than the one that was shown: open the page again"
                raise RunError(message)
            self._identity = found
            if is_first and (kept := read_kept(entry_of(self.run.path))):
                self.run.resume(kept)
            ranks, steps = self.run.ranks, self.run.steps()
            if steps.height != self.steps.height or ranks is not self.ranks:
                self.ranks, self.steps = ranks, steps
                self._version += 1
            now = self.clock()
            self._rest_until = now + max(self.refresh_s, _REST_FACTOR * (now - began))
            self.was_read = True
            self._read_ns = read_ns
            if is_first and now - began > _LONG_READ_S:
                arguments = (entry_of(self.run.path), self.run.to_keep())
                threading.Thread(target=write_kept, args=arguments, name="scope-keep").start()

    def read_aside(self) -> threading.Thread:
        """Read for the first time in a thread, so that a page can show how far it has come; what fails fails again."""

        def read() -> None:
            with suppress(ScopeError):
                self.refresh()

        thread = threading.Thread(target=read, name="scope-read", daemon=True)
        thread.start()
        return thread

    @property
    def info(self) -> RunInfo:
        """`run.json`."""
        return self.kept("info", self.run.info)

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
    def first_ns(self) -> int | None:
        """Start of the first step of any rank, in any attempt."""
        first = self.steps[RankSteps.start_ns].min()
        return first if isinstance(first, int) else None

    @property
    def last_step(self) -> int:
        """Number of the last step of the last attempt that has steps, on any rank; 0 before the first."""
        is_latest = pl.col(RankSteps.attempt) == pl.col(RankSteps.attempt).max()
        last = self.steps.lazy().filter(is_latest).select(pl.col(RankSteps.step).max()).collect().item()
        return last if isinstance(last, int) else 0

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
                oldest_ns = min(self._read_ns, *(result.read_ns for result in self._results.values()))
                if oldest_ns < state.last_sign_ns + _LAST_WRITES_NS:
                    self._results.clear()
                    self._rest_until = float("-inf")
                    self.refresh()
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

    @property
    def of_attempt(self) -> pl.LazyFrame:
        """The steps of the last attempt."""
        return self.steps.lazy().filter(pl.col(RankSteps.attempt) == self.attempt)

    @property
    def problems(self) -> Sequence[str]:
        """Files that could not be read."""
        return self.run.problems

    @property
    def rank_numbers(self) -> list[int]:
        """Ranks that have begun to record, sorted."""
        return self.ranks[Ranks.rank].unique().sort().to_list()

    def steps_of(self, rank: int) -> pl.DataFrame:
        """Return the steps of one rank in the last attempt (table `RankSteps`)."""
        return self.of_attempt.filter(pl.col(RankSteps.rank) == rank).collect()

    def ranks_in(self, step: int) -> pl.DataFrame:
        """Return one step of the last attempt on every rank (table `RankSteps`)."""
        found = self.of_attempt.filter(pl.col(RankSteps.step) == step, pl.col(RankSteps.num_steps) == 1)
        return found.sort(RankSteps.rank).collect()

    def by_step_of_attempt(self) -> pl.DataFrame:
        """Return the table `StepSummary` of the last attempt."""
        return self.by_step().filter(pl.col(StepSummary.attempt) == self.attempt)

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

    def by_step(self) -> pl.DataFrame:
        """Return the table `StepSummary` of all attempts."""
        return self.kept("by_step", lambda: summarize_steps(self.steps.lazy()))

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

    def events(self) -> pl.DataFrame:
        """Return what is rare."""
        return self.kept("events", self.run.events)

    def traces(self) -> pl.DataFrame:
        """Return the captured windows."""
        return self.kept("traces", self.run.traces)

    def black_boxes(self) -> dict[int, BlackBoxState]:
        """Return what each rank's black box says, now or, where there are many ranks, a while ago."""
        return self.kept("black boxes", self.run.black_boxes, always=True)

    def verdicts(self) -> Sequence[Verdict]:
        """Return what diagnosis found of the last attempt and still holds, without what is refuted by now."""
        attempt = self.attempt
        with self._lock:
            held = find_holding(self.run.verdicts(), attempt=attempt)
        if not held:
            return held
        watched = self.watched()
        return [verdict for verdict in held if not is_refuted(watched, verdict)]

    def kept(self, name: str, compute: Callable[[], _Value], *, always: bool = False) -> _Value:
        """Return a result, computed again when the run has grown and the last computation has rested.

        Args:
            name: Its name.
            compute: Makes it.
            always: It may change without a new step.
        """
        with self._lock:
            began = self.clock()
            known = self._results.get(name)
            is_old = known is not None and (always or known.version != self._version)
            if known is None or (is_old and began >= known.rest_until):
                read_ns = time.time_ns()
                value = compute()
                now = self.clock()
                rest_until = now + _RESULT_REST_FACTOR * (now - began)
                known = self._results[name] = _Result(
                    value=value, version=self._version, rest_until=rest_until, read_ns=read_ns
                )
            return cast("_Value", known.value)


def _spell_out_phases(steps: pl.LazyFrame) -> dict[str, int]:
    return spell_out_phases(compute_phase_totals(steps), compute_custom_phases(steps), most=_OWN_PHASES)


def _is_long_over(last_sign_ns: int) -> bool:
    """Return whether all has come that ranks wrote around their last sign of life."""
    return time.time_ns() >= last_sign_ns + _LAST_WRITES_NS


def identify(path: Path) -> Identity:
    """Return what tells a run from another one that lies at the same path later.

    Raises:
        RunError: The folder is gone, or no run directory any more.
    """
    if not path.is_dir():
        message = f"{path} was deleted or moved while it was shown: choose another under Source"
        raise RunError(message)
    info, status = read_run_info(path), path.stat()
    # The number of a folder that was deleted may be the next one's too, and so may be the id.
    return status.st_dev, status.st_ino, info.run_id, info.started_ns


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
