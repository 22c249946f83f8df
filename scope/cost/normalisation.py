"""Normalisations, softmax and losses: the least traffic, and FLOPs by the textbook formulas.

FLOPs for each element: layer norm 7 (sum; difference, square, sum; scale; weight, bias), RMS norm 4 (square, sum;
scale; weight), batch and group norm as layer norm (a synchronised batch norm 4 and 4, its backward 4 and 5), each
backward pass 11 (two sums of two products, which are the gradients of weight and bias where these are computed, and the
three-term gradient), softmax and log softmax 5 (maximum, difference, exp, sum, quotient or difference), their backward
4.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Final

from scope.cost.dtypes import scalar_type
from scope.cost.result import OperatorCost, added, cost, sized, stored, unknown

if TYPE_CHECKING:
    from collections.abc import Callable

    from scope.cost.call import OperatorCall, TensorArg

_NO_TENSOR: Final = "the trace holds no tensor argument"
_NO_MASK: Final = "the trace does not hold which gradients are computed (Concrete Inputs)"
_NORM_FLOPS: Final = 7
_RMS_FLOPS: Final = 4
_BACKWARD_FLOPS: Final = 11
_SUM_FLOPS: Final = 3
_LAYER_NORM_BACKWARD: Final = "aten::native_layer_norm_backward"
_INPUT_PART: Final = re.compile(r"grad_input|ComputeGradInput", re.IGNORECASE)
_WEIGHT_PART: Final = re.compile(r"GammaBetaBackward|ComputePartGradGammaBeta", re.IGNORECASE)
# Large tensors that come first, FLOPs for each element, what is written.
_SYNCHRONISED: Final = {
    "aten::batch_norm_stats": (1, 4, "sums"),
    "aten::batch_norm_elemt": (1, 4, "result"),
    "aten::batch_norm_backward_reduce": (2, 4, "sums"),
    "aten::batch_norm_backward_elemt": (2, 5, "result"),
}
_WEIGHT_POSITION: Final = {
    _LAYER_NORM_BACKWARD: 5,
    "aten::_fused_rms_norm_backward": 4,
    "aten::native_group_norm_backward": 4,
}


def layer_norm(call: OperatorCall) -> OperatorCost:
    """`native_layer_norm(input, normalized_shape, weight, bias, eps)`: also mean and 1/std are written."""
    x = call.tensor(0)
    if x is None:
        return unknown("normalisation", _NO_TENSOR)
    weight, bias = call.tensor(2), call.tensor(3)
    width = _width(call, x, weight)
    if width is None:
        return unknown("normalisation", "the trace does not hold the normalised shape (Concrete Inputs)")
    statistics = 2 * (x.num_elements // width) if width else 0
    return _forward(x, (weight, bias), statistics=statistics, flops=_NORM_FLOPS)


def rms_norm(call: OperatorCall) -> OperatorCost:
    """`_fused_rms_norm(input, normalized_shape, weight, eps)`: also 1/rms is written."""
    x = call.tensor(0)
    if x is None:
        return unknown("normalisation", _NO_TENSOR)
    weight = call.tensor(2)
    width = _width(call, x, weight)
    if width is None:
        return unknown("normalisation", "the trace does not hold the normalised shape (Concrete Inputs)")
    return _forward(x, (weight,), statistics=x.num_elements // width if width else 0, flops=_RMS_FLOPS)


def batch_norm(call: OperatorCall) -> OperatorCost:
    """`native_batch_norm` and cuDNN's and MIOpen's: training reads and writes the running statistics as well."""
    x = call.tensor(0)
    if x is None or len(x.dims) < 2:
        return unknown("normalisation", _NO_TENSOR)
    training = call.flag(5)
    weight, bias, mean, variance = (call.tensor(each) for each in (1, 2, 3, 4))
    running = sum(2 for each in (mean,) if each is not None) if training else 0
    # Saved mean and 1/std, and in training the running statistics again.
    statistics = (2 + running) * x.dims[1] if training else 0
    return _forward(x, (weight, bias, mean, variance), statistics=statistics, flops=_NORM_FLOPS)


def group_norm(call: OperatorCall) -> OperatorCost:
    """`native_group_norm(input, weight, bias, N, C, HxW, group, eps)`."""
    x = call.tensor(0)
    groups, batch = call.integer(6), call.integer(3)
    if x is None or groups is None or batch is None:
        return unknown("normalisation", _NO_TENSOR)
    return _forward(x, (call.tensor(1), call.tensor(2)), statistics=2 * batch * groups, flops=_NORM_FLOPS)


def layer_norm_backward(call: OperatorCall) -> OperatorCost:
    """`native_layer_norm_backward(grad, input, shape, mean, rstd, weight, bias, output_mask)`."""
    return _backward(call, (3, 4, 5), mask=_mask(call))


def norm_backward_part(call: OperatorCall, kernel: str) -> OperatorCost | None:
    """Return what one kernel of a layer or RMS norm's backward pass costs; None when the name does not tell its part.

    Torch computes the input's gradient in one kernel and those of weight and bias in another; the second stage of a
    sum in two stages (`cuComputeGradGammaBeta`) moves only partial sums, whose number is not recorded. The FLOPs of
    both are together those of the operator.
    """
    statistics = (3, 4) if call.name == _LAYER_NORM_BACKWARD else (3,)
    _, *parameters = _mask(call)
    if _INPUT_PART.search(kernel):
        num_sums = sum(1 for wanted in parameters if wanted)
        return _backward(call, (*statistics, _WEIGHT_POSITION[call.name]), mask=(1,), sums_elsewhere=num_sums)
    if _WEIGHT_PART.search(kernel):
        return _backward(call, statistics, mask=(0, *parameters))
    return None


def rms_norm_backward(call: OperatorCall) -> OperatorCost:
    """`_fused_rms_norm_backward(grad, input, shape, rstd, weight, output_mask)`."""
    return _backward(call, (3, 4), mask=_mask(call))


def batch_norm_backward(call: OperatorCall) -> OperatorCost:
    """`native_batch_norm_backward(grad, input, weight, running..., save_mean, save_invstd, train, eps, mask)`."""
    mask = call.integers(9)
    return unknown("normalisation", _NO_MASK) if mask is None else _backward(call, (2, 5, 6), mask=mask)


def library_batch_norm_backward(call: OperatorCall) -> OperatorCost:
    """CuDNN's and MIOpen's `(input, grad_output, weight, running..., save_mean, save_var, ...)`: three gradients."""
    return _backward(call, (2, 5, 6), mask=(1, 1, 1))


def group_norm_backward(call: OperatorCall) -> OperatorCost:
    """`native_group_norm_backward(grad, input, mean, rstd, weight, N, C, HxW, group, output_mask)`."""
    mask = call.integers(9)
    return unknown("normalisation", _NO_MASK) if mask is None else _backward(call, (2, 3, 4), mask=mask)


def softmax(call: OperatorCall) -> OperatorCost:
    """`_softmax(self, dim, half_to_float)`, `_log_softmax`; `softmax(self, dim, dtype)` and its like."""
    x = call.tensor(0)
    if x is None:
        return unknown("normalisation", _NO_TENSOR)
    dtype = "float32" if call.flag(2) and x.dtype in {"float16", "bfloat16"} else x.dtype
    if call.name in {"aten::softmax", "aten::log_softmax", "aten::_safe_softmax"}:
        dtype = scalar_type(call.integer(2)) or x.dtype
    written = sized(x.num_elements, dtype)
    return cost("normalisation", flops=5 * x.num_elements, read=stored((x,)), written=written, math_dtype=x.dtype)


def softmax_backward(call: OperatorCall) -> OperatorCost:
    """`_softmax_backward_data(grad_output, output, dim, input_dtype)` and its log form."""
    grad, output = call.tensor(0), call.tensor(1)
    if grad is None or output is None:
        return unknown("normalisation", _NO_TENSOR)
    written = sized(grad.num_elements, scalar_type(call.integer(3)) or grad.dtype)
    return cost(
        "normalisation",
        flops=4 * grad.num_elements,
        read=stored((grad, output)),
        written=written,
        math_dtype=grad.dtype,
    )


def synchronised_part(call: OperatorCall) -> OperatorCost:
    """The four kernels of a synchronised batch norm: statistics and result, forward, sums and gradient, backward.

    `batch_norm_stats(input, eps)`, `batch_norm_elemt(input, ...)`, `batch_norm_backward_reduce(grad, input, ...,
    input_g, weight_g, bias_g)` and `batch_norm_backward_elemt(grad, input, ...)`.
    """
    num_large, flops_each, writes = _SYNCHRONISED[call.name]
    x = call.tensor(num_large - 1)
    if x is None or len(x.dims) < 2:
        return unknown("normalisation", _NO_TENSOR)
    kept = "float32" if x.dtype in {"float16", "bfloat16"} else x.dtype
    if writes == "result":
        written = sized(x.num_elements, x.dtype)
    else:
        is_backward = num_large == 2
        num_sums = sum(call.flag(position) is not False for position in (5, 5, 6, 7)) if is_backward else 2
        written = sized(num_sums * x.dims[1], kept)
    read = stored(call.tensors)
    return cost("normalisation", flops=flops_each * x.num_elements, read=read, written=written, math_dtype=x.dtype)


def nll_loss(call: OperatorCall) -> OperatorCost:
    """`nll_loss_forward(self, target, weight, reduction, ignore_index)`: one value is read for each target."""
    x, target = call.tensor(0), call.tensor(1)
    if x is None or target is None:
        return unknown("reduction", _NO_TENSOR)
    weight = call.tensor(2)
    num_targets = max(1, target.num_elements)
    num_out = num_targets if call.integer(3) == 0 else 1
    read = added(sized(num_targets, x.dtype), stored((target, weight)))
    # The loss and the total weight.
    written = sized(num_out + 1, x.dtype)
    return cost("reduction", flops=num_targets, read=read, written=written, math_dtype=x.dtype)


def nll_loss_backward(call: OperatorCall) -> OperatorCost:
    """`nll_loss_backward(grad, self, target, weight, reduction, ignore_index, total_weight)`.

    One value is written for each target; the zeros around them are a fill of its own.
    """
    grad, x, target = call.tensor(0), call.tensor(1), call.tensor(2)
    if grad is None or x is None or target is None:
        return unknown("elementwise", _NO_TENSOR)
    read = stored((grad, target, call.tensor(3), call.tensor(6)))
    num_targets = max(1, target.num_elements)
    written = sized(num_targets, x.dtype)
    return cost("elementwise", flops=num_targets, read=read, written=written, math_dtype=x.dtype)


def _forward(x: TensorArg, parameters: tuple[TensorArg | None, ...], *, statistics: int, flops: int) -> OperatorCost:
    # Statistics of half types are kept in float32.
    kept = "float32" if x.dtype in {"float16", "bfloat16"} else x.dtype
    written = added(sized(x.num_elements, x.dtype), sized(statistics, kept))
    return cost(
        "normalisation",
        flops=flops * x.num_elements,
        read=stored((x, *parameters)),
        written=written,
        math_dtype=x.dtype,
    )


def _mask(call: OperatorCall) -> tuple[int, ...]:
    """Return which gradients of a layer or RMS norm are computed: of the input, the weight, and a layer norm's bias."""
    parameters = (5, 6) if call.name == _LAYER_NORM_BACKWARD else (4,)
    recorded = call.integers(parameters[-1] + 1) or (1, *(int(call.tensor(each) is not None) for each in parameters))
    return recorded[: 1 + len(parameters)]


def _backward(
    call: OperatorCall, others: tuple[int, ...], *, mask: tuple[int, ...], sums_elsewhere: int = 0
) -> OperatorCost:
    grad, x = call.tensor(0), call.tensor(1)
    if grad is None or x is None:
        return unknown("normalisation", _NO_TENSOR)
    extra = tuple(call.tensor(each) for each in others)
    weight = call.tensor(_WEIGHT_POSITION.get(call.name, 2))
    num_parameters = sum(1 for wanted in mask[1:] if wanted)
    written = added(
        sized(x.num_elements, x.dtype) if mask[0] else 0,
        0 if weight is None else sized(num_parameters * weight.num_elements, weight.dtype),
    )
    read = stored((grad, x, *extra))
    each = _BACKWARD_FLOPS - _SUM_FLOPS * sums_elsewhere if mask[0] else _SUM_FLOPS * num_parameters
    return cost("normalisation", flops=each * x.num_elements, read=read, written=written, math_dtype=x.dtype)


def _width(call: OperatorCall, x: TensorArg, weight: TensorArg | None) -> int | None:
    if weight is not None:
        return weight.num_elements
    shape = call.integers(1)
    return None if shape is None else math.prod(shape)


MODELS: Final[dict[str, Callable[[OperatorCall], OperatorCost]]] = {
    "aten::native_layer_norm": layer_norm,
    "aten::layer_norm": layer_norm,
    "aten::_fused_rms_norm": rms_norm,
    "aten::rms_norm": rms_norm,
    "aten::native_batch_norm": batch_norm,
    "aten::_native_batch_norm_legit": batch_norm,
    "aten::_batch_norm_impl_index": batch_norm,
    "aten::cudnn_batch_norm": batch_norm,
    "aten::miopen_batch_norm": batch_norm,
    "aten::native_group_norm": group_norm,
    **dict.fromkeys(_SYNCHRONISED, synchronised_part),
    _LAYER_NORM_BACKWARD: layer_norm_backward,
    "aten::_fused_rms_norm_backward": rms_norm_backward,
    "aten::native_batch_norm_backward": batch_norm_backward,
    "aten::cudnn_batch_norm_backward": library_batch_norm_backward,
    "aten::miopen_batch_norm_backward": library_batch_norm_backward,
    "aten::native_group_norm_backward": group_norm_backward,
    "aten::_softmax": softmax,
    "aten::_log_softmax": softmax,
    "aten::softmax": softmax,
    "aten::log_softmax": softmax,
    "aten::_safe_softmax": softmax,
    "aten::_softmax_backward_data": softmax_backward,
    "aten::_log_softmax_backward_data": softmax_backward,
    "aten::nll_loss_forward": nll_loss,
    "aten::nll_loss2d_forward": nll_loss,
    "aten::nll_loss_backward": nll_loss_backward,
    "aten::nll_loss2d_backward": nll_loss_backward,
}
PART_MODELS: Final[dict[str, Callable[[OperatorCall, str], OperatorCost | None]]] = {
    _LAYER_NORM_BACKWARD: norm_backward_part,
    "aten::_fused_rms_norm_backward": norm_backward_part,
}
