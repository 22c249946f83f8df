"""Route `dispatcher`: a pass-through kernel in front of every operator of c10d.

The kernels stand at the BackendSelect key, which lies below autograd, functionalisation and Python modes and above the
backends: they see the Python API, DDP's reducer, FSDP, DTensor, functional collectives and compiled graphs alike.
`redispatch_boxed` goes on to the backend with the GIL released; a kernel that kept it would deadlock with gloo's
threads, which need it while they hold the queue's lock.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any, Final

import torch

from scope.record.collectives.callers import (
    API,
    API_BLOCKING_P2P,
    API_OBJECT,
    COMPILED,
    ENGINE,
    FUNCTIONAL,
)
from scope.record.collectives.operations import SPECS, sign_in_place
from scope.record.collectives.shapes import make_shapes, remember
from scope.record.collectives.tracker import is_on_device, says_asynchronous, written_tensors
from scope.record.collectives.uncompiled import keep_uncompiled
from scope.run.layout import FLAG_ASYNCHRONOUS, FLAG_COMPILED, FLAG_CONTROL, FLAG_DEVICE_TIMED

if TYPE_CHECKING:
    from collections.abc import Callable

    from scope.record.collectives.guard import HookGuard
    from scope.record.collectives.operations import OperationSpec
    from scope.record.collectives.shapes import Shapes
    from scope.record.collectives.tracker import CallTracker

# torch annotates only a part of itself, and the way to go on to the next kernel is private.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportAttributeAccessIssue=false, reportPrivateUsage=false

_KEY = "BackendSelect"
_NEW: Final = -2
_NO_INDEX: Final = 1_000_000


def missing_parts() -> list[str]:
    """Return what this torch lacks for the route; empty if it works."""
    missing: list[str] = []
    if not hasattr(torch._C, "_dispatch_keyset_full_after"):
        missing.append("torch._C._dispatch_keyset_full_after")
    operator = _operator("c10d", "allreduce_")
    if operator is None:
        missing.append("torch.ops.c10d.allreduce_")
    elif not hasattr(getattr(operator, "_handle", None), "redispatch_boxed"):
        missing.append("OpOverload._handle.redispatch_boxed")
    return missing


class DispatcherRoute:
    """The kernels, from `attach` to `detach`.

    Attributes:
        operators: Names of the operators that have a kernel.
        cost_factor: See `scope.run.calls.CallLog`; from bench/bench_recording.py.
    """

    name = "dispatcher"
    blind_to = ()
    cost_factor = 3.9

    def __init__(self, tracker: CallTracker, guard: HookGuard) -> None:
        self.operators: list[str] = []
        self._tracker = tracker
        self._guard = guard
        self._libraries: list[Any] = []
        self._wait = WaitTensorKernel(tracker, guard)

    def attach(self) -> None:
        """Register a kernel for every operator of c10d that this torch has, and for functional waits."""
        after = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)
        library = torch.library.Library("c10d", "IMPL")
        self._libraries.append(library)
        for spec in SPECS:
            operator = _operator("c10d", spec.name)
            if operator is None:
                continue
            library.impl(spec.name, self._kernel(spec, operator, after), _KEY, with_keyset=True)
            self.operators.append(f"c10d::{spec.name}")
        self._wait.attach()

    def detach(self) -> None:
        """Take all kernels away again."""
        for library in self._libraries:
            library._destroy()
        self._libraries.clear()
        self.operators.clear()
        self._wait.detach()

    def _kernel(self, spec: OperationSpec, operator: Any, after: Any) -> Callable[..., Any]:  # noqa: C901 - see below
        tracker, guard, thread = self._tracker, self._guard, self._tracker.thread
        table, kinds, group_of = tracker.callers, tracker.callers.kinds, tracker.groups.of
        issue, follow, device_issued = tracker.sink.issue, tracker.follow, tracker.device.issued
        unbox_group, unbox_work = torch.distributed.ProcessGroup.unbox, torch.distributed.Work.unbox
        redispatch = operator._handle.redispatch_boxed
        group_index, sign, blocking = spec.group_index, spec.signature, spec.blocking
        in_place = sign is sign_in_place
        async_index = _argument_index(operator, "async_op")
        told = async_index is not None
        if async_index is None:
            async_index = _NO_INDEX
        getframe, monotonic = sys._getframe, time.monotonic_ns
        below: dict[int, Any] = {}
        known: dict[Any, Shapes] = {}
        latest: dict[Any, Shapes] = {}
        works = True

        def find(process_group: Any, args: Any, signature: Any) -> Shapes:
            shapes = known.get(signature)
            if shapes is None or shapes.reference() is not process_group:
                group = group_of(process_group)
                shapes = make_shapes(spec, group, spec.measure(args, group.rank))
                remember(known, signature, shapes)
            return shapes

        # Flat, and its names bound above: what is looked up or called in here is paid by every collective, and several
        # times over where the step between two of them has emptied the caches.
        def kernel(keyset: Any, *args: Any) -> Any:  # noqa: C901
            nonlocal works
            key = keyset.raw_repr()
            try:
                rest = below[key]
            except KeyError:
                rest = below[key] = keyset & after
            if not (works and tracker.active):
                return redispatch(rest, *args)
            kind, call, asynchronous, tensors = ENGINE, None, False, args[0]
            try:
                process_group = unbox_group(args[group_index])
                if in_place and len(tensors) == 1:
                    tensor = tensors[0]
                    try:
                        size = tensor.nbytes
                    except RuntimeError:
                        # A sparse tensor: how many elements it has is not among its sizes.
                        size = None
                    shapes = latest.get(size)
                    if (
                        shapes is None
                        or shapes.dtype is not tensor.dtype
                        or not (shapes.group.kept is process_group or shapes.reference() is process_group)
                    ):
                        signature = None if size is None else (id(process_group), size, tensor.dtype)
                        shapes = find(process_group, args, signature)
                        remember(latest, size, shapes)
                else:
                    shapes = find(process_group, args, sign(id(process_group), args))
                # Trailing arguments that have their default value are not passed: asynchronous is the default.
                asynchronous = len(args) <= async_index or args[async_index]
                if not asynchronous and shapes.is_settled:
                    # The API alone says that it will wait; a look at the frame would make an object of it.
                    thread.blocking = call = issue(shapes.plain, 0, monotonic())
                else:
                    shape, flags = shapes.plain, 0
                    try:
                        frame = getframe(1)
                        code = frame.f_code
                        kind = kinds.get(id(code), _NEW)
                        if kind == _NEW:
                            kind = table.kind(code)
                    except ValueError:
                        # A thread of the autograd engine has no Python frame.
                        frame = None
                    if not (kind <= API and told and shapes.is_settled):
                        if kind == FUNCTIONAL:
                            frame, kind = table.above_modes(frame)
                        if kind == API:
                            if shapes.may_be_control or not told:
                                kind = table.walk_api(frame)
                                if kind == API_OBJECT:
                                    shape, flags = shapes.objects, FLAG_CONTROL
                                if not told:
                                    asynchronous = kind != API_BLOCKING_P2P and says_asynchronous(frame)
                        elif kind >= FUNCTIONAL:
                            shape = shapes.functional
                            if kind == COMPILED or table.is_compiled(frame):
                                flags = FLAG_COMPILED
                        if shapes.on_device is not False and (shapes.on_device or is_on_device(args)):
                            flags |= FLAG_DEVICE_TIMED
                    # The Work of an earlier blocking call that nobody has waited for by now is its caller's own affair.
                    if asynchronous and not blocking:
                        thread.blocking = None
                        call = issue(shape, flags | FLAG_ASYNCHRONOUS, monotonic())
                    else:
                        asynchronous = False
                        thread.blocking = call = issue(shape, flags, monotonic())
                    if flags & FLAG_DEVICE_TIMED:
                        device_issued(call)
            except Exception as error:  # noqa: BLE001 - the one guard
                works = False
                guard.disable(hook, error)
            result = redispatch(rest, *args)
            if call is None or not (asynchronous or blocking):
                return result
            try:
                if blocking:
                    tracker.end_inside(call)
                else:
                    work = result[-1] if type(result) is tuple else result
                    written = tensors if in_place else written_tensors(args)
                    follow(call, spec, kind, written, None if work is None else unbox_work(work))
            except Exception as error:  # noqa: BLE001 - the one guard
                works = False
                guard.disable(hook, error)
            return result

        hook = f"c10d::{spec.name}"
        return keep_uncompiled(kernel)


class WaitTensorKernel:
    """The kernel in front of functional waits, from `attach` to `detach`."""

    def __init__(self, tracker: CallTracker, guard: HookGuard) -> None:
        self._tracker = tracker
        self._guard = guard
        self._library: Any = None

    def attach(self) -> None:
        """Register the kernel, where this torch has the operator."""
        operator = _operator("_c10d_functional", "wait_tensor")
        if operator is not None and self._library is None:
            self._library = torch.library.Library("_c10d_functional", "IMPL")
            self._library.impl("wait_tensor", self._kernel(operator), _KEY, with_keyset=True)

    def detach(self) -> None:
        """Take the kernel away again."""
        if self._library is not None:
            self._library._destroy()
            self._library = None

    def _kernel(self, operator: Any) -> Callable[..., Any]:
        tracker, guard = self._tracker, self._guard
        after = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)
        redispatch = operator._handle.redispatch_boxed
        plain = torch.Tensor
        intact = True

        def kernel(keyset: Any, tensor: Any) -> Any:
            nonlocal intact
            rest = keyset & after
            if not (intact and tracker.active) or type(tensor) is not plain or tensor.is_meta:
                # A graph is being traced: nothing is waited for.
                return redispatch(rest, tensor)
            call = begun = None
            try:
                call = tracker.claim_storage(tensor.data_ptr())
                if call is not None:
                    begun = tracker.mark_wait(call)
            except Exception as error:  # noqa: BLE001 - the one guard
                intact = False
                call = None
                guard.disable("_c10d_functional::wait_tensor", error)
            result = redispatch(rest, tensor)
            if call is not None:
                try:
                    tracker.end_wait(call, begun)
                except Exception as error:  # noqa: BLE001 - the one guard
                    intact = False
                    guard.disable("_c10d_functional::wait_tensor", error)
            return result

        return keep_uncompiled(kernel)


def _operator(namespace: str, name: str) -> Any:
    """Return the default overload of an operator, or None where this torch has none."""
    packet = getattr(getattr(torch.ops, namespace), name, None)
    return None if packet is None else packet.default


def _argument_index(operator: Any, name: str) -> int | None:
    names = [argument.name for argument in operator._schema.arguments]
    return names.index(name) if name in names else None
