"""Attention: causal masks, windows, grouped queries and packed sequences against a count of every pair."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scope.cost import OperatorCost, estimate_operator

HALF = "c10::Half"


def _attention(name: str, tensors: list[tuple[int, ...]], values: dict[int, str], length: int) -> OperatorCost:
    dims = [list(tensor) for tensor in tensors] + [[]] * (length - len(tensors))
    types = [HALF] * len(tensors) + ["Scalar"] * (length - len(tensors))
    printed = [values.get(position, "") for position in range(length)]
    return estimate_operator(name, json.dumps(dims), json.dumps(types), None, json.dumps(printed))


def _doubled_pairs(queries: int, keys: int, *, shift: int) -> int:
    """Twice the area under the diagonal: a pair on it is cut in half."""
    return sum(2 if j < i + shift else 1 if j == i + shift else 0 for i in range(queries) for j in range(keys))


@given(queries=st.integers(1, 12), keys=st.integers(1, 12))
def test_causal_masks_of_torch_sit_at_the_top_left(queries: int, keys: int) -> None:
    """`is_causal` leaves the pairs under a diagonal from the top left; 2 x (d_qk + d_v) FLOPs each."""
    q, k, v = (2, 3, queries, 8), (2, 3, keys, 8), (2, 3, keys, 4)
    cost = _attention("aten::_scaled_dot_product_flash_attention", [q, k, v], {4: "True"}, 7)
    assert cost.flops == 6 * _doubled_pairs(queries, keys, shift=0) * (8 + 4)
    assert cost.flops_unmasked == 2 * 6 * queries * keys * (8 + 4)


@given(queries=st.integers(1, 12), keys=st.integers(1, 12))
def test_causal_masks_of_flash_attn_sit_at_the_bottom_right(queries: int, keys: int) -> None:
    """The packages align the diagonal with the last query and key."""
    q, k, v = (2, queries, 3, 8), (2, keys, 3, 8), (2, keys, 3, 8)
    values = {5: "True", 6: "-1", 7: "-1"}
    cost = _attention("flash_attn::_flash_attn_forward", [q, k, v], values, 11)
    assert cost.flops == 6 * _doubled_pairs(queries, keys, shift=keys - queries) * 16


def test_a_causal_square_is_half() -> None:
    """4,096 queries and keys: 4 x B x S^2 x H x D / 2, the convention of the FlashAttention papers."""
    shape = (8, 16, 4096, 128)
    cost = _attention("aten::_scaled_dot_product_flash_attention", [shape] * 3, {4: "True"}, 7)
    assert cost.flops == 4 * 8 * 4096**2 * 16 * 128 // 2
    assert cost.flops_unmasked == 4 * 8 * 4096**2 * 16 * 128


@given(queries=st.integers(1, 10), keys=st.integers(1, 10), left=st.integers(0, 6), causal=st.booleans())
def test_sliding_windows_count_their_pairs(queries: int, keys: int, left: int, causal: bool) -> None:
    """A window leaves, for each query, the keys from `left` before the diagonal to `right` (causal: 0) after it."""
    right = 2
    q, k = (1, queries, 1, 8), (1, keys, 1, 8)
    values = {5: str(causal), 6: str(left), 7: str(right)}
    cost = _attention("flash_attn::_flash_attn_forward", [q, k, k], values, 11)
    reach = 0 if causal else right
    shift = keys - queries
    pairs = sum(i + shift - left <= j <= i + shift + reach for i in range(queries) for j in range(keys))
    assert cost.flops == 2 * pairs * 16


@pytest.mark.parametrize(
    ("name", "query", "offsets", "lengths", "causal", "length"),
    [
        ("flash_attn::_flash_attn_varlen_forward", 0, 3, 5, 9, 16),
        ("flash_attn::_flash_attn_varlen_backward", 1, 9, 11, 15, 21),
        ("aten::_flash_attention_forward", 0, 3, 5, 8, 15),
        ("xformers_flash::flash_fwd", 0, 3, 6, 10, 15),
    ],
)
def test_packed_sequences_of_equal_length(
    name: str, query: int, offsets: int, lengths: int, causal: int, length: int
) -> None:
    """Four sequences of 32 tokens packed into 128: known, since each must have the longest length."""
    packed, cumulative = (128, 2, 16), (5,)
    dims: list[list[int]] = [[] for _ in range(length)]
    types = ["Scalar"] * length
    for position in range(query + 3):
        dims[position], types[position] = list(packed), HALF
    for position in (offsets, offsets + 1):
        dims[position], types[position] = list(cumulative), "int"
    printed = {lengths: "32", lengths + 1: "32", causal: "False"}
    values = [printed.get(position, "") for position in range(length)]
    cost = estimate_operator(name, json.dumps(dims), json.dumps(types), None, json.dumps(values))
    products = 3 * 16 + 2 * 16 if query else 32
    assert cost.flops == 2 * 4 * 2 * 32 * 32 * products
    values[lengths] = values[lengths + 1] = "64"
    uneven = estimate_operator(name, json.dumps(dims), json.dumps(types), None, json.dumps(values))
    assert uneven.flops is None
    assert "unequal length" in (uneven.flops_reason or "")
    assert uneven.num_bytes == cost.num_bytes


def test_grouped_queries_cost_full_heads_and_fewer_bytes() -> None:
    """Eight query heads over two key heads: FLOPs of eight heads, bytes of two for keys and values."""
    q, k = (1, 8, 32, 16), (1, 2, 32, 16)
    grouped = _attention("aten::_scaled_dot_product_flash_attention", [q, k, k], {4: "False"}, 7)
    full = _attention("aten::_scaled_dot_product_flash_attention", [q, q, q], {4: "False"}, 7)
    assert grouped.flops == full.flops == 4 * 8 * 32 * 32 * 16
    # Queries and result 8 heads, keys and values 2; a float32 for each query and head.
    assert grouped.bytes_read == 2 * 32 * 16 * (8 + 2 + 2)
    assert grouped.bytes_written == 2 * 32 * 16 * 8 + 4 * 8 * 32


def test_backward_reads_the_forward_result() -> None:
    """Backward: gradient, queries, keys, values, result and log-sum-exp are read, three gradients written."""
    shape = (1, 2, 32, 16)
    cost = _attention("aten::_scaled_dot_product_flash_attention_backward", [shape] * 4, {11: "False"}, 14)
    tensor = 2 * 2 * 32 * 16
    assert cost.bytes_read == 5 * tensor + 4 * 64
    assert cost.bytes_written == 3 * tensor
    assert cost.flops == 10 * 2 * 32 * 32 * 16


def test_a_mask_that_is_not_recorded_leaves_flops_unknown() -> None:
    """The autograd function of older packages records no flags: only the unmasked count is known."""
    shape = (1, 32, 2, 16)
    cost = _attention("FlashAttnFunc", [shape] * 3, {}, 6)
    assert cost.flops is None
    assert cost.flops_unmasked == 4 * 2 * 32 * 32 * 16
    assert "causal" in (cost.flops_reason or "")


@pytest.mark.parametrize("kind", [0, 1, 2])
def test_mask_types_of_the_memory_efficient_kernels(kind: int) -> None:
    """0 is no mask, 1 causal from the top left, 2 from the bottom right."""
    q, k = (1, 8, 1, 16), (1, 12, 1, 16)
    cost = _attention("aten::_efficient_attention_forward", [q, k, k], {9: str(kind)}, 15)
    doubled = {0: 2 * 8 * 12, 1: _doubled_pairs(8, 12, shift=0), 2: _doubled_pairs(8, 12, shift=4)}
    assert cost.flops == doubled[kind] * 32
