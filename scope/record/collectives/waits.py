"""Wait sites: where a thread is blocked until a collective is over.

`Work.wait` is patched on every class of Work. The end of a backward, where DDP's reducer waits for its buckets, is seen
by callbacks of the autograd engine. Functional waits have a kernel of their own (`dispatcher`).
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from scope.record.collectives.uncompiled import keep_uncompiled
from scope.run.layout import FLAG_COMPLETED, FLAG_DEVICE_TIMED

if TYPE_CHECKING:
    from collections.abc import Callable

    from scope.record.collectives.device_times import DeviceTimes
    from scope.record.collectives.guard import HookGuard
    from scope.record.collectives.sink import CallSink
    from scope.record.collectives.tracker import CallTracker, ThreadState
    from scope.run.calls import Call

# torch annotates only a part of itself.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportAttributeAccessIssue=false, reportPrivateUsage=false

_monotonic = time.monotonic_ns


class WorkWaits:
    """The patched `wait` methods, from `attach` to `detach`."""

    def __init__(self, tracker: CallTracker, guard: HookGuard) -> None:
        self._tracker = tracker
        self._guard = guard
        self._patched: list[tuple[Any, Any, Any]] = []

    def attach(self) -> None:
        """Patch `wait` of Work and of its subclasses that have their own."""
        for owner in (dist.Work, *_subclasses(dist.Work)):
            original = owner.__dict__.get("wait")
            if original is None:
                continue
            patched = self._timed(original)
            try:
                owner.wait = patched
            except TypeError:
                # A class whose attributes cannot be set: its waits stay unseen, and the coverage says so.
                continue
            self._patched.append((owner, original, patched))

    def detach(self) -> None:
        """Put back every method that is still ours."""
        for owner, original, patched in reversed(self._patched):
            if owner.__dict__.get("wait") is patched:
                owner.wait = original
        self._patched.clear()

    def _timed(self, original: Callable[..., Any]) -> Callable[..., Any]:  # noqa: C901 - flat on purpose, see below
        tracker, guard = self._tracker, self._guard
        thread, works, claim, device = tracker.thread, tracker.works, tracker.claim, tracker.device
        end_wait, add_wait = tracker.sink.end_wait, tracker.sink.add_wait
        monotonic = _monotonic
        # pybind's wrapping of a C function as a method costs more than the function.
        inner = getattr(original, "__func__", original)
        intact = True

        def note(call: Call, before: Any, start_ns: int, *, completed: bool) -> None:
            nonlocal intact
            try:
                if call.flags & FLAG_DEVICE_TIMED:
                    device.waited(call, before)
                elif completed:
                    end_wait(call, start_ns, _monotonic())
                else:
                    add_wait(call, _monotonic() - start_ns)
            except Exception as error:  # noqa: BLE001 - the one guard
                intact = False
                guard.disable("Work.wait", error)

        # Flat on purpose: every blocking collective comes through here.
        def wait(self: Any, *args: Any, **kwargs: Any) -> Any:
            nonlocal intact
            if not (intact and tracker.active):
                return inner(self, *args, **kwargs)
            call = before = None
            on_host = True
            try:
                call = thread.blocking
                if works and id(self) in works and (claimed := claim(self)) is not None:
                    call, thread.blocking = claimed, None
                elif call is not None and call.blocked_ns >= 0:
                    call = None  # its caller has waited for it; to say so to the thread would take longer
                if call is not None and call.flags & FLAG_DEVICE_TIMED:
                    thread.blocking = None
                    on_host = False
                    before = device.mark()
            except Exception as error:  # noqa: BLE001 - the one guard
                intact = False
                call = None
                guard.disable("Work.wait", error)
            if call is None:
                return inner(self, *args, **kwargs)
            start = monotonic()
            try:
                result = inner(self, *args, **kwargs) if args or kwargs else inner(self)
            except BaseException:
                # A wait that raises (a time limit, a dead peer) blocked its thread all the same.
                note(call, before, start, completed=False)
                raise
            if not on_host:
                note(call, before, start, completed=True)
                return result
            try:
                end_wait(call, start, monotonic())
            except Exception as error:  # noqa: BLE001 - the one guard
                intact = False
                guard.disable("Work.wait", error)
            return result

        wait.__wrapped__ = original  # type: ignore[attr-defined]
        return keep_uncompiled(wait)


class BackwardWaits:
    """The time from a backward's last gradient to its end, in which DDP's reducer waits for its buckets.

    The reducer waits in a final callback of the backward, queued when its last bucket was issued. A callback of ours,
    queued at its first bucket, runs before it and marks when the gradients are done; one that this one queues runs
    after it. Between the two lies the wait.
    """

    def __init__(self, sink: CallSink, guard: HookGuard, thread: ThreadState, device: DeviceTimes) -> None:
        self._device = device
        self._sink = sink
        self._guard = guard
        self._thread = thread
        self._queue_callback = torch.autograd.Variable._execution_engine.queue_callback

    def watch(self, call: Call) -> None:
        """Take a call that came straight out of the autograd engine."""
        thread = self._thread
        if thread.backward is not None:
            thread.backward.append(call)
            return
        calls = [call]
        try:
            self._queue_callback(partial(self._computed, calls))
        except RuntimeError:
            # No backward is in progress: C++ code of another kind.
            return
        thread.backward = calls

    @keep_uncompiled
    def _computed(self, calls: list[Call]) -> None:
        try:
            self._thread.backward = None
            before = self._device.mark() if calls[0].flags & FLAG_DEVICE_TIMED else None
            start = _monotonic()
            self._queue_callback(partial(self._over, calls, start, before))
        except Exception as error:  # noqa: BLE001 - the one guard
            self._guard.disable("backward", error)

    @keep_uncompiled
    def _over(self, calls: list[Call], start_ns: int, before: Any) -> None:
        try:
            if calls[0].flags & FLAG_DEVICE_TIMED:
                # The stream waits for all buckets in one go, until the last is over: how the wait divides into them is
                # not known.
                self._device.waited(calls[-1], before)
                return
            end_ns = _monotonic()
            for call in calls:
                if call.blocked_ns >= 0:
                    continue
                # The reducer waits for one bucket after the other.
                done = min(end_ns, call.completed_ns) if call.flags & FLAG_COMPLETED else end_ns
                blocked_until = max(start_ns, done)
                self._sink.add_wait(call, blocked_until - start_ns)
                start_ns = blocked_until
        except Exception as error:  # noqa: BLE001 - the one guard
            self._guard.disable("backward", error)


def _subclasses(owner: type) -> list[type]:
    found: list[type] = []
    for child in owner.__subclasses__():
        found += [child, *_subclasses(child)]
    return found
