"""Route `hooks`: the hooks that every process group offers in torch 2.14 and later.

A hook belongs to one group, so the function that makes groups is wrapped and every new group gets its pair. Hooks tell
less than the dispatcher: no tags, and no split sizes of an all-to-all. Those are read off the function of
torch.distributed that made the call, where there is one.
"""

from __future__ import annotations

import sys
import weakref
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch.distributed as dist

from scope.record.collectives.described import described_spec, measure_described, sign_described
from scope.record.collectives.dispatcher import WaitTensorKernel
from scope.record.collectives.shapes import make_shapes, remember
from scope.record.collectives.uncompiled import keep_uncompiled
from scope.run.layout import FLAG_ASYNCHRONOUS

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from scope.record.collectives.groups import GroupTable
    from scope.record.collectives.guard import HookGuard
    from scope.record.collectives.operations import Measured, OperationSpec
    from scope.record.collectives.shapes import Shapes
    from scope.record.collectives.tracker import CallTracker
    from scope.run.calls import Call

# torch annotates only a part of itself.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportAttributeAccessIssue=false, reportPrivateUsage=false

_HOOK_ID: Final = 0x5C09E
_OPERATIONS: Final = {
    "ALLREDUCE": "all_reduce",
    "ALLGATHER": "all_gather",
    "REDUCE_SCATTER": "reduce_scatter",
    "ALLTOALL": "all_to_all",
    "BROADCAST": "broadcast",
    "REDUCE": "reduce",
    "GATHER": "gather",
    "SCATTER": "scatter",
    "SEND": "send",
    "RECV": "recv",
    "BARRIER": "barrier",
}
_TOLD_BY_CALLER: Final = frozenset({"all_to_all", "send", "recv"})
_CAN_COALESCE: Final = frozenset({"all_reduce", "all_gather", "reduce_scatter"})


def missing_parts() -> list[str]:
    """Return what this torch lacks for the route; empty if it works."""
    names = ("register_pre_hook", "register_post_hook", "unregister_pre_hook", "unregister_post_hook")
    missing = [f"ProcessGroup.{name}" for name in names if not hasattr(dist.ProcessGroup, name)]
    if not hasattr(dist.distributed_c10d, "_new_process_group_helper"):
        missing.append("torch.distributed.distributed_c10d._new_process_group_helper")
    return missing


class NativeRoute:
    """The hooks of all groups, from `attach` to `detach`."""

    name = "hooks"
    blind_to = (
        "split sizes of a functional all_to_all whose totals are equal",
        "process groups that a program makes without torch.distributed",
    )
    cost_factor = 6.0

    def __init__(self, tracker: CallTracker, groups: GroupTable, guard: HookGuard) -> None:
        self._tracker = tracker
        self._groups = groups
        self._guard = guard
        self._hooked: list[weakref.ref[Any]] = []
        self._original: Callable[..., Any] | None = None
        self._wrapped: Callable[..., Any] | None = None
        self._wait = WaitTensorKernel(tracker, guard)

    def attach(self) -> None:
        """Hook every group that there is, and every one to come."""
        c10d = dist.distributed_c10d
        self._original = original = c10d._new_process_group_helper

        def make_group(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            try:
                self._hook(result[0])
            except Exception as error:  # noqa: BLE001 - the one guard
                self._guard.disable("new_group", error)
            return result

        self._wrapped = c10d._new_process_group_helper = make_group
        for process_group in list(c10d._world.pg_map):
            self._hook(process_group)
        self._wait.attach()

    def detach(self) -> None:
        """Take all hooks away again."""
        c10d = dist.distributed_c10d
        if self._original is not None and c10d._new_process_group_helper is self._wrapped:
            c10d._new_process_group_helper = self._original
        registered = c10d._world.pg_map
        for reference in self._hooked:
            process_group = reference()
            if process_group is not None and process_group in registered:
                process_group.unregister_pre_hook(_HOOK_ID)
                process_group.unregister_post_hook(_HOOK_ID)
        self._hooked.clear()
        self._wait.detach()

    def _hook(self, process_group: Any) -> None:
        if not isinstance(process_group, dist.ProcessGroup):
            # A rank outside the group gets a placeholder.
            return
        tracker, guard = self._tracker, self._guard
        reference = weakref.ref(process_group)
        describe = self._describer(reference)
        known: dict[Any, _Described] = {}
        open_calls: dict[int, tuple[Call, OperationSpec, Any]] = {}
        intact = True

        def before(call: Any) -> None:
            nonlocal intact
            if not (intact and tracker.active):
                return
            try:
                # Whatever is asked of `call` is made anew each time, and the name of its operation costs a microsecond.
                inputs, outputs = call.input_tensors, call.output_tensors
                signature = sign_described(int(call.name), inputs, outputs, root=call.root)
                described = known.get(signature)
                if described is None:
                    described = describe(call, sys._getframe(1))
                    if described is None:
                        return
                    if not described.told_by_caller:
                        remember(known, signature, described)
                tensors = outputs or inputs
                begun = tracker.begin_shaped(described.shapes, tensors, asynchronous=call.async_op, depth=2)
                if begun.flags & FLAG_ASYNCHRONOUS:
                    open_calls[call.op_id] = begun, described.spec, tensors
            except Exception as error:  # noqa: BLE001 - the one guard
                intact = False
                guard.disable("pre_hook", error)

        def after(call: Any) -> None:
            nonlocal intact
            begun = open_calls.pop(call.op_id, None) if open_calls else None
            if begun is None or not intact:
                return
            try:
                tracker.track(*begun, call.work)
            except Exception as error:  # noqa: BLE001 - the one guard
                intact = False
                guard.disable("post_hook", error)

        process_group.register_pre_hook(_HOOK_ID, keep_uncompiled(before))
        process_group.register_post_hook(_HOOK_ID, keep_uncompiled(after))
        self._hooked.append(reference)

    def _describer(self, reference: weakref.ref[Any]) -> Callable[[Any, FrameType], _Described | None]:
        groups = self._groups

        def describe(call: Any, frame: FrameType) -> _Described | None:
            operation = _OPERATIONS.get(call.name.name)
            if operation is None:
                return None
            # Its ranks are not known yet when it is made; that it is alive, its call proves.
            group = groups.of(reference())
            inputs, outputs = call.input_tensors, call.output_tensors
            measured = measure_described(operation, inputs, outputs, root=call.root, rank=group.rank)
            told_by_caller = operation in _TOLD_BY_CALLER
            if told_by_caller:
                measured = _add_locals(measured, frame)
            coalesced = operation in _CAN_COALESCE and len(inputs) > 1 and len(outputs) in (0, len(inputs))
            spec = described_spec(operation, coalesced=coalesced)
            return _Described(spec, make_shapes(spec, group, measured), told_by_caller)

        return describe


class _Described(NamedTuple):
    """What equal calls on a group have in common; those that the caller tells more of are described anew each time."""

    spec: OperationSpec
    shapes: Shapes
    told_by_caller: bool


def _add_locals(measured: Measured, frame: FrameType) -> Measured:
    """Add what the hook does not tell: the tag, and whether the parts of an all-to-all differ."""
    if not frame.f_code.co_filename.endswith("distributed_c10d.py"):
        return measured
    local = frame.f_locals
    splits = (local.get("output_split_sizes"), local.get("input_split_sizes"))
    uneven = measured.uneven or any(sizes and len(set(sizes)) > 1 for sizes in splits)
    return measured._replace(tag=local.get("tag", -1), uneven=uneven)
