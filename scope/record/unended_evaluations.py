"""Evaluations that `eval()` began and no `train()` has ended, and the models that are trained in evaluation mode.

That training goes on is proven by an optimizer alone, of whatever model: evaluations may run backward passes of their
own (adversarial examples, saliency). A probe that is trained on what a model makes is told as training: nothing tells
it from a second model whose training follows that of the first, and which would be lost. A model that was part of such
an update begins no evaluation by `eval()` from then on, and its calls with gradients are those of training.
"""

# torch annotates only a part of itself.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportPrivateUsage=false

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Final, TypeAlias

if TYPE_CHECKING:
    from torch import nn

    from scope.record.phases import PhaseClock

ModuleTable: TypeAlias = "dict[int, weakref.ref[nn.Module]]"
"""Modules by their id."""

_MAX_MISSES: Final = 20
"""Updates of other parameters, after which calls in evaluation mode are those of a model that is only used."""


def holds(table: ModuleTable, module: nn.Module) -> bool:
    """Whether a module is in a table by identity; the id alone may be that of one that is gone."""
    reference = table.get(id(module))
    return reference is not None and reference() is module


def unwrap(module: nn.Module) -> nn.Module:
    """Return what torch's wrappings (DDP, torch.compile) are around, the module itself where it is none of them."""
    inner: nn.Module | None = module
    while inner is not None:
        module = inner
        inner = module._modules.get("module") or module._modules.get("_orig_mod")
    return module


class UnendedEvaluation:
    """What came in an evaluation since the last that was surely part of it, and which models are trained in that mode.

    Attributes:
        end_ns: Where the evaluation ended if training goes on: what was seen last before the first call of a model with
            gradients; absent before such a call.
        num_backwards: Backward passes since.
        saw_input: Whether a batch was asked for in the evaluation, and none since.
    """

    def __init__(self, clock: PhaseClock) -> None:
        self._clock = clock
        self._switched: weakref.ref[nn.Module] | None = None
        self._trained: ModuleTable = {}
        self._called: ModuleTable = {}
        self._num_misses = 0
        self.clear()

    def begin(self, module: nn.Module) -> None:
        """`eval()` of a module begins an evaluation."""
        self.clear()
        self._switched = weakref.ref(unwrap(module))

    def is_over(self) -> bool:
        """Whether that module is in training mode again: Lightning restores modes without a call of `train()`."""
        module = None if self._switched is None else self._switched()
        return module is not None and module.training

    def clear(self) -> None:
        """An evaluation is over for good."""
        self.end()
        self.saw_input = False

    def end(self) -> None:
        """`train()` ends an evaluation; a batch that was asked for in it may be one of training."""
        self.end_ns: int | None = None
        self.num_backwards = 0
        self._switched = None
        self._called.clear()

    def is_trained(self, model: nn.Module) -> bool:
        """Whether a model is trained in evaluation mode."""
        return bool(self._trained) and holds(self._trained, model)

    def on_input(self) -> None:
        """A batch is asked for in the evaluation."""
        self.saw_input = True

    def on_forward(self, model: nn.Module | None, *, gradients: bool) -> None:
        """A model, absent if no training was seen of it, is called in the evaluation."""
        if not gradients:
            self.end_ns = None
            self.num_backwards = 0
            return
        if self.end_ns is None:
            self.end_ns = self._clock.last_seen_ns
        if model is not None:
            self._called[id(model)] = weakref.ref(model)

    def on_backward(self) -> None:
        """A backward pass begins in the evaluation."""
        self.num_backwards += 1

    def note_call(self, model: nn.Module) -> None:
        """A model is called with gradients in evaluation mode, outside of any evaluation."""
        if self._num_misses < _MAX_MISSES:
            self._called[id(model)] = weakref.ref(model)

    @property
    def may_train(self) -> bool:
        """Whether the next optimizer may show that a model is trained in evaluation mode."""
        return bool(self._called)

    def called(self) -> list[nn.Module]:
        """Return the models that were called with gradients since the last update, or in the evaluation."""
        return [model for reference in self._called.values() if (model := reference()) is not None]

    def find_trained(self, optimizer: Any) -> list[nn.Module]:
        """Return the models called since, in whatever mode, of which an optimizer holds parameters."""
        called = self.called()
        if not called:
            return []
        held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        found = [model for model in called if not held.isdisjoint(map(id, model.parameters()))]
        self._num_misses += not found
        return found

    def keep(self, models: list[nn.Module]) -> None:
        """From now on these are trained in the mode that they are in."""
        for model in models:
            if not model.training:
                self._trained[id(model)] = weakref.ref(model)
        self._called.clear()
