"""Profiler windows of a few steps: on a schedule under a time budget, on a file, a signal or an anomaly.

The budget counts what start, stop and export take, and how much longer the steps of a window are than usual ones.
A window never begins while another profiler is active, and ends at once when the program starts one of its own. The
trace lands under `traces/` of the rank, ready for `scope analyze`; it is read outside this process. Windows by schedule
and anomaly end when the traces of an attempt are larger than the rank's budget (`--max-run-bytes`).
"""

# torch annotates only a part of itself.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false, reportPrivateUsage=false
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import contextlib
import functools
import signal
import statistics
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Final

import msgspec
import torch
from torch.autograd import profiler as autograd_profiler

from scope.errors import RunError
from scope.record.patches import PatchTable
from scope.run import paths
from scope.run.files import read_span, replace_document
from scope.run.requests import read_step
from scope.run.schema import CaptureInfo

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from scope.record.session import Session

_HOOK: Final = "capture"
_BY_FILE: Final = "trigger_file"
_BY_ANOMALY: Final = "anomaly"
_FIRST_COST_NS: Final = 2_000_000_000
"""What a window is taken to cost until one has been measured: the first scheduled one comes after 400 s at 0.5 %."""
_MIN_STEPS_APART: Final = 10
"""Steps between scheduled windows, in steps of a window, whatever the budget allows."""
_ANOMALY_FACTOR: Final = 2.0
_NUM_USUAL: Final = 32


class Captures:
    """Decides at each step whether a window begins, and ends it.

    Attributes:
        is_attached: Whether this rank takes windows; without, there is nothing to tell it.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._settings = session.settings.capture
        self._patches = PatchTable()
        self.is_attached = False
        self._requests: dict[str, int] = {}
        self._window: _Window | None = None
        self._started_ns = time.monotonic_ns()
        self._spent_ns = 0
        self._kept_bytes = 0
        self._ended_ns: int | None = None
        self._steps_since = 0
        self._last_cost_ns = _FIRST_COST_NS
        self._wrote_last = False
        self._usual: deque[int] = deque(maxlen=_NUM_USUAL)
        self._old_handler: Any = None

    def attach(self) -> None:
        """Begin to watch for requests, on the ranks that take windows."""
        if self._session.writer.info.rank not in self._settings.ranks or not self._settings.reasons:
            return
        self._patches.replace(autograd_profiler.profile, "_prepare_trace", self._wrap_prepare)
        self.is_attached = self._patches.holds(autograd_profiler.profile, "_prepare_trace")
        if "file" in self._settings.reasons:
            self._session.writer.pollers.append(self._look_for_file)
        if "signal" in self._settings.reasons and self._settings.signal is not None:
            self._listen(self._settings.signal)

    def request(self, reason: str, *, from_step: int = 0) -> None:
        """Ask for a window from a step on, or from the next one where that has begun.

        Of several reasons each keeps its step; the window that begins first answers those that are due by then.
        """
        self._requests[reason] = from_step

    def on_step(self, step: int, length_ns: int) -> str | None:
        """A step has ended; return `capture` when a window was open or written in it. Called by the training thread."""
        if not self.is_attached or _HOOK in self._session.guard.reasons:
            return None
        try:
            return self._on_step(step, length_ns)
        except Exception as error:  # noqa: BLE001 - the guard
            self._window = None
            self._session.guard.disable(_HOOK, error)
            return None

    def close(self) -> None:
        """End an open window, keep its trace, say what was asked for in vain, and let go of signal and profiler."""
        pollers = self._session.writer.pollers
        if self._look_for_file in pollers:
            pollers.remove(self._look_for_file)
            self._look_for_file()
        window, self._window = self._window, None
        if window is not None:
            self._keep(window)
        if self.is_attached:
            self._tell_unmet()
        self._patches.restore()
        self.is_attached = False
        if self._old_handler is not None and self._settings.signal is not None:
            if signal.getsignal(self._settings.signal) == self._on_signal:
                signal.signal(self._settings.signal, self._old_handler)
            self._old_handler = None

    def _on_step(self, step: int, length_ns: int) -> str | None:
        window = self._window
        if window is not None:
            window.end_step(length_ns)
            if step - window.first_step + 1 >= self._settings.num_steps:
                self._window = None
                self._keep(window)
            else:
                window.begin_step(step + 1)
            return "capture"
        self._steps_since += 1
        # The trace of a window is written in the step that follows it, which is long for that alone.
        wrote_last, self._wrote_last = self._wrote_last, False
        if not wrote_last:
            self._notice_anomaly(length_ns)
        reason = self._find_reason(step + 1)
        if reason is not None and not torch._C._autograd._profiler_enabled():
            self._forget_due(step + 1)
            self._window = _Window(step + 1, reason, self)
            self._window.start()
        return "capture" if wrote_last else None

    def _find_reason(self, following: int) -> str | None:
        """Return why a window begins with a step, if one does; none comes by schedule before one that was asked for."""
        if not self._requests:
            return "schedule" if self._is_due() else None
        return next((reason for reason, step in [*self._requests.items()] if following >= step), None)

    def _forget_due(self, following: int) -> None:
        """Take what was asked for up to a step as met: a window begins with it."""
        for reason, step in [*self._requests.items()]:
            if following >= step:
                del self._requests[reason]
                if reason == _BY_FILE:
                    self._taken_file.unlink(missing_ok=True)

    def _tell_unmet(self) -> None:
        """Say that the recording ends before a window that was asked for has begun."""
        steps, self._requests = self._requests, {}
        for reason, step in steps.items():
            if reason == _BY_ANOMALY:
                continue  # nobody asked
            where = f" from step {step} on" if step else ""
            last = self._session.clock.step
            ended = f"in step {last}" if last >= 0 else "before a step had begun"
            self._session.writer.add_event(
                "warning",
                f"the profiler window that was asked for ({reason}){where} was not taken: the recording ended {ended}",
                reason=reason,
                first_step=step or None,
            )

    def _notice_anomaly(self, length_ns: int) -> None:
        usual = self._usual
        if (
            "anomaly" in self._settings.reasons
            and len(usual) == _NUM_USUAL
            and length_ns > _ANOMALY_FACTOR * statistics.median_low(usual)
            and self._affords()
            and not self._requests
        ):
            self.request(_BY_ANOMALY)
        usual.append(length_ns)

    def _is_due(self) -> bool:
        """Whether a scheduled window may begin: in budget, and as far from the last one as its cost asks for.

        The time that has passed without one is not saved up: windows would follow each other at once to spend it.
        """
        if "schedule" not in self._settings.reasons or not self._affords():
            return False
        if self._ended_ns is None:
            return True
        rested_ns = time.monotonic_ns() - self._ended_ns
        return (
            self._steps_since >= _MIN_STEPS_APART * self._settings.num_steps
            and self._last_cost_ns <= self._settings.budget_ratio * rested_ns
        )

    def _affords(self) -> bool:
        if self._kept_bytes > self._session.settings.budget.max_bytes:
            return False  # what is asked for by hand is still taken
        elapsed = time.monotonic_ns() - self._started_ns
        return self._spent_ns + self._last_cost_ns <= self._settings.budget_ratio * elapsed

    def _keep(self, window: _Window) -> None:
        info = window.finish(self._session)
        usual = statistics.median_low(self._usual) if self._usual else None
        self._last_cost_ns = info.cost_ns + window.slowed_ns(usual)
        self._spent_ns += self._last_cost_ns
        self._ended_ns = time.monotonic_ns()
        self._steps_since = 0
        self._kept_bytes += info.trace_bytes or 0
        self._wrote_last = True
        self._session.writer.add_event(
            "capture",
            f"{info.num_steps} steps were profiled ({info.reason})",
            step=info.first_step,
            trace=info.trace,
            first_step=info.first_step,
            num_steps=info.num_steps,
            reason=info.reason,
            cost_ns=info.cost_ns,
        )

    def _look_for_file(self) -> None:
        path = self._session.writer.folder / paths.REQUEST_FILE
        content = b""
        with contextlib.suppress(RunError):  # most often there is none
            content = read_span(path, max_bytes=64)
        try:
            path.rename(self._taken_file)  # it stays until a window begins: a restart may overtake the request
        except OSError:
            return
        self.request(_BY_FILE, from_step=read_step(content) or 0)

    def _listen(self, number: int) -> None:
        """Take the signal only where the program left it alone."""
        if threading.current_thread() is threading.main_thread() and signal.getsignal(number) == signal.SIG_DFL:
            self._old_handler = signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: Any) -> None:
        del number, frame
        self.request("signal")

    def _wrap_prepare(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def _prepare_trace(profile: Any) -> Any:
            window = self._window
            if window is not None and not window.starting:
                # The program starts a profiler of its own, and torch has room for one.
                self._window = None
                window.abandon()
            return original(profile)

        return _prepare_trace

    @property
    def _taken_file(self) -> Path:
        return self._session.writer.folder / paths.TAKEN_REQUEST_FILE

    @property
    def settings(self) -> Any:
        """When and how windows are taken."""
        return self._settings


class _Window:
    """One profiler window in progress."""

    def __init__(self, first_step: int, reason: str, captures: Captures) -> None:
        self.first_step = first_step
        self.num_steps = 0
        self.reason = reason
        self.starting = True
        self._settings = captures.settings
        self._label: Any = None
        self._cost_ns = 0
        self._start_cost_ns = 0
        self._length_ns = 0
        self._start_ns = 0
        self._profiler: Any = None

    def start(self) -> None:
        """Start the profiler."""
        before = time.monotonic_ns()
        activities = [torch.profiler.ProfilerActivity.CPU]
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        self._profiler = torch.profiler.profile(
            activities=activities,
            with_stack=self._settings.with_stack,
            record_shapes=self._settings.record_shapes,
        )
        self._profiler.start()
        self.starting = False
        self._start_ns = time.monotonic_ns()
        self._cost_ns = self._start_cost_ns = self._start_ns - before
        self.begin_step(self.first_step)

    def begin_step(self, step: int) -> None:
        """Mark a step the way torch's profiler does."""
        self._label = torch.profiler.record_function(f"ProfilerStep#{step}")
        self._label.__enter__()

    def end_step(self, length_ns: int = 0) -> None:
        """End the mark of a step that took so long."""
        self._length_ns += length_ns
        if self._label is not None:
            self._label.__exit__(None, None, None)
            self._label = None
            self.num_steps += 1

    def slowed_ns(self, usual_ns: int | None) -> int:
        """Return how much longer its steps took than as many usual ones, the profiler's start apart."""
        if usual_ns is None:
            return 0
        return max(0, self._length_ns - self._start_cost_ns - self.num_steps * usual_ns)

    def abandon(self) -> None:
        """Stop and forget what was profiled."""
        self.end_step()
        self._profiler.stop()

    def finish(self, session: Session) -> CaptureInfo:
        """Stop, write the trace and its description."""
        before = time.monotonic_ns()
        self.end_step()
        self._profiler.stop()
        stopped = time.monotonic_ns()
        rank = session.writer.info.rank
        folder = session.writer.folder / paths.TRACES_FOLDER
        name = f"rank{rank}-step{self.first_step}"
        trace = folder / f"{name}.json"
        part = folder / f"{name}.part"
        self._profiler.export_chrome_trace(str(part))
        part.rename(trace)
        self._cost_ns += time.monotonic_ns() - before
        offset = session.writer.wall_offset_ns
        info = CaptureInfo(
            trace=trace.name,
            rank=rank,
            first_step=self.first_step,
            num_steps=self.num_steps,
            start_ns=self._start_ns + offset,
            end_ns=stopped + offset,
            reason=self.reason,
            cost_ns=self._cost_ns,
            with_stack=self._settings.with_stack,
            record_shapes=self._settings.record_shapes,
            trace_bytes=trace.stat().st_size,
        )
        replace_document(folder / f"{name}.capture.json", msgspec.json.encode(info))
        return info
