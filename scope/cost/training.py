"""What training should cost: memory of its state, FLOPs of a transformer, time, parallel layouts."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Final

import msgspec

from scope.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

_MASTER_AND_MOMENTS: Final = 12
"""FP32 master weight 4, two Adam moments 4 each."""


class StateBytes(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of one rank's training state, activations apart."""

    weights: int
    gradients: int
    optimizer: int

    @property
    def total(self) -> int:
        """All three together."""
        return self.weights + self.gradients + self.optimizer


def mixed_precision_adam_bytes(num_parameters: int, *, zero_stage: int = 0, num_ranks: int = 1) -> StateBytes:
    """Return the state of mixed-precision Adam on one rank: 2 + 2 + 12 bytes a parameter before sharding.

    ZeRO stage 1 shards the optimizer state (12), stage 2 also the gradients, stage 3 (FSDP) also the weights, over the
    data-parallel ranks (Rajbhandari et al. 2020). Shares are rounded up.

    Args:
        num_parameters: Of the part of the model that this rank holds (its tensor- and pipeline-parallel share).
        zero_stage: 0 to 3.
        num_ranks: Data-parallel ranks that share.

    Raises:
        UsageError: Another stage, or fewer than one rank.
    """
    if zero_stage not in range(4) or num_ranks < 1:
        message = f"ZeRO has stages 0 to 3 on at least 1 rank, not stage {zero_stage} on {num_ranks}"
        raise UsageError(message)

    def share(size: int, *, from_stage: int) -> int:
        return -(-size // num_ranks) if zero_stage >= from_stage else size

    return StateBytes(
        weights=share(2 * num_parameters, from_stage=3),
        gradients=share(2 * num_parameters, from_stage=2),
        optimizer=share(_MASTER_AND_MOMENTS * num_parameters, from_stage=1),
    )


def checkpoint_bytes(num_parameters: int) -> int:
    """Return a checkpoint of BF16 weights, FP32 master weights and Adam's moments: 14 bytes a parameter."""
    return (2 + _MASTER_AND_MOMENTS) * num_parameters


def least_gpus(num_bytes: int, *, memory_bytes: int) -> int:
    """Return the fewest GPUs whose memories together hold a number of bytes.

    Raises:
        UsageError: A memory that is not positive.
    """
    if memory_bytes <= 0:
        message = f"a memory is positive, not {memory_bytes}"
        raise UsageError(message)
    return -(-num_bytes // memory_bytes)


class TransformerShape(msgspec.Struct, frozen=True, kw_only=True):
    """Extents of a decoder-only transformer, for the closed formula of its FLOPs."""

    num_active_parameters: int
    """Parameters that one token meets: of an MoE, the shared ones, the router and the chosen experts."""
    num_layers: int = 0
    num_heads: int = 0
    head_dim: int = 0
    sequence_length: int = 0


def transformer_flops_per_token(
    shape: TransformerShape, *, causal_halved: bool = False, full_recompute: bool = False
) -> int:
    """Return the training FLOPs of one token: 6 N, 8 N with full recompute, plus attention 12 L H Q T.

    N active parameters, L layers, H heads, Q head dimension, T sequence length (PaLM, Chowdhery et al. 2022, appendix
    B). Causal attention counts 6 L H Q T when halved: the convention travels with the figure. Recompute repeats the
    forward pass, a third of it; HFU counts it and MFU does not.
    """
    attention = (6 if causal_halved else 12) * shape.num_layers * shape.num_heads * shape.head_dim
    attention *= shape.sequence_length
    dense = 6 * shape.num_active_parameters
    return (dense + attention) * 4 // 3 if full_recompute else dense + attention


def moe_active_parameters(*, shared: int, router: int, experts: int, num_experts: int, num_chosen: int) -> int:
    """Return the parameters of an MoE model that one token meets: shared + router + experts x chosen / all.

    Args:
        shared: Parameters outside the experts, attention included.
        router: Of all routers.
        experts: Of all experts of all layers together.
        num_experts: In a layer.
        num_chosen: That a token goes to in a layer.

    Raises:
        UsageError: More chosen than there are, or none.
    """
    if not 0 < num_chosen <= num_experts:
        message = f"a token goes to 1 to {num_experts} experts, not {num_chosen}"
        raise UsageError(message)
    return shared + router + int(Fraction(experts * num_chosen, num_experts))


def run_seconds(flops: float, *, num_gpus: int, achieved_flop_per_s: float) -> float:
    """Return the time of a training run: FLOPs / (GPUs x achieved FLOP/s of each)."""
    return flops / (num_gpus * achieved_flop_per_s)


def decode_tokens_per_s(*, bytes_per_token: float, bandwidth_bytes_per_s: float) -> float:
    """Return the upper bound of decoding one sequence: bandwidth / bytes of weights that a token reads."""
    return bandwidth_bytes_per_s / bytes_per_token


def layout_problems(axes: Mapping[str, int], *, num_gpus: int) -> list[str]:
    """Return what is wrong with a parallel layout, in sentences; empty when it is valid.

    dp x tp x pp x cp = GPUs; ep is carved out of dp x cp and must divide it.

    Args:
        axes: Sizes by name among dp, tp, pp, cp and ep; one that is missing is 1.
        num_gpus: GPUs of the job.
    """
    sizes = {name: axes.get(name, 1) for name in ("dp", "tp", "pp", "cp", "ep")}
    problems = [f"{name} is {size}; an axis has at least 1 rank" for name, size in sizes.items() if size < 1]
    problems += [f"no axis is called {name!r}" for name in axes if name not in sizes]
    if problems:
        return problems
    product = sizes["dp"] * sizes["tp"] * sizes["pp"] * sizes["cp"]
    if product != num_gpus:
        problems.append(f"dp x tp x pp x cp is {product}, and the job has {num_gpus} GPUs")
    if sizes["dp"] * sizes["cp"] % sizes["ep"]:
        problems.append(f"ep {sizes['ep']} does not divide dp x cp = {sizes['dp'] * sizes['cp']}")
    return problems
