"""Counts the FLOPs of a region of code from the shapes of its matrix operators; recompute is told apart.

Model FLOPs are what forward and backward need, attention counted in full. Hardware FLOPs add what activation
checkpointing computes again, and what flash attention's backward computes again (5 products instead of 4).
"""

# torch annotates only a part of itself.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false, reportMissingTypeArgument=false

from __future__ import annotations

import sys
from collections import Counter
from typing import Any, Final

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

_ATTENTION: Final = frozenset(
    f"aten._scaled_dot_product_{kind}"
    for kind in ("flash_attention", "efficient_attention", "cudnn_attention", "flash_attention_for_cpu")
)
_ATTENTION_BACKWARD: Final = frozenset(f"{name}_backward" for name in _ATTENTION)
_PLAIN: Final = frozenset((torch.Tensor, torch.nn.Parameter))
_GROUPED: Final = "aten._grouped_mm"
_COMPOSITE: Final = frozenset(("aten.linear", "aten.matmul"))
"""What autograd else takes apart; under inference mode, and of jagged tensors, it comes whole."""
_KNOWN_NAMESPACES: Final = frozenset(("aten", "prim", "prims", "c10d", "_c10d_functional", "fsdp", "profiler"))


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
        num_foreign: Custom operators without one (Triton, flash-attn and other packages).
    """

    supports_higher_order_operators = True

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Let torch compile what it would compile without us; what runs inside is not counted."""
        return True

    def __init__(self, *, backward: bool = False) -> None:
        """Start at nothing.

        Args:
            backward: The region is a backward pass, where an operator that runs with gradients on is recompute.
        """
        super().__init__()
        self.backward = backward
        self.model_flop = 0
        self.hardware_flop = 0
        self.by_dtype: Counter[Any] = Counter()
        self.num_counted = 0
        self.num_foreign = 0

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
            self._count(func, args, kwargs or {}, out)
        except Exception:  # noqa: BLE001 - the guard: an operator whose shapes are unheard of is one without a formula
            self.num_foreign += 1
        return out

    def _count(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        packet = func._overloadpacket
        name = str(packet)
        if name in _ATTENTION:
            model = hardware = _attention(*(tuple(tensor.shape) for tensor in args[:3]))
        elif name in _ATTENTION_BACKWARD:
            forward = _attention(*(tuple(tensor.shape) for tensor in args[1:4]))
            model, hardware = 2 * forward, 5 * forward // 2
        elif name == _GROUPED:
            model = hardware = _grouped(tuple(args[0].shape), tuple(args[1].shape))
        elif name in _COMPOSITE:
            model = hardware = 2 * out.numel() * args[0].shape[-1]
        elif packet in flop_registry:
            model = hardware = int(flop_registry[packet](*args, **kwargs, out_val=out))
        else:
            self.num_foreign += name.partition(".")[0] not in _KNOWN_NAMESPACES
            return
        self.num_counted += 1
        self.hardware_flop += hardware
        tensor = next((value for value in args if isinstance(value, torch.Tensor)), None)
        if tensor is not None:
            self.by_dtype[tensor.dtype] += hardware
        if not (self.backward and torch.is_grad_enabled()):
            self.model_flop += model


def _attention(query: tuple[int, ...], key: tuple[int, ...], value: tuple[int, ...]) -> int:
    """Two products: scores (queries x keys x width) and the weighted sum (queries x keys x width of values)."""
    batch, heads, num_queries, width = query
    return 2 * batch * heads * num_queries * key[2] * (width + value[3])


def _grouped(left: tuple[int, ...], right: tuple[int, ...]) -> int:
    """A product per group; rows (or the summed dimension) are shared out among the groups."""
    if len(left) == 2:
        return 2 * left[0] * left[1] * right[-1]
    return 2 * left[1] * left[2] * right[-1] * (left[0] if len(right) == 3 else 1)
