"""Scaled dot-product attention, in all the forms that traces show it.

Forward: scores (Q K^T) and output (P V), 2 FLOPs for each multiply-add: `2 pairs (d_qk + d_v)` for each query head.
Backward of the fused kernels: five products, since they recompute the scores: `2 pairs (3 d_qk + 2 d_v)`. Both as in
`torch.utils.flop_counter`. Grouped queries cost what full heads cost; only their keys and values are fewer bytes.

**Causal masks are halved here**: `flops` counts the pairs of query and key that the mask leaves, S^2/2 for S queries
and keys (the convention of the FlashAttention papers), and `flops_unmasked` all of them, which is what torch's counter
counts. With different lengths the triangle sits at the top left for torch's own operators (`is_causal`) and at the
bottom right for the flash-attn packages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

import msgspec

from scope.cost.dtypes import INTEGRAL, matrix_path
from scope.cost.result import OperatorCost, added, cost, sized, stored, unknown

if TYPE_CHECKING:
    from collections.abc import Callable

    from scope.cost.call import OperatorCall, TensorArg

_SHAPES: Final = "the shapes are not those of attention"
_LENGTHS: Final = "sequences of unequal length: the trace does not hold the lengths (cumulative offsets)"
_NO_MASK: Final = "the trace does not say whether the mask is causal"
_CACHE: Final = "keys and values lie in a cache, and how much of it was read is not recorded"
_BAND: Final = "a window whose place the package decides: how many pairs it leaves is not recorded"

_Axes = Literal["BHSD", "BSHD"]


class _Layout(msgspec.Struct, frozen=True, kw_only=True):
    """Where an attention operator keeps its arguments."""

    axes: _Axes = "BHSD"
    query: int = 0
    """Position of the query; key and value follow it."""
    causal: int | None = None
    """Position of the causal flag; None where there is none."""
    mask_type: int | None = None
    """Position of `custom_mask_type`: 0 none, 1 causal from the top left, 2 from the bottom right."""
    bias: int | None = None
    offsets: int | None = None
    """Position of the cumulative lengths of the queries (those of the keys follow it); None where there are none."""
    lengths: int | None = None
    """Position of the longest query length (that of the keys follows it)."""
    window: int | None = None
    """Position of the left window (the right one follows it); -1 or nothing is no window."""
    hidden: tuple[int, ...] = ()
    """Positions of block tables and of lengths in use, beside which the keys are a cache."""
    new_keys: int | None = None
    """Position of keys that the call adds to a cache."""
    band: int | None = None
    """Position of the width of a window around a diagonal; nothing or 0 is no window."""
    bottom_right: bool = False
    backward: bool = False


class _Problem(msgspec.Struct, frozen=True, kw_only=True):
    """Extents of one attention call."""

    batch: int
    heads: int
    queries: int
    keys: int
    d_qk: int
    d_v: int


def attention(call: OperatorCall) -> OperatorCost:
    """Any attention operator; the layout of its arguments follows from its name."""
    layout = _layout_of(call)
    q, k, v = (call.tensor(layout.query + each) for each in range(3))
    if q is None or k is None or v is None:
        return unknown("attention", _SHAPES)
    if _is_cached(call, layout):
        return unknown("attention", _CACHE)
    problem = _problem(call, layout, q, k, v)
    if isinstance(problem, str):
        return _without_flops(call, layout, problem)
    products = 3 * problem.d_qk + 2 * problem.d_v if layout.backward else problem.d_qk + problem.d_v
    all_pairs = problem.batch * problem.heads * problem.queries * problem.keys
    unmasked = 2 * all_pairs * products
    if layout.band is not None and (call.integer(layout.band) or 0) > 0:
        return _without_flops(call, layout, _BAND)
    doubled = _doubled_pairs(call, layout, problem)
    read, written = _traffic(call, layout)
    base = cost("attention", flops=unmasked, read=read, written=written, math_dtype=matrix_path(q.dtype))
    if doubled is None:
        return msgspec.structs.replace(base, flops=None, flops_reason=_NO_MASK, flops_unmasked=unmasked)
    flops = problem.batch * problem.heads * doubled * products
    return msgspec.structs.replace(base, flops=flops, flops_unmasked=unmasked)


def _layout_of(call: OperatorCall) -> _Layout:
    """Return where a call keeps its arguments, in the version of its package that has them where the call does."""
    for layout in _VERSIONS.get(call.name, ()):
        if layout.causal is not None and call.text(layout.causal).strip().lower() in {"true", "false"}:
            return layout
    return _LAYOUTS[call.name]


def _is_cached(call: OperatorCall, layout: _Layout) -> bool:
    if layout.new_keys is not None and call.tensor(layout.new_keys) is not None:
        return True
    # Whole numbers: where one version has a block table, another has its result.
    tensors = (call.tensor(place) for place in layout.hidden)
    return any(each is not None and (each.dtype is None or each.dtype in INTEGRAL) for each in tensors)


def in_a_cache(call: OperatorCall) -> OperatorCost:
    """Attention to keys that a server keeps: neither their number nor the pages that were read are recorded."""
    return unknown("attention", _CACHE)


def _without_flops(call: OperatorCall, layout: _Layout, reason: str) -> OperatorCost:
    read, written = _traffic(call, layout)
    query = call.tensor(layout.query)
    base = cost(
        "attention",
        flops=None,
        read=read,
        written=written,
        math_dtype=matrix_path(None if query is None else query.dtype),
    )
    return msgspec.structs.replace(base, flops_reason=reason)


def _problem(call: OperatorCall, layout: _Layout, q: TensorArg, k: TensorArg, v: TensorArg) -> _Problem | str:
    ranks = {len(q.dims), len(k.dims), len(v.dims)}
    if ranks == {3} and layout.offsets is not None:
        return _packed(call, layout, q, k, v)
    if ranks != {4}:
        return _SHAPES
    head, sequence = (1, 2) if layout.axes == "BHSD" else (2, 1)
    heads, key_heads = q.dims[head], k.dims[head]
    if call.tensor(layout.offsets if layout.offsets is not None else -1) is not None:
        return _packed_4d(call, layout, q, k, v)
    fits = q.dims[0] == k.dims[0] == v.dims[0] and q.dims[3] == k.dims[3] and k.dims[sequence] == v.dims[sequence]
    if not fits or key_heads == 0 or heads % key_heads or v.dims[head] != key_heads:
        return _SHAPES
    return _Problem(
        batch=q.dims[0],
        heads=heads,
        queries=q.dims[sequence],
        keys=k.dims[sequence],
        d_qk=q.dims[3],
        d_v=v.dims[3],
    )


def _packed(call: OperatorCall, layout: _Layout, q: TensorArg, k: TensorArg, v: TensorArg) -> _Problem | str:
    """All sequences of a batch behind each other, `[tokens, heads, d]`."""
    return _even_lengths(call, layout, tokens=(q.dims[0], k.dims[0]), heads=q.dims[1], dims=(q.dims[2], v.dims[2]))


def _packed_4d(call: OperatorCall, layout: _Layout, q: TensorArg, k: TensorArg, v: TensorArg) -> _Problem | str:
    """The same behind a batch of 1, `[1, tokens, heads, d]`, as the memory-efficient kernels want it."""
    if layout.axes != "BSHD" or q.dims[0] != 1:
        return _SHAPES
    return _even_lengths(call, layout, tokens=(q.dims[1], k.dims[1]), heads=q.dims[2], dims=(q.dims[3], v.dims[3]))


def _even_lengths(
    call: OperatorCall, layout: _Layout, *, tokens: tuple[int, int], heads: int, dims: tuple[int, int]
) -> _Problem | str:
    assert layout.offsets is not None
    offsets = call.tensor(layout.offsets)
    if offsets is None or layout.lengths is None or offsets.num_elements < 2:
        return _LENGTHS
    batch = offsets.num_elements - 1
    longest = (call.integer(layout.lengths), call.integer(layout.lengths + 1))
    # Only when every sequence has the longest length are the lengths known; one sequence alone always has.
    if batch > 1 and any(most is None or most * batch != count for most, count in zip(longest, tokens, strict=True)):
        return _LENGTHS
    return _Problem(
        batch=batch, heads=heads, queries=tokens[0] // batch, keys=tokens[1] // batch, d_qk=dims[0], d_v=dims[1]
    )


def _doubled_pairs(call: OperatorCall, layout: _Layout, problem: _Problem) -> int | None:
    """Twice the pairs that the mask leaves in one head, which is a whole number for a triangle as well."""
    queries, keys = problem.queries, problem.keys
    everything = 2 * queries * keys
    causal, bottom_right = _mask(call, layout)
    if causal is None:
        return None
    left, right = _window(call, layout)
    if left is not None or (right is not None and not causal):
        return 2 * _pairs_in_window(problem, left=left, right=0 if causal else right)
    if not causal:
        return everything
    short = min(queries, keys)
    if queries <= keys:
        # Bottom right: every query also sees the keys before the square.
        return short * short + (2 * queries * (keys - queries) if bottom_right else 0)
    # More queries than keys: top left, the later ones see all keys; bottom right, the earlier ones see none.
    return short * short + (0 if bottom_right else 2 * keys * (queries - keys))


def _window(call: OperatorCall, layout: _Layout) -> tuple[int | None, int | None]:
    if layout.window is None:
        return None, None
    sides = (call.integer(layout.window), call.integer(layout.window + 1))
    left, right = (side if side is not None and side >= 0 else None for side in sides)
    return left, right


def _pairs_in_window(problem: _Problem, *, left: int | None, right: int | None) -> int:
    """Pairs that a sliding window leaves in one head; it slides along the bottom-right diagonal (flash-attn 2.1)."""
    shift = problem.keys - problem.queries
    seen = problem.queries * problem.keys if right is None else _pairs_up_to(problem, shift + right)
    return seen if left is None else seen - _pairs_up_to(problem, shift - left - 1)


def _pairs_up_to(problem: _Problem, offset: int) -> int:
    """Pairs whose key is at most `offset` after the query: the sum of clamp(query + offset + 1, 0, keys)."""

    def ramp(end: int) -> int:
        inside = min(max(end, 0), problem.keys)
        return inside * (inside + 1) // 2 + max(0, end - problem.keys) * problem.keys

    return ramp(problem.queries + offset) - ramp(offset)


def _mask(call: OperatorCall, layout: _Layout) -> tuple[bool | None, bool]:
    if layout.mask_type is not None:
        kind = call.integer(layout.mask_type)
        return (None if kind is None else kind in {1, 2}), kind == 2
    return (False if layout.causal is None else call.flag(layout.causal)), layout.bottom_right


def _traffic(call: OperatorCall, layout: _Layout) -> tuple[int | None, int | None]:
    q, k, v = (call.tensor(layout.query + each) for each in range(3))
    assert q is not None
    assert k is not None
    assert v is not None
    bias = None if layout.bias is None else call.tensor(layout.bias)
    out_elements = q.num_elements // max(1, q.dims[-1]) * v.dims[-1] if q.dims and v.dims else 0
    # Kernels that read FP8 write 16-bit numbers.
    out = sized(out_elements, "bfloat16" if (q.dtype or "").startswith("float8") else q.dtype)
    # One float32 log-sum-exp for each query and head.
    logsumexp = sized(q.num_elements // max(1, q.dims[-1]) if q.dims else 0, "float32")
    if not layout.backward:
        return stored((q, k, v, bias)), added(out, logsumexp)
    read = added(stored((q, k, v, bias)), out, out, logsumexp)
    written = added(*(sized(each.num_elements, each.dtype) for each in (q, k, v)))
    return read, written


_SDPA: Final = _Layout(bias=3, causal=5)
_FLASH_ATTN: Final = _Layout(axes="BSHD", causal=5, window=6, bottom_right=True)
_FLASH_ATTN_BACKWARD: Final = _Layout(axes="BSHD", query=1, causal=11, window=12, bottom_right=True, backward=True)
_VARLEN: Final = _Layout(axes="BSHD", offsets=3, lengths=5, causal=9, window=10, hidden=(15, 17), bottom_right=True)
_VARLEN_BACKWARD: Final = _Layout(
    axes="BSHD", query=1, offsets=9, lengths=11, causal=15, window=16, bottom_right=True, backward=True
)
_FLASH_ATTN_3: Final = _Layout(
    axes="BSHD", offsets=7, lengths=12, causal=24, window=25, new_keys=3, hidden=(10, 11, 14), bottom_right=True
)
_EFFICIENT: Final = _Layout(axes="BSHD", bias=3, offsets=4, lengths=6, mask_type=9, hidden=(12,), band=13)
_AITER_BACKWARD: Final = _Layout(axes="BSHD", query=1, causal=8, window=9, bottom_right=True, backward=True)
_AITER_VARLEN: Final = _Layout(
    axes="BSHD", offsets=3, lengths=5, causal=12, window=13, hidden=(18, 19), bottom_right=True
)
_AITER_VARLEN_BACKWARD: Final = _Layout(
    axes="BSHD", query=1, offsets=6, lengths=8, causal=13, window=14, bottom_right=True, backward=True
)
_VLLM_FLASH_2: Final = _Layout(
    axes="BSHD", offsets=4, lengths=10, causal=15, window=16, hidden=(6, 8), bottom_right=True
)
_LAYOUTS: Final = {
    "aten::scaled_dot_product_attention": _SDPA,
    "aten::_scaled_dot_product_attention_math": _SDPA,
    "aten::_scaled_dot_product_flash_attention": _Layout(causal=4),
    "aten::_scaled_dot_product_flash_attention_for_cpu": _Layout(causal=4, bias=5),
    "aten::_scaled_dot_product_efficient_attention": _Layout(bias=3, causal=6),
    "aten::_scaled_dot_product_cudnn_attention": _Layout(bias=3, causal=6),
    "aten::_scaled_dot_product_fused_attention_overrideable": _Layout(bias=3, causal=5),
    "aten::_scaled_dot_product_flash_attention_backward": _Layout(query=1, causal=11, backward=True),
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": _Layout(query=1, causal=7, backward=True),
    "aten::_scaled_dot_product_efficient_attention_backward": _Layout(query=1, bias=4, causal=11, backward=True),
    "aten::_scaled_dot_product_cudnn_attention_backward": _Layout(query=1, bias=8, causal=14, backward=True),
    "aten::_scaled_dot_product_fused_attention_overrideable_backward": _Layout(
        query=1, bias=4, causal=13, backward=True
    ),
    "aten::_flash_attention_forward": _Layout(
        axes="BSHD", offsets=3, lengths=5, causal=8, window=11, hidden=(13, 15), bottom_right=True
    ),
    "aten::_flash_attention_backward": _Layout(
        axes="BSHD", query=1, offsets=6, lengths=8, causal=11, window=15, bottom_right=True, backward=True
    ),
    "aten::_efficient_attention_forward": _EFFICIENT,
    "aten::_efficient_attention_backward": _Layout(
        axes="BSHD", query=1, bias=4, offsets=6, lengths=8, mask_type=14, backward=True
    ),
    "aten::_cudnn_attention_forward": _Layout(bias=3, offsets=4, lengths=6, causal=10),
    "aten::_cudnn_attention_backward": _Layout(query=1, bias=8, offsets=9, lengths=11, causal=14, backward=True),
    # flash-attn 2: flash_attn/flash_attn_interface.py
    "flash_attn::_flash_attn_forward": _FLASH_ATTN,
    "flash_attn::_flash_attn_backward": _FLASH_ATTN_BACKWARD,
    "flash_attn::_flash_attn_varlen_forward": _VARLEN,
    "flash_attn::_flash_attn_varlen_backward": _VARLEN_BACKWARD,
    # The autograd function of older versions: the profiler records its tensors and not its flags.
    "FlashAttnFunc": _Layout(axes="BSHD", causal=-1),
    # flash-attn 3: hopper/flash_api.cpp
    "flash_attn_3::fwd": _FLASH_ATTN_3,
    "flash_attn_3::bwd": _Layout(
        axes="BSHD", query=1, offsets=9, lengths=13, causal=16, window=17, bottom_right=True, backward=True
    ),
    # the same as custom operators: hopper/flash_attn_interface.py
    "flash_attn_3::_flash_attn_forward": _FLASH_ATTN_3,
    "flash_attn_3::_flash_attn_backward": _Layout(
        axes="BSHD", query=1, offsets=6, lengths=10, causal=16, window=17, bottom_right=True, backward=True
    ),
    # vLLM's builds of both: csrc/flash_attn/flash_api_torch_lib.cpp, hopper/flash_api_torch_lib.cpp
    "_vllm_fa2_C::varlen_fwd": _VLLM_FLASH_2,
    "_vllm_fa3_C::fwd": _FLASH_ATTN_3,
    # aiter (AMD): aiter/ops/mha.py
    "aiter::_flash_attn_forward": _FLASH_ATTN,
    "aiter::_flash_attn_backward": _Layout(
        axes="BSHD", query=1, causal=12, window=13, bottom_right=True, backward=True
    ),
    **dict.fromkeys(("aiter::mha_fwd", "aiter::fmha_v3_fwd", "aiter::wrapper_fmha_v3_fwd"), _FLASH_ATTN),
    **dict.fromkeys(("aiter::mha_bwd", "aiter::fmha_v3_bwd", "aiter::wrapper_fmha_v3_bwd"), _AITER_BACKWARD),
    **dict.fromkeys(
        ("aiter::mha_varlen_fwd", "aiter::fmha_v3_varlen_fwd", "aiter::wrapper_fmha_v3_varlen_fwd"), _AITER_VARLEN
    ),
    **dict.fromkeys(
        ("aiter::mha_varlen_bwd", "aiter::wrapper_mha_varlen_bwd", "aiter::fmha_v3_varlen_bwd",
         "aiter::wrapper_fmha_v3_varlen_bwd"),
        _AITER_VARLEN_BACKWARD,
    ),
    # xformers: xformers/ops/fmha/{flash,flash3,cutlass,ck}.py; the flash form always packs
    "xformers_flash::flash_fwd": _Layout(
        axes="BSHD", offsets=3, lengths=6, causal=10, window=11, hidden=(5, 14), bottom_right=True
    ),
    "xformers_flash::flash_bwd": _Layout(
        axes="BSHD", query=2, offsets=7, lengths=9, causal=13, window=14, bottom_right=True, backward=True
    ),
    "xformers_flash3::flash_fwd": _Layout(
        axes="BSHD", offsets=3, lengths=7, causal=11, window=17, hidden=(5, 15), bottom_right=True
    ),
    "xformers::efficient_attention_forward_cutlass": _EFFICIENT,
    "xformers::efficient_attention_backward_cutlass": _Layout(
        axes="BSHD", query=1, bias=4, offsets=6, lengths=8, mask_type=14, band=18, backward=True
    ),
    "xformers::efficient_attention_forward_ck": _Layout(
        axes="BSHD", bias=3, offsets=4, lengths=6, mask_type=9, hidden=(11,), band=12
    ),
}  # fmt: skip
_VERSIONS: Final = {
    # without the gradient of a bias
    "aiter::_flash_attn_backward": (
        _LAYOUTS["aiter::_flash_attn_backward"],
        _Layout(axes="BSHD", query=1, causal=11, window=12, bottom_right=True, backward=True),
    ),
    # without the shortest length and the cap of the logits
    "aiter::mha_varlen_fwd": (
        _AITER_VARLEN,
        _Layout(axes="BSHD", offsets=3, lengths=5, causal=10, window=11, hidden=(16,), bottom_right=True),
    ),
    # without padding on the left, block tables and a window
    "xformers_flash3::flash_fwd": (
        _LAYOUTS["xformers_flash3::flash_fwd"],
        _Layout(axes="BSHD", offsets=3, lengths=6, causal=10, hidden=(5,), bottom_right=True),
    ),
}
"""Of packages whose versions place arguments differently: told apart by where the causal flag stands."""
_CACHED: Final = (
    "vllm::unified_attention", "vllm::unified_attention_with_output", "_vllm_fa2_C::fwd_kvcache",
    "_C::paged_attention_v1", "_C::paged_attention_v2", "_C::sm100_cutlass_mla_decode",
    "sgl_kernel::cutlass_mla_decode", "vllm::rocm_aiter_mla_decode_fwd",
)  # fmt: skip
MODELS: Final[dict[str, Callable[[OperatorCall], OperatorCost]]] = {
    **dict.fromkeys(_LAYOUTS, attention),
    **dict.fromkeys(_CACHED, in_a_cache),
}
