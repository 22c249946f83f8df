"""Whether gradients flow through a model's call: only then is it work for an update."""

# torch annotates only a part of itself.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

import sys
import weakref
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.autograd.function import FunctionCtx

from scope.record.batches import tensors_in

if TYPE_CHECKING:
    from types import FrameType

    from torch import nn

_MAX_FRAMES: Final = 16
_MAX_FROZEN: Final = 256


def has_gradients(inputs: Any, *, of_parameters: bool) -> bool:
    """Return whether gradients flow through a call that is about to be made.

    Args:
        inputs: What it gets.
        of_parameters: The model has parameters that want gradients.
    """
    if torch.is_grad_enabled():
        return of_parameters or _wants_gradients(inputs)
    # Reentrant checkpoints and other functions of autograd run their forward without, and it again in their backward.
    return _wants_gradients(inputs) and _is_in_function()


def _wants_gradients(values: Any) -> bool:
    with torch._C.DisableTorchFunction():  # pyright: ignore[reportPrivateUsage] - modes of the program see none of it
        return any(tensor.requires_grad for tensor in tensors_in(values))


def _is_in_function() -> bool:
    """Return whether the forward of a function of autograd is running."""
    frame: FrameType | None = sys._getframe(1)  # pyright: ignore[reportPrivateUsage] - the stack, not a copy of it
    for _ in range(_MAX_FRAMES):
        if frame is None:
            return False
        code = frame.f_code
        if code.co_name == "forward" and code.co_argcount:
            first = frame.f_locals.get(code.co_varnames[0])
            if isinstance(first, FunctionCtx):
                return True
        frame = frame.f_back
    return False


class FrozenModels:
    """Models none of whose parameters wanted gradients when they were called last.

    Their parameters are kept at hand, by weak references: to find thousands in a model takes longer than to look at
    them, and loops turn gradients on and off, as of a GAN's critic while its generator learns.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[nn.Module], list[weakref.ref[nn.Parameter]]]] = {}

    def is_trainable(self, model: nn.Module) -> bool:
        """Return whether a model has parameters that want gradients."""
        reference, parameters = self._known.get(id(model), (None, ()))
        if reference is not None and reference() is model:
            alive = [each() for each in parameters]
            if not any(parameter is None or parameter.requires_grad for parameter in alive):
                return False
            del self._known[id(model)]
        elif len(self._known) >= _MAX_FROZEN:
            self._known.clear()
        if any(parameter.requires_grad for parameter in model.parameters()):
            return True
        self._known[id(model)] = weakref.ref(model), [weakref.ref(parameter) for parameter in model.parameters()]
        return False
