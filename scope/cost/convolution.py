"""Convolutions: 2 x batch x output positions x weights FLOPs; groups, strides, dilation and transposition included.

A weight tensor holds `[out, in/groups, kernel...]`, transposed `[in, out/groups, kernel...]`; every weight meets every
output position of its channel (transposed: every input position) once, so the product of the weight's extents and of
the positions is the count. Source: `torch.utils.flop_counter` counts the same. Biases are not counted.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import msgspec

from scope.cost.call import TensorArg
from scope.cost.dtypes import matrix_path
from scope.cost.gemm import misaligned
from scope.cost.result import OperatorCost, added, cost, sized, stored, unknown

if TYPE_CHECKING:
    from collections.abc import Callable

    from scope.cost.call import OperatorCall

_SHAPES: Final = "the shapes are not those of a convolution"
_NO_GEOMETRY: Final = "the trace does not hold the strides and padding (Concrete Inputs)"


class _Layout(msgspec.Struct, frozen=True, kw_only=True):
    """Positions of a forward convolution's arguments; None where the operator has no such argument."""

    stride: int
    padding: int
    dilation: int
    bias: int | None = 2
    transposed: int | None = None
    output_padding: int | None = None
    groups: int | None = None
    """Where the number of groups stands; only a transposed output depends on it."""
    is_transposed: bool = False
    residual: int | None = None


_LAYOUTS: Final = {
    "aten::convolution": _Layout(stride=3, padding=4, dilation=5, transposed=6, output_padding=7, groups=8),
    "aten::_convolution": _Layout(stride=3, padding=4, dilation=5, transposed=6, output_padding=7, groups=8),
    "aten::convolution_overrideable": _Layout(
        stride=3, padding=4, dilation=5, transposed=6, output_padding=7, groups=8
    ),
    "aten::conv1d": _Layout(stride=3, padding=4, dilation=5),
    "aten::conv2d": _Layout(stride=3, padding=4, dilation=5),
    "aten::conv3d": _Layout(stride=3, padding=4, dilation=5),
    "aten::conv_transpose1d": _Layout(stride=3, padding=4, output_padding=5, groups=6, dilation=7, is_transposed=True),
    "aten::conv_transpose2d": _Layout(stride=3, padding=4, output_padding=5, groups=6, dilation=7, is_transposed=True),
    "aten::conv_transpose3d": _Layout(stride=3, padding=4, output_padding=5, groups=6, dilation=7, is_transposed=True),
    "aten::cudnn_convolution": _Layout(bias=None, padding=2, stride=3, dilation=4),
    "aten::cudnn_convolution_relu": _Layout(stride=3, padding=4, dilation=5),
    "aten::cudnn_convolution_add_relu": _Layout(residual=2, bias=4, stride=5, padding=6, dilation=7),
    "aten::cudnn_convolution_transpose": _Layout(
        bias=None, padding=2, output_padding=3, stride=4, dilation=5, groups=6, is_transposed=True
    ),
    "aten::miopen_convolution": _Layout(padding=3, stride=4, dilation=5),
    "aten::miopen_convolution_relu": _Layout(stride=3, padding=4, dilation=5),
    "aten::miopen_convolution_add_relu": _Layout(residual=2, bias=4, stride=5, padding=6, dilation=7),
    "aten::miopen_depthwise_convolution": _Layout(padding=3, stride=4, dilation=5),
    "aten::miopen_convolution_transpose": _Layout(
        padding=3, output_padding=4, stride=5, dilation=6, groups=7, is_transposed=True
    ),
    "aten::mkldnn_convolution": _Layout(padding=3, stride=4, dilation=5),
    "aten::_conv_depthwise2d": _Layout(bias=3, stride=4, padding=5, dilation=6),
    "aten::conv_depthwise3d": _Layout(bias=3, stride=4, padding=5, dilation=6),
}


def forward(call: OperatorCall) -> OperatorCost:
    """Any forward convolution; the layout of its arguments follows from its name."""
    layout = _LAYOUTS[call.name]
    x, weight = call.tensor(0), call.tensor(1)
    if x is None or weight is None or len(x.dims) != len(weight.dims) or len(weight.dims) < 3:
        return unknown("convolution", _SHAPES)
    transposed = layout.is_transposed or (layout.transposed is not None and call.flag(layout.transposed))
    if transposed is None:
        return unknown("convolution", _NO_GEOMETRY)
    out = _output(call, layout, x=x, weight=weight, transposed=transposed)
    if out is None:
        return unknown("convolution", _NO_GEOMETRY)
    bias = None if layout.bias is None else call.tensor(layout.bias)
    residual = None if layout.residual is None else call.tensor(layout.residual)
    base = cost(
        "convolution",
        flops=_flops(x=x, weight=weight, out=out, transposed=transposed),
        read=stored((x, weight, bias, residual)),
        written=sized(math.prod(out), x.dtype),
        math_dtype=matrix_path(x.dtype),
    )
    return msgspec.structs.replace(base, misaligned=_channels(weight))


def backward(call: OperatorCall) -> OperatorCost:
    """`convolution_backward(grad_output, input, weight, bias_sizes, ..., transposed, ..., output_mask)`.

    The gradients of input and weight each cost what the forward pass does; the mask says which are computed.
    """
    grad, x, weight = call.tensor(0), call.tensor(1), call.tensor(2)
    if grad is None or x is None or weight is None or len(x.dims) != len(weight.dims):
        return unknown("convolution", _SHAPES)
    transposed, mask = call.flag(7), call.integers(10)
    if transposed is None or mask is None or len(mask) != 3:
        return unknown("convolution", "the trace does not hold which gradients are computed (Concrete Inputs)")
    num_products = mask[0] + mask[1]
    flops = num_products * _flops(x=x, weight=weight, out=grad.dims, transposed=transposed)
    read = stored((grad, weight if mask[0] else None, x if mask[1] else None))
    written = added(
        sized(x.num_elements, x.dtype) if mask[0] else 0,
        sized(weight.num_elements, weight.dtype) if mask[1] else 0,
        sized(grad.dims[1], grad.dtype) if mask[2] else 0,
    )
    base = cost("convolution", flops=flops, read=read, written=written, math_dtype=matrix_path(grad.dtype))
    return msgspec.structs.replace(base, misaligned=_channels(weight))


def backward_input(call: OperatorCall) -> OperatorCost:
    """`cudnn_convolution_backward_input(self_size, grad_output, weight, ...)` of torch up to 1.10."""
    tensors = call.tensors
    if len(tensors) < 2 or len(tensors[0].dims) != len(tensors[1].dims):
        return unknown("convolution", _SHAPES)
    grad, weight = tensors[0], tensors[1]
    size = call.integers(0)
    return _one_gradient(
        grad, weight, weight=weight, result=None if size is None else TensorArg(dims=size, dtype=grad.dtype)
    )


def backward_weight(call: OperatorCall) -> OperatorCost:
    """`cudnn_convolution_backward_weight(weight_size, grad_output, self, ...)` of torch up to 1.10.

    The weight's shape stands among the values, which such old traces leave out; it is unknown then.
    """
    tensors, size = call.tensors, call.integers(0)
    if len(tensors) < 2 or size is None or len(size) != len(tensors[0].dims):
        return unknown("convolution", "the trace does not hold the shape of the weight (Concrete Inputs)")
    weight = TensorArg(dims=size, dtype=tensors[1].dtype)
    return _one_gradient(tensors[0], tensors[1], weight=weight, result=weight)


def _one_gradient(grad: TensorArg, other: TensorArg, *, weight: TensorArg, result: TensorArg | None) -> OperatorCost:
    flops = _flops(x=grad, weight=weight, out=grad.dims, transposed=False)
    written = None if result is None else stored((result,))
    base = cost(
        "convolution", flops=flops, read=stored((grad, other)), written=written, math_dtype=matrix_path(grad.dtype)
    )
    return msgspec.structs.replace(base, misaligned=_channels(weight))


def _flops(*, x: TensorArg, weight: TensorArg, out: tuple[int, ...], transposed: bool) -> int:
    positions = x.dims if transposed else out
    return 2 * positions[0] * math.prod(positions[2:]) * weight.num_elements


def _channels(weight: TensorArg) -> tuple[str, ...]:
    return misaligned(weight.dtype, channels_out=weight.dims[0], channels_in=weight.dims[1])


def _output(
    call: OperatorCall, layout: _Layout, *, x: TensorArg, weight: TensorArg, transposed: bool
) -> tuple[int, ...] | None:
    rank = len(x.dims) - 2
    stride, dilation = _spread(call, layout.stride, rank), _spread(call, layout.dilation, rank)
    padding = _spread(call, layout.padding, rank)
    if stride is None or dilation is None:
        return None
    if padding is None:
        # `padding="same"` keeps the extent, "valid" pads nothing.
        text = call.text(layout.padding).strip("'\"")
        if text not in {"same", "valid"}:
            return None
        padding = (0,) * rank
        if text == "same":
            return (x.dims[0], weight.dims[0], *x.dims[2:])
    kernel = [reach * (size - 1) + 1 for reach, size in zip(dilation, weight.dims[2:], strict=True)]
    rows = zip(x.dims[2:], stride, padding, kernel, strict=True)
    if not transposed:
        spatial = [(size + 2 * pad - reach) // step + 1 for size, step, pad, reach in rows]
        return (x.dims[0], weight.dims[0], *spatial) if min(spatial) >= 0 else None
    extra = None if layout.output_padding is None else _spread(call, layout.output_padding, rank)
    groups = None if layout.groups is None else call.integer(layout.groups)
    if extra is None or groups is None:
        return None
    spatial = [
        (size - 1) * step - 2 * pad + reach + more for (size, step, pad, reach), more in zip(rows, extra, strict=True)
    ]
    return (x.dims[0], weight.dims[1] * groups, *spatial) if min(spatial) >= 0 else None


def _spread(call: OperatorCall, position: int, rank: int) -> tuple[int, ...] | None:
    values = call.integers(position)
    if values is None or len(values) not in {1, rank}:
        return None
    return values * rank if len(values) == 1 else values


MODELS: Final[dict[str, Callable[[OperatorCall], OperatorCost]]] = {
    **dict.fromkeys(_LAYOUTS, forward),
    "aten::convolution_backward": backward,
    "aten::cudnn_convolution_backward_input": backward_input,
    "aten::cudnn_convolution_backward_weight": backward_weight,
}
