"""FLOPs of single operators by their shapes: products of matrices, convolutions, attention and recurrent layers.

Torch's own table (`torch.utils.flop_counter`) multiplies the weights' gradient of a grouped convolution by its groups,
knows neither vectors nor recurrent layers, and has formulas in some versions only; so it is asked last.
"""

# torch annotates only a part of itself.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch
from torch._ops import HigherOrderOperator
from torch.utils.flop_counter import flop_registry

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class Flop(NamedTuple):
    """FLOPs of one operator."""

    model: int
    """What its result needs."""
    hardware: int
    """What it computes: more where it does something again, or for nobody."""


_KNOWN_NAMESPACES: Final = frozenset(("aten", "prim", "prims", "c10d", "_c10d_functional", "fsdp", "profiler"))
_PRODUCT: Final = re.compile(
    r"(.*(mm|mv|gemm|dot)|matmul|einsum|addr|cdist|(bi|tri)?linear|conv([123]d)?|convolution|attention|attn|transformer"
    r"|rnn|lstm|gru|linalg|cholesky|solve|orgqr|ormqr|geqrf)"
)
"""Words of names of operators that hold a product or solve a system, those of versions to come included."""
_NO_PRODUCT: Final = frozenset(
    ("upsample", "thnn", "flatten", "reorder", "pack", "prepack", "norm", "cross", "diagonal")
)
"""Words of names beside these of operators that hold none: `_thnn_fused_lstm_cell` gets products that were made."""
_ATTENTION_BACKWARD: Final = re.compile(r"att(entio)?n.*backward")


def lacks_formula(name: str) -> bool:
    """Whether an operator that `flop_of` does not know may hold FLOPs: one of a package, or named after a product.

    Args:
        name: With its namespace (`aten.mm`); that of a higher-order operator has none.
    """
    namespace, dot, operator = name.partition(".")
    if not dot or namespace not in _KNOWN_NAMESPACES:
        return True
    words = operator.split("_")
    return any(map(_PRODUCT.fullmatch, words)) and _NO_PRODUCT.isdisjoint(words)


def flop_of(func: Any, args: Any, kwargs: Mapping[str, Any], out: Any) -> Flop | None:
    """Return the FLOPs of a call of an operator; `None` where there is no formula for it.

    Args:
        func: The overload that was called.
        args: What it got.
        kwargs: What it got by name.
        out: What it returned.
    """
    if isinstance(func, HigherOrderOperator):
        packet, name, named = func, str(func), {}
    else:
        packet = func._overloadpacket
        name = str(packet)
        named = {**dict(zip((each.name for each in func._schema.arguments), args, strict=False)), **kwargs}
    if any(isinstance(each, torch.Tensor) and each.layout != torch.strided for each in named.values()):
        return None  # how many elements of a sparse tensor are multiplied is not in its shape
    formula = _FORMULAS.get(name.removesuffix("_"))
    if formula is not None:
        flop = formula(named, out)
        return flop if isinstance(flop, Flop) else Flop(flop, flop)
    if packet not in flop_registry:
        return None
    hardware = int(flop_registry[packet](*args, **kwargs, out_val=out))
    # Of five products one makes the scores again.
    return Flop(hardware * 4 // 5 if _ATTENTION_BACKWARD.search(name) else hardware, hardware)


def _product(left: str) -> Callable[[Mapping[str, Any], Any], int]:
    """A product of what is named so with a result of its own: every element is a sum over the last dimension."""

    def count(named: Mapping[str, Any], out: Any) -> int:
        factor = named[left]
        # Two values of four bits are packed in one element.
        packed = 2 if str(factor.dtype) == "torch.float4_e2m1fn_x2" else 1
        return 2 * out.numel() * factor.shape[-1] * packed

    return count


def _sum_of_products(named: Mapping[str, Any], out: Any) -> int:
    """`addbmm`: the products of a batch are summed as well."""
    return 2 * out.numel() * named["batch1"].shape[0] * named["batch1"].shape[-1]


def _outer(named: Mapping[str, Any], out: Any) -> int:
    return 2 * out.numel()


def _linear_backward(named: Mapping[str, Any], out: Any) -> int:
    return 2 * named["grad_output"].numel() * named["weight"].shape[-1] * sum(named["output_mask"][:2])


def _grouped(named: Mapping[str, Any], out: Any) -> int:
    """A product per group; rows (or the summed dimension) are shared out among the groups."""
    left, right = named["self"].shape, named["mat2"].shape
    packed = 2 if str(named["self"].dtype) == "torch.float4_e2m1fn_x2" else 1
    if len(left) == 2:
        return 2 * left[0] * left[1] * right[-1] * packed
    return 2 * left[1] * left[2] * right[-1] * packed * (left[0] if len(right) == 3 else 1)


def _convolution(named: Mapping[str, Any], out: Any, *, transposed: bool = False) -> int:
    """Every weight (fewer the more groups there are) is multiplied at each position of the side that slides over it."""
    whole = named["input"] if "input" in named else named["self"]
    return _slide(named["weight"], whole if named.get("transposed", transposed) else out)


def _transposed_convolution(named: Mapping[str, Any], out: Any) -> int:
    return _convolution(named, out, transposed=True)


def _convolution_backward(named: Mapping[str, Any], out: Any) -> int:
    """The gradients of the input and of the weights take as much as the forward, each."""
    side = named["input"] if named["transposed"] else named["grad_output"]
    return _slide(named["weight"], side) * sum(named["output_mask"][:2])


def _slide(weight: Any, side: Any) -> int:
    return 2 * (side.numel() // weight.shape[0]) * weight.numel()


def _attention(named: Mapping[str, Any], out: Any) -> int:
    """Two products: scores (queries x keys x width) and the weighted sum (queries x keys x width of values).

    Attention is counted in full; heads of keys and values may be fewer than those of queries.
    """
    return _scores(named) + _scores(named) * named["value"].shape[-1] // named["query"].shape[-1]


def _attention_backward(named: Mapping[str, Any], out: Any) -> Flop:
    """Four products; the scores are computed once more, as they were not kept."""
    model = 2 * _attention(named, out)
    return Flop(model, model + _scores(named))


def _scores(named: Mapping[str, Any]) -> int:
    return 2 * named["query"].numel() * named["key"].shape[-2]


def _trilinear(named: Mapping[str, Any], out: Any) -> int:
    """`nn.Bilinear` and its gradients: two contractions, repeated along one dimension; one without a sum is no product.

    The names of dimensions are of the three factors after each was expanded.
    """
    factors = [named[name] for name in ("i1", "i2", "i3")]
    expanded = [set(named[name]) for name in ("expand1", "expand2", "expand3")]
    num_dims = factors[0].dim() + len(expanded[0])
    dims = [set(range(num_dims)) - each for each in expanded]
    sizes: dict[int, int] = {}
    for factor, own in zip(factors, dims, strict=True):
        sizes.update(zip(sorted(own), factor.shape, strict=True))
    unrolled = named.get("unroll_dim", 1)
    summed = set(named["sumdim"]) - {unrolled}
    first = summed - dims[2]
    products = [dims[0] | dims[1]] if first else []
    if summed & dims[2]:
        products.append(((dims[0] | dims[1]) - first) | dims[2])
    return sum(2 * math.prod(sizes[dim] for dim in each | {unrolled}) for each in products)


def _recurrent(named: Mapping[str, Any], out: Any) -> int:
    """Every matrix (of gates, directions, layers and projections) is multiplied at each position of the sequences."""
    return _positions(named) * sum(each.numel() for each in _matrices(named))


def _recurrent_backward(named: Mapping[str, Any], out: Any) -> Flop:
    """The gradient of the input is computed in any case, as it comes with that of the state."""
    matrices, forward = _matrices(named), _recurrent(named, out)
    if "output_mask" in named:
        needs_input, *_, needs_weight = named["output_mask"]
        num_directions = 2 if named["bidirectional"] else 1
        first = named["weight"][:: named["weight_stride0"]][:num_directions]
    else:
        needs_input, needs_weight, first = named["input"].requires_grad, True, matrices[:1]
    hardware = forward * (2 if needs_weight else 1)
    unneeded = 0 if needs_input else _positions(named) * sum(each.numel() for each in first)
    return Flop(hardware - unneeded, hardware)


def _positions(named: Mapping[str, Any]) -> int:
    return 2 * (named["input"].numel() // named["input"].shape[-1])


def _matrices(named: Mapping[str, Any]) -> list[Any]:
    """Weights of input and of state, biases, perhaps a projection, for each layer and direction; without the biases.

    The operator of oneDNN is of one layer and direction, and names its weights apart; zeros for biases it lacks may
    have the form of matrices.
    """
    if "weight" in named:
        return [each for each in named["weight"] if each.dim() == 2]
    return [value for name, value in named.items() if name.startswith("weight")][:2]


_FUSED_ATTENTION: Final = tuple(
    f"aten._scaled_dot_product_{kind}"
    for kind in (
        "flash_attention",
        "efficient_attention",
        "cudnn_attention",
        "flash_attention_for_cpu",
        "fused_attention_overrideable",
    )
)
_FORMULAS: Final[Mapping[str, Callable[[Mapping[str, Any], Any], int | Flop]]] = {
    **dict.fromkeys(("aten.mm", "aten.bmm", "aten.mv", "aten._int_mm", "aten.dot", "aten.vdot"), _product("self")),
    **dict.fromkeys(("aten._scaled_mm", "aten._scaled_mm_v2"), _product("self")),
    **dict.fromkeys(("aten.addmm", "aten._addmm_activation"), _product("mat1")),
    "aten.baddbmm": _product("batch1"),
    "aten.addmv": _product("mat"),
    "aten.addbmm": _sum_of_products,
    "aten.addr": _outer,
    # What autograd else takes apart; under inference mode, and of jagged tensors, it comes whole.
    "aten.linear": _product("input"),
    "aten.matmul": _product("self"),
    "aten.scaled_dot_product_attention": _attention,
    **dict.fromkeys((f"aten.conv{dims}d" for dims in (1, 2, 3)), _convolution),
    **dict.fromkeys((f"aten.conv_transpose{dims}d" for dims in (1, 2, 3)), _transposed_convolution),
    "aten.linear_backward": _linear_backward,
    **dict.fromkeys(("aten._grouped_mm", "aten._scaled_grouped_mm", "aten._scaled_grouped_mm_v2"), _grouped),
    **dict.fromkeys(("aten.convolution", "aten._convolution", "aten.convolution_overrideable"), _convolution),
    **dict.fromkeys(("aten.cudnn_convolution", "aten.mkldnn_convolution", "aten._slow_conv2d_forward"), _convolution),
    "aten.convolution_backward": _convolution_backward,
    **dict.fromkeys(_FUSED_ATTENTION, _attention),
    **dict.fromkeys((f"{name}_backward" for name in _FUSED_ATTENTION), _attention_backward),
    "aten._trilinear": _trilinear,
    **dict.fromkeys(("aten.mkldnn_rnn_layer", "aten._cudnn_rnn", "aten.miopen_rnn"), _recurrent),
    **dict.fromkeys(
        ("aten.mkldnn_rnn_layer_backward", "aten._cudnn_rnn_backward", "aten.miopen_rnn_backward"), _recurrent_backward
    ),
}
