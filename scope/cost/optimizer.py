"""Optimizer steps over lists of tensors: fused optimizers, and the foreach operators that others are made of.

Traces hold the shapes of a list and not its dtype; the caller names it (from the kernel's name, say), else bytes are
unknown. All lists of a fused optimizer are taken to have that one dtype.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from scope.cost.dtypes import element_bytes
from scope.cost.result import OperatorCost, cost, unknown

if TYPE_CHECKING:
    from collections.abc import Callable

    from scope.cost.call import Argument, OperatorCall

_NO_SHAPES: Final = "the trace does not hold the shapes of the list"
# FLOPs for each parameter, counted from the update rules in torch/optim: Adam's weight decay 2 (AdamW's 1), first
# moment 3, second moment 4, denominator 3, update 3; SGD's weight decay 2, momentum 2, update 2; Adagrad's weight decay
# 2, sum of squares 2, denominator 2, update 2.
_FUSED: Final = {
    # lists: parameters, gradients, moments; (read, written, FLOPs)
    "aten::_fused_adam_": ((0, 1, 2, 3), (0, 2, 3), 15),
    "aten::_fused_adamw_": ((0, 1, 2, 3), (0, 2, 3), 14),
    "aten::_fused_sgd_": ((0, 1, 2), (0, 2), 6),
    "aten::_fused_adagrad_": ((0, 1, 2), (0, 2), 8),
}
# Lists read, FLOPs for each element. In place the first list is written, else a new one.
_FOREACH: Final = {
    **dict.fromkeys(("add", "sub", "mul", "div", "maximum", "minimum", "clamp_min", "clamp_max", "pow"), 1),
    **dict.fromkeys(("neg", "abs", "sqrt", "rsqrt", "exp", "log", "reciprocal", "sign", "tanh", "sigmoid"), 1),
    **dict.fromkeys(("lerp", "addcmul", "addcdiv"), 3),
}


def fused_optimizer(call: OperatorCall, list_dtype: str | None = None) -> OperatorCost:
    """`_fused_adam(w)_`, `_fused_sgd_`, `_fused_adagrad_`; AMSGrad's list of maxima is read and written where given."""
    reads, writes, flops_each = _FUSED[call.name]
    num_elements = _elements(call, 0)
    if num_elements is None:
        return unknown("optimizer", _NO_SHAPES)
    adam = "adam" in call.name
    amsgrad = adam and (_elements(call, 4) or 0) > 0
    read = sum(_elements(call, position) or 0 for position in (*reads, *((4,) if amsgrad else ())))
    written = sum(_elements(call, position) or 0 for position in (*writes, *((4,) if amsgrad else ())))
    size = element_bytes(list_dtype)
    return cost(
        "optimizer",
        flops=flops_each * num_elements,
        read=None if size is None else size * read,
        written=None if size is None else size * written,
        math_dtype=list_dtype,
    )


def foreach(call: OperatorCall, list_dtype: str | None = None) -> OperatorCost:
    """`_foreach_add_` and its kin: every list read once; in place the first is written, else a new one."""
    base = call.name.removeprefix("aten::_foreach_").rstrip("_")
    return _over_lists(call, list_dtype, flops_each=_FOREACH[base], written=_elements(call, 0))


def foreach_copy(call: OperatorCall, list_dtype: str | None = None) -> OperatorCost:
    """`_foreach_copy_(self, src)`: the sources are read, the destinations written."""
    source, destination = _elements(call, 1), _elements(call, 0)
    return _sizes("copy", list_dtype, read=source, written=destination, flops=0)


def foreach_zero(call: OperatorCall, list_dtype: str | None = None) -> OperatorCost:
    """`_foreach_zero_(self)`: written, not read."""
    return _sizes("copy", list_dtype, read=0, written=_elements(call, 0), flops=0)


def foreach_norm(call: OperatorCall, list_dtype: str | None = None) -> OperatorCost:
    """`_foreach_norm(self, ord)`: one number for each tensor is written."""
    num_elements = _elements(call, 0)
    num_tensors = len(call.lists[0].tensors) if call.lists else 0
    flops = None if num_elements is None else 2 * num_elements
    return _sizes("reduction", list_dtype, read=num_elements, written=num_tensors, flops=flops)


def unscale(call: OperatorCall, list_dtype: str | None = None) -> OperatorCost:
    """`_amp_foreach_non_finite_check_and_unscale_(self, found_inf, inv_scale)`: read, scaled and written."""
    return _over_lists(call, list_dtype, flops_each=1, written=_elements(call, 0))


def _over_lists(call: OperatorCall, list_dtype: str | None, *, flops_each: int, written: int | None) -> OperatorCost:
    sizes = [_size(argument) for argument in call.lists]
    if written is None or any(size is None for size in sizes):
        return unknown("optimizer", _NO_SHAPES)
    read = sum(size for size in sizes if size is not None)
    return _sizes("optimizer", list_dtype, read=read, written=written, flops=flops_each * written)


def _sizes(
    family: str, list_dtype: str | None, *, read: int | None, written: int | None, flops: int | None
) -> OperatorCost:
    if read is None or written is None:
        return unknown(family, _NO_SHAPES)
    size = element_bytes(list_dtype)
    return cost(
        family,
        flops=flops,
        read=None if size is None else size * read,
        written=None if size is None else size * written,
        math_dtype=list_dtype if flops else None,
    )


def _elements(call: OperatorCall, position: int) -> int | None:
    if not 0 <= position < len(call.arguments) or call.arguments[position].kind != "list":
        return None
    return _size(call.arguments[position])


def _size(argument: Argument) -> int | None:
    return sum(tensor.num_elements for tensor in argument.tensors) if argument.tensors else None


_BOTH: Final = ("", "_")
LIST_MODELS: Final[dict[str, Callable[[OperatorCall, str | None], OperatorCost]]] = {
    **dict.fromkeys(_FUSED, fused_optimizer),
    **{f"aten::_foreach_{name}{end}": foreach for name in _FOREACH for end in _BOTH},
    "aten::_foreach_copy_": foreach_copy,
    "aten::_foreach_zero_": foreach_zero,
    "aten::_foreach_norm": foreach_norm,
    "aten::_amp_foreach_non_finite_check_and_unscale_": unscale,
}
