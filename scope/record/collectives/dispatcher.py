"""Route `dispatcher`: a pass-through kernel in front of every operator of c10d.

The kernels stand at the BackendSelect key, which lies below autograd, functionalisation and Python modes and above the
backends: they see the Python API, DDP's reducer, FSDP, DTensor, functional collectives and compiled graphs alike.
`redispatch_boxed` goes on to the backend with the GIL released; a kernel that kept it would deadlock with gloo's
threads, which need it while they hold the queue's lock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from scope.record.collectives.operations import SPECS
from scope.record.collectives.tracker import written_tensors
from scope.run.layout import FLAG_ASYNCHRONOUS

if TYPE_CHECKING:
    from collections.abc import Callable

    from scope.record.collectives.guard import HookGuard
    from scope.record.collectives.operations import OperationSpec
    from scope.record.collectives.tracker import CallTracker
    from scope.run.calls import Call

# torch annotates only a part of itself, and the way to go on to the next kernel is private.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportAttributeAccessIssue=false, reportPrivateUsage=false

_KEY = "BackendSelect"


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

    def _kernel(self, spec: OperationSpec, operator: Any, after: Any) -> Callable[..., Any]:
        tracker, guard, finish = self._tracker, self._guard, self._finish
        begin = tracker.starter(spec, async_index=_argument_index(operator, "async_op"))
        redispatch = operator._handle.redispatch_boxed
        hook = f"c10d::{spec.name}"
        always, asynchronous = spec.blocking, FLAG_ASYNCHRONOUS
        below: dict[int, Any] = {}
        works = True

        def kernel(keyset: Any, *args: Any) -> Any:
            nonlocal works
            key = keyset.raw_repr()
            rest = below.get(key)
            if rest is None:
                rest = below[key] = keyset & after
            if not (works and tracker.active):
                return redispatch(rest, *args)
            call = None
            try:
                call = begin(args)
            except Exception as error:  # noqa: BLE001 - the one guard
                works = False
                guard.disable(hook, error)
            result = redispatch(rest, *args)
            if call is not None and (call.flags & asynchronous or always):
                try:
                    finish(call, spec, args, result)
                except Exception as error:  # noqa: BLE001 - the one guard
                    works = False
                    guard.disable(hook, error)
            return result

        return kernel

    def _finish(self, call: Call, spec: OperationSpec, args: Any, result: Any) -> None:
        if spec.blocking:
            self._tracker.end_inside(call)
        else:
            work = result[-1] if type(result) is tuple else result
            self._tracker.end(call, spec, written_tensors(args), work)


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

        return kernel


def _operator(namespace: str, name: str) -> Any:
    """Return the default overload of an operator, or None where this torch has none."""
    packet = getattr(getattr(torch.ops, namespace), name, None)
    return None if packet is None else packet.default


def _argument_index(operator: Any, name: str) -> int | None:
    names = [argument.name for argument in operator._schema.arguments]
    return names.index(name) if name in names else None
