"""Embeddings, gathers and pooling: what an index asks for is read, row by row; nothing is known of repeats."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from scope.cost.result import OperatorCost, added, cost, sized, stored, unknown

if TYPE_CHECKING:
    from collections.abc import Callable

    from scope.cost.call import OperatorCall

_NO_TENSOR: Final = "the trace holds no tensor argument"


def embedding(call: OperatorCall) -> OperatorCost:
    """`embedding(weight[V,D], indices)`: the indices and one row for each are read, the rows are written."""
    weight, indices = call.tensor(0), call.tensor(1)
    if weight is None or indices is None or len(weight.dims) != 2:
        return unknown("embedding", _NO_TENSOR)
    rows = sized(indices.num_elements * weight.dims[1], weight.dtype)
    return cost("embedding", flops=0, read=added(rows, stored((indices,))), written=rows)


def embedding_backward(call: OperatorCall) -> OperatorCost:
    """`embedding_dense_backward(grad, indices, num_weights, ...)`: gradients are added into the rows they name.

    The rows written are at most one for each index and at most all of them; the zeros elsewhere are a fill of its own.
    """
    grad, indices, num_weights = call.tensor(0), call.tensor(1), call.integer(2)
    if grad is None or indices is None or num_weights is None or not grad.dims:
        return unknown("embedding", _NO_TENSOR)
    rows = min(indices.num_elements, num_weights)
    written = sized(rows * grad.dims[-1], grad.dtype)
    return cost(
        "embedding", flops=grad.num_elements, read=stored((grad, indices)), written=written, math_dtype=grad.dtype
    )


def index_select(call: OperatorCall) -> OperatorCost:
    """`index_select(self, dim, index)`: the chosen slices are read and written."""
    x, dim, index = call.tensor(0), call.integer(1), call.tensor(2)
    if x is None or index is None or dim is None or not -len(x.dims) <= dim < len(x.dims):
        return unknown("embedding", _NO_TENSOR)
    slices = math.prod(size for axis, size in enumerate(x.dims) if axis != dim % len(x.dims))
    chosen = sized(slices * index.num_elements, x.dtype)
    return cost("embedding", flops=0, read=added(chosen, stored((index,))), written=chosen)


def gather(call: OperatorCall) -> OperatorCost:
    """`gather(self, dim, index)`: one value is read and written for each index."""
    x, index = call.tensor(0), call.tensor(2)
    if x is None or index is None:
        return unknown("embedding", _NO_TENSOR)
    chosen = sized(index.num_elements, x.dtype)
    return cost("embedding", flops=0, read=added(chosen, stored((index,))), written=chosen)


def scatter(call: OperatorCall) -> OperatorCost:
    """`scatter_(self, dim, index, src)` and `scatter_add_`, which also reads what it adds to."""
    x, index, source = call.tensor(0), call.tensor(2), call.tensor(3)
    if x is None or index is None:
        return unknown("embedding", _NO_TENSOR)
    adds = "add" in call.name
    moved = sized(index.num_elements, x.dtype)
    read = added(stored((index,)), moved if source is not None else 0, moved if adds else 0)
    flops = index.num_elements if adds else 0
    return cost("embedding", flops=flops, read=read, written=moved, math_dtype=x.dtype if adds else None)


def index_add(call: OperatorCall) -> OperatorCost:
    """`index_add_(self, dim, index, source, alpha)`: the named slices are read, added to and written."""
    x, index, source = call.tensor(0), call.tensor(2), call.tensor(3)
    if x is None or index is None or source is None:
        return unknown("embedding", _NO_TENSOR)
    slices = sized(source.num_elements, x.dtype)
    read = added(stored((index, source)), slices)
    return cost("embedding", flops=source.num_elements, read=read, written=slices, math_dtype=x.dtype)


def max_pool(call: OperatorCall) -> OperatorCost:
    """`max_pool2d_with_indices(self, kernel, stride, padding, dilation, ceil_mode)`: values and int64 indices."""
    x, kernel = call.tensor(0), _pair(call.integers(1))
    out = None if x is None else _pooled(call, x.dims)
    if x is None or kernel is None or out is None:
        return unknown("reduction", "the trace does not hold the window (Concrete Inputs)")
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


def _pooled(call: OperatorCall, dims: tuple[int, ...]) -> tuple[int, ...] | None:
    pairs = [_pair(call.integers(position)) for position in (1, 2, 3, 4)]
    kernel, stride, padding, dilation = pairs
    if kernel is None or padding is None or dilation is None or len(dims) < 3:
        return None
    step = stride or kernel
    spatial: list[int] = []
    for axis in (0, 1):
        reach = dilation[axis] * (kernel[axis] - 1) + 1
        room = dims[axis - 2] + 2 * padding[axis] - reach
        size = (-(-room // step[axis]) if call.flag(5) else room // step[axis]) + 1
        # In ceil mode a last window that begins in the padding is left out.
        if call.flag(5) and (size - 1) * step[axis] >= dims[axis - 2] + padding[axis]:
            size -= 1
        spatial.append(size)
    return (*dims[:-2], *spatial)


def _pair(values: tuple[int, ...] | None) -> tuple[int, int] | None:
    if not values:
        return None
    return (values[0], values[-1])


MODELS: Final[dict[str, Callable[[OperatorCall], OperatorCost]]] = {
    "aten::embedding": embedding,
    "aten::embedding_dense_backward": embedding_backward,
    "aten::embedding_backward": embedding_backward,
    "aten::index_select": index_select,
    "aten::gather": gather,
    "aten::scatter_": scatter,
    "aten::scatter": scatter,
    "aten::scatter_add_": scatter,
    "aten::scatter_add": scatter,
    "aten::index_add_": index_add,
    "aten::index_add": index_add,
    "aten::max_pool2d_with_indices": max_pool,
    "aten::max_pool2d_with_indices_backward": max_pool_backward,
}
