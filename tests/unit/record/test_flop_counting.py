"""FLOPs: the counter against the closed formula on transformers, and the formula against figures worked by hand."""

from __future__ import annotations

import inspect
import math
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

pytest.importorskip("torch")

import torch
from torch import nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from scope import definitions
from scope.errors import UsageError
from scope.record.batches import measure_batch
from scope.record.device_peak import measure_product
from scope.record.facts import describe_model
from scope.record.flop_counter import FlopCounter
from scope.record.flop_formula import count_matrix_parameters

if TYPE_CHECKING:
    from collections.abc import Callable

VOCABULARY, WIDTH, LAYERS, HEADS, LENGTH, BATCH = 64, 32, 2, 4, 16, 2


class Attention(nn.Module):
    """Causal attention with fewer heads of keys and values than of queries."""

    def __init__(self, num_key_heads: int) -> None:
        super().__init__()
        self.head = WIDTH // HEADS
        self.num_key_heads = num_key_heads
        self.query = nn.Linear(WIDTH, WIDTH, bias=False)
        self.key_value = nn.Linear(WIDTH, 2 * num_key_heads * self.head, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attend."""
        batch, length, _ = x.shape
        query = self.query(x).view(batch, length, HEADS, self.head).transpose(1, 2)
        key, value = self.key_value(x).view(batch, length, 2, self.num_key_heads, self.head).permute(2, 0, 3, 1, 4)
        repeat = HEADS // self.num_key_heads
        key, value = key.repeat_interleave(repeat, 1), value.repeat_interleave(repeat, 1)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, WIDTH))


class Block(nn.Module):
    """Attention and a feed-forward layer."""

    def __init__(self, num_key_heads: int) -> None:
        super().__init__()
        self.attention = Attention(num_key_heads)
        self.up = nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.down = nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run the block."""
        x = x + self.attention(x)
        return x + self.down(functional.gelu(self.up(x)))


class Transformer(nn.Module):
    """A causal transformer; its blocks may be recomputed in backward."""

    def __init__(self, num_key_heads: int = HEADS, *, recompute: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block(num_key_heads) for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.recompute = recompute

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        x = self.embedding(tokens)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.recompute else block(x)
        return self.head(x)


def count(model: nn.Module, run: Callable[[nn.Module], torch.Tensor]) -> tuple[int, int]:
    """Model and hardware FLOPs of one forward and backward."""
    with FlopCounter() as forward:
        loss = run(model)
    with FlopCounter(backward=True) as backward:
        loss.backward()
    return forward.model_flop + backward.model_flop, forward.hardware_flop + backward.hardware_flop


def train_on_tokens(model: nn.Module) -> torch.Tensor:
    """The loss of one batch."""
    return model(torch.zeros(BATCH, LENGTH, dtype=torch.int64)).float().mean()


@pytest.mark.parametrize("num_key_heads", [HEADS, 1], ids=["full", "grouped"])
def test_counter_equals_the_closed_formula(num_key_heads: int) -> None:
    """6 N + 12 L H Q T a token, exactly, with as many or fewer heads of keys; N counted by hand."""
    model = Transformer(num_key_heads)
    head = WIDTH // HEADS
    by_hand = LAYERS * (2 * WIDTH * WIDTH + WIDTH * 2 * num_key_heads * head + 8 * WIDTH * WIDTH) + WIDTH * VOCABULARY
    assert count_matrix_parameters(model) == by_hand
    per_token = definitions.transformer_flops_per_token(
        by_hand, num_layers=LAYERS, attention_width=WIDTH, sequence_length=LENGTH
    )
    model_flop, hardware_flop = count(model, train_on_tokens)
    assert model_flop == per_token * BATCH * LENGTH
    # The backward of fused attention computes the scores again: 5 products instead of 4.
    assert hardware_flop - model_flop == LAYERS * 2 * BATCH * LENGTH * LENGTH * WIDTH


def test_recompute_is_hardware_work_only() -> None:
    """Checkpointed blocks leave the model FLOPs as they are and add one forward of the blocks to the hardware's."""
    plain_model, plain_hardware = count(Transformer(), train_on_tokens)
    model_flop, hardware_flop = count(Transformer(recompute=True), train_on_tokens)
    # Recomputing stops once all that backward needs is there: a block's last product (4 of 12 W^2) is not run again.
    blocks = LAYERS * (12 - 4) * WIDTH * WIDTH
    forward = 2 * blocks * BATCH * LENGTH + LAYERS * 4 * BATCH * LENGTH * LENGTH * WIDTH
    assert model_flop == plain_model
    assert hardware_flop == plain_hardware + forward


class Squared(torch.autograd.Function):
    """A product with itself; its forward runs with gradients off, as those of all such functions."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        """Multiply."""
        ctx.save_for_backward(x)
        return x @ x

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        """Two products."""
        (x,) = ctx.saved_tensors
        return grads[0] @ x.T + x.T @ grads[0]


class RunsAgain(torch.autograd.Function):
    """A product whose backward runs it again with gradients on and differentiates that, as libraries' checkpoints."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Multiply."""
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Multiply again, and differentiate."""
        x, weight = (tensor.detach().requires_grad_() for tensor in ctx.saved_tensors)
        with torch.enable_grad():
            out = x @ weight
        return torch.autograd.grad(out, (x, weight), grads)


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_recompute_of_functions_of_the_program(use_reentrant: bool) -> None:
    """A checkpointed 8 x 8 product forward, twice backward, and once again for the hardware."""
    x = torch.ones(8, 8, requires_grad=True)

    def run(_: nn.Module) -> torch.Tensor:
        # What follows keeps a result of the product, which so is needed again.
        return cast("torch.Tensor", checkpoint(lambda x: Squared.apply(x).exp(), x, use_reentrant=use_reentrant)).sum()

    assert count(nn.Identity(), run) == (3 * 2 * 8**3, 4 * 2 * 8**3)


@pytest.mark.parametrize("folder", ["library", "torchtune"])
def test_a_library_may_be_named_like_torch(folder: str) -> None:
    """Its backward runs its product again, which is 1 of 4, whatever its name begins with."""
    code = inspect.getsource(RunsAgain)
    path = Path(torch.__file__).parents[1] / folder / "again.py"
    scope: dict[str, Any] = {**globals(), "__name__": "again"}
    exec(compile(f"from __future__ import annotations\n{code}", str(path), "exec"), scope)
    x, weight = (torch.ones(8, 8, requires_grad=True) for _ in range(2))
    counted = count(nn.Identity(), lambda _: scope["RunsAgain"].apply(x, weight).sum())
    assert counted == (3 * 2 * 8**3, 4 * 2 * 8**3)


@pytest.mark.parametrize("recomputes", [False, True])
def test_gradients_of_gradients_are_no_recompute(recomputes: bool) -> None:
    """A penalty on the gradient of the input, by two layers: all its products are the model's.

    Two forward, two for that gradient; then two for each of these four (of what was multiplied, and of the weights),
    but for the first layer's input, whose gradient nobody asks for.
    """
    first, second = (nn.Linear(8, 8, bias=False) for _ in range(2))
    x = torch.ones(4, 8, requires_grad=True)

    def layers(x: torch.Tensor) -> torch.Tensor:
        return second(first(x).tanh()).exp()

    with FlopCounter() as forward:
        out = cast("torch.Tensor", checkpoint(layers, x, use_reentrant=False)) if recomputes else layers(x)
    with FlopCounter(backward=True, makes_graph=True) as inner:
        (gradient,) = torch.autograd.grad(out.sum(), x, create_graph=True)
    product = 2 * 4 * 8 * 8
    assert forward.model_flop == inner.model_flop == 2 * product
    assert inner.hardware_flop == (2 + 2 * recomputes) * product
    with FlopCounter(backward=True) as outer:
        (gradient.norm() - 1).pow(2).backward(inputs=[first.weight, second.weight])
    assert outer.model_flop == 7 * product


class Differentiated(torch.autograd.Function):
    """A product with itself whose backward differentiates it by `torch.func`."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        """Multiply."""
        ctx.save_for_backward(x)
        return x @ x

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        """Run the product again, and differentiate that."""
        with torch.enable_grad():
            return torch.func.grad(lambda x: (x @ x * grads[0]).sum())(*ctx.saved_tensors)


def test_a_gradient_that_a_function_takes_in_its_backward_is_the_models() -> None:
    """One product forward and two backward, as by hand; one is run again for them."""
    x = torch.ones(8, 8, requires_grad=True)
    assert count(nn.Identity(), lambda _: Differentiated.apply(x).sum()) == (3 * 2 * 8**3, 4 * 2 * 8**3)


def test_a_tied_embedding_counts_once() -> None:
    """A table that is the output layer too is multiplied there."""
    model = Transformer()
    before = count_matrix_parameters(model)
    model.head.weight = model.embedding.weight
    assert count_matrix_parameters(model) == before


def test_experts_count_what_is_active() -> None:
    """A grouped product over experts counts each token once; N active is shared + experts x k / E."""
    if not hasattr(torch, "_grouped_mm"):
        pytest.skip("this torch has no grouped product")
    tokens, experts, width, inner = 32, 4, 16, 48
    x = torch.randn(tokens, width, dtype=torch.bfloat16)
    weights = torch.randn(experts, width, inner, dtype=torch.bfloat16)
    ends = torch.tensor([8, 16, 16, 32], dtype=torch.int32)
    with FlopCounter() as counter:
        torch._grouped_mm(x, weights, offs=ends)  # pyright: ignore[reportPrivateImportUsage]
    assert counter.model_flop == 2 * tokens * width * inner
    assert definitions.active_parameters(100, expert=800, num_experts=8, top_k=2) == 300
    with pytest.raises(UsageError, match="top_k"):
        definitions.active_parameters(1, expert=1, num_experts=8, top_k=9)


def test_worked_case_of_a_cluster() -> None:
    """3e9 active parameters, 2.31e6 tokens, 120 s, 5.92 PFLOP/s: 5.9 %, with recompute 7.8 %."""
    tokens, step_ns, peak = 2.31e6, 120 * 10**9, 5.92e15
    plain = definitions.transformer_flops_per_token(3e9) * tokens
    again = definitions.transformer_flops_per_token(3e9, recompute=True) * tokens
    mfu = definitions.model_flops_utilization(plain, step_ns=step_ns, peak_flop_per_s=peak)
    hfu = definitions.model_flops_utilization(again, step_ns=step_ns, peak_flop_per_s=peak)
    assert mfu is not None
    assert hfu is not None
    assert round(100 * mfu, 1) == 5.9
    assert round(100 * hfu, 1) == 7.8


def test_attention_apart_and_its_convention() -> None:
    """12 L H Q T a token whole, 6 when the masked half is left out; by hand for one layer."""
    whole = definitions.transformer_flops_per_token(0, num_layers=1, attention_width=128, sequence_length=1000)
    half = definitions.transformer_flops_per_token(
        0, num_layers=1, attention_width=128, sequence_length=1000, causal_halved=True
    )
    assert (whole, half) == (12 * 128 * 1000, 6 * 128 * 1000)


def test_measured_peak_draws_no_random_numbers() -> None:
    """The CPU's peak is a positive finite rate, and measuring it leaves torch's generator where it was."""
    before = torch.get_rng_state()
    peak = measure_product("float32")
    assert math.isfinite(peak)
    assert peak > 1e8
    assert torch.equal(before, torch.get_rng_state())


def test_modes_of_the_program_see_nothing_of_what_is_measured() -> None:
    """Neither the product nor the sizes of a model and of a batch; a default device and autocast change nothing."""
    seen: list[object] = []

    class Functions(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(func)
            return func(*args, **(kwargs or {}))

    class Operators(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(func)
            return func(*args, **(kwargs or {}))

    model, batch = nn.Linear(4, 3), torch.zeros(2, 5, dtype=torch.int64)
    autocast = torch.autocast("cpu", dtype=torch.bfloat16)
    with autocast, torch.device("meta"), Operators(), Functions():
        seen.clear()
        peak = measure_product("float32")
        described, size = describe_model([model]), measure_batch(batch)
        assert not seen
        assert torch.is_grad_enabled()
        assert torch.ones(2).is_meta
    assert peak < 1e15  # of a product on the device without data there would be no end
    assert described is not None
    assert described.num_parameters == 4 * 3 + 3
    assert (size.num_bytes, size.samples, size.tokens) == (80, 2, 10)


def test_what_compiles_and_what_is_fake_runs_under_the_counter() -> None:
    """A function compiled as one graph and flex attention run as ever; fake tensors compute and count nothing."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.nn.attention.flex_attention import flex_attention

    def double(x: torch.Tensor) -> torch.Tensor:
        return 2 * x

    compiled = torch.compile(double, backend="eager", fullgraph=True)
    query = torch.randn(1, 2, 16, 8)
    expected = functional.scaled_dot_product_attention(query, query, query)
    with FlopCounter():
        assert torch.equal(compiled(query), 2 * query)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            out = flex_attention(query, query, query)
        assert isinstance(out, torch.Tensor)
        assert torch.allclose(out, expected, atol=1e-5)
    with FlopCounter() as counter, FakeTensorMode():
        torch.mm(torch.empty(4, 4), torch.empty(4, 4))
    assert counter.model_flop == 0


def test_products_of_a_running_collective_count() -> None:
    """Two blocks of rank 0 of 2: 11 products of 2 x 16 x 256 x 256, all but the first block's input gradient.

    The second block's first product consumes what the collective of the first one has made, or is making.
    """
    if not torch.distributed.is_available():
        pytest.skip("this torch has no torch.distributed")
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
    from torch.testing._internal.distributed.fake_pg import FakeStore

    def block() -> nn.Module:
        return nn.Sequential(nn.Linear(256, 512, bias=False), nn.ReLU(), nn.Linear(512, 256, bias=False))

    torch.distributed.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    try:
        model = nn.Sequential(block(), block())
        for each in model:
            parallelize_module(each, init_device_mesh("cpu", (2,)), {"0": ColwiseParallel(), "2": RowwiseParallel()})
        model_flop, hardware_flop = count(model, lambda model: (model(torch.ones(16, 256)) * 1.0).pow(2).mean())
    finally:
        torch.distributed.destroy_process_group()
    assert model_flop == hardware_flop == 11 * 2 * 16 * 256 * 256


def test_products_of_wrapped_tensors_count() -> None:
    """Jagged sequences of 3 and 5 tokens are one product of 8, with a gradient of the weight; none is doubled."""
    layer = nn.Linear(4, 6, bias=False)
    values = torch.nested.nested_tensor([torch.ones(3, 4), torch.ones(5, 4)], layout=torch.jagged)
    model_flop, _ = count(layer, lambda layer: layer(values).values().sum())
    assert model_flop == 2 * (2 * 8 * 4 * 6)
