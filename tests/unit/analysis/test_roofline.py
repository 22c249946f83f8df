"""The roofline of kernels, against hand counts on hand-made and on real traces."""

from __future__ import annotations

import gzip
import json
import math
import re
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest

from scope.analysis.kernel_work import KernelWork, compute_kernel_work
from scope.analysis.roofline import Roofline, RooflinePoints, chosen_devices, compute_roofline, match_devices
from scope.hardware import choose_gpu
from scope.report.rows import to_records
from scope.report.sections.roofline import roofline_table
from scope.trace import load
from scope.trace.model import DeviceProperties
from scope.trace.schema import DeviceEvents

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from scope.trace.model import RankTrace

Row = dict[str, Any]

H100 = DeviceProperties(
    index=0, name="NVIDIA H100 80GB HBM3", total_memory_bytes=85_018_279_936, num_sms=132, compute_capability=(9, 0)
)
BF16 = "c10::BFloat16"


def _op(name: str, shapes: list[list[int]], *, dtype: str = BF16, **rest: Any) -> Row:
    return {
        "name": name,
        "start_ns": 0,
        "end_ns": 1,
        "input_dims": json.dumps(shapes),
        "input_types": json.dumps([dtype if shape else "Scalar" for shape in shapes]),
        **rest,
    }


def _kernel(op_id: int | None, start_ns: int, end_ns: int, *, kernel_class: str = "gemm", **rest: Any) -> Row:
    return {"op_id": op_id, "start_ns": start_ns, "end_ns": end_ns, "kernel_class": kernel_class, **rest}


def _points(result: Roofline) -> list[Row]:
    return result.check().points.rows(named=True)


def test_a_product_bound_by_compute(make_trace: Callable[..., RankTrace]) -> None:
    """8192 cubed in BF16 on an H100: 1.0995e12 FLOPs at 989.4 TFLOP/s take 1.111 ms at the ceiling."""
    trace = make_trace(
        devices=(H100,),
        ops=[_op("aten::mm", [[8192, 8192], [8192, 8192]])],
        device_events=[_kernel(0, 0, 2_000_000, name="sm90_xmma_gemm_bf16bf16_bf16f32")],
    )
    result = compute_roofline(trace)
    (point,) = _points(result)
    flops, num_bytes = 2 * 8192**3, 3 * 2 * 8192**2
    assert (point["flops"], point["num_bytes"]) == (flops, num_bytes)
    assert point["path"] == "matrix bfloat16"
    assert point["intensity_flop_per_byte"] == pytest.approx(flops / num_bytes)
    assert point["achieved_flop_per_s"] == pytest.approx(flops / 2e-3)
    assert point["ceiling_flop_per_s"] == pytest.approx(989.4e12)
    assert point["time_at_ceiling_ns"] == round(flops / 989.4e12 * 1e9)
    assert point["attained_ratio"] == pytest.approx(flops / 2e-3 / 989.4e12)
    assert point["saving_ns"] == 2_000_000 - math.ceil(flops / 989.4e12 * 1e9)
    assert (point["bound"], point["reason"]) == ("compute", None)
    assert result.coverage_ratio == 1


def test_an_elementwise_kernel_bound_by_memory(make_trace: Callable[..., RankTrace]) -> None:
    """Adding two tensors of 2**26 BF16 elements moves 402.7 MB: 120.2 us at 3.35 TB/s."""
    trace = make_trace(
        devices=(H100,),
        ops=[_op("aten::add", [[2**26], [2**26], []])],
        device_events=[_kernel(0, 0, 150_000, kernel_class="elementwise", name="vectorized_elementwise_kernel")],
    )
    (point,) = _points(compute_roofline(trace))
    num_bytes = 3 * 2 * 2**26
    assert (point["num_bytes"], point["path"], point["bound"]) == (num_bytes, "vector float32", "memory")
    assert point["attained_ratio"] == pytest.approx(num_bytes / 3.35e12 / 150e-6)
    assert point["ceiling_flop_per_s"] == pytest.approx(2**26 / num_bytes * 3.35e12)


@pytest.mark.parametrize(
    ("elements", "length_ns", "bound"),
    [(1000, 5_000, "latency"), (1000, 20_000, "memory"), (2**22, 9_000, "memory")],
)
def test_latency_is_short_in_theory_and_in_fact(
    make_trace: Callable[..., RankTrace], elements: int, length_ns: int, bound: str
) -> None:
    """Below 2 us at the ceiling and below 10 us in fact: 1,000 elements in 5 us; not in 20 us, not 4M elements."""
    trace = make_trace(
        devices=(H100,),
        ops=[_op("aten::add", [[elements], [elements], []])],
        device_events=[_kernel(0, 0, length_ns, kernel_class="elementwise")],
    )
    assert _points(compute_roofline(trace))[0]["bound"] == bound


def test_flops_go_to_matrix_kernels_by_duration(make_trace: Callable[..., RankTrace]) -> None:
    """Two of an operator's kernels are products of 300 and 100 ns, one copies a bias: shares 3/4, 1/4 and none."""
    trace = make_trace(
        devices=(H100,),
        ops=[_op("aten::addmm", [[7], [5, 3], [3, 7], [], []])],
        device_events=[
            _kernel(0, 0, 300, name="gemm_a"),
            _kernel(0, 300, 400, name="gemm_b"),
            _kernel(0, 400, 450, kernel_class="elementwise", name="copy_bias"),
        ],
    )
    work = compute_kernel_work(trace)
    flops, num_bytes = 2 * 5 * 3 * 7, 2 * (7 + 15 + 21 + 35)
    assert work[KernelWork.flops].to_list() == [157, 53, None]
    assert work[KernelWork.flops].sum() == flops
    assert work[KernelWork.num_bytes].sum() == num_bytes
    assert "helper" in work[KernelWork.reason].to_list()[2]


def test_layout_changes_get_no_flops(make_trace: Callable[..., RankTrace]) -> None:
    """A library's layout kernels bear the class of the convolution that they help, and none of its FLOPs."""
    values = json.dumps(["", "", "[0, 0]", "[1, 1]", "[1, 1]", "1", "False", "False", "True"])
    op = _op("aten::cudnn_convolution", [[1, 2, 4, 4], [3, 2, 1, 1], *[[]] * 7], concrete_inputs=values)
    trace = make_trace(
        devices=(H100,),
        ops=[op],
        device_events=[
            _kernel(0, 0, 500, kernel_class="convolution", name="void cudnn::nchwToNhwcKernel<float>"),
            _kernel(0, 500, 600, kernel_class="convolution", name="cutlass_tensorop_fprop"),
        ],
    )
    assert compute_kernel_work(trace)[KernelWork.flops].to_list() == [None, 2 * 16 * 6]


def test_one_kernel_in_parts_is_shared_by_blocks(make_trace: Callable[..., RankTrace]) -> None:
    """A list operator launched in two parts of 3 and 1 blocks has three quarters of its bytes in the first."""
    op = {
        "name": "aten::_foreach_mul_", "start_ns": 0, "end_ns": 1,
        "input_dims": "[[[100], [60]], []]", "input_types": '["TensorList", "Scalar"]',
    }  # fmt: skip
    name = "multi_tensor_apply_kernel<TensorListMetadata<1>, BinaryOpScalarFunctor<float, 1, 1, 0>>"
    trace = make_trace(
        devices=(H100,),
        ops=[op],
        device_events=[
            _kernel(0, 0, 10, kernel_class="optimizer", name=name, num_blocks=3),
            _kernel(0, 10, 100, kernel_class="optimizer", name=name, num_blocks=1),
        ],
    )
    assert compute_kernel_work(trace)[KernelWork.num_bytes].to_list() == [960, 320]


def test_different_kernels_of_one_operator_are_not_told_apart(make_trace: Callable[..., RankTrace]) -> None:
    """Bytes of an operator with two different kernels belong to neither."""
    trace = make_trace(
        devices=(H100,),
        ops=[_op("aten::sum", [[1000], []])],
        device_events=[
            _kernel(0, 0, 10, kernel_class="reduction", name="one"),
            _kernel(0, 10, 20, kernel_class="reduction", name="two"),
        ],
    )
    result = compute_roofline(trace)
    assert {point["reason"] for point in _points(result)} == {
        "one of several kernels of aten::sum, whose own share is not known"
    }
    assert result.coverage_ratio == 0


def test_kernels_of_a_norms_backward_pass_are_told_apart(make_trace: Callable[..., RankTrace]) -> None:
    """Input and weight gradients have kernels of their own; the second stage of a sum in two stages has no model."""
    shapes: list[list[int]] = [[4, 8], [4, 8], [], [4, 1], [4, 1], [8], [8], []]
    trace = make_trace(
        devices=(H100,),
        ops=[_op("aten::native_layer_norm_backward", shapes, dtype="float")],
        device_events=[
            _kernel(0, 0, 10, kernel_class="normalisation", name="layer_norm_grad_input_kernel_vectorized<float>"),
            _kernel(0, 10, 20, kernel_class="normalisation", name="cuComputePartGradGammaBeta<float>"),
            _kernel(0, 20, 30, kernel_class="normalisation", name="cuComputeGradGammaBeta<float>"),
        ],
    )
    work = compute_kernel_work(trace)
    # Gradient, input, mean, 1/std and weight in, gradient of the input out; then the same without the weight, two out.
    assert work[KernelWork.num_bytes].to_list() == [4 * (32 + 32 + 4 + 4 + 8 + 32), 4 * (32 + 32 + 4 + 4 + 16), None]
    assert "several kernels" in work[KernelWork.reason].to_list()[2]


@pytest.mark.parametrize(
    ("name", "tensors", "mask", "shared"),
    [
        # The input's gradient takes three terms (5), and the sums of weight and bias 3 each, which are its own too.
        ("aten::native_layer_norm_backward", [[4, 1], [4, 1], [8], [8]], "[True, True, True]", [5, 6]),
        ("aten::native_layer_norm_backward", [[4, 1], [4, 1], [8], []], "[True, True, False]", [8, 3]),
        ("aten::_fused_rms_norm_backward", [[4, 1], [8]], "[True, True]", [8, 3]),
        ("aten::_fused_rms_norm_backward", [[4, 1], [8]], "", [8, 3]),
    ],
)
def test_parts_of_a_norms_backward_pass_sum_to_it(
    make_trace: Callable[..., RankTrace], name: str, tensors: list[list[int]], mask: str, shared: list[int]
) -> None:
    """The kernels of the backward pass share its FLOPs, 11 for each element, as its sums and terms fall to them."""
    shapes = [[4, 8], [4, 8], [], *tensors, []]
    op = _op(name, shapes, dtype="float") | {"concrete_inputs": json.dumps([""] * (len(shapes) - 1) + [mask])}
    kernels = ["layer_norm_grad_input_kernel_vectorized<float>", "GammaBetaBackwardCUDAKernelTemplate<float>"]
    trace = make_trace(
        devices=(H100,),
        ops=[op],
        device_events=[
            _kernel(0, 10 * index, 10 * index + 10, kernel_class="normalisation", name=kernel)
            for index, kernel in enumerate(kernels)
        ],
    )
    flops = compute_kernel_work(trace)[KernelWork.flops].to_list()
    assert flops == [32 * each for each in shared]
    assert sum(flops) == 32 * 11


def test_a_matrix_operator_above_owns_kernels_below(make_trace: Callable[..., RankTrace]) -> None:
    """A product launched inside an operator without a model belongs to the matrix operator around it."""
    trace = make_trace(
        devices=(H100,),
        ops=[
            _op("aten::linear", [[4, 8], [16, 8]]),
            {"name": "my::launcher", "start_ns": 0, "end_ns": 1, "parent_id": 0, "depth": 1},
            {"name": "my::copy", "start_ns": 0, "end_ns": 1, "parent_id": 0, "depth": 1},
        ],
        device_events=[_kernel(1, 0, 10), _kernel(2, 10, 20, kernel_class="elementwise")],
    )
    work = compute_kernel_work(trace)
    assert work[KernelWork.operator].cast(pl.String).to_list() == ["aten::linear", "my::copy"]
    assert work[KernelWork.flops].to_list() == [2 * 4 * 8 * 16, None]


def test_tf32_only_when_the_kernel_says_so(make_trace: Callable[..., RankTrace]) -> None:
    """The same float32 product is TF32 by name (also CUTLASS's s1688), else it runs at the vector units' rate."""
    names = {
        "ampere_sgemm_128x64_nn": "matrix float32",
        "sm80_xmma_gemm_f32f32_tf32f32_f32_nn": "matrix tf32",
        "cutlass_80_tensorop_s1688gemm_128x128_nn_align4": "matrix tf32",
    }
    trace = make_trace(
        devices=(H100,),
        ops=[_op("aten::mm", [[64, 64], [64, 64]], dtype="float")],
        device_events=[_kernel(0, at, at + 10, name=name) for at, name in zip((0, 20, 40), names, strict=True)],
    )
    for point in _points(compute_roofline(trace)):
        assert point["path"] == names[point["kernel"]]
    (plain,) = _points(
        compute_roofline(
            make_trace(
                devices=(H100,),
                ops=[_op("aten::mm", [[8192, 8192], [8192, 8192]], dtype="float")],
                device_events=[_kernel(0, 0, 10**8, name="ampere_sgemm_128x64_nn")],
            )
        )
    )
    assert plain["ceiling_flop_per_s"] == pytest.approx(66.9e12)


def test_saving_counts_only_while_no_other_stream_computes(make_trace: Callable[..., RankTrace]) -> None:
    """Three equal kernels of 1,000 ns that could take about none: alone, half and wholly beside another stream."""
    rows = [(0, 1000, 7), (2000, 3000, 7), (4000, 5000, 7), (2500, 3500, 8), (4000, 5000, 8)]
    trace = make_trace(
        devices=(H100,),
        ops=[_op("aten::add", [[1], [1], []]) for _ in rows],
        device_events=[
            _kernel(index, start, end, kernel_class="elementwise", stream=stream, name=f"k{index}")
            for index, (start, end, stream) in enumerate(sorted(rows))
        ],
    )
    savings = {point["kernel"]: point["saving_ns"] for point in _points(compute_roofline(trace))}
    assert savings["k0"] == 999
    assert savings["k1"] == pytest.approx(500, abs=1)
    assert savings["k2"] == pytest.approx(500, abs=1)
    assert savings["k3"] == savings["k4"] == 0


def test_unknown_device_has_work_and_no_ceiling(make_trace: Callable[..., RankTrace]) -> None:
    """Without a known GPU the FLOPs stay, ceiling and coverage's share do not, and the reason names the device."""
    trace = make_trace(
        devices=(DeviceProperties(index=0, name="Quadro P2000", total_memory_bytes=None),),
        ops=[_op("aten::mm", [[64, 64], [64, 64]])],
        device_events=[_kernel(0, 0, 10)],
    )
    result = compute_roofline(trace)
    (point,) = _points(result)
    assert point["flops"] == 2 * 64**3
    assert point["attained_ratio"] is None
    assert "Quadro P2000" in point["reason"]
    assert result.coverage_ratio == 0
    chosen = compute_roofline(trace, chosen_devices(trace, choose_gpu("a100-sxm4-40gb")))
    assert _points(chosen)[0]["ceiling_flop_per_s"] is not None
    assert chosen.coverage_ratio == 1


def test_a_trace_without_kernels(make_trace: Callable[..., RankTrace]) -> None:
    """No compute kernels: an empty table and a coverage that is absent with the reason."""
    result = compute_roofline(make_trace()).check()
    assert result.points.is_empty()
    assert result.coverage_ratio is None
    assert result.absent == {"coverage_ratio": "no compute kernels"}


def test_kernels_without_an_operator_say_why(make_trace: Callable[..., RankTrace]) -> None:
    """Replayed kernels and kernels whose launch is not in the trace have different reasons."""
    trace = make_trace(
        devices=(H100,), device_events=[_kernel(None, 0, 10), _kernel(None, 10, 20, in_graph=True, name="replayed")]
    )
    reasons = {point["kernel"]: point["reason"] for point in _points(compute_roofline(trace))}
    assert reasons == {
        "kernel": "no operator around its launch",
        "replayed": "launched by the replay of a graph, without an operator",
    }


def test_nonsense_shapes_are_no_work(make_trace: Callable[..., RankTrace]) -> None:
    """Extents beyond any machine give no count, not an overflow."""
    trace = make_trace(
        devices=(H100,), ops=[_op("aten::mm", [[10**12, 10**12], [10**12, 10**12]])], device_events=[_kernel(0, 0, 10)]
    )
    (point,) = _points(compute_roofline(trace))
    assert point["flops"] is None
    assert point["reason"] is not None


def test_an_index_beyond_the_list_is_like_the_others(make_trace: Callable[..., RankTrace]) -> None:
    """A kernel on device 9 of a list of one H100 ran on an H100; with unlike devices in the list it is unknown."""
    event = _kernel(None, 0, 10, device=9)
    alike = match_devices(make_trace(devices=(H100,), device_events=[event]))
    assert alike[9].gpu is not None
    other = DeviceProperties(index=1, name="NVIDIA L4", total_memory_bytes=None)
    mixed = match_devices(make_trace(devices=(H100, other), device_events=[event]))
    assert mixed[9].gpu is None


def _raw_kernels(path: Path) -> list[tuple[Row, Row]]:
    """Kernels of a real trace with their operators, joined by External id: the oracle's own reading."""
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    ops = {event["args"]["External id"]: event for event in events if event.get("cat") == "cpu_op"}
    kernels = [event for event in events if event.get("cat") == "kernel"]
    return [(kernel, ops[kernel["args"]["External id"]]) for kernel in kernels if kernel["args"]["External id"] in ops]


def _counted_by_hand(op: Row) -> int | None:
    """FLOPs of products, convolutions and attention, straight from the shapes."""
    name, dims = op["name"], op["args"].get("Input Dims")
    if name == "aten::mm":
        return 2 * dims[0][0] * dims[0][1] * dims[1][1]
    if name == "aten::addmm":
        return 2 * dims[1][0] * dims[1][1] * dims[2][1]
    if name == "aten::bmm":
        return 2 * math.prod(dims[0]) * dims[1][2]
    if name == "aten::_flash_attention_forward":
        batch, queries, heads, depth = dims[0]
        return 4 * batch * heads * queries * dims[1][1] * depth
    if name == "aten::cudnn_convolution":
        (_, _, height, width), weight = dims[0], dims[1]
        padding, stride = (json.loads(text) for text in op["args"]["Concrete Inputs"][2:4])
        positions = math.prod(
            (size + 2 * pad - kernel) // step + 1
            for size, pad, kernel, step in zip((height, width), padding, weight[2:], stride, strict=True)
        )
        return 2 * dims[0][0] * positions * math.prod(weight)
    return None


@pytest.mark.parametrize(
    ("name", "least_coverage"),
    [
        ("tracelens/h100_owlv2.json.gz", 0.999),
        ("tracelens/h100_bert_small.json.gz", 0.9),
        ("tracelens/h100_vit_nsfw.json.gz", 0.9),
        ("tracelens/mi300_bert_small.json.gz", 0.9),
        ("tracelens/mi300_torch_compile_triton.json.gz", 0.9),
    ],
)
def test_real_traces_by_hand(shared_traces: Path, name: str, least_coverage: float) -> None:
    """FLOPs of every product, convolution and attention of a real trace are those counted from its shapes."""
    path = shared_traces / name
    result = compute_roofline(load([path]).ranks[0]).check()
    assert result.coverage_ratio is not None
    assert result.coverage_ratio >= least_coverage
    by_hand: dict[str, int] = {}
    seen: set[int] = set()
    for _, op in _raw_kernels(path):
        flops = _counted_by_hand(op)
        if flops is not None and op["args"]["External id"] not in seen:
            seen.add(op["args"]["External id"])
            by_hand[op["name"]] = by_hand.get(op["name"], 0) + flops
    ours = (
        result.points.filter(pl.col(RooflinePoints.operator).cast(pl.String).is_in(list(by_hand)))
        .group_by(pl.col(RooflinePoints.operator).cast(pl.String))
        .agg(pl.col(RooflinePoints.flops).sum())
    )
    assert dict(ours.rows()) == by_hand


def test_bytes_of_owlv2_by_hand(shared_traces: Path) -> None:
    """The softmax that takes half of the time reads and writes 16 x 5185 x 5185 BF16 values 120 times."""
    result = compute_roofline(load([shared_traces / "tracelens/h100_owlv2.json.gz"]).ranks[0])
    rows = result.points.filter(pl.col(RooflinePoints.operator).cast(pl.String) == "aten::_softmax").rows(named=True)
    longest = rows[0]
    assert re.search("SoftMaxForward", longest["kernel"])
    assert longest["num_kernels"] == 120
    assert longest["num_bytes"] == 120 * 2 * 2 * 16 * 5185 * 5185
    assert longest["bound"] == "memory"


def test_kernels_of_no_length_share_exactly(make_trace: Callable[..., RankTrace]) -> None:
    """Two products of length 0 still hold all of their operator's FLOPs between them, and attain nothing."""
    trace = make_trace(
        devices=(H100,),
        ops=[_op("aten::mm", [[5, 3], [3, 7]])],
        device_events=[_kernel(0, 10, 10, name="a"), _kernel(0, 10, 10, name="b")],
    )
    assert compute_kernel_work(trace)[KernelWork.flops].sum() == 2 * 5 * 3 * 7
    assert {point["attained_ratio"] for point in _points(compute_roofline(trace))} == {None}


def test_every_real_trace_adds_up(shared_traces: Path) -> None:
    """Old, cut, shapeless, GPU-less and AMD traces all give a roofline whose parts sum to its compute time."""
    for path in sorted(shared_traces.rglob("*.json.gz")):
        trace = load([path]).ranks[0]
        result = compute_roofline(trace).check()
        compute = (pl.col(DeviceEvents.category) == "compute") & (pl.col(DeviceEvents.kind) == "kernel")
        kernels = trace.device_events.filter(compute)
        lengths = kernels[DeviceEvents.end_ns] - kernels[DeviceEvents.start_ns]
        assert result.compute_ns == lengths.sum(), path
        assert result.points[RooflinePoints.num_kernels].sum() == kernels.height, path


def test_what_runs_beyond_its_ceiling_has_no_saving_in_the_report(make_trace: Callable[..., RankTrace]) -> None:
    """A product that takes a tenth of its time at the ceiling says why nobody knows what it could save."""
    at_ceiling_ns = round(2 * 4096**3 / 989.4e12 * 1e9)
    trace = make_trace(
        devices=(H100,),
        ops=[_op("aten::mm", [[4096, 4096], [4096, 4096]])],
        device_events=[_kernel(0, 0, at_ceiling_ns // 10)],
    )
    (record,) = to_records(roofline_table({"rank 0": compute_roofline(trace)}))
    assert record["attained_ratio"] == pytest.approx(10, rel=0.01)
    assert record["saving_ns"] is None
    assert "beyond this ceiling" in record["absent"]["saving_ns"]
