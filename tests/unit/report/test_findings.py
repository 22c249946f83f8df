"""Each finding has one trace that shows it and one that must not."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from scope.report.build import compute_results
from scope.report.findings import FINDING_KINDS, find_all, time_awaited
from scope.report.findings.time_awaited import find_awaited_launches
from scope.trace import load

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from scope.report.findings import Finding
    from scope.report.results import Results

    Make = Callable[..., Results]

US = 1_000


def kinds(results: Results) -> set[str]:
    """Return the kinds of the findings."""
    return {finding.kind for finding in find_all(results)}


def the(results: Results, kind: str) -> Finding:
    """Return the one finding of a kind."""
    (finding,) = [each for each in find_all(results) if each.kind == kind]
    return finding


def fill(builder: Any, spans: list[tuple[float, float]], *, name: str = "sm90_gemm_kernel") -> None:
    """Add kernels that were launched early, so that gaps between them are no fault of the host."""
    for start, end in spans:
        builder.launch(name, 1, start, end - start)


def nccl(builder: Any, start: float, length: float, *, elements: int, stream: int = 20) -> None:
    """Add an all_reduce with metadata, launched early, on a stream of its own."""
    args = {
        "Collective name": "allreduce", "In msg nelems": elements, "Out msg nelems": elements, "Group size": 2,
        "dtype": "Float", "Process Group Name": "0", "Process Group Description": "default_pg",
        "Process Group Ranks": "[0, 1]",
    }  # fmt: skip
    builder.launch("ncclDevKernel_AllReduce_Sum", 2, start, length, stream=stream, **args)


def test_exposed_communication_names_the_collective_and_its_cost(builder: Any, results_of: Make) -> None:
    """300 of 1,000 us in which only an all_reduce runs are a finding of 300 us that names it."""
    builder.step(1, 0, 1200)
    fill(builder, [(100, 800)])
    nccl(builder, 700, 400, elements=25_000_000)
    finding = the(results_of(builder), "exposed_communication")
    assert finding.cost_ns == 300 * US
    assert finding.share_ratio == pytest.approx(0.3)
    assert "all_reduce of 100 MB" in finding.title


def test_communication_under_compute_is_no_finding(builder: Any, results_of: Make) -> None:
    """An all_reduce that compute covers wholly costs nothing."""
    builder.step(1, 0, 1200)
    fill(builder, [(100, 1100)])
    nccl(builder, 200, 800, elements=25_000_000)
    assert "exposed_communication" not in kinds(results_of(builder))


def test_slow_launches_make_the_device_run_dry(builder: Any, results_of: Make) -> None:
    """Kernels of 10 us that are launched every 50 us leave 80 % of the time to the host."""
    builder.step(1, 0, 1100)
    for index in range(20):
        builder.launch("sm90_gemm_kernel", 50 * index, 50 * index + 5, 10)
    finding = the(results_of(builder), "launch_bound")
    # 19 gaps of 40 us: 35 us of host code and 5 us from the launching call to the start.
    assert finding.cost_ns == 19 * 40 * US
    assert finding.evidence[0].value == 19 * 35 * US
    assert finding.evidence[1].value == 19 * 5 * US
    assert finding.title.startswith("The host launches too slowly")
    assert finding.action.startswith("Launch less or launch cheaper")


def test_launches_that_arrive_late_are_to_be_fewer(builder: Any, results_of: Make) -> None:
    """Of gaps of 40 us 30 are between the call and the start: no fault of the host, whose advice stands alone."""
    builder.step(1, 0, 1100)
    for index in range(20):
        builder.launch("sm90_gemm_kernel", 50 * index, 50 * index + 30, 10)
    finding = the(results_of(builder), "launch_bound")
    assert finding.title.startswith("Each launch takes long to reach the device")
    assert finding.action.startswith("Every launch onto a device that ran dry pays this delay once more, ")


def test_a_device_that_is_kept_busy_is_not_launch_bound(builder: Any, results_of: Make) -> None:
    """Kernels that run back to back, launched ahead, are no finding about the host."""
    builder.step(1, 0, 1100)
    fill(builder, [(100 + 100 * index, 200 + 100 * index) for index in range(10)])
    assert kinds(results_of(builder)) <= {"trace_too_poor"}


def test_waiting_for_the_data_loader_is_input_bound(builder: Any, results_of: Make) -> None:
    """200 us in the data loader before the next launch are 200 us of input."""
    builder.step(1, 0, 1300)
    builder.launch("sm90_gemm_kernel", 90, 100, 500)
    builder.host("user_annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 600, 200)
    builder.launch("sm90_gemm_kernel", 800, 800, 300)
    finding = the(results_of(builder), "input_bound")
    assert finding.cost_ns == 200 * US
    assert finding.share_ratio == pytest.approx(0.2)
    assert finding.where.ranks == (0,)


def test_a_data_loader_that_runs_beside_the_device_is_no_finding(builder: Any, results_of: Make) -> None:
    """Input that is fetched while the device computes costs nothing."""
    builder.step(1, 0, 1300)
    builder.host("user_annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 110, 200)
    fill(builder, [(100, 600), (600, 1100)])
    assert "input_bound" not in kinds(results_of(builder))


def test_synchronising_calls_are_named_with_their_operator(builder: Any, results_of: Make) -> None:
    """A synchronisation in aten::item that outlasts the kernels by 100 us costs those 100 us."""
    builder.step(1, 0, 1300)
    builder.launch("sm90_gemm_kernel", 90, 100, 400)
    builder.host("cpu_op", "aten::item", 200, 410)
    builder.host("cuda_runtime", "cudaStreamSynchronize", 210, 390)
    builder.launch("sm90_gemm_kernel", 600, 600, 500)
    finding = the(results_of(builder), "synchronising_calls")
    assert finding.cost_ns == 100 * US
    assert finding.where.calls[0] == "cudaStreamSynchronize in aten::item"


def test_a_synchronisation_behind_which_work_is_queued_is_no_finding(builder: Any, results_of: Make) -> None:
    """A blocking call does no harm when the device has work to the end of it and beyond."""
    builder.step(1, 0, 1300)
    fill(builder, [(100, 600), (600, 1100)])
    builder.host("cuda_runtime", "cudaEventSynchronize", 110, 300)
    assert "synchronising_calls" not in kinds(results_of(builder))


def test_exposed_small_messages_are_counted(builder: Any, results_of: Make) -> None:
    """Ten exposed messages of 4 kB that take 10 us each are a finding of 100 us."""
    builder.step(1, 0, 1300)
    fill(builder, [(100, 1000)])
    for index in range(10):
        nccl(builder, 1000 + 10 * index, 10, elements=1000)
    finding = the(results_of(builder), "small_messages")
    assert finding.cost_ns == 100 * US
    assert finding.evidence[1].value == 10
    assert finding.evidence[2].value == 4000


def test_small_messages_in_flight_together_cost_no_more_than_there_is(builder: Any, results_of: Make) -> None:
    """Ten messages of two sizes, two at a time on two streams, that take 100 us one after the other cost 100 us."""
    builder.step(1, 0, 1300)
    fill(builder, [(100, 1000)])
    for index in range(10):
        for stream, elements in ((20, 1000), (21, 500)):
            nccl(builder, 1000 + 10 * index, 10, elements=elements, stream=stream)
    finding = the(results_of(builder), "small_messages")
    assert finding.cost_ns == 100 * US
    assert finding.evidence[1].value == 20


@pytest.mark.parametrize(("world_size", "lack"), [(1, None), (2, "1 of 2 ranks"), (64, "63 of 64 ranks")])
def test_where_ranks_are_missing_a_late_one_is_looked_for_first(
    builder: Any, results_of: Make, world_size: int, lack: str | None
) -> None:
    """What is exposed beside ranks that were not traced may be the wait for them: said before buckets are advised."""
    builder.world_size = world_size
    builder.step(1, 0, 1300)
    fill(builder, [(100, 900)])
    for index in range(10):
        nccl(builder, 1000 + 20 * index, 20, elements=1000)
    results = results_of(builder)
    for kind, advice in (("exposed_communication", "Start these collectives"), ("small_messages", "Latency, not")):
        action = the(results, kind).action
        if lack is None:
            assert action.startswith(advice)
        else:
            assert action.startswith(f"The traces lack {lack}, and all of this may be the wait for one of those: ")
            assert f"(scope show RUN). Only then: {advice}" in action


def test_large_messages_are_no_small_messages(builder: Any, results_of: Make) -> None:
    """Exposed messages of 4 MB are not called small."""
    builder.step(1, 0, 1300)
    fill(builder, [(100, 1000)])
    for index in range(10):
        nccl(builder, 1000 + 10 * index, 10, elements=1_000_000)
    assert "small_messages" not in kinds(results_of(builder))


def test_driver_allocations_inside_steps_are_found(builder: Any, results_of: Make) -> None:
    """A cudaFree and a cudaMalloc between two kernels cost the time that the device stands idle for them."""
    builder.step(1, 0, 1300)
    builder.launch("sm90_gemm_kernel", 90, 100, 400)
    builder.host("cuda_runtime", "cudaFree", 500, 60)
    builder.host("cuda_runtime", "cudaMalloc", 560, 40)
    builder.launch("sm90_gemm_kernel", 600, 600, 500)
    finding = the(results_of(builder), "device_allocation")
    assert finding.cost_ns == 100 * US
    assert "2 allocations from the driver inside steps, 1 of them frees" in finding.title


def test_allocations_before_the_first_step_are_no_finding(builder: Any, results_of: Make) -> None:
    """Memory that is taken once, before the steps, is as it should be."""
    builder.host("cuda_runtime", "cudaMalloc", 0, 40)
    builder.step(1, 50, 1300)
    fill(builder, [(100, 600), (600, 1100)])
    assert "device_allocation" not in kinds(results_of(builder))


def _with_backward(builder: Any, *, recomputed: bool) -> None:
    builder.step(1, 0, 1300)
    builder.host("cpu_op", "aten::mm", 10, 20, **{"Sequence number": 5, "External id": 1})
    builder.launch("sm90_gemm_kernel", 12, 100, 300)
    builder.host("cpu_op", "autograd::engine::evaluate_function: CheckpointBackward", 40, 100)
    inner = {"Sequence number": 9, "External id": 2} if recomputed else {"External id": 2}
    builder.host("cpu_op", "aten::mm", 50, 20, **inner)
    builder.launch("sm90_gemm_kernel", 52, 400, 300)
    builder.host("cpu_op", "aten::mm", 80, 20, **{"External id": 3})
    builder.launch("sm90_gemm_kernel", 82, 700, 400)


def test_forward_that_backward_runs_again_is_recompute(builder: Any, results_of: Make) -> None:
    """300 of 1,000 us of compute run again inside backward are a recompute of 30 %."""
    _with_backward(builder, recomputed=True)
    finding = the(results_of(builder), "recompute")
    assert finding.share_ratio == pytest.approx(0.3)


def test_plain_backward_is_no_recompute(builder: Any, results_of: Make) -> None:
    """Operators in backward that build no graph are backward itself."""
    _with_backward(builder, recomputed=False)
    assert "recompute" not in kinds(results_of(builder))


def _product(builder: Any, name: str, start: float, length: float, *, dtype: str, columns: int) -> None:
    dims = [[4096, 4096], [4096, columns]]
    builder.host("cpu_op", "aten::mm", start - 50, 40, **{"Input Dims": dims, "Input type": [dtype, dtype]})
    builder.launch(name, start - 45, start, length)


@pytest.mark.parametrize(
    ("kernel", "dtype", "columns", "found"),
    [
        pytest.param("ampere_sgemm_128x64_tn", "float", 4096, True, id="full-fp32"),
        pytest.param("cutlass_80_tensorop_s1688tf32gemm_128x128", "float", 4096, False, id="tf32"),
        pytest.param("sm90_xmma_gemm_bf16bf16_bf16f32", "c10::BFloat16", 4096, False, id="aligned-bf16"),
        pytest.param("sm90_xmma_gemm_bf16bf16_bf16f32", "c10::BFloat16", 4097, True, id="misaligned-shape"),
        pytest.param(
            "void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_32x32_128x2_tn_align2>(int)",
            "c10::BFloat16",
            4096,
            True,
            id="misaligned-kernel",
        ),
    ],
)
def test_products_beside_the_tensor_cores(
    builder: Any, results_of: Make, kernel: str, dtype: str, columns: int, found: bool
) -> None:
    """Products in full FP32 or with misaligned operands are found; TF32 and aligned 16-bit ones are not."""
    builder.step(1, 0, 1300)
    _product(builder, kernel, 100, 1000, dtype=dtype, columns=columns)
    assert ("tensor_cores_unused" in kinds(results_of(builder))) == found


def test_tensor_cores_are_no_matter_of_other_accelerators(builder: Any, results_of: Make) -> None:
    """An accelerator that Scope doesn't know, and that neither CUDA nor HIP drives, may have no tensor cores."""
    builder.step(1, 0, 1300)
    _product(builder, "fc_kernel", 100, 1000, dtype="float", columns=4096)
    builder.device = {"id": 0, "name": "MTIA v2"}
    assert "tensor_cores_unused" in kinds(results_of(builder))
    for each in builder.records:
        if each["cat"] == "cuda_runtime":
            each.update(cat="mtia_runtime", name="runFunction - job_prep_and_submit_for_execution")
    assert "tensor_cores_unused" not in kinds(results_of(builder))


def _elementwise(builder: Any, *, count: int, length: float) -> None:
    builder.step(1, 0, 3000)
    inputs = {"Input Dims": [[4096, 4096], [4096, 4096], []], "Input type": ["float", "float", "Scalar"]}
    name = "void at::native::vectorized_elementwise_kernel<4, CUDAFunctor_add<float>>(int)"
    for index in range(count):
        at = 100 + index * length
        builder.host("cpu_op", "aten::add", at - 30, 20, **inputs)
        builder.launch(name, at - 25, at, length)


def test_many_memory_bound_kernels_are_worth_fusing(builder: Any, results_of: Make) -> None:
    """Ten additions that stream 201 MB each, near the bandwidth of an H100, are worth fusing."""
    _elementwise(builder, count=10, length=80)
    finding = the(results_of(builder), "memory_bound_kernels")
    assert finding.cost_ns == 10 * 80 * US
    assert finding.evidence[1].value == 10


def test_few_memory_bound_kernels_beside_products_are_no_finding(builder: Any, results_of: Make) -> None:
    """One addition beside a product of ten times its length is left alone."""
    _elementwise(builder, count=1, length=80)
    _product(builder, "sm90_xmma_gemm_bf16bf16_bf16f32", 200, 1000, dtype="c10::BFloat16", columns=4096)
    assert "memory_bound_kernels" not in kinds(results_of(builder))


def test_a_slow_product_could_be_faster(builder: Any, results_of: Make) -> None:
    """A product of 137.4 GFLOP in BF16 takes 139 us at an H100's peak: 1,000 us are 861 us too many."""
    builder.step(1, 0, 1300)
    _product(builder, "sm90_xmma_gemm_bf16bf16_bf16f32", 100, 1000, dtype="c10::BFloat16", columns=4096)
    finding = the(results_of(builder), "far_below_ceiling")
    flops = 2 * 4096**3
    assert finding.cost_ns == pytest.approx(1_000_000 - flops / 989.4e12 * 1e9, rel=0.001)


def test_a_product_near_its_peak_is_not_slow(builder: Any, results_of: Make) -> None:
    """A product that takes 140 us of at least 139 us is neither far below its ceiling nor above it."""
    builder.step(1, 0, 3000)
    _product(builder, "sm90_xmma_gemm_bf16bf16_bf16f32", 100, 140, dtype="c10::BFloat16", columns=4096)
    assert not {"far_below_ceiling", "roofline_exceeded"} & kinds(results_of(builder))


def test_a_product_above_its_peak_is_doubted(builder: Any, results_of: Make) -> None:
    """A product that takes half of what the peak allows tells of a wrong peak or model, at no cost."""
    builder.step(1, 0, 3000)
    _product(builder, "sm90_xmma_gemm_bf16bf16_bf16f32", 100, 70, dtype="c10::BFloat16", columns=4096)
    results = results_of(builder)
    finding = the(results, "roofline_exceeded")
    assert finding.cost_ns is None
    assert "far_below_ceiling" not in kinds(results)


def test_what_a_poor_trace_lacks_is_listed_with_how_to_record_it(builder: Any, results_of: Make) -> None:
    """A trace without steps and shapes says so, and how to get them."""
    fill(builder, [(100, 1100)])
    finding = the(results_of(builder), "trace_too_poor")
    assert "steps" in finding.title
    assert "shapes" in finding.title
    assert [each.text() for each in finding.evidence] == ["traces read 1"]
    assert "profiler.step()" in finding.action
    assert "record_shapes=True" in finding.action


def test_a_trace_of_ranges_alone_lacks_device_events(builder: Any, results_of: Make) -> None:
    """Without operators nothing stands in place of the devices; with them the host's timeline, if no GPU is named."""
    builder.step(1, 0, 100)
    assert "device events" in the(results_of(builder), "trace_too_poor").title
    builder.host("cpu_op", "aten::mm", 10, 50)
    assert "device events" in the(results_of(builder), "trace_too_poor").title
    builder.device = None
    assert "trace_too_poor" not in kinds(results_of(builder))


@pytest.mark.parametrize(
    ("name", "lacked"),
    [
        ("tracelens/mi210_gpu_only.json.gz", "operators (what launched the kernels), shapes"),
        ("hta/sampled_rank-0.json.gz", "lack: groups of collectives"),
        ("hta/v100_train_rank1of2.json.gz", "sizes and groups of collectives"),
    ],
)
def test_real_traces_say_what_they_lack(shared_traces: Path, name: str, lacked: str) -> None:
    """A recording of the GPU alone lacks operators, and calls that say their sizes lack their groups alone."""
    results = compute_results(load([str(shared_traces / name)]))
    assert lacked in the(results, "trace_too_poor").title


def test_a_host_timeline_of_gloo_is_not_told_to_use_a_newer_torch(shared_traces: Path) -> None:
    """No torch writes the groups of gloo into a trace; the records of a run have them."""
    results = compute_results(load([str(shared_traces / "hta" / "cpu_only_rank34of300.json.gz")]))
    finding = the(results, "trace_too_poor")
    assert "lack: groups of collectives" in finding.title
    assert "torch 2.2" not in finding.action
    assert "scope run" in finding.action


def test_a_complete_trace_lacks_nothing(builder: Any, results_of: Make) -> None:
    """Steps, launches and shapes are all that a single rank without collectives needs."""
    builder.step(1, 0, 1300)
    _product(builder, "sm90_xmma_gemm_bf16bf16_bf16f32", 100, 140, dtype="c10::BFloat16", columns=4096)
    assert "trace_too_poor" not in kinds(results_of(builder))


def test_findings_are_ranked_by_cost_and_serialise(builder: Any, results_of: Make) -> None:
    """The costliest comes first, those of unknown cost last, and each is a record with all keys."""
    builder.step(1, 0, 1100)
    for index in range(20):
        builder.launch("sm90_gemm_kernel", 50 * index, 50 * index + 5, 10)
    nccl(builder, 960, 200, elements=1000)
    findings = find_all(results_of(builder))
    shares = [-1.0 if each.share_ratio is None else each.share_ratio for each in findings]
    assert len(findings) >= 3
    assert shares == sorted(shares, reverse=True)
    assert all(finding.kind in FINDING_KINDS for finding in findings)
    assert json.loads(json.dumps([finding.to_record() for finding in findings]))[0]["title"] == findings[0].title


def test_idle_time_under_graph_replay_is_doubted(shared_traces: Path) -> None:
    """A decode that replays graphs says that its idle time may be kernels that the profiler missed.

    Its kernels wait 463 ms after their launch, all but 0.3 ms of it while the host is in one blocking copy: that is no
    slow launching, and no use of graphs would make it shorter.
    """
    results = compute_results(load([str(shared_traces / "tracelens" / "mi300_hipgraph_decode.json.gz")]))
    finding = the(results, "trace_too_poor")
    assert "replayed graphs" in finding.title
    # The copy's call begins at 216,566.336 us, the kernel before it starts at 679,584.875 us.
    assert "held launched work up for 463 ms while the host waited for it in hipMemcpyWithStream" in finding.title
    assert find_awaited_launches(results).time_ns == 679_584_875 - 216_566_336
    assert "launch_bound" not in kinds(results)


def test_a_launch_that_a_later_blocking_call_waits_for_is_not_slow(builder: Any, results_of: Make) -> None:
    """Of 600 us from launch to start the host sat 560 in a synchronisation; of a launch alone all is latency."""
    builder.step(1, 0, 1300)
    builder.launch("sm90_gemm_kernel", 0, 10, 100)
    builder.launch("sm90_gemm_kernel", 200, 800, 300)
    assert the(results_of(builder), "launch_bound").cost_ns == (90 + 600) * US
    builder.host("cuda_runtime", "cudaStreamSynchronize", 240, 600)
    assert find_awaited_launches(results_of(builder)).time_ns == 560 * US
    assert the(results_of(builder), "launch_bound").cost_ns == (90 + 40) * US


@pytest.mark.parametrize("starts", [(20,), (150,), (150, 190), (250, 400)])
def test_blocking_calls_of_another_thread_change_no_wait(
    builder: Any, results_of: Make, starts: tuple[float, ...]
) -> None:
    """A helper's calls, among those of the launching thread, neither hide the 560 us that it sat in its own nor add."""
    builder.step(1, 0, 1300)
    builder.launch("sm90_gemm_kernel", 0, 10, 100)
    builder.launch("sm90_gemm_kernel", 200, 800, 300)
    builder.host("cuda_runtime", "cudaStreamSynchronize", 120, 10)
    builder.host("cuda_runtime", "cudaStreamSynchronize", 240, 600)
    for start in starts:
        builder.host("cuda_runtime", "cudaEventSynchronize", start, 5)
        builder.records[-1]["tid"] = 77
    awaited = find_awaited_launches(results_of(builder))
    assert (awaited.time_ns, awaited.calls) == (560 * US, ("cudaStreamSynchronize",))
    assert the(results_of(builder), "launch_bound").title.startswith("The host launches too slowly")


def test_what_launches_waited_for_is_looked_for_once(
    builder: Any, results_of: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two findings rest on it, and the timeline of the one rank is built once for both."""
    builder.step(1, 0, 1300)
    builder.launch("sm90_gemm_kernel", 0, 10, 100)
    builder.launch("sm90_gemm_kernel", 200, 800, 300)
    builder.host("cuda_runtime", "cudaStreamSynchronize", 240, 600)
    results = results_of(builder)
    built: list[Any] = []
    original = time_awaited.build_timeline
    monkeypatch.setattr(time_awaited, "build_timeline", lambda *a, **k: built.append(a) or original(*a, **k))
    assert {"launch_bound", "trace_too_poor"} <= set(kinds(results))
    assert len(built) == 1


def test_ranks_of_different_steps_are_told(builder: Any, results_of: Make) -> None:
    """Which rank recorded which steps is said where they differ, and nothing where they do not."""
    other = type(builder)(rank=1, world_size=2)
    builder.world_size = 2
    for rank in (builder, other):
        rank.step(3, 0, 1300)
        fill(rank, [(100, 1100)])
    assert "the same steps" not in the(results_of(builder, other), "trace_too_poor").title
    other.step(4, 1300, 100)
    finding = the(results_of(builder, other), "trace_too_poor")
    assert "the same steps of all ranks (rank 0 has 3, rank 1 has 3-4)" in finding.title
    assert "one schedule" in finding.action
