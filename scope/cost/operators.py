"""From an operator as a trace records it to what its work costs at least."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

from scope.cost import (
    attention,
    convolution,
    fused,
    gemm,
    indexing,
    lookup,
    normalisation,
    optimizer,
    pointwise,
    pooling,
    quantised,
    recommender,
    sparse,
)
from scope.cost.call import OperatorCall, parse_call
from scope.cost.result import OperatorCost, unknown

if TYPE_CHECKING:
    from collections.abc import Callable

_MODELS: Final[dict[str, Callable[[OperatorCall], OperatorCost]]] = {
    **pointwise.MODELS,
    **normalisation.MODELS,
    **lookup.MODELS,
    **indexing.MODELS,
    **pooling.MODELS,
    **recommender.MODELS,
    **fused.MODELS,
    **quantised.MODELS,
    **sparse.MODELS,
    **gemm.MODELS,
    **convolution.MODELS,
    **attention.MODELS,
}
_LIST_MODELS: Final[dict[str, Callable[[OperatorCall, str | None], OperatorCost]]] = {
    **pointwise.LIST_MODELS,
    **optimizer.LIST_MODELS,
}
_PART_MODELS: Final[dict[str, Callable[[OperatorCall, str], OperatorCost | None]]] = {
    **normalisation.PART_MODELS,
    **indexing.PART_MODELS,
    **recommender.PART_MODELS,
}
_MATRIX_NAMES: Final = frozenset(
    {*gemm.MODELS, *quantised.MODELS, *sparse.MODELS, *convolution.MODELS, *attention.MODELS, *fused.MODELS}
)
_FAMILIES: Final = {
    "attention": attention.MODELS,
    "convolution": convolution.MODELS,
    "gemm": {**gemm.MODELS, **quantised.MODELS, **sparse.MODELS},
    "normalisation": normalisation.MODELS,
    "embedding": lookup.MODELS,
}
_EACH_KERNEL: Final = "it launches several kernels, each with a cost of its own"


def modelled_operators() -> tuple[str, ...]:
    """Return the names of all operators that have a model, sorted.

    Compiled kernels (`triton_*`) and FBGEMM's lookups in tables, whose names hold their variant, have one besides.
    """
    return tuple(sorted({*_MODELS, *_LIST_MODELS, *_PART_MODELS}))


def has_model(name: str) -> bool:
    """Return whether an operator has a model."""
    return (
        name in _MODELS
        or name in _LIST_MODELS
        or name in _PART_MODELS
        or name.startswith(fused.TRITON_PREFIX)
        or recommender.has_model(name)
    )


def is_matrix_operator(name: str) -> bool:
    """Return whether an operator's FLOPs go to its matrix kernels: products, convolutions, attention."""
    return name in _MATRIX_NAMES or name.startswith("triton_tem_")


def estimate_call(call: OperatorCall, *, list_dtype: str | None = None) -> OperatorCost:
    """Return what a call costs at least; what cannot be known is None with the reason.

    Args:
        call: The call as `parse_call` read it.
        list_dtype: Element type of its lists of tensors, which traces leave out; see `dtype_in_kernel_name`.
    """
    if not has_model(call.name):
        return unknown("other", f"no model for {call.name}")
    if not call.has_shapes:
        return unknown(_family(call.name), "the trace has no shapes (record with record_shapes=True)")
    if call.name in _LIST_MODELS:
        return _LIST_MODELS[call.name](call, list_dtype)
    if call.name in _MODELS:
        return _MODELS[call.name](call)
    if recommender.has_model(call.name):
        return recommender.by_pattern(call)
    return fused.triton(call) if call.name.startswith(fused.TRITON_PREFIX) else unknown("other", _EACH_KERNEL)


def has_part_models(name: str) -> bool:
    """Return whether each kernel of an operator has a model of its own, found by the kernel's name."""
    return name in _PART_MODELS or recommender.has_model(name)


@lru_cache(maxsize=65_536)
def estimate_operator(  # noqa: PLR0913 - the columns of a trace, which a cache wants flat
    name: str,
    input_dims: str | None,
    input_types: str | None = None,
    input_strides: str | None = None,
    concrete_inputs: str | None = None,
    list_dtype: str | None = None,
    *,
    part: str | None = None,
) -> OperatorCost:
    """Return what an operator costs, from the JSON texts of a trace; remembered, as a trace repeats its calls.

    Args:
        name: Name of the operator.
        input_dims: `Input Dims`.
        input_types: `Input type`.
        input_strides: `Input Strides`.
        concrete_inputs: `Concrete Inputs`.
        list_dtype: Element type of its lists of tensors.
        part: Name of one kernel of an operator with `has_part_models`: what that kernel costs, unknown when its name
            does not tell its part.

    Examples:
        >>> estimate_operator("aten::mm", "[[4, 8], [8, 16]]", '["float", "float"]').flops
        1024
    """
    call = parse_call(
        name,
        input_dims=input_dims,
        input_types=input_types,
        input_strides=input_strides,
        concrete_inputs=concrete_inputs,
    )
    if part is None or not call.has_shapes:
        return estimate_call(call, list_dtype=list_dtype)
    model = _PART_MODELS.get(name, recommender.lookup_part)
    return model(call, part) or unknown(
        _family(name), f"one of several kernels of {name}, whose own share is not known"
    )


def _family(name: str) -> str:
    if recommender.has_model(name):
        return "embedding"
    return next((family for family, names in _FAMILIES.items() if name in names), "other")
