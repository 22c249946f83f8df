"""The roofline on machines that no trace at hand comes from, worked out by hand from their data sheets."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from scope.analysis.roofline import Roofline, compute_roofline
from scope.report.sections.roofline import coverage_table
from scope.trace import ReadOptions, load

if TYPE_CHECKING:
    from pathlib import Path

Record = dict[str, Any]
Measure = Callable[..., Roofline]
FP8, FP4, BF16 = "c10::Float8_e4m3fn", "c10::Float4_e2m1fn_x2", "c10::BFloat16"
B200 = {"name": "NVIDIA B200", "totalGlobalMem": 191_514_279_936, "numSms": 148, "computeMajor": 10, "computeMinor": 0}
H800 = {"name": "NVIDIA H800", "totalGlobalMem": 85_018_279_936, "numSms": 132, "computeMajor": 9, "computeMinor": 0}
MI300X = {
    "name": "AMD Instinct MI300X", "totalGlobalMem": 206_141_652_992, "numSms": 304, "computeMajor": 9,
    "computeMinor": 4,
}  # fmt: skip


def operator(
    name: str, arguments: list[tuple[list[int], str, str]], kernel: str, length_us: float, *, number: int = 1
) -> list[Record]:
    """Return an operator that launches one kernel; each number has ids and a millisecond of its own."""
    dims, types, values = (list(column) for column in zip(*arguments, strict=True))
    shapes = {"External id": number, "Input Dims": dims, "Input type": types, "Concrete Inputs": values}
    host, device = {"pid": 10, "tid": 10}, {"pid": 0, "tid": 7}
    link, origin = {"External id": number, "correlation": number}, 1000 * number
    return [
        {"ph": "X", "cat": "cpu_op", "name": name, **host, "ts": origin, "dur": 20, "args": shapes},
        {"ph": "X", "cat": "cuda_driver", "name": "cuLaunchKernelEx", **host, "ts": origin + 5, "dur": 5, "args": link},
        {"ph": "X", "cat": "kernel", "name": kernel, **device, "ts": origin + 30, "dur": length_us,
         "args": {"device": 0, "stream": 7, **link}},
    ]  # fmt: skip


@pytest.fixture
def measure(tmp_path: Path) -> Measure:
    """Function that writes a trace of one device and returns its roofline."""

    def write_and_measure(device: Record, records: list[Record]) -> Roofline:
        text = json.dumps({"deviceProperties": [{"id": 0, **device}], "traceEvents": records})
        (tmp_path / "rank0.json").write_text(text)
        (trace,) = load([str(tmp_path)], options=ReadOptions(use_cache=False), processes=1).ranks
        roofline = compute_roofline(trace)
        roofline.check()
        return roofline

    return write_and_measure


TENSOR = ""
SCALED = [([4096, 4096], FP8, TENSOR), ([4096, 4096], FP8, TENSOR), ([1], "float", TENSOR), ([1], "float", TENSOR),
          ([], "", ""), ([], "", ""), ([], "Scalar", "15"), ([], "Scalar", "True")]  # fmt: skip
# Two 4-bit values in each element along the depth; a scale for each 32.
PACKED = [([4096, 2048], FP4, TENSOR), ([2048, 4096], FP4, TENSOR), *SCALED[2:]]
PLAIN = [([4096, 4096], BF16, TENSOR), ([4096, 4096], BF16, TENSOR)]
FLOPS = 2 * 4096**3


@pytest.mark.parametrize(
    ("device", "name", "arguments", "kernel", "path", "peak"),
    [
        (B200, "aten::_scaled_mm", SCALED, "nvjet_sm100_qqtst_128x256_128x6_2x1_2cta_v_bz_TNT", "matrix float8",
         4500e12),
        (B200, "aten::_scaled_mm", PACKED, "nvjet_sm100_ootst_128x256_256x4_2x1_2cta_v_bz_Bvec16UE4M3_TNT",
         "matrix float4", 9000e12),
        (B200, "aten::mm", PLAIN, "nvjet_sm100_tst_256x128_64x5_2x1_2cta_v_bz_TNT", "matrix bfloat16", 2250e12),
        (H800, "aten::mm", PLAIN, "nvjet_tst_192x192_64x4_1x2_h_bz_coopB_TNN", "matrix bfloat16", 989.4e12),
        (H800, "aten::_scaled_mm", SCALED, "nvjet_qqtst_128x128_128x6_1x2_h_bz_TNT", "matrix float8", 1978.9e12),
        (MI300X, "aten::mm", PLAIN, "Cijk_Ailk_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x256x64", "matrix bfloat16",
         1307.4e12),
    ],
)  # fmt: skip
def test_a_product_against_the_peak_of_its_dtype(  # noqa: PLR0913 - a row of a table
    measure: Measure,
    device: Record,
    name: str,
    arguments: list[tuple[list[int], str, str]],
    kernel: str,
    path: str,
    peak: float,
) -> None:
    """A product of 137 GFLOP in 250 us, against the dense peak of its operands' type on that machine."""
    roofline = measure(device, operator(name, arguments, kernel, 250))
    (point,) = roofline.points.to_dicts()
    assert (point["path"], point["flops"], point["reason"]) == (path, FLOPS, None)
    assert point["attained_ratio"] == pytest.approx(FLOPS / peak / 250e-6, rel=1e-4)
    assert point["bound"] == "compute"
    assert roofline.coverage_ratio == 1.0


@pytest.mark.parametrize(
    ("device", "memory"), [(B200, 7.7e12), (H800, 3.35e12), (MI300X, 5.3e12)], ids=lambda value: str(value)[:20]
)
def test_an_addition_against_the_memory(measure: Measure, device: Record, memory: float) -> None:
    """Two tensors of 128 MiB read and one written, against the bandwidth of that machine's memory."""
    arguments = [([8192, 8192], BF16, ""), ([8192, 8192], BF16, ""), ([], "Scalar", "1")]
    roofline = measure(
        device, operator("aten::add", arguments, "void at::native::vectorized_elementwise_kernel<4>", 200)
    )
    (point,) = roofline.points.to_dicts()
    assert point["num_bytes"] == 3 * 8192 * 8192 * 2
    assert point["attained_ratio"] == pytest.approx(3 * 8192 * 8192 * 2 / memory / 200e-6, rel=1e-4)
    assert point["bound"] == "memory"


HEADS = ([2, 8, 4096, 64], BF16, "")
PACKED_HEADS = ([8192, 16, 128], BF16, "")


@pytest.mark.parametrize(
    ("name", "arguments", "reason"),
    [
        # The autograd function of flash-attn's older versions, whose flags no trace holds.
        ("FlashAttnFunc", [HEADS] * 3, "causal"),
        # Four sequences of unequal length: only the longest is known.
        ("flash_attn::_flash_attn_varlen_forward",
         [*[PACKED_HEADS] * 3, ([5], "int", ""), ([5], "int", ""), *[([], "Scalar", "4096")] * 2,
          *[([], "Scalar", "0.")] * 2, ([], "Scalar", "True")], "unequal length"),
        ("triton_tem_fused_flex_attention_0",
         [*[HEADS] * 3, ([2, 8, 4096], "float", ""), *[([2, 1, 32], "int", "")] * 2, HEADS], "block mask"),
        ("_LinearBackward", [([4096, 4096], BF16, "")], "gradient alone"),
    ],
)  # fmt: skip
def test_matrix_work_whose_flops_are_unknown_has_no_place(
    measure: Measure, name: str, arguments: list[tuple[list[int], str, str]], reason: str
) -> None:
    """Its bytes alone would place attention deep under a roof that is not its own, with a saving that is not there."""
    kernel = name if name.startswith("triton") else "void flash_fwd_kernel<Flash_fwd_kernel_traits<128>>"
    roofline = measure(H800, operator(name, arguments, kernel, 900))
    (point,) = roofline.points.to_dicts()
    assert (point["attained_ratio"], point["bound"], point["saving_ns"]) == (None, None, None)
    assert reason in point["reason"]
    assert roofline.placed_ns == 0


def test_what_helps_a_product_did_not_do_it(measure: Measure) -> None:
    """Where a trace with holes lost the product itself, the kernel that sums its parts takes none of its FLOPs."""
    kernel = "void splitKreduce_kernel<32, 16, int, float, float, float, float, true, false, false>(int)"
    (point,) = measure(H800, operator("aten::mm", PLAIN, kernel, 8)).points.to_dicts()
    assert (point["flops"], point["num_bytes"]) == (None, None)
    assert "a helper of the matrix kernels of aten::mm" in point["reason"]


def test_kernels_of_a_replayed_graph_have_no_place(measure: Measure) -> None:
    """A replay tells no operator: nothing is placed, and every point says why."""
    link = {"correlation": 1}
    call = {"cat": "cuda_runtime", "name": "hipGraphLaunch", "pid": 10, "tid": 10, "ts": 5, "dur": 5}
    records: list[Record] = [{"ph": "X", **call, "args": link}]
    names = ("Cijk_Ailk_Bljk_BBS_BH", "_fwd_kernel", "void vllm::rms_norm_kernel<hip_bfloat16>")
    records += [
        {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 0, "ts": 20 + 10 * index, "dur": 8,
         "args": {"device": 0, "stream": 0, **link}}
        for index, name in enumerate(names)
    ]  # fmt: skip
    roofline = measure(MI300X, records)
    assert (roofline.placed_ns, roofline.compute_ns) == (0, 24_000)
    assert roofline.coverage_ratio == 0.0
    replayed = "launched by the replay of a graph, without an operator"
    assert set(roofline.points["reason"]) == {replayed}
    assert roofline.unplaced_ns() == {replayed: 24_000}


def test_what_is_not_placed_is_told_by_reason(measure: Measure) -> None:
    """Coverage says why the rest has no place, the largest share first: 35 and 10 us beside 55 us with a place."""
    product = operator("aten::mm", PLAIN, "nvjet_hsh_128x256_64x4_1x2_h_bz_coopB_TNT", 55)
    packed = operator("_LinearBackward", [([4096, 4096], BF16, "")], "void some_kernel()", 10, number=2)
    unknown = [
        operator("aten::mm", PLAIN, "void splitKreduce_kernel<32, 16, int, float>(int)", 30, number=3),
        operator("aten::mm", PLAIN, "void splitKreduce_kernel<32, 16, int, half>(int)", 5, number=4),
    ]
    roofline = measure(H800, [*product, *packed, *(record for records in unknown for record in records)]).check()
    shares = list(roofline.unplaced_ns().items())
    assert [length_ns for _, length_ns in shares] == [35_000, 10_000]
    assert "a helper of the matrix kernels of aten::mm" in shares[0][0]
    row = coverage_table({"rank 0": roofline}).rows[0]
    assert str(row[-1]).startswith(f"35.0 %, {shares[0][0]}; 10.0 %, ")


def test_reasons_that_cost_next_to_nothing_stand_together(measure: Measure) -> None:
    """Beside 55 ms with a place 30 us and 10 us have none, for two reasons: one remark, and no share of 0.0 %."""
    product = operator("aten::mm", PLAIN, "nvjet_hsh_128x256_64x4_1x2_h_bz_coopB_TNT", 55_000)
    packed = operator("_LinearBackward", [([4096, 4096], BF16, "")], "void some_kernel()", 10, number=2)
    helper = operator("aten::mm", PLAIN, "void splitKreduce_kernel<32, 16, int, float>(int)", 30, number=3)
    roofline = measure(H800, [*product, *packed, *helper]).check()
    reasons = list(roofline.unplaced_ns())
    assert len(reasons) == 2
    told = str(coverage_table({"rank 0": roofline}).rows[0][-1])
    assert told == f"less than 0.1 % each, {'; '.join(reasons)}"


def test_a_device_that_the_catalogue_does_not_know(measure: Measure) -> None:
    """An accelerator without figures has no roofline; the reason names it."""
    device = {"name": "MTIA v2", "totalGlobalMem": 137 * 10**9, "numSms": 64, "computeMajor": 0, "computeMinor": 0}
    roofline = measure(device, operator("aten::mm", PLAIN, "fc_gemm_kernel", 250))
    assert roofline.placed_ns == 0
    assert "MTIA v2" in roofline.points["reason"][0]
