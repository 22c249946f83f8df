"""What a step costs by the closed formula of transformers, to hold the counted FLOPs against."""

# torch annotates only a part of itself.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from scope import definitions

if TYPE_CHECKING:
    from collections.abc import Iterable


def flop_by_formula(
    models: Iterable[nn.Module], *, tokens: int | None, samples: int | None
) -> tuple[int, float] | None:
    """Return N and the FLOPs of a step by the closed formula, for the first model that says its own shape.

    Args:
        models: What is trained.
        tokens: Those of the step.
        samples: Those of the step.
    """
    for model in models:
        shape = _read_shape(model)
        if shape is None or not tokens or not samples:
            continue
        num_parameters = count_matrix_parameters(model)
        layers, width = shape
        per_token = definitions.transformer_flops_per_token(
            num_parameters, num_layers=layers, attention_width=width, sequence_length=tokens // samples
        )
        return num_parameters, per_token * tokens
    return None


def count_matrix_parameters(model: nn.Module) -> int:
    """Return the parameters that take part in matrix products: matrices, but no table that is only looked up.

    An embedding that is tied to the output layer is multiplied there, and counts.
    """
    looked_up = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    multiplied = {
        id(parameter)
        for module in model.modules()
        if not isinstance(module, nn.Embedding)
        for parameter in module.parameters(recurse=False)
    }
    return sum(
        parameter.numel()
        for parameter in model.parameters()
        if parameter.dim() >= 2 and (id(parameter) not in looked_up or id(parameter) in multiplied)
    )


def _read_shape(model: nn.Module) -> tuple[int, int] | None:
    """Return layers and attention width of a model that carries a configuration in Hugging Face's names."""
    config = getattr(getattr(model, "module", model), "config", None)
    layers, heads = getattr(config, "num_hidden_layers", None), getattr(config, "num_attention_heads", None)
    hidden = getattr(config, "hidden_size", None)
    if not (isinstance(layers, int) and isinstance(heads, int) and isinstance(hidden, int) and heads):
        return None
    head = getattr(config, "head_dim", None)
    return layers, heads * (head if isinstance(head, int) else hidden // heads)
