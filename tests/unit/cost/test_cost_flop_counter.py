"""FLOPs against torch's own counter, on calls that torch's own profiler records."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from scope.cost import OperatorCost, estimate_operator

torch = pytest.importorskip("torch")

from torch.nn import functional  # noqa: E402 - torch is optional
from torch.utils.flop_counter import (  # noqa: E402 - torch is optional
    FlopCounterMode,
    conv_backward_flop,
    conv_flop_count,
    sdpa_backward_flop_count,
    sdpa_flop_count,
)

if TYPE_CHECKING:
    from collections.abc import Callable

_SIZES = st.integers(1, 17)


def _dims(*shapes: tuple[int, ...] | None) -> str:
    return json.dumps([list(shape or ()) for shape in shapes])


def _types(*dtypes: str) -> str:
    return json.dumps(list(dtypes))


def _flops_of(run: Callable[[], Any]) -> int:
    with FlopCounterMode(display=False) as counter:
        run()
    return counter.get_total_flops()


@given(m=_SIZES, n=_SIZES, k=_SIZES, batch=_SIZES)
def test_products_cost_what_torch_counts(m: int, n: int, k: int, batch: int) -> None:
    """`mm`, `addmm`, `bmm`, `baddbmm`, `linear` and `matmul` of any extents cost what the counter says."""
    meta = torch.device("meta")
    a, b = torch.empty(m, k, device=meta), torch.empty(k, n, device=meta)
    batch_a, batch_b = torch.empty(batch, m, k, device=meta), torch.empty(batch, k, n, device=meta)
    cases: list[tuple[str, str, Callable[[], Any]]] = [
        ("aten::mm", _dims((m, k), (k, n)), lambda: torch.mm(a, b)),
        ("aten::addmm", _dims((n,), (m, k), (k, n), None, None), lambda: torch.addmm(a.new_empty(n), a, b)),
        ("aten::bmm", _dims((batch, m, k), (batch, k, n)), lambda: torch.bmm(batch_a, batch_b)),
        ("aten::baddbmm", _dims((n,), (batch, m, k), (batch, k, n), None, None),
         lambda: torch.baddbmm(a.new_empty(n), batch_a, batch_b)),
        ("aten::linear", _dims((batch, m, k), (n, k)), lambda: functional.linear(batch_a, b.t().contiguous())),
        ("aten::matmul", _dims((batch, m, k), (k, n)), lambda: torch.matmul(batch_a, b)),
    ]  # fmt: skip
    for name, dims, run in cases:
        types = json.dumps(["float" if shape else "Scalar" for shape in json.loads(dims)])
        assert estimate_operator(name, dims, types).flops == _flops_of(run), name


@st.composite
def _convolutions(draw: st.DrawFn) -> dict[str, Any]:
    rank = draw(st.integers(1, 3))
    groups = draw(st.integers(1, 3))
    kernel = [draw(st.integers(1, 4)) for _ in range(rank)]
    dilation = [draw(st.integers(1, 2)) for _ in range(rank)]
    stride = [draw(st.integers(1, 3)) for _ in range(rank)]
    return {
        "rank": rank,
        "groups": groups,
        "kernel": kernel,
        "dilation": dilation,
        "stride": stride,
        "padding": [draw(st.integers(0, 2)) for _ in range(rank)],
        "output_padding": [draw(st.integers(0, min(s, d) if min(s, d) > 1 else 0)) % max(s, d)
                           for s, d in zip(stride, dilation, strict=True)],
        "batch": draw(st.integers(1, 3)),
        "c_in": groups * draw(st.integers(1, 4)),
        "c_out": groups * draw(st.integers(1, 4)),
        "size": [d * (k - 1) + 1 + draw(st.integers(0, 6)) for k, d in zip(kernel, dilation, strict=True)],
        "transposed": draw(st.booleans()),
    }  # fmt: skip


def _convolve(case: dict[str, Any]) -> tuple[OperatorCost, OperatorCost, Any, Any, Any]:
    """Return our forward and backward costs, and the shapes of input, weight and output that torch makes."""
    transposed, groups = case["transposed"], case["groups"]
    channels = (case["c_in"], case["c_out"] // groups) if transposed else (case["c_out"], case["c_in"] // groups)
    x = torch.empty(case["batch"], case["c_in"], *case["size"], device="meta")
    weight = torch.empty(*channels, *case["kernel"], device="meta")
    output_padding = case["output_padding"] if transposed else [0] * case["rank"]
    geometry = [case["stride"], case["padding"], case["dilation"], transposed, output_padding, groups]
    if transposed:
        extents = zip(case["size"], case["stride"], case["padding"], case["dilation"], case["kernel"], strict=True)
        assume(all((size - 1) * step - 2 * pad + reach * (k - 1) + 1 > 0 for size, step, pad, reach, k in extents))
    out = torch.ops.aten.convolution(x, weight, None, *geometry)
    values = [str(each) for each in geometry]
    kinds = ["ScalarList", "ScalarList", "ScalarList", "Scalar", "ScalarList", "Scalar"]
    forward = estimate_operator(
        "aten::convolution",
        _dims(tuple(x.shape), tuple(weight.shape), *([None] * 7)),
        _types("float", "float", "", *kinds),
        None,
        json.dumps(["", "", "", *values]),
    )
    backward = estimate_operator(
        "aten::convolution_backward",
        _dims(tuple(out.shape), tuple(x.shape), tuple(weight.shape), *([None] * 8)),
        _types("float", "float", "float", "ScalarList", *kinds, "ScalarList"),
        None,
        json.dumps(["", "", "", "[0]", *values, "[True, True, False]"]),
    )
    return forward, backward, x.shape, weight.shape, out.shape


@given(case=_convolutions())
def test_convolutions_cost_what_torch_counts(case: dict[str, Any]) -> None:
    """Any rank, stride, padding, dilation, groups and transposition: forward FLOPs and output bytes are torch's."""
    forward, _, x, weight, out = _convolve(case)
    assert forward.flops == conv_flop_count(list(x), list(weight), list(out), transposed=case["transposed"])
    assert forward.bytes_written == 4 * out.numel()


@given(case=_convolutions())
def test_convolution_gradients_cost_what_torch_counts(case: dict[str, Any]) -> None:
    """Without groups, the gradients of input and weight cost what torch counts; with groups, twice the forward pass.

    Torch's counter takes the weight's gradient of a grouped convolution for a dense one.
    """
    forward, backward, x, weight, out = _convolve(case)
    assert forward.flops is not None
    assert backward.flops == 2 * forward.flops
    if case["groups"] == 1:
        geometry = (None, None, None, None, case["transposed"], None, None, [True, True, False])
        results = [torch.empty(x, device="meta"), torch.empty(weight, device="meta"), None]
        count: Callable[..., int] = conv_backward_flop
        counted = count(out, x, weight, *geometry, out_val=results)
        assert backward.flops == counted


@given(
    batch=st.integers(1, 4),
    groups=st.integers(1, 4),
    key_heads=st.integers(1, 4),
    queries=st.integers(1, 40),
    keys=st.integers(1, 40),
    d_qk=st.integers(1, 16),
    d_v=st.integers(1, 16),
)
@settings(max_examples=40)
def test_attention_costs_what_torch_counts(  # noqa: PLR0913 - one parameter for each extent
    batch: int, groups: int, key_heads: int, queries: int, keys: int, d_qk: int, d_v: int
) -> None:
    """Every attention operator of torch, forward and backward, with grouped queries, costs what the counter says."""
    heads = groups * key_heads
    q, k, v = (batch, heads, queries, d_qk), (batch, key_heads, keys, d_qk), (batch, key_heads, keys, d_v)
    out = (batch, heads, queries, d_v)
    forward, backward = sdpa_flop_count(q, k, v), sdpa_backward_flop_count(out, q, k, v)
    swapped = [(shape[0], shape[2], shape[1], shape[3]) for shape in (q, k, v)]
    swapped_out = (out[0], out[2], out[1], out[3])
    sizes = [str(queries), str(keys)]
    half = "c10::Half"
    plain = json.dumps([half] * 3)
    cases: list[tuple[str, int, str, str, list[str]]] = [
        ("aten::_scaled_dot_product_flash_attention", forward, _dims(q, k, v), plain, ["", "", "", "0.", "False"]),
        ("aten::_scaled_dot_product_efficient_attention", forward, _dims(q, k, v), plain,
         ["", "", "", "", "True", "0.", "False"]),
        ("aten::_scaled_dot_product_cudnn_attention", forward, _dims(q, k, v), plain,
         ["", "", "", "", "True", "0.", "False"]),
        ("aten::_flash_attention_forward", forward, _dims(*swapped), plain,
         ["", "", "", "", "", *sizes, "0.", "False", "False"]),
        ("aten::_efficient_attention_forward", forward, _dims(*swapped), plain,
         ["", "", "", "", "", "", "", "", "0.", "0"]),
        ("flash_attn::_flash_attn_forward", forward, _dims(*swapped), plain,
         ["", "", "", "0.", "0.1", "False", "-1", "-1"]),
        ("aten::_scaled_dot_product_flash_attention_backward", backward, _dims(out, q, k, v), json.dumps([half] * 4),
         ["", "", "", "", "", "", "", "", *sizes, "0.", "False"]),
        ("aten::_flash_attention_backward", backward, _dims(swapped_out, *swapped), json.dumps([half] * 4),
         ["", "", "", "", "", "", "", "", *sizes, "0.", "False"]),
        ("aten::_efficient_attention_backward", backward, _dims(swapped_out, *swapped), json.dumps([half] * 4),
         ["", "", "", "", "", "", "", "", *sizes, "", "0.", "", "", "0"]),
        ("flash_attn::_flash_attn_backward", backward, _dims(swapped_out, *swapped), json.dumps([half] * 4),
         ["", "", "", "", "", "", "", "", "", "0.", "0.1", "False", "-1", "-1"]),
    ]  # fmt: skip
    for name, expected, dims, types, values in cases:
        pad = len(values) - len(json.loads(dims))
        padded = json.dumps([*json.loads(dims), *([[]] * pad)])
        kinds = json.dumps([*json.loads(types), *(["Scalar"] * pad)])
        cost = estimate_operator(name, padded, kinds, None, json.dumps(values))
        assert cost.flops == expected, name
        assert cost.flops_unmasked == expected, name


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Operator events of a small training step as torch's profiler writes them."""
    path = tmp_path_factory.mktemp("profile") / "trace.json"
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profiler:
        _train()
    profiler.export_chrome_trace(str(path))
    events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    return [event for event in events if event.get("cat") == "cpu_op"]


def _train() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, padding=1, groups=1), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(8 * 36, 10)
    )
    x = torch.randn(4, 3, 6, 6)
    functional.cross_entropy(model(x), torch.tensor([0, 1, 2, 3])).backward()
    q = torch.randn(2, 4, 16, 8)
    torch.einsum("bhqd,bhkd->bhqk", q, q)
    torch.baddbmm(torch.randn(2, 5, 7), torch.randn(2, 5, 3), torch.randn(2, 3, 7))


def _estimate(event: dict[str, Any]) -> OperatorCost:
    columns = ("Input Dims", "Input type", "Input Strides", "Concrete Inputs")
    texts = [json.dumps(event["args"][each]) if each in event["args"] else None for each in columns]
    return estimate_operator(event["name"], *texts)


def test_a_recorded_step_costs_what_the_counter_counts(recorded: list[dict[str, Any]]) -> None:
    """The innermost products and convolutions of a recorded training step sum to the counter's total."""
    leaves = {
        "aten::mm",
        "aten::addmm",
        "aten::bmm",
        "aten::baddbmm",
        "aten::convolution",
        "aten::convolution_backward",
    }
    ours = [_estimate(event).flops for event in recorded if event["name"] in leaves]
    assert None not in ours
    assert sum(flops for flops in ours if flops is not None) == _flops_of(_train)
