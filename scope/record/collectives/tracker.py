"""Turns what the hooks see into calls: one `begin` before a call is handed to torch, one `end` after.

All routes feed it: native hooks, dispatcher kernels, patched methods. It holds no tensor, and one Work at most: that of
a thread's last asynchronous call, until the thread's next such call, its `wait`, or `release`. torch hands the caller
the same Python object only while it lives, and by it a later `wait` is known to be this call's.
"""

from __future__ import annotations

import ctypes
import sys
import threading
import time
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import torch

from scope.record.collectives import callers, operations
from scope.record.collectives.callers import (
    API,
    API_BLOCKING_P2P,
    API_OBJECT,
    COMPILED,
    ENGINE,
    FUNCTIONAL,
)
from scope.record.collectives.device_times import DeviceTimes
from scope.record.collectives.waits import BackwardWaits
from scope.run.layout import FLAG_ASYNCHRONOUS, FLAG_COMPILED, FLAG_CONTROL, FLAG_DEVICE_TIMED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from types import FrameType

    from scope.record.collectives.groups import GroupTable, Lease
    from scope.record.collectives.guard import HookGuard
    from scope.record.collectives.operations import OperationSpec
    from scope.record.collectives.shapes import Shapes
    from scope.record.collectives.sink import CallSink
    from scope.run.calls import Call

# torch annotates only a part of itself; frames are private to the interpreter, and the cheapest way to see the caller.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportPrivateUsage=false

_MAX_REMEMBERED: Final = 4096
_NO_BACKWARD: Final = -1
_FIRST_CALLS: Final = 64
"""Calls of a group in which each thread of its backend has called back, most likely; one that comes later is slower."""
_in_backward = torch._C._current_graph_task_id
_monotonic = time.monotonic_ns


class ThreadState(threading.local):
    """What a thread that calls collectives has open.

    Attributes:
        blocking: The call whose caller will wait for it at once.
        last_work: See the module.
        backward: Calls that came out of the autograd engine in the backward in progress.
    """

    def __init__(self, sink: CallSink) -> None:
        """Start with nothing open; each thread comes through here once, before its first call or wait.

        Args:
            sink: Told whether this thread, or a backward pass of the one that trains, trains.
        """
        identity = threading.get_ident()
        if identity == sink.training_thread or _in_backward() != _NO_BACKWARD:
            # The identity may be that of an earlier thread that is gone.
            sink.threads_apart.discard(identity)
        else:
            sink.threads_apart.add(identity)
        self.blocking: Call | None = None
        self.last_work: Any = None
        self.backward: list[Call] | None = None
        self.kind = ENGINE


class CallTracker:
    """Follows each call from its issue to its completion and to the place where somebody waits for it.

    Attributes:
        active: Hooks do nothing while it is False.
        sink: Takes the calls.
        works: By the id of a Work: a weak reference to it, and its call.
        thread: What the calling thread has open.
        device: Times of calls on a device's streams.
        groups: Finds the group of a call.
        callers: Knows who calls.
    """

    def __init__(
        self, sink: CallSink, groups: GroupTable, guard: HookGuard, *, device: DeviceTimes | None = None
    ) -> None:
        """Start with nothing open.

        Args:
            sink: Takes the calls.
            groups: Finds the group of a call.
            guard: Told what a hook raised.
            device: Times calls on a device's streams; by torch's events unless told otherwise.
        """
        self.active = True
        self.sink = sink
        self.works: dict[int, tuple[weakref.ref[Any], Call]] = {}
        self.thread = ThreadState(sink)
        self.device = device or DeviceTimes(sink)
        self.groups = groups
        self.callers = callers.CallerTable()
        self._guard = guard
        self._issue = sink.issue
        self._storages: dict[int, Call] = {}
        self._has_functional = False
        self._without_future: set[str] = set()
        self._completed = _make_completed(sink.complete, guard)
        self._backward = BackwardWaits(sink, guard, self.thread, self.device)

    def begin_shaped(self, shapes: Shapes, tensors: Sequence[Any], *, asynchronous: bool | None, depth: int) -> Call:
        """Take a call that a hook describes by itself.

        Args:
            shapes: What its group and tensors say.
            tensors: Those that it writes, or else reads.
            asynchronous: Whether the caller gets a Work to wait for; None where the hook does not say.
            depth: Frames from this function to the caller.
        """
        try:
            frame = sys._getframe(depth)
            kind = self.callers.kinds.get(id(frame.f_code))
            if kind is None:
                kind = self.callers.kind(frame.f_code)
        except ValueError:
            # A thread of C++ has no Python frame.
            frame, kind = None, ENGINE
        shape, flags = shapes.plain, 0
        if kind == FUNCTIONAL:
            frame, kind = self.callers.above_modes(frame)
        if kind == API:
            # Hooks say of `send` and `recv`, which block, what they say of `isend` and `irecv`.
            if shapes.may_be_control or asynchronous is None or shape.word < 0:
                kind = self.callers.walk_api(frame)
                if kind == API_OBJECT and shapes.may_be_control:
                    shape, flags = shapes.objects, FLAG_CONTROL
                if asynchronous is None:
                    asynchronous = kind != API_BLOCKING_P2P and says_asynchronous(frame)
        elif kind >= FUNCTIONAL:
            shape = shapes.functional
            flags = FLAG_COMPILED if kind == COMPILED or self.callers.is_compiled(frame) else 0
        if shapes.on_device is not False and (shapes.on_device or any(not tensor.is_cpu for tensor in tensors)):
            flags |= FLAG_DEVICE_TIMED
        thread = self.thread
        thread.kind = kind
        if asynchronous is False or kind == API_BLOCKING_P2P:
            thread.blocking = call = self._issue(shape, flags, _monotonic())
        else:
            thread.blocking = None
            call = self._issue(shape, flags | FLAG_ASYNCHRONOUS, _monotonic())
        if flags & FLAG_DEVICE_TIMED:
            self.device.issued(call)
        return call

    def track(self, call: Call, spec: OperationSpec, tensors: Iterable[Any], work: Any) -> None:
        """Follow an asynchronous call of this thread, the last that it began, once the backend has accepted it.

        Args:
            call: What `begin_shaped` returned.
            spec: Which operation.
            tensors: The tensors that it writes.
            work: Its Work, or None.
        """
        if call.flags & FLAG_ASYNCHRONOUS:
            self.follow(call, spec, self.thread.kind, tensors, work)

    def follow(self, call: Call, spec: OperationSpec, kind: int, tensors: Iterable[Any], work: Any) -> None:
        """Follow an asynchronous call that the backend has accepted.

        Args:
            call: The call.
            spec: Which operation.
            kind: Kind of its caller (`callers`).
            tensors: The tensors that it writes.
            work: Its Work, or None.
        """
        if kind == ENGINE:
            if self._has_functional:
                # The C++ backward of a functional collective comes straight out of the engine, too.
                self._remember_storages(tensors, call)
            backward = self.thread.backward
            if backward is None:
                self._backward.watch(call)
            else:
                backward.append(call)
        elif kind > ENGINE:
            self._has_functional = True
            self._remember_storages(tensors, call)
        elif _in_backward() != _NO_BACKWARD and self.callers.is_gradient_hook(_frame_above(1)):
            # The reducer waits for the future that the hook returns.
            self._backward.watch(call)
        if work is None:
            return
        # A device's future calls back when the work is queued.
        if not call.flags & FLAG_DEVICE_TIMED and spec.name not in self._without_future:
            try:
                work.get_future().add_done_callback(
                    partial(self._completed, call, self.groups.leases[call.shape.group])
                )
            except RuntimeError:
                # gloo's sends, among others, have no future; they are complete when somebody has waited for them.
                self._without_future.add(spec.name)
        if kind < ENGINE:
            self.remember_work(work, call)

    def remember_work(self, work: Any, call: Call) -> None:
        """Keep by which object a later `wait` is known to be a call's."""
        self.thread.last_work = work
        self.works[id(work)] = (weakref.ref(work), call)
        if len(self.works) > _MAX_REMEMBERED:
            self._forget_dead_works()

    def claim(self, work: Any) -> Call | None:
        """Return the call of a Work and forget it; None if the Work is not known."""
        # Training may still wait for what another thread waits for.
        find = self.works.get if self.sink.threads_apart and self.sink.is_apart() else self.works.pop
        reference, call = find(id(work), (None, None))
        if reference is None or reference() is not work:
            return None
        if self.thread.last_work is work:
            self.thread.last_work = None
        return call

    def end_inside(self, call: Call) -> None:
        """Take the end of an operator that returned only when the operation was over."""
        self.sink.end_wait(call, call.issued_ns, _monotonic())
        self.thread.blocking = None

    def claim_storage(self, address: int) -> Call | None:
        """Return the functional call whose result lies at an address and forget it; None if there is none."""
        self._has_functional = True
        call = self._storages.pop(address, None)
        if call is None:
            return None
        _ = self.thread.blocking  # a thread that waits before it calls anything is known from here on
        shape = call.shape
        if shape.variant == operations.PLAIN:
            # The C++ backward of a functional collective looks like DDP's reducer until somebody waits for its tensor.
            call.shape = shape.with_variant(operations.FUNCTIONAL)
        return call

    def mark_wait(self, call: Call) -> Any:
        """Return what `end_wait` needs, just before a wait for a call: an event on a device, else the instant."""
        return self.device.mark() if call.flags & FLAG_DEVICE_TIMED else _monotonic()

    def end_wait(self, call: Call, begun: Any) -> None:
        """Take the end of a wait that went well.

        Args:
            call: What was waited for.
            begun: What `mark_wait` returned.
        """
        if call.flags & FLAG_DEVICE_TIMED:
            self.device.waited(call, begun)
        else:
            self.sink.end_wait(call, begun, _monotonic())

    def release(self) -> None:
        """Let go of what is kept for the calling thread, which trains; the end of a step is the place for it."""
        self.thread.last_work = None
        self.thread.blocking = None
        try:
            self.device.poll()
        except Exception as error:  # noqa: BLE001 - the one guard
            self._guard.disable("device times", error)

    def close(self) -> None:
        """Stop, and let go of everything."""
        self.active = False
        self.release()
        self.works.clear()
        self._storages.clear()

    def _remember_storages(self, tensors: Iterable[Any], call: Call) -> None:
        """Keep where the results of a call lie, by which a functional wait is known to be for it."""
        storages = self._storages
        for tensor in tensors:
            storages[tensor.data_ptr()] = call
        if len(storages) > _MAX_REMEMBERED:
            for address in list(storages)[: _MAX_REMEMBERED // 2]:
                storages.pop(address, None)

    def _forget_dead_works(self) -> None:
        for key, (reference, _) in list(self.works.items()):
            if reference() is None:
                self.works.pop(key, None)
        if len(self.works) > _MAX_REMEMBERED:
            self.works.clear()


class _ThreadOfC(threading.local):
    """Whether a thread of the backend keeps the state that the interpreter gave it."""

    keeps_state = False


def _make_completed(complete: Callable[[Call, int], None], guard: HookGuard) -> Callable[[Call, Lease, Any], None]:
    """Return what a backend's thread runs when a call is over; it gets what is known of the call, none of its tensors.

    Args:
        complete: Takes the call and the instant.
        guard: Told what it raised.
    """
    thread = _ThreadOfC()
    keep_state = ctypes.pythonapi.PyGILState_Ensure
    monotonic = _monotonic

    def completed(call: Call, lease: Lease, future: Any) -> None:
        now = monotonic()
        if call.sequence <= _FIRST_CALLS and not thread.keeps_state:
            # The interpreter makes a state for a thread of C++ at each callback and takes it away after, which takes
            # longer than the callback does. One more reference keeps it until the interpreter ends.
            thread.keeps_state = True
            keep_state()
        try:
            future.value()
        except Exception:  # noqa: BLE001 - a call that failed has not completed; its waiter gets the error
            return
        try:
            complete(call, now)
        except Exception as error:  # noqa: BLE001 - the one guard
            guard.disable("completion", error)

    return completed


def written_tensors(args: Sequence[Any]) -> Iterable[Any]:
    """Return the tensors that an operator of c10d writes: its first argument, or the second where that is empty."""
    first = args[0]
    if isinstance(first, torch.Tensor):
        return (first,)
    if first and isinstance(first[0], torch.Tensor):
        return first
    nested = [tensor for tensors in first for tensor in tensors]
    return nested or args[1]


def is_on_device(args: Sequence[Any]) -> bool:
    """Return whether the first tensor that an operator of c10d writes is on a device."""
    return next((not tensor.is_cpu for tensor in written_tensors(args)), False)


def _frame_above(depth: int) -> FrameType | None:
    """Return the frame `depth` above the caller of this function; None above a thread of C++."""
    try:
        return sys._getframe(depth + 1)
    except ValueError:
        return None


def says_asynchronous(frame: Any) -> bool:
    """Return whether a function of torch.distributed was called with `async_op`, where the operator does not say."""
    if frame is None:
        return True
    local = frame.f_locals
    # The coalescing manager calls it `async_ops`.
    return bool(local.get("async_op", local.get("async_ops", True)))
