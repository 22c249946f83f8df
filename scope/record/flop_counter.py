"""Counts the FLOPs of a region of code from the shapes of its matrix operators; recompute is told apart.

Model FLOPs are what forward and backward need, attention counted in full. Hardware FLOPs add what activation
checkpointing computes again, and what flash attention's backward computes again (5 products instead of 4).
"""

# torch annotates only a part of itself.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false, reportMissingTypeArgument=false

from __future__ import annotations

import os
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.utils import checkpoint
from torch.utils._python_dispatch import TorchDispatchMode

from scope.record.operator_flops import flop_of, lacks_formula

if TYPE_CHECKING:
    from types import FrameType

    from scope.record.operator_flops import Flop

_PLAIN: Final = frozenset((torch.Tensor, torch.nn.Parameter))
_CHECKPOINT: Final = checkpoint.__file__
_OWN_CODE: Final = (__file__, f"{Path(torch.__file__).parent}{os.sep}")


def can_count() -> bool:
    """Whether nothing in this process would fail under a dispatch mode.

    Older versions of torch refuse to compile (flex attention compiles by itself) or to run higher-order operators
    under one; there a process that has loaded the compiler is not counted.
    """
    understood = hasattr(TorchDispatchMode, "ignore_compile_internals") and hasattr(
        TorchDispatchMode, "supports_higher_order_operators"
    )
    return understood or "torch._dynamo" not in sys.modules


class FlopCounter(TorchDispatchMode):
    """Counts while it is entered.

    Attributes:
        model_flop: Recompute excluded.
        hardware_flop: Recompute included.
        by_dtype: Hardware FLOPs by dtype of the product.
        num_counted: Operators with a formula.
        num_uncounted: Operators whose FLOPs are missing, as they have none: those of packages (Triton, flash-attn), and
            those of torch that are named after a product.
        uncounted: Names of these.
    """

    supports_higher_order_operators = True

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Let torch compile what it would compile without us; what runs inside is not counted."""
        return True

    def __init__(self, *, backward: bool = False, makes_graph: bool = False) -> None:
        """Start at nothing.

        Args:
            backward: The region is a backward pass.
            makes_graph: With gradients that can be differentiated again (`create_graph`): all runs with gradients on.
        """
        super().__init__()
        self.backward = backward
        self._is_graph_again = backward and not makes_graph
        self.model_flop = 0
        self.hardware_flop = 0
        self.by_dtype: Counter[Any] = Counter()
        self.num_counted = 0
        self.num_uncounted = 0
        self.uncounted: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operator and count it."""
        if any(hasattr(kind, "__tensor_flatten__") for kind in types):
            # Wrapped tensors: DTensor, the result of a collective that may still be running, jagged and quantized ones.
            # Their own dispatch, which waits just where it would without us, comes back here with what they hold.
            return NotImplemented
        out = func(*args, **(kwargs or {}))
        if not all(kind in _PLAIN for kind in types):
            return out  # fake tensors, which only propagate shapes, and subclasses that are no wrappers
        try:
            flop = flop_of(func, args, kwargs or {}, out)
        except Exception:  # noqa: BLE001 - the guard: an operator whose shapes are unheard of is one without a formula
            flop = None
        if flop is not None:
            self._add(flop, args)
        elif lacks_formula(name := str(getattr(func, "_overloadpacket", func))):
            self.num_uncounted += 1
            self.uncounted.add(name)
        return out

    def _add(self, flop: Flop, args: Any) -> None:
        self.num_counted += 1
        self.hardware_flop += flop.hardware
        tensor = next((value for value in args if isinstance(value, torch.Tensor)), None)
        if tensor is not None:
            self.by_dtype[tensor.dtype] += flop.hardware
        # A backward that makes no graph runs with gradients off, but for what functions in it run and differentiate: a
        # forward that libraries' own checkpoints run again, and its gradient where a graph is made of that.
        is_run_again = self._is_graph_again and torch.is_grad_enabled() and not _is_gradient()
        if not is_run_again and not _is_recompute():
            self.model_flop += flop.model


def _is_gradient() -> bool:
    """Whether the engine of autograd runs an operator with no code of a program or library between."""
    frame: FrameType | None = sys._getframe(1)  # pyright: ignore[reportPrivateUsage] - the stack, not a copy of it
    while frame is not None and frame.f_code.co_filename.startswith(_OWN_CODE):
        if frame.f_code.co_name == "_engine_run_backward":
            return True
        frame = frame.f_back
    return False


def _is_recompute() -> bool:
    """Whether torch's checkpointing is running again what a forward did, whatever the grad mode is in there."""
    inner = ""
    frame: FrameType | None = sys._getframe(1)  # pyright: ignore[reportPrivateUsage] - the stack, not a copy of it
    while frame is not None:
        code = frame.f_code
        if code.co_filename == _CHECKPOINT:
            if code.co_name == "unpack_hook":
                return True
            # With reentrance one function runs the forward again, and then the backward of it.
            if code.co_name == "backward" and inner != "backward":
                return True
        inner, frame = code.co_name, frame.f_back
    return False
