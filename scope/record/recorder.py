"""`Recorder`: recording from inside a script."""

from __future__ import annotations

import contextlib
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from scope.record.exits import describe_end
from scope.record.settings import CaptureSettings, Settings, read_settings
from scope.record.tracebacks import hide_own_frames
from scope.run.identity import RUN_DIR

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import TracebackType

    from scope.record.session import Session

_Batch = TypeVar("_Batch")
_HOOK: Final = "phase"
_told: set[str] = set()
"""What this process was told on standard error that need not be told twice."""


class Recorder:
    """Records what this rank does while the `with` block runs.

    ```python
    with scope.Recorder(model=model, optimizer=optimizer) as recorder:
        for batch in recorder.steps(loader):
            ...
    ```

    One step is one optimizer update, whatever the number of optimizers and micro-batches. Under `scope run`, and inside
    another `Recorder`, it joins the recording in progress and leaves it running at its end. A recording that cannot be
    opened (no room, no right to write) warns and lets training go on; a forked child records nothing.

    Args:
        model: The model, or a list of models: their call is the forward phase. Found by itself when absent.
        optimizer: The optimizer, or a list of them. They are found by themselves as they step; a loop with several and
            without a loader has whole steps from the first on where they are named.
        run_dir: Run directory; `runs/RUN_ID` by default. Under `scope run` that of `scope run` stands.
        run_id: Name of the run; by default that of torchelastic or Slurm, else host and time.
        tokens: Tokens of a step on this rank: a number, or a function of the batch. Counted from the batch's shapes
            when absent.
        flop_per_token: FLOPs that training one token needs on this rank; counted on one step when absent.
        peak_flop_per_s: Dense peak of the device; from the catalogue, or measured on a CPU, when absent.
        capture: When profiler windows are taken.
    """

    def __init__(  # noqa: PLR0913 - keywords of the public entry point, each with a default
        self,
        *,
        model: Any = None,
        optimizer: Any = None,
        run_dir: str | Path | None = None,
        run_id: str | None = None,
        tokens: int | Callable[[Any], int] | None = None,
        flop_per_token: float | None = None,
        peak_flop_per_s: float | None = None,
        capture: CaptureSettings | None = None,
    ) -> None:
        self._models = _as_list(model)
        self._optimizers = _as_list(optimizer)
        self._run_dir = Path(run_dir) if run_dir is not None else None
        self._run_id = run_id
        self._tokens = tokens
        self._flop_per_token = flop_per_token
        self._peak = peak_flop_per_s
        self._capture = capture
        self._session: Session | None = None
        self._written: Path | None = None
        self._owner = False
        self._entered = 0
        self._was_entered = False
        self._start: int | None = None

    @property
    def folder(self) -> Path | None:
        """This rank's folder; `None` while nothing is recorded. As `session`, before this recorder has joined, too."""
        session = self.session
        return session.writer.folder if session is not None else None

    @property
    def run_dir(self) -> Path | None:
        """Folder with the layout of a run directory that this rank writes to, for `scope.open_run`, also after the end.

        It is the run directory itself, or this node's spool of it: under `scope run`, and beside a network file system.
        `None` where nothing was recorded. As `session`, before this recorder has joined, too.
        """
        session = self.session
        return _run_dir_of(session) if session is not None else self._written

    @property
    def session(self) -> Session | None:
        """The recording in progress, also before this recorder has joined it; `None` while nothing is recorded."""
        if self._session is None and not self._was_entered:
            module = sys.modules.get("scope.record.session")  # importing it would import torch
            return module.current if module is not None else None
        return self._session

    def __enter__(self) -> Recorder:
        """Open the recording, or join the one in progress."""
        self._was_entered = True
        self._entered += 1
        if self._entered == 1:
            self._open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the recording if this recorder opened it."""
        self._entered -= 1
        if self._entered:
            return
        if kind is None:
            self.close()
        else:
            if self._session is not None and error is not None:
                self._session.guard.call("exception", self._session.note_exception, error)
                hide_own_frames(error)
            self.close("exception" if error is None else describe_end(error))

    def close(self, reason: str = "finished") -> None:
        """Restore everything that was hooked and write what is left; a second call does nothing.

        A recording that was joined goes on; what it knows so far is written.
        """
        session, self._session = self._session, None
        if session is not None and self._owner:
            session.close(reason)
        elif session is not None:
            session.writer.flush()
        self._owner = False

    def steps(
        self, loader: Iterable[_Batch], *, start: int | None = None, microbatches: int | None = None
    ) -> Iterator[_Batch]:
        """Iterate over a loader; the wait for each batch is the input phase.

        Args:
            loader: Anything that can be iterated over.
            start: Number of the first step of this loop, as `start_at` takes it; counted on from 0 when absent.
            microbatches: Batches that make one step, for loops that use no optimizer of torch; with one, steps end by
                themselves.
        """
        return _Steps(self._look_up, iter(loader), start=start, microbatches=microbatches)

    def start_at(self, step: int) -> None:
        """Say, before the first step, its number: the updates that the checkpoint which is resumed holds.

        Steps of earlier attempts before it were kept, and count as such in goodput; those from it on are made again. A
        program that does not say so counts from 0, and all steps of its earlier attempts as lost.

        On a recorder that is not entered it holds for the recording in progress, as under `scope run`, else from when
        the recorder is entered.

        Args:
            step: A whole number of at least 0. After the first step has ended it changes nothing.
        """
        session = self.session
        if session is not None:
            session.guard.call("start", session.start_at, step)
        elif not self._was_entered:
            self._start = step

    def phase(self, name: str) -> Phase:
        """Return a context manager that gives the time inside it to a phase of your own; phases may be nested.

        Args:
            name: Its name. One of the built-in phases (`forward`, `backward`, `optimizer`, ...) adds to that one: what
                is seen of it by itself and what you name so are one phase in every figure.
        """
        return Phase(self._look_up("phase"), name)

    def add_tokens(self, tokens: int) -> None:
        """Say that this step trained on so many more tokens on this rank."""
        session = self._look_up("add_tokens")
        if session is not None:
            session.guard.call("tokens", session.batches.add_tokens, tokens)

    def end_step(self) -> None:
        """End the step here, for loops in which steps cannot be told by an optimizer of torch."""
        session = self._look_up("end_step")
        if session is not None:
            session.guard.call("step", session.next_step)

    def capture(self) -> None:
        """Ask for a profiler window from the next step on."""
        session = self._look_up("capture")
        if session is not None:
            session.captures.request("user")

    def _look_up(self, call: str) -> Session | None:
        """Return the recording in progress; where there is none since nobody has begun one, say so once."""
        session = self.session
        if session is None and not self._was_entered:
            _say_once("nothing is recorded", f"recorder.{call}() did nothing: {_why_nothing()}")
        return session

    def _open(self) -> None:
        from scope.record import session, start

        if session.current is not None:
            self._session = session.current
        else:
            try:
                folder, info = start.prepare(os.environ, run_dir=self._run_dir, run_id=self._run_id)
                self._session = session.open_session(self._settings(folder), info)
                self._owner = True
            except Exception as error:  # noqa: BLE001 - the guard: training must begin whatever happens here
                _say(f"training goes on unrecorded: {error}")
                return
        self._written = _run_dir_of(self._session)
        for model in self._models:
            self._session.hooks.add_root(model)
        for optimizer in self._optimizers:
            self._session.expect_optimizer(optimizer)
        if isinstance(self._tokens, int):
            self._session.batches.tokens_per_step = self._tokens
        start, self._start = self._start, None
        if start is not None:
            self._session.guard.call("start", self._session.start_at, start)

    def _settings(self, folder: Path) -> Settings:
        settings = read_settings(os.environ, folder)
        return replace(
            settings,
            capture=self._capture or settings.capture,
            model_flop_per_token=self._flop_per_token,
            peak_flop_per_s=self._peak,
            count_tokens=self._tokens if callable(self._tokens) else None,
        )


class Phase:
    """A phase of the user's own; use it as a context manager."""

    __slots__ = ("_name", "_opened", "_session")

    def __init__(self, session: Session | None, name: str) -> None:
        self._session = session
        self._name = name
        self._opened: str | None = None

    # What `HookGuard.call` does, without one more call: there may be many short phases.
    def __enter__(self) -> None:
        """Begin the phase."""
        session = self._session
        if session is None or _HOOK in session.guard.reasons:
            return
        try:
            self._opened = session.begin_own_phase(self._name)
        except Exception as error:  # noqa: BLE001 - the one guard around hooks
            session.guard.disable(_HOOK, error)

    def __exit__(self, *error: object) -> None:
        """End the phase."""
        opened, session = self._opened, self._session
        if opened is None or session is None or _HOOK in session.guard.reasons:
            return
        self._opened = None
        try:
            session.clock.pop(opened)
        except Exception as problem:  # noqa: BLE001 - the one guard around hooks
            session.guard.disable(_HOOK, problem)


class _Steps(Generic[_Batch]):
    """Iterates over a loader, and tells the session of each batch."""

    def __init__(
        self,
        look_up: Callable[[str], Session | None],
        iterator: Iterator[_Batch],
        *,
        start: int | None,
        microbatches: int | None,
    ) -> None:
        self._look_up = look_up
        self._iterator = iterator
        self._start = start
        self._microbatches = microbatches
        self._num_batches = 0

    def __iter__(self) -> Iterator[_Batch]:
        return self

    def __next__(self) -> _Batch:
        session = self._look_up("steps")
        if session is None:
            return next(self._iterator)
        if self._microbatches and self._num_batches and self._num_batches % self._microbatches == 0:
            session.guard.call("step", session.next_step)
        if self._start is not None:
            session.guard.call("start", session.start_at, self._start)
            self._start = None
        self._num_batches += 1
        opened = session.guard.call("input", session.begin_input)
        seen = session.batches.num_batches
        try:
            batch = next(self._iterator)
        except StopIteration:
            session.guard.call("batch", session.batches.end_loader, self)
            raise
        finally:
            if opened:
                session.guard.call("input", session.end_phase, "input")
        if session.batches.num_batches == seen:
            # A DataLoader's iterator has told already.
            session.guard.call("batch", session.batches.note, batch, self)
        return batch


def _run_dir_of(session: Session) -> Path:
    return session.writer.folder.parents[2]  # RUN/attempt-000/ranks/00042


def _why_nothing() -> str:
    if RUN_DIR in os.environ:
        return "under `scope run` this process is not recorded; where its recording could not begin, it has said why"
    return "begin the recording first, `with scope.Recorder() as recorder:`"


def _say_once(kind: str, message: str) -> None:
    if kind not in _told:
        _told.add(kind)
        _say(message)


def _say(message: str) -> None:
    # Where nobody can be told (closed, a full disk, a pipe without reader) training goes on all the same.
    if sys.stderr is not None:  # pyright: ignore[reportUnnecessaryComparison] - it is where it was closed
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(f"scope: {message}\n")


def _as_list(value: Any) -> list[Any]:
    if value is None:
        return []
    return [*value] if isinstance(value, list | tuple) else [value]  # pyright: ignore[reportUnknownVariableType]
