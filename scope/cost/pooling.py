"""Pooling, interpolation and padding: every input is read once, every output written once."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from scope.cost.result import OperatorCost, added, cost, sized, stored, unknown

if TYPE_CHECKING:
    from collections.abc import Callable

    from scope.cost.call import OperatorCall

_NO_TENSOR: Final = "the trace holds no tensor argument"
_NO_WINDOW: Final = "the trace does not hold the window (Concrete Inputs)"
# FLOPs for each output: the products and sums of a weighted mean of 2, 4, 8 or 16 neighbours; a copy has none.
_UPSAMPLING: Final = {
    "aten::upsample_nearest1d": 0,
    "aten::upsample_nearest2d": 0,
    "aten::upsample_nearest3d": 0,
    "aten::_upsample_nearest_exact2d": 0,
    "aten::upsample_linear1d": 3,
    "aten::upsample_bilinear2d": 7,
    "aten::upsample_trilinear3d": 15,
    "aten::upsample_bicubic2d": 31,
}


def max_pool(call: OperatorCall) -> OperatorCost:
    """`max_pool2d_with_indices(self, kernel, stride, padding, dilation, ceil_mode)`: values and int64 indices."""
    x, kernel = call.tensor(0), _pair(call.integers(1))
    out = None if x is None else _pooled(call, x.dims)
    if x is None or kernel is None or out is None:
        return unknown("reduction", _NO_WINDOW)
    window = math.prod(kernel)
    num_out = math.prod(out)
    written = added(sized(num_out, x.dtype), sized(num_out, "int64"))
    return cost("reduction", flops=num_out * window, read=stored((x,)), written=written, math_dtype=x.dtype)


def max_pool_backward(call: OperatorCall) -> OperatorCost:
    """`max_pool2d_with_indices_backward(grad, self, ..., indices)`: gradients go where the indices say."""
    tensors = call.tensors
    if len(tensors) < 3:
        return unknown("elementwise", _NO_TENSOR)
    grad, x, indices = tensors[0], tensors[1], tensors[2]
    written = sized(x.num_elements, x.dtype)
    return cost(
        "elementwise", flops=grad.num_elements, read=stored((grad, indices)), written=written, math_dtype=grad.dtype
    )


def average_pool(call: OperatorCall) -> OperatorCost:
    """`avg_pool2d(self, kernel, stride, padding, ceil_mode, ...)`: one sum for each value of a window."""
    x, kernel = call.tensor(0), _pair(call.integers(1))
    out = None if x is None else _pooled(call, x.dims, dilated=False)
    if x is None or kernel is None or out is None:
        return unknown("reduction", _NO_WINDOW)
    num_out = math.prod(out)
    written = sized(num_out, x.dtype)
    return cost("reduction", flops=num_out * math.prod(kernel), read=stored((x,)), written=written, math_dtype=x.dtype)


def average_pool_backward(call: OperatorCall) -> OperatorCost:
    """`avg_pool2d_backward(grad, self, kernel, ...)`: each gradient is spread over its window."""
    grad, x, kernel = call.tensor(0), call.tensor(1), _pair(call.integers(2))
    if grad is None or x is None or kernel is None:
        return unknown("elementwise", _NO_WINDOW)
    flops = grad.num_elements * math.prod(kernel)
    written = sized(x.num_elements, x.dtype)
    return cost("elementwise", flops=flops, read=stored((grad,)), written=written, math_dtype=grad.dtype)


def adaptive_pool(call: OperatorCall) -> OperatorCost:
    """`_adaptive_avg_pool2d(self, output_size)`: each input is summed at least once."""
    x, size = call.tensor(0), _pair(call.integers(1))
    if x is None or size is None or len(x.dims) < 3:
        return unknown("reduction", "the trace does not hold the size of the result (Concrete Inputs)")
    written = sized(math.prod(x.dims[:-2]) * math.prod(size), x.dtype)
    return cost("reduction", flops=x.num_elements, read=stored((x,)), written=written, math_dtype=x.dtype)


def adaptive_pool_backward(call: OperatorCall) -> OperatorCost:
    """`_adaptive_avg_pool2d_backward(grad, self)`: each gradient is spread over its window."""
    grad, x = call.tensor(0), call.tensor(1)
    if grad is None or x is None:
        return unknown("elementwise", _NO_TENSOR)
    written = sized(x.num_elements, x.dtype)
    return cost("elementwise", flops=x.num_elements, read=stored((grad,)), written=written, math_dtype=grad.dtype)


def upsample(call: OperatorCall) -> OperatorCost:
    """`upsample_bilinear2d(self, output_size, ...)` and its kin."""
    x, size = call.tensor(0), call.integers(1)
    if x is None or size is None or len(x.dims) != len(size) + 2:
        return unknown("elementwise", "the trace does not hold the size of the result (Concrete Inputs)")
    num_out = math.prod((*x.dims[:2], *size))
    flops_each = _UPSAMPLING[call.name]
    return cost(
        "elementwise" if flops_each else "copy",
        flops=flops_each * num_out,
        read=stored((x,)),
        written=sized(num_out, x.dtype),
        math_dtype=x.dtype if flops_each else None,
    )


def upsample_backward(call: OperatorCall) -> OperatorCost:
    """`upsample_bilinear2d_backward(grad, output_size, input_size, ...)`: each gradient goes to its neighbours."""
    grad, size = call.tensor(0), call.integers(2)
    if grad is None or size is None or len(grad.dims) != len(size):
        return unknown("elementwise", "the trace does not hold the size of the input (Concrete Inputs)")
    flops = max(1, _UPSAMPLING[call.name.removesuffix("_backward")]) * grad.num_elements
    written = sized(math.prod(size), grad.dtype)
    return cost("elementwise", flops=flops, read=stored((grad,)), written=written, math_dtype=grad.dtype)


def pad(call: OperatorCall) -> OperatorCost:
    """`reflection_pad2d(self, padding)` and `replication_pad2d`: left and right of the last axis come first."""
    x, padding = call.tensor(0), call.integers(1)
    if x is None or padding is None or len(padding) % 2 or len(padding) > 2 * len(x.dims):
        return unknown("copy", "the trace does not hold the padding (Concrete Inputs)")
    more = [sum(padding[2 * axis : 2 * axis + 2]) for axis in range(len(padding) // 2)]
    sizes = [size + extra for size, extra in zip(reversed(x.dims), [*more, *[0] * len(x.dims)], strict=False)]
    return cost("copy", flops=0, read=stored((x,)), written=sized(max(0, math.prod(sizes)), x.dtype))


def _pooled(call: OperatorCall, dims: tuple[int, ...], *, dilated: bool = True) -> tuple[int, ...] | None:
    kernel, stride, padding = (_pair(call.integers(position)) for position in (1, 2, 3))
    dilation = _pair(call.integers(4)) if dilated else (1, 1)
    rounds_up = call.flag(5 if dilated else 4)
    if kernel is None or padding is None or dilation is None or len(dims) < 3:
        return None
    step = stride or kernel
    spatial: list[int] = []
    for axis in (0, 1):
        reach = dilation[axis] * (kernel[axis] - 1) + 1
        room = dims[axis - 2] + 2 * padding[axis] - reach
        size = (-(-room // step[axis]) if rounds_up else room // step[axis]) + 1
        # In ceil mode a last window that begins in the padding is left out.
        if rounds_up and (size - 1) * step[axis] >= dims[axis - 2] + padding[axis]:
            size -= 1
        spatial.append(size)
    return (*dims[:-2], *spatial)


def _pair(values: tuple[int, ...] | None) -> tuple[int, int] | None:
    if not values:
        return None
    return (values[0], values[-1])


MODELS: Final[dict[str, Callable[[OperatorCall], OperatorCost]]] = {
    **dict.fromkeys(_UPSAMPLING, upsample),
    **dict.fromkeys((f"{name}_backward" for name in _UPSAMPLING), upsample_backward),
    **dict.fromkeys((f"aten::{kind}_pad{rank}d" for kind in ("reflection", "replication") for rank in (1, 2, 3)), pad),
    "aten::max_pool2d_with_indices": max_pool,
    "aten::max_pool2d_with_indices_backward": max_pool_backward,
    "aten::avg_pool2d": average_pool,
    "aten::avg_pool2d_backward": average_pool_backward,
    "aten::_adaptive_avg_pool2d": adaptive_pool,
    "aten::_adaptive_avg_pool2d_backward": adaptive_pool_backward,
}
