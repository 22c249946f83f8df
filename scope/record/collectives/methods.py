"""Route `methods`: patched methods of ProcessGroup, where neither hooks nor dispatcher kernels work.

It sees what Python calls and nothing else; `blind_to` says so, and the recorder repeats it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch
import torch.distributed as dist

from scope.record.collectives.described import described_spec, measure_described, sign_described
from scope.record.collectives.shapes import make_shapes, remember
from scope.record.collectives.uncompiled import keep_uncompiled
from scope.run.layout import FLAG_ASYNCHRONOUS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from scope.record.collectives.groups import GroupTable
    from scope.record.collectives.guard import HookGuard
    from scope.record.collectives.shapes import Shapes
    from scope.record.collectives.tracker import CallTracker

# torch annotates only a part of itself.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

_METHODS: Final = {
    "allreduce": "all_reduce",
    "allreduce_coalesced": "all_reduce",
    "allgather": "all_gather",
    "_allgather_base": "all_gather",
    "all_gather_single": "all_gather",
    "allgather_coalesced": "all_gather",
    "allgather_into_tensor_coalesced": "all_gather",
    "all_gather_single_coalesced": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "_reduce_scatter_base": "reduce_scatter",
    "reduce_scatter_single": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "reduce_scatter_single_coalesced": "reduce_scatter",
    "alltoall": "all_to_all",
    "alltoall_base": "all_to_all",
    "all_to_all_single": "all_to_all",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    "send": "send",
    "recv": "recv",
    "recv_anysource": "recv",
    "barrier": "barrier",
}
"""Method, under the names of every torch since 2.6, to operation."""


class MethodsRoute:
    """The patched methods, from `attach` to `detach`."""

    name = "methods"
    blind_to = (
        "DDP's reducer",
        "DTensor",
        "functional collectives",
        "compiled graphs",
    )
    cost_factor = 5.0

    def __init__(self, tracker: CallTracker, groups: GroupTable, guard: HookGuard) -> None:
        self._tracker = tracker
        self._groups = groups
        self._guard = guard
        self._patched: list[tuple[str, Any, Any]] = []

    def attach(self) -> None:
        """Patch every method that this torch has."""
        for name, operation in _METHODS.items():
            original = dist.ProcessGroup.__dict__.get(name)
            if original is not None:
                patched = self._recording(name, operation, original)
                setattr(dist.ProcessGroup, name, patched)
                self._patched.append((name, original, patched))

    def detach(self) -> None:
        """Put back every method that is still ours."""
        for name, original, patched in reversed(self._patched):
            if dist.ProcessGroup.__dict__.get(name) is patched:
                setattr(dist.ProcessGroup, name, original)
        self._patched.clear()

    def _recording(self, name: str, operation: str, original: Callable[..., Any]) -> Callable[..., Any]:
        tracker, groups, guard = self._tracker, self._groups, self._guard
        spec = described_spec(operation, coalesced=name.endswith("_coalesced"))
        known: dict[Any, Shapes] = {}
        sign = _SIGNERS.get(name)
        intact = True

        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            nonlocal intact
            if not (intact and tracker.active):
                return original(self, *args, **kwargs)
            begun, tensors = None, ()
            try:
                values = (*args, *kwargs.values()) if kwargs else args
                signature = sign(id(self), values) if sign is not None else None
                shapes = known.get(signature)
                if shapes is None or shapes.reference() is not self:
                    group = groups.of(self)
                    measured = _measure(operation, name, values, group.rank)
                    shapes, tensors = make_shapes(spec, group, measured), measured.tensors
                    remember(known, signature, shapes)
                else:
                    # What has a signature writes its first argument.
                    tensors = _tensors(values[0])
                begun = tracker.begin_shaped(shapes, tensors, asynchronous=_asynchronous(values), depth=2)
            except Exception as error:  # noqa: BLE001 - the one guard
                intact = False
                guard.disable(f"ProcessGroup.{name}", error)
            work = original(self, *args, **kwargs)
            if begun is not None and begun.flags & FLAG_ASYNCHRONOUS:
                try:
                    tracker.track(begun, spec, tensors, work)
                except Exception as error:  # noqa: BLE001 - the one guard
                    intact = False
                    guard.disable(f"ProcessGroup.{name}", error)
            return work

        method.__wrapped__ = original  # type: ignore[attr-defined]
        return keep_uncompiled(method)


def _measure(operation: str, name: str, values: Sequence[Any], rank: int) -> Any:
    if operation in {"send", "recv"}:
        peer = -1 if name == "recv_anysource" else values[1]
        tensors = _tensors(values[0])
        inputs, outputs = (tensors, []) if operation == "send" else ([], tensors)
        return measure_described(operation, inputs, outputs, root=peer, rank=rank, tag=values[-1])
    if operation == "barrier":
        return measure_described(operation, [], [])
    root = next((value.rootRank for value in values if hasattr(value, "rootRank")), -1)
    if operation in {"all_reduce", "broadcast", "reduce"}:
        return measure_described(operation, _tensors(values[0]), [], root=root, rank=rank)
    measured = measure_described(operation, _tensors(values[1]), _tensors(values[0]), root=root, rank=rank)
    if name in {"alltoall_base", "all_to_all_single"}:
        splits = [value for value in values[2:] if isinstance(value, list)]
        measured = measured._replace(uneven=measured.uneven or any(len(set(sizes)) > 1 for sizes in splits))
    return measured


def _tensors(value: Any) -> list[Any]:
    """Return the tensors of a tensor, a list of them, or a list of lists."""
    if isinstance(value, torch.Tensor):
        return [value]
    return [tensor for part in value for tensor in _tensors(part)]


def _asynchronous(values: Sequence[Any]) -> bool | None:
    """Return what the options say; None where this torch has no such option."""
    for value in reversed(values):
        asynchronous = getattr(value, "asyncOp", None)
        if asynchronous is not None:
            return bool(asynchronous)
    return None


def _sign_reduced(group: int, values: Sequence[Any]) -> Any:
    return sign_described(group, _listed(values[0]), ())


def _sign_rooted(group: int, values: Sequence[Any]) -> Any:
    root = getattr(values[1], "rootRank", None) if len(values) > 1 else None
    return None if root is None else sign_described(group, _listed(values[0]), (), root=root)


def _sign_pair(group: int, values: Sequence[Any]) -> Any:
    return sign_described(group, _listed(values[1]), _listed(values[0]))


def _listed(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else (value,)


_SIGNERS: Final[dict[str, Callable[[int, Sequence[Any]], Any]]] = {
    "allreduce": _sign_reduced,
    "broadcast": _sign_rooted,
    "reduce": _sign_rooted,
    "_allgather_base": _sign_pair,
    "all_gather_single": _sign_pair,
    "_reduce_scatter_base": _sign_pair,
    "reduce_scatter_single": _sign_pair,
}
"""What tells equal calls of a method apart; the others are measured each time."""
