"""Small traces as other machines and libraries write them, against figures worked out by hand."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Record = dict[str, Any]

US = 1_000
HOST = 4242


def event(name: str, start: float, length: float, correlation: int, *, stream: int = 7, **more: Any) -> Record:
    """Return a kernel, or what `cat` says, on a stream of a device."""
    device = more.pop("device", 0)
    args = {"device": device, "stream": stream, "correlation": correlation}
    record: Record = {"ph": "X", "cat": "kernel", "name": name, "pid": device, "tid": stream}
    return record | {"ts": start, "dur": length} | more | {"args": args}


def call(start: float, correlation: int, name: str = "cudaLaunchKernel", cat: str = "cuda_runtime") -> Record:
    """Return a call of a runtime, 1 us long."""
    link = {"correlation": correlation}
    return {"ph": "X", "cat": cat, "name": name, "pid": HOST, "tid": HOST, "ts": start, "dur": 1, "args": link}


def step(number: int, start: float, length: float) -> Record:
    """Return a step of the profiler."""
    name = f"ProfilerStep#{number}"
    return {"ph": "X", "cat": "user_annotation", "name": name, "pid": HOST, "tid": HOST, "ts": start, "dur": length}


@pytest.fixture
def report(scope: Callable[..., Any], tmp_path: Path) -> Callable[[list[Record]], dict[str, Any]]:
    """Return a function that writes a trace of rank 0 and returns what `scope analyze --json` says of it."""

    def write_and_analyze(records: list[Record]) -> dict[str, Any]:
        path = tmp_path / "rank0.json"
        path.write_text(json.dumps({"distributedInfo": {"rank": 0, "world_size": 1}, "traceEvents": records}))
        done = scope("analyze", path, "--json", "--no-cache")
        assert done.code == 0, done.err
        return json.loads(done.out)

    return write_and_analyze


def breakdown(rank: dict[str, Any]) -> list[float]:
    """Return window, compute, exposed communication, exposed memory, idle, communication and overlap, in us."""
    keys = ("window", "compute", "exposed_communication", "exposed_memory", "idle", "communication", "overlap")
    return [rank[f"{key}_ns"] / US for key in keys]


def test_expert_parallel_training_over_deep_ep(report: Any) -> None:
    """DeepEP's notify, dispatch and combine are communication beside NCCL's; launches through the driver count."""
    records = [step(1, 0, 300)]
    kernels = [
        ("void deep_ep::intranode::notify_dispatch<8>(int const*)", 20, 10, 20),
        ("void deep_ep::intranode::dispatch<(int)2, (int)768, (int)8192>(int4 *)", 30, 50, 20),
        ("nvjet_tst_192x192_64x4_1x2_h_bz_coopB_TNN", 50, 100, 7),
        ("void deep_ep::intranode::combine<__nv_bfloat16, 8, 768, 4096>", 140, 60, 20),
        ("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 210, 10, 24),
    ]
    for number, (name, start, length, stream) in enumerate(kernels, start=1):
        records += [call(9 + number, number, "cuLaunchKernelEx", "cuda_driver")]
        records += [event(name, start, length, number, stream=stream)]
    document = report(records)
    (rank,) = document["ranks"]
    # Communication: 20-80, 140-200, 210-220. Compute 50-150 hides 50-80 and 140-150.
    assert breakdown(rank) == [200, 100, 90, 0, 10, 130, 40]
    exposed = {row["operation"]: (row["exposed_ns"] // US, row["num_calls"]) for row in document["exposed_collectives"]}
    assert exposed == {"all_to_all": (80, 3), "all_gather": (10, 1)}
    (launches,) = document["launches"]
    # From each call's start: 10 + 19 + 38 + 127 + 196.
    assert (launches["num_calls"], launches["total_delay_ns"]) == (5, 390 * US)
    # Waiting launches: 4 for 10 us, 3 for 20, 2 for 90, 1 for 70, none for 10.
    assert rank["queue"]["mean_depth"] == pytest.approx(350 / 200)
    assert (rank["queue"]["max_depth"], rank["queue"]["empty_ns"]) == (4, 10 * US)


def test_replay_of_hip_graphs(report: Any) -> None:
    """All kernels of a replay belong to its one launch and step; a copy inside the graph is a copy."""
    records = [step(1, 0, 100), step(2, 100, 100)]
    for correlation, base in ((1, 0), (9, 100)):
        records.append(call(base + 10, correlation, "hipGraphLaunch"))
        records += [event(f"Cijk_Alik_Bljk_{i}", base + 20 + 5 * i, 4, correlation, stream=0) for i in range(4)]
    records.append(event("__amd_rocclr_copyBuffer", 150, 3, 9, stream=0))
    document = report(records)
    (rank,) = document["ranks"]
    assert breakdown(rank) == [133, 32, 0, 3, 98, 0, 0]
    steps = {row["step"]: (row["window_ns"] // US, row["compute_ns"] // US) for row in document["rank_steps"]}
    assert (steps["1"], steps["2"]) == ((100, 16), (33, 16))
    (launches,) = document["launches"]
    assert (launches["kind"], launches["num_calls"], launches["num_device_events"]) == ("graph", 2, 9)
    assert rank["quality"]["device_events_without_launch"] == 0
    idle = rank["idle"]
    # Six gaps of 1 us within the replays; 39 to 110 before the second launch, then 10 to its start; 11 before the copy.
    causes = ("back_to_back", "host", "launch_latency", "blocked")
    assert [idle[f"{cause}_ns"] // US for cause in causes] == [6, 71, 10, 11]


def test_mtia(report: Any) -> None:
    """Events of MTIA's engines occupy the device, its insights do not, and one job launches several."""
    launch = "runFunction - job_prep_and_submit_for_execution"
    records = [
        step(1, 0, 100),
        call(5, 1, launch, "mtia_runtime"),
        event("fc_kernel", 10, 20, 1, stream=1, cat="mtia_ccp_events"),
        event("hccl_allreduce", 25, 20, 1, stream=2, cat="mtia_ccp_events"),
        event("insight", 0, 90, 0, stream=3, cat="mtia_insight"),
    ]
    document = report(records)
    assert breakdown(document["ranks"][0]) == [35, 20, 15, 0, 0, 20, 5]
    (summary,) = document["collectives"]["summary"]
    assert (summary["operation"], summary["library"]) == ("all_reduce", "hccl")
    assert document["launches"][0]["num_device_events"] == 2


def test_lengths_that_rounding_made_negative(report: Any) -> None:
    """Events shorter than the clock's step count as nothing, are counted, and move no neighbour."""
    records = [
        event("gemm", 10, 5.25, 1),
        event("elementwise_kernel", 15.25, -0.001, 2),
        event("reduce_kernel", 15.3, 0, 3),
        event("cat_kernel", 15.3, 0.5, 4),
    ]
    (rank,) = report(records)["ranks"]
    assert breakdown(rank) == [5.8, 5.75, 0, 0, 0.05, 0, 0]
    assert (rank["quality"]["negative_length"], rank["quality"]["zero_length"]) == (1, 1)


def test_several_devices_of_one_process(report: Any) -> None:
    """Each device has a timeline of its own; the rank's figures are their sums."""
    records = [
        event("gemm", 0.5, 10, 1, device=0),
        event("gemm", 5, 10, 2, device=1),
        event("multimem_one_shot_all_reduce_kernel<float>", 12, 8, 3, device=1, stream=9),
        event("Memcpy PtoP (Device -> Device)", 10.5, 4, 4, device=0, cat="gpu_memcpy"),
    ]
    (rank,) = report(records)["ranks"]
    assert [breakdown(device) for device in rank["devices"]] == [[14, 10, 0, 4, 0, 0, 0], [15, 10, 5, 0, 0, 8, 3]]
    assert breakdown(rank) == [29, 20, 5, 4, 0, 8, 3]
    assert rank["peer_copy_ns"] == 4 * US


def test_inference_with_graphs_and_custom_all_reduce(report: Any) -> None:
    """A decode step of vLLM: one CUDA graph of attention, MoE and custom all-reduce, sampling after it."""
    records = [call(0, 1, "cudaGraphLaunch"), call(60, 2)]
    graph = [
        ("void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16>", 10, 2, "elementwise"),
        ("kernel_unified_attention_2d", 12, 8, "attention"),
        ("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*)", 20, 5, "communication"),
        ("fused_moe_kernel", 25, 20, "gemm"),
    ]
    records += [event(name, start, length, 1) for name, start, length, _ in graph]
    records.append(event("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>", 70, 5, 2))
    document = report(records)
    assert breakdown(document["ranks"][0]) == [65, 35, 5, 0, 25, 5, 0]
    classes = {row["key"]: row["kernel_class"] for row in document["kernels"]}
    assert [classes[name] for name, *_ in graph] == [expected for *_, expected in graph]


def test_instants_in_any_notation(report: Any) -> None:
    """Exponents, strings, and instants before the origin are the same instants."""
    records = [
        event("a", 1.5e3, 1e2, 1) | {"pid": "0", "tid": "stream 7"},
        event("b", 0, 0, 2) | {"ts": "1700.5", "dur": "100.25"},
        event("c", -50.5, 10, 3),
    ]
    (rank,) = report(records)["ranks"]
    assert breakdown(rank) == [1851.25, 210.25, 0, 0, 1641, 0, 0]
    assert [device["device"] for device in rank["devices"]] == ["0"]
