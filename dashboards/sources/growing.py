"""A recorded run that grows while pages look at it: when it is read on, and how long what is made of it is kept."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar, cast

import polars as pl

from scope.errors import RunError, ScopeError
from scope.frames.kept import entry_of, read_kept, write_kept
from scope.frames.schema import Ranks, RankSteps
from scope.run.reader import read_run_info

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from scope.frames import Run
    from scope.run.blackbox import BlackBoxState
    from scope.run.schema import RunInfo

_REST_FACTOR: Final = 50.0
"""Reading that took a second is done again after 50 s at the earliest, so that it costs a live page 2 % of a core."""
_RESULT_REST_FACTOR: Final = 250.0
"""A page needs several results, and each may cost 0.4 % of a core."""
_LONG_READ_S: Final = 1.0
"""What took longer to read is kept in the cache folder."""
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
class GrowingRun:
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
            entry = entry_of(self.run.path) if is_first else None
            if entry is not None and (kept := read_kept(entry)):
                self.run.resume(kept)
            ranks, steps = self.run.ranks, self.run.steps()
            if steps.height != self.steps.height or ranks is not self.ranks:
                self.ranks, self.steps = ranks, steps
                self._version += 1
            now = self.clock()
            self._rest_until = now + max(self.refresh_s, _REST_FACTOR * (now - began))
            self.was_read = True
            self._read_ns = read_ns
            if entry is not None and now - began > _LONG_READ_S:
                arguments = (entry, self.run.to_keep())
                threading.Thread(target=write_kept, args=arguments, name="scope-keep").start()

    def read_aside(self) -> threading.Thread:
        """Read for the first time in a thread, so that a page can show how far it has come; what fails fails again."""

        def read() -> None:
            with suppress(ScopeError):
                self.refresh()

        thread = threading.Thread(target=read, name="scope-read", daemon=True)
        thread.start()
        return thread

    def read_anew(self, *, older_than_ns: int) -> bool:
        """Read and compute all again where something was read before an instant; return whether it was."""
        with self._lock:
            oldest_ns = min([self._read_ns, *(result.read_ns for result in self._results.values())])
            if oldest_ns >= older_than_ns:
                return False
            self._results.clear()
            self._rest_until = float("-inf")
            self.refresh()
            return True

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

    def black_boxes(self) -> dict[int, BlackBoxState]:
        """Return what each rank's black box says, now or, where there are many ranks, a while ago."""
        return self.kept("black boxes", self.run.black_boxes, always=True)

    def events(self) -> pl.DataFrame:
        """Return what is rare."""
        return self.kept("events", self.run.events)


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
