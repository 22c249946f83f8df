"""Findings are measured on step time: what lies outside the steps changes none of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from scope.report.findings import find_all

if TYPE_CHECKING:
    from collections.abc import Callable

    from scope.report.findings import Finding
    from scope.report.results import Results

    Make = Callable[..., Results]

US = 1_000
STEP = 200_000
"""Where the step begins, in microseconds; what is early runs 100 ms before it."""
EARLY = STEP - 100_000
FLOATS = {"Input Dims": [[4096, 4096], [4096, 4096], []], "Input type": ["float", "float", "Scalar"]}
ADD = "void at::native::vectorized_elementwise_kernel<4, CUDAFunctor_add<float>>(int)"


def the(results: Results, kind: str) -> Finding:
    """Return the one finding of a kind."""
    (finding,) = [each for each in find_all(results) if each.kind == kind]
    return finding


def value(finding: Finding, key: str) -> Any:
    """Return one figure of the evidence."""
    return next(each.value for each in finding.evidence if each.column.key == key)


def operator(builder: Any, name: str, kernel: str, start: float, length: float) -> None:
    """Add an operator on two matrices of 4,096 x 4,096 and its kernel."""
    builder.host("cpu_op", name, start - 50, 40, **FLOATS)
    builder.launch(kernel, start - 45, start, length)


def all_reduce(builder: Any, start: float, length: float, *, elements: int) -> None:
    """Add an all_reduce of floats on a stream of its own."""
    args = {
        "Collective name": "allreduce", "In msg nelems": elements, "Out msg nelems": elements, "Group size": 2,
        "dtype": "Float", "Process Group Name": "0", "Process Group Ranks": "[0, 1]",
    }  # fmt: skip
    builder.launch("ncclDevKernel_AllReduce_Sum", start - 40, start, length, stream=20, **args)


@pytest.mark.parametrize("is_early", [False, True])
def test_kernels_before_the_step_do_not_count(builder: Any, results_of: Make, is_early: bool) -> None:
    """Ten additions of 80 us fill a step of 800 us, whether or not another ran for 5 us long before it."""
    if is_early:
        operator(builder, "aten::add", ADD, EARLY, 5)
    builder.step(1, STEP, 3000)
    for index in range(10):
        operator(builder, "aten::add", ADD, STEP + 100 + 80 * index, 80)
    finding = the(results_of(builder), "memory_bound_kernels")
    assert (finding.cost_ns, finding.share_ratio) == (800 * US, 1.0)
    assert value(finding, "num_kernels") == 10
    assert "100.0 % of step time (800 us)" in finding.title


@pytest.mark.parametrize("is_early", [False, True])
def test_communication_before_the_step_does_not_count(builder: Any, results_of: Make, is_early: bool) -> None:
    """Compute hides 100 of 400 us in a step of 1,000 us, whether or not 50 us before it were hidden as a whole."""
    if is_early:
        builder.launch("sm90_gemm_kernel", EARLY - 45, EARLY, 50)
        all_reduce(builder, EARLY, 50, elements=1 << 20)
    builder.step(1, STEP, 3000)
    builder.launch("sm90_gemm_kernel", STEP + 1, STEP + 100, 700)
    all_reduce(builder, STEP + 700, 400, elements=1 << 20)
    finding = the(results_of(builder), "exposed_communication")
    assert (finding.cost_ns, value(finding, "overlap_ratio")) == (300 * US, 0.25)
    assert "step time of all devices 1 ms" in ", ".join(each.text() for each in finding.evidence)


@pytest.mark.parametrize("is_early", [False, True])
def test_products_before_the_step_do_not_count(builder: Any, results_of: Make, is_early: bool) -> None:
    """A product in FP32 of 250 us in a step of 1,000 us is a quarter of it, not less for one before the step."""
    if is_early:
        operator(builder, "aten::mm", "ampere_sgemm_128x64_tn", EARLY, 400)
    builder.step(1, STEP, 3000)
    operator(builder, "aten::mm", "ampere_sgemm_128x64_tn", STEP + 100, 250)
    builder.launch("other_kernel", STEP + 101, STEP + 350, 750)
    finding = the(results_of(builder), "tensor_cores_unused")
    assert (finding.cost_ns, finding.share_ratio) == (250 * US, 0.25)


@pytest.mark.parametrize("is_early", [False, True])
def test_small_messages_before_the_step_do_not_count(builder: Any, results_of: Make, is_early: bool) -> None:
    """Ten exposed messages of 10 us in a step of 1,000 us are a tenth of it, with one of 5 us before it or without."""
    if is_early:
        all_reduce(builder, EARLY, 5, elements=500)
    builder.step(1, STEP, 3000)
    builder.launch("sm90_gemm_kernel", STEP + 1, STEP + 100, 900)
    for index in range(10):
        all_reduce(builder, STEP + 1000 + 10 * index, 10, elements=1000)
    finding = the(results_of(builder), "small_messages")
    assert (finding.cost_ns, finding.share_ratio) == (100 * US, 0.1)
    assert value(finding, "num_calls") == 10


def test_the_worst_collective_is_that_of_step_time(builder: Any, results_of: Make) -> None:
    """Of 60, 50 and 50 us exposed in the step the first is the largest part and not most; 500 us before count not."""
    all_reduce(builder, EARLY, 500, elements=10_000_000)
    builder.step(1, STEP, 3000)
    builder.launch("sm90_gemm_kernel", STEP + 1, STEP + 100, 840)
    for start, length, elements in ((940, 60, 25_000_000), (1000, 50, 10_000_000), (1050, 50, 5_000_000)):
        all_reduce(builder, STEP + start, length, elements=elements)
    finding = the(results_of(builder), "exposed_communication")
    assert (finding.cost_ns, finding.share_ratio) == (160 * US, 0.16)
    assert value(finding, "worst_exposed_ns") == 60 * US
    assert finding.title.endswith("16.0 % of step time (160 us), the largest part all_reduce of 100 MB in 0")


def test_blocking_calls_before_the_step_are_not_named(builder: Any, results_of: Make) -> None:
    """A call that idled the device for 1,900 us before the step is neither named nor counted; one inside it is."""
    builder.launch("sm90_gemm_kernel", EARLY, EARLY + 10, 100)
    builder.host("cuda_runtime", "cudaDeviceSynchronize", EARLY + 20, 2000)
    builder.launch("sm90_gemm_kernel", EARLY + 2010, EARLY + 2020, 10)
    builder.step(1, STEP, 1300)
    builder.launch("sm90_gemm_kernel", STEP + 90, STEP + 100, 400)
    builder.host("cuda_runtime", "cudaStreamSynchronize", STEP + 210, 390)
    builder.launch("sm90_gemm_kernel", STEP + 600, STEP + 600, 500)
    results = results_of(builder)
    idle = dict(results.analysis.syncs.select("name", "idle_ns").iter_rows())
    assert idle["cudaDeviceSynchronize"] > idle["cudaStreamSynchronize"]
    finding = the(results, "synchronising_calls")
    assert (finding.cost_ns, finding.share_ratio) == (100 * US, 0.1)
    assert finding.where.calls == ("cudaStreamSynchronize",)
    assert value(finding, "num_calls") == 1


def test_more_than_half_is_most(builder: Any, results_of: Make) -> None:
    """60 of 110 us exposed are most of it."""
    builder.step(1, STEP, 3000)
    builder.launch("sm90_gemm_kernel", STEP + 1, STEP + 100, 840)
    for start, length, elements in ((940, 60, 25_000_000), (1000, 50, 10_000_000)):
        all_reduce(builder, STEP + start, length, elements=elements)
    assert "most of it all_reduce of 100 MB" in the(results_of(builder), "exposed_communication").title


def test_allocations_without_steps_are_counted_in_the_window(builder: Any, results_of: Make) -> None:
    """Three calls that idle the device for 200 of 1,000 us are three in the window, where no step is recorded."""
    builder.launch("sm90_gemm_kernel", 90, 100, 400)
    builder.host("cuda_runtime", "cudaFree", 500, 100)
    builder.host("cuda_runtime", "cudaMalloc", 600, 50)
    builder.host("cuda_runtime", "cudaMalloc", 650, 50)
    builder.launch("sm90_gemm_kernel", 700, 700, 400)
    finding = the(results_of(builder), "device_allocation")
    assert finding.title == (
        "3 allocations from the driver in the window, 1 of them frees idle the device for 20.0 % of the window (200 us)"
    )
    assert (value(finding, "num_calls"), value(finding, "num_frees")) == (3, 1)


def test_a_free_in_a_window_without_steps_is_no_retry(builder: Any, results_of: Make) -> None:
    """A cudaFree that idles nothing is a finding inside a step, where it retries, and none where there are no steps."""
    builder.launch("sm90_gemm_kernel", 90, 100, 400)
    builder.launch("sm90_gemm_kernel", 95, 500, 400)
    builder.host("cuda_runtime", "cudaFree", 200, 100)
    assert "device_allocation" not in {each.kind for each in find_all(results_of(builder))}


@pytest.mark.parametrize("early_us", [0, 2000])
def test_compute_before_the_step_does_not_thin_recompute(builder: Any, results_of: Make, early_us: int) -> None:
    """300 of 1,000 us of a step's compute run again are 30 %, however much was computed before the step."""
    if early_us:
        builder.launch("sm90_gemm_kernel", EARLY - 10, EARLY, early_us)
    builder.step(1, STEP, 1300)
    builder.host("cpu_op", "aten::mm", STEP + 10, 20, **{"Sequence number": 5, "External id": 1})
    builder.launch("sm90_gemm_kernel", STEP + 12, STEP + 100, 700)
    builder.host("cpu_op", "autograd::engine::evaluate_function: CheckpointBackward", STEP + 40, 100)
    builder.host("cpu_op", "aten::mm", STEP + 50, 20, **{"Sequence number": 9, "External id": 2})
    builder.launch("sm90_gemm_kernel", STEP + 52, STEP + 800, 300)
    finding = the(results_of(builder), "recompute")
    assert finding.cost_ns == 300 * US
    assert finding.share_ratio == pytest.approx(0.3)
