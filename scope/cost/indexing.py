"""Indexing, sorting and running sums: what is chosen is read and written, the indices are read.

How many elements a mask or an advanced index chooses stands in no trace (`Tensor?[]` arguments are printed without
shapes): those operators are unknown, with that reason. Comparisons of a sort depend on its algorithm and are no FLOPs.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Final

from scope.cost.dtypes import INTEGRAL, scalar_type
from scope.cost.result import OperatorCost, added, cost, sized, stored, unknown

if TYPE_CHECKING:
    from collections.abc import Callable

    from scope.cost.call import OperatorCall

_NO_TENSOR: Final = "the trace holds no tensor argument"
_NO_SHAPES: Final = "the trace does not hold the shapes of the indices"
_NO_COUNT: Final = "how many elements are chosen depends on their values"
_BY_VALUES: Final = ("aten::nonzero", "aten::masked_select", "aten::masked_scatter_", "aten::_unique2")
_RUNNING: Final = ("aten::cumsum", "aten::cumsum_", "aten::cumprod", "aten::cumprod_")
_SCAN_KERNEL: Final = re.compile(r"DeviceScanKernel|scan_(?:innermost|outer)_dim|lookback_scan", re.IGNORECASE)


def by_indices(call: OperatorCall) -> OperatorCost:
    """`index(self, indices)` and `_index_put_impl_(self, indices, values, ...)`: the indices are not recorded."""
    return unknown("embedding", _NO_SHAPES)


def by_values(call: OperatorCall) -> OperatorCost:
    """`nonzero(self)`, `masked_select(self, mask)`: as many results as values say."""
    return unknown("embedding", _NO_COUNT)


def index_copy(call: OperatorCall) -> OperatorCost:
    """`index_copy_(self, dim, index, source)`: index and source are read, the named slices are written."""
    x, index, source = call.tensor(0), call.tensor(2), call.tensor(3)
    if x is None or index is None or source is None:
        return unknown("copy", _NO_TENSOR)
    return cost("copy", flops=0, read=stored((index, source)), written=sized(source.num_elements, x.dtype))


def index_fill(call: OperatorCall) -> OperatorCost:
    """`index_fill_(self, dim, index, value)`: the named slices are written."""
    x, index = call.tensor(0), call.tensor(2)
    dim = call.integer(1)
    if x is None or index is None or dim is None or not -len(x.dims) <= dim < len(x.dims):
        return unknown("copy", _NO_TENSOR)
    others = math.prod(size for axis, size in enumerate(x.dims) if axis != dim % len(x.dims))
    return cost("copy", flops=0, read=stored((index,)), written=sized(others * index.num_elements, x.dtype))


def scatter_reduce(call: OperatorCall) -> OperatorCost:
    """`scatter_reduce_(self, dim, index, src, reduce)`, `index_reduce_`: what is reduced into is read and written."""
    x, index, source = call.tensor(0), call.tensor(2), call.tensor(3)
    if x is None or index is None or source is None:
        return unknown("embedding", _NO_TENSOR)
    count = index.num_elements if call.name.startswith("aten::scatter") else source.num_elements
    moved = sized(count, x.dtype)
    read = added(stored((index,)), sized(count, source.dtype), moved)
    return cost("embedding", flops=count, read=read, written=moved, math_dtype=x.dtype)


def sort(call: OperatorCall) -> OperatorCost:
    """`sort(self, ...)`, `argsort`: read once, the values and an int64 index for each are written."""
    x = call.tensor(0)
    if x is None:
        return unknown("reduction", _NO_TENSOR)
    values = 0 if call.name == "aten::argsort" else sized(x.num_elements, x.dtype)
    return cost("reduction", flops=0, read=stored((x,)), written=added(values, sized(x.num_elements, "int64")))


def topk(call: OperatorCall) -> OperatorCost:
    """`topk(self, k, dim, ...)`: read once, k values and int64 indices of each row are written."""
    x, k = call.tensor(0), call.integer(1)
    dim = call.integer(2) if call.text(2) else -1
    if x is None or k is None or dim is None or not x.dims or not -len(x.dims) <= dim < len(x.dims):
        return unknown("reduction", "the trace does not hold k and its dimension (Concrete Inputs)")
    num_out = x.num_elements // max(1, x.dims[dim]) * k
    written = added(sized(num_out, x.dtype), sized(num_out, "int64"))
    return cost("reduction", flops=0, read=stored((x,)), written=written)


def bucketize(call: OperatorCall) -> OperatorCost:
    """`bucketize(self, boundaries, out_int32)` and `searchsorted(boundaries, self, out_int32)`: an index for each."""
    first, second = call.tensor(0), call.tensor(1)
    if first is None or second is None:
        return unknown("embedding", _NO_TENSOR)
    values = second if call.name == "aten::searchsorted" else first
    written = sized(values.num_elements, "int32" if call.flag(2) else "int64")
    return cost("embedding", flops=0, read=stored((first, second)), written=written)


def running(call: OperatorCall) -> OperatorCost:
    """`cumsum(self, dim, dtype)`, `cumprod`: one operation for each element; sums of integers are int64."""
    x = call.tensors[0] if call.tensors else None
    if x is None:
        return unknown("reduction", _NO_TENSOR)
    dtype = scalar_type(call.integer(2)) or ("int64" if x.dtype in INTEGRAL else x.dtype)
    written = sized(x.num_elements, x.dtype if call.name.endswith("_") else dtype)
    return cost("reduction", flops=x.num_elements, read=stored((x,)), written=written, math_dtype=x.dtype)


def running_part(call: OperatorCall, kernel: str) -> OperatorCost | None:
    """One kernel of a running sum: the scan does its work, what sets the scan's states does none of it."""
    return running(call) if _SCAN_KERNEL.search(kernel) else None


def arange(call: OperatorCall) -> OperatorCost:
    """`arange(start, end, step, out)`: written, not read; the outer form launches nothing of its own."""
    out = call.tensors[-1] if call.tensors else None
    ends = [_number(call.text(position)) for position in range(len(call.arguments) - 1)]
    if out is None or len(ends) != 3 or ends[0] is None or ends[1] is None or not ends[2]:
        return unknown("copy", "the trace does not hold the range (Concrete Inputs)")
    count = max(0, math.ceil((ends[1] - ends[0]) / ends[2]))
    return cost("copy", flops=0, read=0, written=sized(count, out.dtype))


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


MODELS: Final[dict[str, Callable[[OperatorCall], OperatorCost]]] = {
    **dict.fromkeys(
        ("aten::index", "aten::_unsafe_index", "aten::index_put_", "aten::_index_put_impl_", "aten::_unsafe_index_put"),
        by_indices,
    ),
    **dict.fromkeys(
        ("aten::nonzero", "aten::masked_select", "aten::masked_scatter_", "aten::_unique2", "aten::unique_dim"),
        by_values,
    ),
    "aten::index_copy_": index_copy,
    "aten::index_fill_": index_fill,
    "aten::scatter_reduce_": scatter_reduce,
    "aten::scatter_reduce": scatter_reduce,
    "aten::index_reduce_": scatter_reduce,
    "aten::sort": sort,
    "aten::argsort": sort,
    "aten::topk": topk,
    "aten::bucketize": bucketize,
    "aten::searchsorted": bucketize,
    "aten::arange": arange,
    **dict.fromkeys(_RUNNING, running),
}
PART_MODELS: Final[dict[str, Callable[[OperatorCall, str], OperatorCost | None]]] = dict.fromkeys(
    _RUNNING, running_part
)
