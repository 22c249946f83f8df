"""FLOPs of single operators, each against its products worked by hand, and the names of those that have no formula."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("torch")

import torch
from torch import nn
from torch.utils.flop_counter import flop_registry

from scope.record import Recorder
from scope.record.flop_counter import FlopCounter
from scope.record.operator_flops import Flop, flop_of, lacks_formula
from scope.record.settings import CaptureSettings
from scope.run.reader import RankReader

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

aten: Any = torch.ops.aten


def count(run: Callable[[], torch.Tensor]) -> tuple[Flop, Flop]:
    """FLOPs of a forward and of its backward; nothing that holds a product is left out."""
    with FlopCounter() as forward:
        out = run()
    with FlopCounter(backward=True) as backward:
        out.sum().backward()
    assert not forward.uncounted | backward.uncounted
    return tuple(Flop(each.model_flop, each.hardware_flop) for each in (forward, backward))  # pyright: ignore[reportReturnType]


@pytest.mark.parametrize("needs_input", [True, False])
@pytest.mark.parametrize(
    ("layer", "flop"),
    [
        # 2 x output elements (2 x 8 x 6 x 6) x inputs of a group x kernel.
        (nn.Conv2d(8, 8, 3), 2 * (2 * 8 * 36) * 8 * 9),
        (nn.Conv2d(8, 8, 3, groups=2), 2 * (2 * 8 * 36) * 4 * 9),
        (nn.Conv2d(8, 8, 3, groups=8), 2 * (2 * 8 * 36) * 1 * 9),
        (nn.Conv2d(8, 16, 3, groups=8, dilation=2, stride=2), 2 * (2 * 16 * 4) * 1 * 9),
        # 2 x input elements (2 x 8 x 8 x 8) x outputs of a group x kernel.
        (nn.ConvTranspose2d(8, 16, 4, stride=2), 2 * (2 * 8 * 64) * 16 * 16),
        (nn.ConvTranspose2d(8, 16, 4, groups=4), 2 * (2 * 8 * 64) * 4 * 16),
    ],
    ids=str,
)
def test_convolutions_of_groups(layer: nn.Module, flop: int, needs_input: bool) -> None:
    """Each gradient takes what the forward takes: that of weights in any case, that of the input where it is needed."""
    forward, backward = count(lambda: layer(torch.ones(2, 8, 8, 8, requires_grad=needs_input)))
    assert forward == Flop(flop, flop)
    assert backward == Flop((1 + needs_input) * flop, (1 + needs_input) * flop)


@pytest.mark.parametrize("needs_input", [True, False])
@pytest.mark.parametrize(
    ("options", "matrices", "of_input"),
    [
        ({}, 4 * 64 * (32 + 64), 4 * 64 * 32),
        ({"bias": False}, 4 * 64 * (32 + 64), 4 * 64 * 32),
        ({"bidirectional": True, "num_layers": 2}, 2 * 4 * 64 * (32 + 64 + 128 + 64), 2 * 4 * 64 * 32),
    ],
    ids=["plain", "no-bias", "two-layers-both-ways"],
)
def test_lstm(options: dict[str, Any], matrices: int, of_input: int, needs_input: bool) -> None:
    """16 positions of 2 sequences; the kernel makes the input's gradient also where nobody needs it."""
    if not torch.backends.mkldnn.is_available():
        pytest.skip("this torch runs recurrent layers as single products")
    layer = nn.LSTM(32, 64, **options)
    forward, backward = count(lambda: layer(torch.ones(16, 2, 32, requires_grad=needs_input))[0])
    assert forward == Flop(2 * 32 * matrices, 2 * 32 * matrices)
    unneeded = 0 if needs_input else 2 * 32 * of_input
    assert backward == Flop(2 * 2 * 32 * matrices - unneeded, 2 * 2 * 32 * matrices)


def test_recurrent_layers_of_gpus() -> None:
    """An LSTM of two layers, both ways, with projection to 8, over 30 packed positions."""
    layer = nn.LSTM(32, 64, num_layers=2, bidirectional=True, proj_size=8, device="meta")
    first, second, projection = 4 * 64 * (32 + 8), 4 * 64 * (16 + 8), 64 * 8
    flop = 2 * 30 * 2 * (first + second + 2 * projection)
    empty = torch.empty(30, 32, device="meta")
    weights = list(layer.parameters())
    shape = (2, 64, 8, 2, False, 0.0, True, True, [10, 10, 5, 5], None)
    called = (empty, weights, 5, None, empty, empty, *shape)
    assert flop_of(aten._cudnn_rnn.default, called, {}, None) == Flop(flop, flop)
    unneeded = 2 * 30 * 2 * 4 * 64 * 32
    for mask, expected in (
        ([True, True, True, True], Flop(2 * flop, 2 * flop)),
        ([False, True, True, True], Flop(2 * flop - unneeded, 2 * flop)),
        ([True, True, True, False], Flop(flop, flop)),
    ):
        called = (empty, weights, 5, empty, empty, empty, empty, empty, empty, empty, *shape, empty, mask)
        assert flop_of(aten._cudnn_rnn_backward.default, called, {}, None) == expected


def test_bilinear() -> None:
    """Products x W y, 2 x 5 results of 3 x 4 weights: two contractions forward, and one for each of three gradients."""
    layer = nn.Bilinear(3, 4, 5)
    left, right = torch.ones(2, 3, requires_grad=True), torch.ones(2, 4, requires_grad=True)
    forward, backward = count(lambda: layer(left, right))
    assert forward.model == 2 * (2 * 5 * 3 * 4) + 2 * (2 * 5 * 4)
    assert backward.model == 3 * 2 * (2 * 5 * 3 * 4)


@pytest.mark.parametrize(
    ("run", "flop"),
    [
        (lambda: torch.ones(6, 4) @ torch.ones(4), 2 * 6 * 4),
        (lambda: torch.addmv(torch.ones(6), torch.ones(6, 4), torch.ones(4)), 2 * 6 * 4),
        (lambda: torch.dot(torch.ones(4), torch.ones(4)), 2 * 4),
        (lambda: torch.vdot(torch.ones(4), torch.ones(4)), 2 * 4),
        (lambda: torch.addr(torch.ones(3, 4), torch.ones(3), torch.ones(4)), 2 * 3 * 4),
        (lambda: torch.mm(torch.ones(6, 4), torch.ones(4, 5)), 2 * 6 * 4 * 5),
        (lambda: torch.addmm(torch.ones(5), torch.ones(6, 4), torch.ones(4, 5)), 2 * 6 * 4 * 5),
        (lambda: torch.ones(6, 5).addmm_(torch.ones(6, 4), torch.ones(4, 5)), 2 * 6 * 4 * 5),
        (lambda: torch.bmm(torch.ones(3, 6, 4), torch.ones(3, 4, 5)), 3 * 2 * 6 * 4 * 5),
        (lambda: torch.baddbmm(torch.ones(1), torch.ones(3, 6, 4), torch.ones(3, 4, 5)), 3 * 2 * 6 * 4 * 5),
        (lambda: torch.addbmm(torch.ones(1), torch.ones(3, 6, 4), torch.ones(3, 4, 5)), 3 * 2 * 6 * 4 * 5),
    ],
    ids=["mv", "addmv", "dot", "vdot", "addr", "mm", "addmm", "addmm_", "bmm", "baddbmm", "addbmm"],
)
def test_products(run: Callable[[], torch.Tensor], flop: int) -> None:
    """A multiplication and an addition for every element of the summed dimension."""
    with FlopCounter() as counter:
        run()
    assert (counter.model_flop, counter.num_counted, counter.uncounted) == (flop, 1, set())


def test_attention_of_unequal_widths() -> None:
    """Queries of 8 heads, 16 wide, over 2 heads of keys and of values 4 wide; the backward makes the scores again."""
    query, key, value = torch.empty(3, 8, 10, 16), torch.empty(3, 2, 20, 16), torch.empty(3, 2, 20, 4)
    scores, weighted = 2 * 3 * 8 * 10 * 20 * 16, 2 * 3 * 8 * 10 * 20 * 4
    for kind in ("flash", "efficient", "cudnn"):
        forward = getattr(aten, f"_scaled_dot_product_{kind}_attention").default
        backward = getattr(aten, f"_scaled_dot_product_{kind}_attention_backward").default
        assert flop_of(forward, (query, key, value), {}, None) == Flop(scores + weighted, scores + weighted)
        model = 2 * (scores + weighted)
        assert flop_of(backward, (query, query, key, value), {}, None) == Flop(model, model + scores)


def test_attention_of_packed_sequences() -> None:
    """Sequences of 3 and 5 tokens, 2 heads of 16: four products are the model's, a fifth one makes scores again."""
    if aten._flash_attention_backward not in flop_registry:
        pytest.skip("this torch has no formula for packed attention")
    tokens, ends = torch.empty(8, 2, 16), torch.tensor([0, 3, 8])
    product = 2 * 2 * 16 * (3 * 3 + 5 * 5)
    called = (tokens, tokens, tokens, tokens, tokens, tokens, ends, ends, 5, 5)
    assert flop_of(aten._flash_attention_backward.default, called, {}, None) == Flop(4 * product, 5 * product)
    assert flop_of(aten._flash_attention_forward.default, (tokens, tokens, tokens, ends, ends, 5, 5), {}, None) == Flop(
        2 * product, 2 * product
    )


def test_two_values_of_four_bits_lie_in_one_element() -> None:
    """A product of 16 x 64 by 64 x 32 in FP4, whose tensors are half as wide."""
    kind = getattr(torch, "float4_e2m1fn_x2", None)
    if kind is None:
        pytest.skip("this torch has no FP4")
    left, right = (torch.empty(shape, dtype=kind, device="meta") for shape in ((16, 32), (32, 32)))
    out = torch.empty(16, 32, device="meta")
    assert flop_of(aten._scaled_mm.default, (left, right), {}, out) == Flop(2 * 16 * 64 * 32, 2 * 16 * 64 * 32)


def test_under_inference_mode() -> None:
    """What autograd takes apart elsewhere comes whole there: it has a formula, or is named."""
    query = torch.ones(2, 4, 10, 16)
    weights, filters = torch.ones(5, 8), torch.ones(6, 4, 3, 3)
    with torch.inference_mode(), FlopCounter() as counter:
        nn.functional.linear(torch.ones(3, 8), weights)
        nn.functional.conv2d(torch.ones(2, 8, 5, 5), filters, groups=2)
        nn.functional.conv_transpose2d(torch.ones(2, 6, 5, 5), filters, groups=2)
        nn.functional.scaled_dot_product_attention(query, query, query)
    convolution, transposed = 2 * (2 * 6 * 9) * 4 * 9, 2 * (2 * 6 * 25) * 4 * 9
    assert counter.model_flop == 2 * 3 * 8 * 5 + convolution + transposed + 2 * (2 * 2 * 4 * 10 * 10 * 16)
    assert not counter.uncounted
    with torch.inference_mode(), FlopCounter() as counter:
        torch.einsum("ij,jk->ik", torch.ones(2, 3), torch.ones(3, 4))
        nn.GRU(3, 4)(torch.ones(2, 1, 3))
    assert counter.uncounted == {"aten.einsum", "aten.gru"}


def test_what_lacks_a_formula_is_told_by_its_name() -> None:
    """Operators that hold a product, of packages and versions to come too; none that holds none."""
    assert {
        name
        for name in (
            *("aten._scaled_mm_v9", "aten._foreach_mm", "aten.linalg_solve_ex", "aten._transformer_encoder_layer_fwd"),
            *("aten._lstm_mps", "aten.sspaddmm", "aten.cudnn_convolution_relu", "aten._cudnn_attention_forward"),
            *("aten._weight_int4pack_mm", "mylib.scan", "flash_attn._flash_attn_forward", "flex_attention"),
            *("aten.layer_norm", "aten.gelu", "aten.rsqrt", "aten.upsample_bilinear2d", "aten.upsample_linear1d"),
            *("aten.linalg_vector_norm", "aten._thnn_fused_lstm_cell", "aten._cudnn_rnn_flatten_weight"),
            *("aten.embedding_dense_backward", "aten.mul", "aten._to_copy", "c10d.allreduce_", "aten.linspace"),
            *("aten.native_layer_norm", "aten._convert_indices_from_coo_to_csr", "aten._log_softmax", "aten.lerp"),
        )
        if not lacks_formula(name)
    } == {
        *("aten.layer_norm", "aten.gelu", "aten.rsqrt", "aten.upsample_bilinear2d", "aten.upsample_linear1d"),
        *("aten.linalg_vector_norm", "aten._thnn_fused_lstm_cell", "aten._cudnn_rnn_flatten_weight"),
        *("aten.embedding_dense_backward", "aten.mul", "aten._to_copy", "c10d.allreduce_", "aten.linspace"),
        *("aten.native_layer_norm", "aten._convert_indices_from_coo_to_csr", "aten._log_softmax", "aten.lerp"),
    }


def test_missing_flops_are_told(tmp_path: Path) -> None:
    """A product of a sparse tensor lowers the coverage to 2 of 3 operators, and is named with the figures and once."""
    layer = nn.Linear(4, 4, bias=False)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)

    class Graph(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, edges: torch.Tensor) -> torch.Tensor:
            return torch.mm(edges, self.layer(torch.ones(6, 4)))

    model, edges = Graph(), torch.eye(6).to_sparse()
    with Recorder(run_dir=tmp_path, run_id="r", capture=CaptureSettings(reasons=frozenset())) as recorder:
        folder = recorder.folder
        for _ in range(3):
            model(edges).sum().backward()
            optimizer.step()
    assert folder is not None
    flops = RankReader(folder).info().flops
    assert flops is not None
    assert flops.counted[0].model_flop == 2 * (2 * 6 * 4 * 4)
    # Forward: the layer and the product; backward: the product of the transposed tensor, and the weights' gradient.
    assert flops.counter_coverage_ratio == 2 / 4
    assert "aten.mm" in flops.absent["uncounted_flop"]
