"""Embeddings and gathers: what an index asks for is read, row by row; nothing is known of repeats."""

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


def embedding_bag(call: OperatorCall) -> OperatorCost:
    """`_embedding_bag(weight[V,D], indices, offsets, _, mode, _, scales, include_last, _)`: one row for each bag.

    Rows are read for each index and added up; the bag of each index and the size of each bag are written besides.
    """
    weight, indices, offsets = (call.tensor(position) for position in range(3))
    if weight is None or indices is None or offsets is None or len(weight.dims) != 2:
        return unknown("embedding", _NO_TENSOR)
    scales, width = call.tensor(6), weight.dims[1]
    num_bags = offsets.num_elements - (1 if call.flag(7) else 0)
    flops = indices.num_elements * width * (1 if scales is None else 2)
    read = added(sized(indices.num_elements * width, weight.dtype), stored((indices, offsets, scales)))
    written = added(sized(num_bags * width, weight.dtype), sized(indices.num_elements + num_bags, indices.dtype))
    return cost("embedding", flops=flops, read=read, written=written, math_dtype=weight.dtype)


def index_select(call: OperatorCall) -> OperatorCost:
    """`index_select(self, dim, index)`: the chosen slices are read and written."""
    x, dim, index = call.tensor(0), call.integer(1), call.tensor(2)
    if x is not None and len(x.dims) == 1:
        dim = 0
    if x is None or index is None:
        return unknown("embedding", _NO_TENSOR)
    if dim is None or not -len(x.dims) <= dim < len(x.dims):
        return unknown("embedding", "the trace does not hold the dimension (Concrete Inputs)")
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
    "aten::_embedding_bag": embedding_bag,
    "aten::_embedding_bag_forward_only": embedding_bag,
}
