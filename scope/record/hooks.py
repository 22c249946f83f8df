"""Hooks that find phases in a script that knows nothing of Scope.

What is hooked, each by the narrowest means that torch offers: the loader's iterator, the copy to a device, the call of
outermost modules, autograd's backward, the optimizers' public step hooks, GradScaler, and `Module.train`/`eval`.
Outermost modules are found by a look at all objects when an optimizer is made and, where none was, before the first
step begins; then their classes' calls are hooked.
`nn.Module` itself is left alone: the compiler guards on it, and would compile every model once more.
"""

# torch annotates only a part of itself.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false, reportPrivateUsage=false
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import functools
import gc
import threading
import time
import weakref
from itertools import compress
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn
from torch.optim import optimizer as optimizers

from scope.record.device import DevicePhases
from scope.record.gradient_flow import FrozenModels, has_gradients
from scope.record.patches import PatchTable
from scope.record.unended_evaluations import holds, unwrap

if TYPE_CHECKING:
    from collections.abc import Callable

    from scope.record.flop_counter import FlopCounter
    from scope.record.session import Session
    from scope.record.unended_evaluations import ModuleTable

_MAX_LOOKS: Final = 5

_is_dynamo_compiling = torch.compiler.is_dynamo_compiling


class TrainingHooks:
    """Attaches to torch between `attach` and `close`.

    A hook that raises is switched off by the session's guard; the wrapped function of torch or of the user runs
    whatever happens.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._guard = session.guard
        self._patches = PatchTable()
        self._handles: list[Any] = []
        self._roots: ModuleTable = {}
        self._hooked: set[type] = set()
        self._local = _Depth()
        self._device = DevicePhases()
        self._optimizer_depth = 0
        self._trained: ModuleTable = {}
        self._wholes: ModuleTable = {}
        self._frozen = FrozenModels()
        self._saw_forward = self._saw_optimizer = False
        self._looks_left = _MAX_LOOKS

    def attach(self) -> None:
        """Hook into torch."""
        from torch.utils.data import dataloader

        replace = self._patches.replace
        replace(dataloader._BaseDataLoaderIter, "__next__", self._wrap_next)
        replace(torch.autograd, "backward", self._wrap_backward)
        replace(torch.autograd, "grad", functools.partial(self._wrap_backward, create_graph_at=4))
        replace(nn.Module, "train", self._wrap_train)
        replace(torch.amp.GradScaler, "step", self._wrap_scaler)
        if torch.cuda.is_available():
            replace(torch.Tensor, "to", self._wrap_copy)
            replace(torch.Tensor, "cuda", self._wrap_copy)
        replace(torch.optim.Optimizer, "__init__", self._wrap_new_optimizer)
        self._handles.append(optimizers.register_optimizer_step_pre_hook(self._before_optimizer))
        self._handles.append(optimizers.register_optimizer_step_post_hook(self._after_optimizer))
        self._look()

    def close(self) -> None:
        """Take every hook away."""
        self._patches.restore()
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._roots.clear()
        self._trained.clear()
        self._wholes.clear()
        self._hooked.clear()

    def add_root(self, module: nn.Module) -> None:
        """Treat a module as the model: its call is forward, its `eval()` begins an evaluation."""
        self._roots[id(module)] = weakref.ref(module)
        kind = type(module)
        if kind not in self._hooked:
            self._hooked.add(kind)
            self._patches.replace(kind, "__call__", self._wrap_root)

    def models(self) -> list[nn.Module]:
        """Return the outermost modules whose training forward was seen."""
        return [root for reference in self._trained.values() if (root := reference()) is not None]

    def is_compiled(self) -> bool:
        """Whether a model, or a part of one, runs through torch.compile."""
        return any(
            hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None
            for root in self.models()
            for module in root.modules()
        )

    def look_again(self) -> bool:
        """A step is about to end: look for models while no forward has been seen; return whether that was done."""
        if self._saw_forward or not self._looks_left or (self._session.clock.step < 0 and self._saw_optimizer):
            return False
        self._looks_left -= 1
        self._look()
        return True

    def on_step(self) -> None:
        """A step begins."""
        self._saw_forward = False
        self._optimizer_depth = 0  # an optimizer that raised has left its own
        if self._device.is_possible:
            self._device.poll()

    def device_times(self) -> Callable[[], dict[str, int] | None] | None:
        """Return what asks for GPU time by phase of the step that has ended; `None` without a GPU."""
        return self._device.end_step() if self._device.is_possible else None

    def _look(self) -> None:
        start = time.monotonic_ns()
        self._call("discovery", self._discover)
        self._session.own_ns += time.monotonic_ns() - start

    def _discover(self) -> None:
        """Hook the classes of all modules that have parameters and belong to no other.

        Frozen ones are used by those that are trained, and gradients may flow through them.

        Where these are known and yet not called (Lightning calls a method of its module, others a model's parts one by
        one), their parts are hooked, one level deeper at each look.
        """
        before = len(self._roots)
        # A process has a million objects: nothing is run in Python for each.
        everything = gc.get_objects()
        modules = list(compress(everything, map(_subclasses(nn.Module).__contains__, map(type, everything))))
        del everything
        inner = {id(child) for module in modules for child in module.__dict__.get("_modules", {}).values()}
        for module in modules:
            if id(module) in inner or holds(self._roots, module) or "_parameters" not in module.__dict__:
                continue
            if any(True for _ in module.parameters()):
                self.add_root(module)
        if len(self._roots) == before and not self._trained:
            roots = [root for reference in self._roots.values() if (root := reference()) is not None]
            for root in roots:
                for part in root.children():
                    if any(True for _ in part.parameters()):
                        self.add_root(part)
                        self._wholes[id(part)] = self._wholes.get(id(root)) or weakref.ref(root)

    def _call(self, name: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """Run a part of a hook under the guard; `None` when it is switched off or raises."""
        if name in self._guard.reasons:
            return None
        try:
            return function(*arguments)
        except Exception as error:  # noqa: BLE001 - the one guard around hooks
            self._guard.disable(name, error)
            return None

    def _wrap_next(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        session = self._session

        @functools.wraps(original)
        def __next__(iterator: Any) -> Any:
            opened = self._call("input", session.begin_input)
            try:
                batch = original(iterator)
            except StopIteration:
                self._call("batch", session.batches.end_loader, iterator)
                raise
            finally:
                if opened:
                    self._call("input", session.end_phase, "input")
            self._call("batch", session.batches.note, batch, iterator)
            return batch

        return __next__

    def _wrap_root(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def __call__(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if _is_compiling() or self._local.depth:
                return original(module, *args, **kwargs)
            return self._run_root(original, module, args, kwargs)

        return __call__

    def _run_root(self, original: Callable[..., Any], module: nn.Module, args: Any, kwargs: Any) -> Any:
        local = self._local
        opened = self._call("forward", self._begin_forward, module, args, kwargs)
        flops, device = self._session.flops, self._device
        if flops.notes_forwards:
            self._call("inputs", flops.note_forward, module, args, kwargs)
        counter = self._call("flops", flops.begin_region, False) if flops.is_counting else None
        timer = self._call("device", device.begin, opened) if opened and device.is_possible else None
        local.depth += 1
        try:
            return original(module, *args, **kwargs)
        finally:
            local.depth -= 1
            if counter is not None:
                self._call("flops", self._session.flops.end_region, counter)
            if timer is not None:
                self._call("device", device.end, timer)
            if opened:
                self._call("forward", self._session.clock.pop, opened)
            else:
                self._call("forward", self._session.clock.notice)

    def _begin_forward(self, module: nn.Module, args: Any, kwargs: Any) -> str | None:
        """Begin the phase of a model's call; return its name if `end_phase` has to follow.

        A call that no gradients flow through is evaluation, of whatever model and in whichever mode: a validation, a
        rollout, what a teacher or a frozen encoder says.
        """
        session = self._session
        is_trained = holds(self._trained, module)
        known = is_trained or holds(self._roots, module)
        if not known and not any(True for _ in module.parameters()):
            return None
        is_trainable = is_trained or self._frozen.is_trainable(module)
        flows = has_gradients((args, kwargs), of_parameters=is_trainable)
        unended = session.unended
        session.look_at_mode()
        if session.clock.is_absorbing():
            unended.on_forward(module if is_trained else None, gradients=flows)
        if not flows:
            session.batches.evaluate((args, kwargs))
            return "evaluation" if session.clock.push("evaluation") else None
        training = known and is_trainable and (module.training or unwrap(module).training or unended.is_trained(module))
        if training:
            if not is_trained:
                self._trained[id(module)] = weakref.ref(module)
        elif known and is_trainable:
            unended.note_call(module)
        opened = session.begin_forward((args, kwargs), training=training)
        # Only now: where the call has begun a step, it belongs to that.
        self._saw_forward = self._saw_forward or training
        return "forward" if opened else None

    def _wrap_backward(self, original: Callable[..., Any], create_graph_at: int = 3) -> Callable[..., Any]:
        session, device = self._session, self._device

        @functools.wraps(original)
        def backward(*args: Any, **kwargs: Any) -> Any:
            if _is_compiling():
                return original(*args, **kwargs)
            opened = self._call("backward", session.begin_backward)
            if not opened:
                return original(*args, **kwargs)
            counting = session.flops.is_counting
            counter = self._call("flops", self._count_backward, create_graph_at, args, kwargs) if counting else None
            timer = self._call("device", device.begin, "backward") if device.is_possible else None
            try:
                return original(*args, **kwargs)
            finally:
                if counter is not None:
                    self._call("flops", session.flops.end_region, counter)
                if timer is not None:
                    self._call("device", device.end, timer)
                self._call("backward", session.end_backward)

        return backward

    def _count_backward(self, create_graph_at: int, args: Any, kwargs: Any) -> FlopCounter | None:
        """Enter the counter, which has to know whether gradients are made that can be differentiated again."""
        makes_graph = bool(args[create_graph_at] if len(args) > create_graph_at else kwargs.get("create_graph"))
        return self._session.flops.begin_region(True, makes_graph)

    def _wrap_train(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def train(module: nn.Module, mode: bool = True) -> Any:
            if not self._local.switching:
                self._call("evaluation", self._switch_mode, module, mode)
            outer, self._local.switching = self._local.switching, True
            try:
                return original(module, mode)
            finally:
                self._local.switching = outer

        return train

    def _model_of(self, module: nn.Module) -> nn.Module | None:
        """Return the model that a module is, by itself, in one of torch's wrappings, or with parts that are called."""
        if holds(self._trained, module):
            return module
        for root in self.models():
            if root._modules.get("module") is module or root._modules.get("_orig_mod") is module:
                return root
            whole = self._wholes.get(id(root))
            if whole is not None and whole() is module:
                return root
        return None

    def _switch_mode(self, module: nn.Module, mode: bool) -> None:
        session = self._session
        model = self._model_of(module)
        if model is None:
            return
        if mode:
            session.end_mode()
        elif not session.unended.is_trained(model) and session.clock.push("evaluation"):
            session.unended.begin(module)

    def _wrap_scaler(self, original: Callable[..., Any]) -> Callable[..., Any]:
        session = self._session

        @functools.wraps(original)
        def step(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            before = session.boundary.num_optimizer_steps
            result = original(scaler, optimizer, *args, **kwargs)
            if session.boundary.num_optimizer_steps == before and scaler.is_enabled():
                self._call("scaler", lambda: session.on_optimizer(optimizer, skipped=True))
            return result

        return step

    def _wrap_copy(self, original: Callable[..., Any]) -> Callable[..., Any]:
        session = self._session

        @functools.wraps(original)
        def copy(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            if _is_compiling() or not tensor.is_cpu or not _goes_to_device(original, args, kwargs):
                return original(tensor, *args, **kwargs)
            opened = self._call("copy", session.clock.push, "host_to_device")
            try:
                copied = original(tensor, *args, **kwargs)
            finally:
                if opened:
                    self._call("copy", session.end_phase, "host_to_device")
            self._call("batch", session.batches.storages.add_copy, tensor, copied)
            return copied

        return copy

    def _wrap_new_optimizer(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def __init__(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            original(optimizer, *args, **kwargs)
            # Its model is there now, and may be called before any step is known to begin.
            if self._session.clock.step < 0 and self._looks_left:
                self._looks_left -= 1
                self._look()
                self._saw_optimizer = bool(self._roots)
                self._call("pipelines", self._session.pipelines.look)

        return __init__

    def _before_optimizer(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        del args, kwargs
        if _is_compiling():
            return
        self._optimizer_depth += 1
        if self._optimizer_depth == 1:
            session = self._session
            if session.unended.may_train or session.clock.is_absorbing():
                self._call("evaluation", self._look_at_update, optimizer)
            self._call("optimizer", session.clock.push, "optimizer")

    def _look_at_update(self, optimizer: Any) -> None:
        """See whether an update is of models in evaluation mode; it ends an evaluation that no `train()` has ended."""
        session = self._session
        if not session.clock.is_own_thread() or self._local.depth:
            return
        trained = session.unended.find_trained(optimizer)
        self._trained.update((id(model), weakref.ref(model)) for model in trained)
        if session.clock.is_absorbing():
            # A critic is used in that mode without being updated in it.
            trained = session.unended.called()
            session.end_evaluation()
            self._saw_forward = self._saw_forward or bool(trained)
        session.unended.keep(trained)

    def _after_optimizer(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        del args, kwargs
        if _is_compiling():
            return
        # A wrapper such as ZeroRedundancyOptimizer steps an inner optimizer: one update, not two.
        self._optimizer_depth = max(0, self._optimizer_depth - 1)
        if self._optimizer_depth == 0:
            self._call("optimizer", self._session.end_optimizer, optimizer)


def _is_compiling() -> bool:
    """Return what `torch.compiler.is_compiling` does, in a third of its time; the compiler takes it for True."""
    return _is_dynamo_compiling() or torch.compiler._is_compiling_flag


class _Depth(threading.local):
    """How deep a thread is in module calls, and whether it is switching a model's mode."""

    def __init__(self) -> None:
        self.depth = 0
        self.switching = False


def _subclasses(kind: type) -> set[type]:
    """Return a class and all that derive from it."""
    found: set[type] = set()
    waiting = [kind]
    while waiting:
        each = waiting.pop()
        if each not in found:
            found.add(each)
            waiting += type.__subclasses__(each)
    return found


def _goes_to_device(original: Any, args: Any, kwargs: Any) -> bool:
    if original.__name__ == "cuda":
        return True
    target = kwargs.get("device", args[0] if args else None)
    if isinstance(target, torch.Tensor):
        return not target.is_cpu
    if isinstance(target, str | int | torch.device):
        return torch.device(target).type not in ("cpu", "meta")
    return False
