"""Elementwise operators, copies, casts and reductions: each input read once, each output written once.

FLOPs: one for each element and each arithmetic or elementary function in the operator's definition; none where data
only moves (copies, casts, fills, `where`).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from scope.cost.dtypes import INTEGRAL, promote, scalar_type
from scope.cost.result import OperatorCost, added, cost, sized, stored, unknown

if TYPE_CHECKING:
    from collections.abc import Callable

    from scope.cost.call import OperatorCall, TensorArg

_BOOLEAN: Final = frozenset(
    {"eq", "ne", "lt", "le", "gt", "ge", "logical_not", "logical_and", "logical_or", "logical_xor", "isnan", "isinf"}
)
# Number of tensor operands, FLOPs for each element.
_ARITHMETIC: Final = {
    **dict.fromkeys(
        (
            "relu", "neg", "abs", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "sin",
            "cos", "tan", "tanh", "asin", "acos", "atan", "sinh", "cosh", "erf", "erfc", "sigmoid", "silu", "gelu",
            "elu", "selu", "softplus", "hardtanh", "hardswish", "hardsigmoid", "leaky_relu", "mish", "relu6",
            "reciprocal", "square", "sign", "floor", "ceil", "round", "trunc", "logit", "nan_to_num",
            "log_sigmoid_forward",
            "threshold", "isnan", "isinf", "logical_not", "bitwise_not", "clamp_min", "clamp_max", "clamp", "asinh",
            "acosh", "atanh", "erfinv", "lgamma", "digamma", "frac", "sgn", "sinc", "celu", "special_erf",
            "log_sigmoid", "_softplus",
        ),
        (1, 1),
    ),
    **dict.fromkeys(
        (
            "add", "sub", "rsub", "mul", "div", "pow", "maximum", "minimum", "fmod", "remainder", "atan2", "eq", "ne",
            "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_xor", "bitwise_and", "bitwise_or",
            "bitwise_xor", "true_divide", "floor_divide", "__and__", "__or__", "__lshift__", "__rshift__",
            "threshold_backward", "relu_backward", "gelu_backward", "silu_backward", "sigmoid_backward",
            "tanh_backward", "elu_backward", "hardtanh_backward", "leaky_relu_backward", "softplus_backward",
            "hardswish_backward", "hardsigmoid_backward", "mish_backward", "log_sigmoid_backward",
            "native_dropout_backward", "masked_scale", "_masked_scale", "copysign", "heaviside", "logaddexp", "hypot",
            "logit_backward",
        ),
        (2, 1),
    ),
    **dict.fromkeys(("addcmul", "addcdiv"), (3, 3)),
    "lerp": (3, 3),
    "xlogy": (2, 2),
    # Losses by their formulas, per element, as with reduction="none": the mean is a kernel of its own.
    "mse_loss": (2, 2),
    "mse_loss_backward": (3, 3),
    "smooth_l1_loss": (2, 4),
    "smooth_l1_loss_backward": (3, 3),
    "huber_loss": (2, 4),
    "huber_loss_backward": (3, 3),
    "binary_cross_entropy": (2, 7),
    "binary_cross_entropy_backward": (3, 5),
    "glu": (1, 1),
}  # fmt: skip
_MOVES: Final = {
    "clone": 1,
    "contiguous": 1,
    "masked_fill": 2,
    "where": 3,
    "tril": 1,
    "triu": 1,
    "flip": 1,
    "roll": 1,
    "_reshape_alias": 1,
    "detach_copy": 1,
    "pixel_shuffle": 1,
}
_FILLS: Final = (
    "fill_", "zero_", "uniform_", "normal_", "bernoulli_", "random_", "exponential_", "geometric_", "log_normal_",
)  # fmt: skip
_REDUCTIONS: Final = {
    "sum": None,
    "mean": None,
    "prod": None,
    "nansum": None,
    "amax": None,
    "amin": None,
    "aminmax": None,
    "max": None,
    "min": None,
    "norm": None,
    "linalg_vector_norm": None,
    "logsumexp": None,
    "var": None,
    "std": None,
    "var_mean": None,
    "std_mean": None,
    "any": "bool",
    "all": "bool",
    "argmax": "int64",
    "argmin": "int64",
    "count_nonzero": "int64",
}
_NORMS: Final = frozenset({"norm", "linalg_vector_norm"})
_TYPED_SUMS: Final = frozenset({"sum", "nansum", "mean", "prod", *_NORMS})
"""Reductions that can be asked for a dtype."""
# FLOPs for each element read: a maximum or a sum is one, a sum of squares two, a variance three (Welford apart).
_REDUCTION_FLOPS: Final = {
    "norm": 2, "linalg_vector_norm": 2, "var": 3, "std": 3, "var_mean": 3, "std_mean": 3, "logsumexp": 3
}  # fmt: skip


def elementwise(call: OperatorCall) -> OperatorCost:
    """Any elementwise operator, in place (`name_`), into a given output, or with a new result."""
    base = _base_name(call.name)
    num_operands, flops_each = _ARITHMETIC.get(base) or (_MOVES[base], 0)
    operands = call.tensors[:num_operands]
    if not operands:
        return unknown("elementwise", "the trace holds no tensor argument")
    shape = _broadcast(operands)
    if shape is None:
        return unknown("elementwise", "the shapes do not go together")
    in_place = call.name.endswith("_") and not call.name.endswith("__")
    dtype = operands[0].dtype if in_place else _result_dtype(base, operands)
    if base == "glu" and shape:
        shape = (*shape[:-1], shape[-1] // 2)
    if in_place:
        shape = operands[0].dims
    num_elements = math.prod(shape)
    # An in-place operator that only moves data over itself (masked_fill_) still reads what it keeps.
    return cost(
        "elementwise" if flops_each else "copy",
        flops=flops_each * num_elements,
        read=stored(each for each in operands if not _is_number(each, operands)),
        written=sized(num_elements, dtype),
        math_dtype=_math_dtype(operands) if flops_each else None,
    )


def copy_into(call: OperatorCall) -> OperatorCost:
    """`copy_(self, src)`: the source is read, the destination written; the types may differ (a cast)."""
    destination, source = call.tensor(0), call.tensor(1)
    if destination is None or source is None:
        return unknown("copy", "the trace holds no tensor argument")
    written = sized(destination.num_elements, destination.dtype)
    return cost("copy", flops=0, read=stored((source,)), written=written)


def cast(call: OperatorCall) -> OperatorCost:
    """`_to_copy(self, dtype, ...)`."""
    source = call.tensor(0)
    if source is None:
        return unknown("copy", "the trace holds no tensor argument")
    dtype = scalar_type(call.integer(1)) or source.dtype
    return cost("copy", flops=0, read=stored((source,)), written=sized(source.num_elements, dtype))


def fill(call: OperatorCall) -> OperatorCost:
    """`fill_`, `zero_` and the random fills: written, not read."""
    tensor = call.tensor(0)
    if tensor is None:
        return unknown("copy", "the trace holds no tensor argument")
    return cost("copy", flops=0, read=0, written=sized(tensor.num_elements, tensor.dtype))


def concatenate(call: OperatorCall, list_dtype: str | None = None) -> OperatorCost:
    """`cat(tensors, dim)`, `stack` and the like: everything read once and written once."""
    parts = [tensor for argument in call.lists[:1] for tensor in argument.tensors]
    if not parts:
        return unknown("copy", "the trace does not hold the shapes of a list")
    num_elements = sum(tensor.num_elements for tensor in parts)
    read = sized(sum(tensor.num_stored for tensor in parts), list_dtype)
    return cost("copy", flops=0, read=read, written=sized(num_elements, list_dtype))


def chunk_concatenate(call: OperatorCall, list_dtype: str | None = None) -> OperatorCost:
    """`_chunk_cat(tensors, dim, num_chunks, out)`: each part is padded to a whole number of chunks."""
    parts = [tensor for argument in call.lists[:1] for tensor in argument.tensors]
    dim, num_chunks, out = call.integer(1), call.integer(2), call.tensor(3)
    if not parts or dim is None or not num_chunks or not all(-len(part.dims) <= dim < len(part.dims) for part in parts):
        return unknown("copy", "the trace does not hold the shapes of a list, or how it is cut (Concrete Inputs)")
    num_out = sum(
        part.num_elements // max(1, part.dims[dim]) * (-(-part.dims[dim] // num_chunks) * num_chunks) for part in parts
    )
    read = sized(sum(part.num_stored for part in parts), list_dtype)
    return cost("copy", flops=0, read=read, written=sized(num_out, list_dtype if out is None else out.dtype))


def split_copy(call: OperatorCall) -> OperatorCost:
    """`split_with_sizes_copy(self, sizes, dim, out)`: the tensor read once and written once, in pieces."""
    tensor = call.tensor(0)
    if tensor is None:
        return unknown("copy", "the trace holds no tensor argument")
    return cost("copy", flops=0, read=stored((tensor,)), written=sized(tensor.num_elements, tensor.dtype))


def dropout(call: OperatorCall) -> OperatorCost:
    """`native_dropout(input, p, train)`: the result and a mask of one byte an element are written."""
    x = call.tensor(0)
    if x is None:
        return unknown("elementwise", "the trace holds no tensor argument")
    written = added(sized(x.num_elements, x.dtype), x.num_elements)
    return cost("elementwise", flops=2 * x.num_elements, read=stored((x,)), written=written, math_dtype=x.dtype)


def reduction(call: OperatorCall) -> OperatorCost:
    """`sum`, `mean`, `max`, `argmax`, norms and the like, over all or some dimensions."""
    base = _base_name(call.name)
    x = call.tensor(0)
    if x is None:
        return unknown("reduction", "the trace holds no tensor argument")
    if base in {"max", "min"} and call.tensor(1) is not None:
        return elementwise_pair(call)
    num_out = _reduced(call, base, x)
    if num_out is None:
        return unknown("reduction", "the trace does not hold the reduced dimensions (Concrete Inputs)")
    written = sized(num_out, _reduced_dtype(call, base, x))
    if base in {"max", "min"} and len(call.arguments) > 1:
        written = added(written, sized(num_out, "int64"))
    if base in {"var_mean", "std_mean", "aminmax"}:
        written = added(written, written)
    flops = _REDUCTION_FLOPS.get(base, 1) * x.num_elements
    return cost("reduction", flops=flops, read=stored((x,)), written=written, math_dtype=x.dtype)


def elementwise_pair(call: OperatorCall) -> OperatorCost:
    """`max(self, other)` and `min(self, other)`."""
    operands = call.tensors[:2]
    shape = _broadcast(operands)
    if shape is None:
        return unknown("elementwise", "the shapes do not go together")
    written = sized(math.prod(shape), _result_dtype("maximum", operands))
    return cost("elementwise", flops=math.prod(shape), read=stored(operands), written=written)


def _reduced_dtype(call: OperatorCall, base: str, x: TensorArg) -> str | None:
    """Return the dtype of a reduction's result: that of the tensor it goes to, the one asked for, or its own."""
    if base in _TYPED_SUMS:
        # `(self, dtype)` or `(self, dim, keepdim, dtype)`; norms take an order before these.
        order, last = int(base in _NORMS), len(call.arguments) - 1
        place = order + (1 if last < order + 3 else 3)
        out = call.tensor(last) if last > 0 else None
        named = scalar_type(call.integer(place)) if out is None else out.dtype
        if named is not None:
            return named
    return _REDUCTIONS[base] or ("int64" if base in {"sum", "nansum", "prod"} and x.dtype in INTEGRAL else x.dtype)


def _reduced(call: OperatorCall, base: str, x: TensorArg) -> int | None:
    position = 2 if base in _NORMS else 1
    is_list = len(call.arguments) > position and call.text(position).startswith("[")
    # `sum(self, dtype)` has a number where `argmax(self, dim)` has its dimension.
    takes_number = base in {"max", "min", "argmax", "argmin", "any", "all"} or (
        base == "prod" and len(call.arguments) > 3
    )
    if len(call.arguments) <= position or not (is_list or takes_number):
        return 1
    if call.text(position) == "":
        return 1 if call.arguments[position].kind == "none" else None
    dims = call.integers(position)
    if dims is None:
        return None
    rank = len(x.dims)
    if not dims:
        return 1
    reduced = {dim % rank for dim in dims} if rank and all(-rank <= dim < rank for dim in dims) else set[int]()
    return math.prod(size for index, size in enumerate(x.dims) if index not in reduced)


def _broadcast(operands: tuple[TensorArg, ...]) -> tuple[int, ...] | None:
    rank = max((len(each.dims) for each in operands), default=0)
    shape: list[int] = []
    for axis in range(1, rank + 1):
        sizes = {each.dims[-axis] for each in operands if len(each.dims) >= axis}
        wide = sizes - {1}
        if len(wide) > 1:
            return None
        shape.append(wide.pop() if wide else 1)
    return tuple(reversed(shape))


def _result_dtype(base: str, operands: tuple[TensorArg, ...]) -> str | None:
    if base in _BOOLEAN:
        return "bool"
    values = operands[1:] if base == "where" else operands[:1] if base == "masked_fill" else operands
    if any(each.dtype is None for each in values):
        return None
    with_dims = [each.dtype for each in values if each.dims and each.dtype]
    without = [each.dtype for each in values if not each.dims and each.dtype]
    if not with_dims:
        return promote(without)
    wide = promote(with_dims)
    # A number beside an integer tensor lifts it only to another kind of number.
    lifted = promote(without)
    if wide in INTEGRAL and lifted is not None and lifted not in INTEGRAL:
        return "float32" if lifted == "float64" else lifted
    if base in {"div", "true_divide", "mean"} and wide in INTEGRAL:
        return "float32"
    return wide


def _is_number(operand: TensorArg, operands: tuple[TensorArg, ...]) -> bool:
    """Whether an operand is a Python number: it reaches the kernel as an argument and not through memory.

    Traces show one as a tensor without dimensions of type double or long beside tensors of another type.
    """
    others = {each.dtype for each in operands if each is not operand}
    return not operand.dims and operand.dtype in {"float64", "int64"} and bool(others - {operand.dtype})


def _math_dtype(operands: tuple[TensorArg, ...]) -> str | None:
    known = [each.dtype for each in operands if each.dims and each.dtype]
    return promote(known)


def _base_name(name: str) -> str:
    short = name.removeprefix("aten::")
    return short if short.endswith("__") else short.rstrip("_")


MODELS: Final[dict[str, Callable[[OperatorCall], OperatorCost]]] = {
    **{f"aten::{name}": elementwise for name in (*_ARITHMETIC, *_MOVES)},
    **{f"aten::{name}_": elementwise for name in (*_ARITHMETIC, *_MOVES) if not name.endswith("_")},
    **{f"aten::{name}": fill for name in _FILLS},
    **{f"aten::{name}": reduction for name in _REDUCTIONS},
    "aten::copy_": copy_into,
    "aten::_to_copy": cast,
    "aten::to": cast,
    "aten::native_dropout": dropout,
    "aten::_fused_dropout": dropout,
    "aten::split_with_sizes_copy": split_copy,
    "fsdp::split_with_sizes_copy": split_copy,
}
LIST_MODELS: Final[dict[str, Callable[[OperatorCall, str | None], OperatorCost]]] = {
    "aten::cat": concatenate,
    "aten::_cat": concatenate,
    "aten::stack": concatenate,
    "aten::_chunk_cat": chunk_concatenate,
}
