"""What device events are: names of many libraries, operators above them, copies, calls of runtimes."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest

from scope.trace import load_rank
from scope.trace.calls import element_bytes, int_list, operation, shape_elements
from scope.trace.classes import (
    communication_library,
    copy_kind,
    fixed_class,
    is_communication_operator,
    kernel_class,
    operator_class,
)
from scope.trace.launches import launch_kind
from scope.trace.schema import CollectiveCalls, DeviceEvents

if TYPE_CHECKING:
    from pathlib import Path

COMMUNICATION = {
    "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)": "nccl",
    "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)": "nccl",
    "ncclSymDevKernel_AllReduce_RSxLD_AGxST_Sum_bf16": "symmetric_memory",
    "rccl_main_kernel": "rccl",
    "mscclKernel_Sum_half_Simple": "rccl",
    "void deep_ep::intranode::dispatch<8, 768, 8192>(int4*, float*, int*)": "deep_ep",
    "void deep_ep::internode_ll::combine<true, 7168>(void*)": "deep_ep",
    "void deep_ep::intranode::notify_dispatch<8>(int const*, int*)": "deep_ep",
    "void deep_ep::intranode::cached_notify_combine<8>(void**)": "deep_ep",
    "nvshmemi_transfer_rma_kernel": "nvshmem",
    "barrier_all_on_stream_kernel_nvshmem": "nvshmem",
    "void c10d::symmetric_memory::barrier_kernel(unsigned int**)": "symmetric_memory",
    "multimem_all_reduce_kernel<c10::BFloat16, 16>": "symmetric_memory",
    "one_shot_all_reduce_kernel<c10::BFloat16>": "symmetric_memory",
    "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*)": "custom",
    "void aiter::cross_device_reduce_2stage<__hip_bfloat16, 8>(aiter::RankData*)": "custom",
    "void tensorrt_llm::kernels::oneShotAllReduceKernel<half>": "custom",
    "allreduce_fusion_kernel_oneshot_lamport": "custom",
}
CLASSES = {
    "ampere_sgemm_128x64_nn": "gemm",
    "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_TNN": "gemm",
    "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x192x64": "gemm",
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64": "gemm",
    "void flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64>>": "attention",
    "fmha_cutlassF_bf16_aligned_64x64_rf_sm80": "attention",
    "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob": "attention",
    "void cudnn::winograd_nonfused::winogradForwardData4x4<float, float>": "convolution",
    "void cudnn::cnn::wgrad_alg0_engine<float, 128, 6, 7, 3, 3, 5, false, 512>": "convolution",
    "void cudnn::bn_bw_1C11_kernel_new<float, float, float2, 32, true, 1>": "normalisation",
    "void vllm::rms_norm_kernel<c10::BFloat16>": "normalisation",
    "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>": "elementwise",
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>": "reduction",
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<FusedAdamMathFunctor<float, 4>>": "optimizer",
    "void (anonymous namespace)::softmax_warp_forward<c10::BFloat16>": "reduction",
    "triton_red_fused_add_mean_mul_pow_rsqrt_0": "fused",
    "triton_tem_fused_addmm_relu_3": "gemm",
    "triton_tem_fused_flex_attention_1": "attention",
    "__amd_rocclr_copyBuffer": "memory",
    "__amd_rocclr_fillBufferAligned": "memory",
    "some_vendor_thing": "other",
}


@pytest.mark.parametrize(("name", "library"), COMMUNICATION.items())
def test_communication_by_name(name: str, library: str) -> None:
    """Kernels of all known libraries that communicate are communication, by their names alone."""
    assert communication_library(name) == library
    assert fixed_class(name) == "communication"


@pytest.mark.parametrize(("name", "expected"), CLASSES.items())
def test_class_by_name(name: str, expected: str) -> None:
    """A kernel's name gives its class; a name that says nothing is `other`."""
    assert communication_library(name) is None
    assert (fixed_class(name) or kernel_class(name)) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("aten::mm", "gemm"),
        ("aten::addmm", "gemm"),
        ("aten::bmm", "gemm"),
        ("aten::linear", "gemm"),
        ("aten::_scaled_mm", "gemm"),
        ("aten::_grouped_mm", "gemm"),
        ("aten::_scaled_mm_v2", "gemm"),
        ("aten::_scaled_grouped_mm_v2", "gemm"),
        ("aten::_sparse_semi_structured_linear", "gemm"),
        ("aten::_sparse_semi_structured_addmm", "gemm"),
        ("aten::_cslt_sparse_mm", "gemm"),
        ("aten::_weight_int8pack_mm", "gemm"),
        ("aten::_weight_int4pack_mm_for_cpu", "gemm"),
        ("aten::_dyn_quant_matmul_4bit", "gemm"),
        ("aten::_dyn_quant_pack_4bit_weight", None),
        ("torch_attn::_varlen_attn", "attention"),
        ("aiter::mha_batch_prefill", "attention"),
        ("aten::mul", "elementwise"),
        ("aten::copy_", "elementwise"),
        ("aten::norm", "reduction"),
        ("aten::sum", "reduction"),
        ("aten::_softmax", "reduction"),
        ("aten::native_layer_norm", "normalisation"),
        ("aten::native_batch_norm_backward", "normalisation"),
        ("aten::cudnn_convolution", "convolution"),
        ("aten::convolution_backward", "convolution"),
        ("aten::_scaled_dot_product_flash_attention_backward", "attention"),
        ("flash_attn::_flash_attn_forward", "attention"),
        ("aten::embedding_dense_backward", "embedding"),
        ("aten::_fused_adamw_", "optimizer"),
        ("aten::_foreach_add_", "optimizer"),
        ("MmBackward0", None),
        ("ProfilerStep#3", None),
    ],
)
def test_class_by_operator(name: str, expected: str | None) -> None:
    """An operator gives the class of the kernels that it launches, or leaves it to their names."""
    assert operator_class(name) == expected
    assert is_communication_operator(name) == (expected == "communication")


@pytest.mark.parametrize(
    ("name", "argument", "expected"),
    [
        ("Memcpy HtoD (Pageable -> Device)", "", "H2D"),
        ("Memcpy DtoH (Device -> Pinned)", "", "D2H"),
        ("Memcpy DtoD (Device -> Device)", "", "D2D"),
        ("Memcpy PtoP (Device -> Device)", "", "P2P"),
        ("Memset (Device)", "", "set"),
        ("MEMORY_COPY_HOST_TO_DEVICE", "", "H2D"),
        ("__amd_rocclr_copyBuffer", "DtoH", "D2H"),
        ("__amd_rocclr_copyBuffer", "Dispatch Kernel", None),
        ("CopyDeviceToHost", "", "D2H"),
    ],
)
def test_direction_of_copies(name: str, argument: str, expected: str | None) -> None:
    """The direction of a copy is in its name or argument, else it is unknown."""
    assert copy_kind(name, argument) == expected


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("cudaLaunchKernel", "kernel"),
        ("cudaLaunchKernelExC", "kernel"),
        ("cuLaunchKernelEx", "kernel"),
        ("hipExtModuleLaunchKernel", "kernel"),
        ("hipModuleLaunchKernel", "kernel"),
        ("cudaLaunchCooperativeKernel", "kernel"),
        ("runFunction - job_prep_and_submit_for_execution", "kernel"),
        ("cudaGraphLaunch", "graph"),
        ("hipGraphLaunch", "graph"),
        ("cudaMemcpyAsync", "memcpy"),
        ("hipMemcpyWithStream", "memcpy"),
        ("cudaMemsetAsync", "memset"),
        ("cudaStreamSynchronize", "sync"),
        ("hipDeviceSynchronize", "sync"),
        ("cudaEventSynchronize", "sync"),
        ("cudaMalloc", "allocation"),
        ("cudaHostAlloc", "allocation"),
        ("hipFree", "allocation"),
        ("cuMemMap", "allocation"),
        ("cudaEventRecord", "event"),
        ("cudaStreamWaitEvent", "event"),
        ("cudaLaunchHostFunc", "other"),
        ("cudaFuncGetAttributes", "other"),
        ("cudaGetDeviceProperties", "other"),
    ],
)
def test_kind_of_calls(name: str, kind: str) -> None:
    """The name of a runtime's call says what it does."""
    assert launch_kind(name) == kind


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("allreduce", "all_reduce"),
        ("allreduce_coalesced", "all_reduce"),
        ("_allgather_base", "all_gather"),
        ("all_gather_into_tensor", "all_gather"),
        ("_reduce_scatter_base", "reduce_scatter"),
        ("all_to_allv", "all_to_all"),
        ("alltoall_base_", "all_to_all"),
        ("_broadcast_oop", "broadcast"),
        ("_reduce_oop", "reduce"),
        ("gather", "gather"),
        ("scatter", "scatter"),
        ("send", "send"),
        ("recv_any_source_", "recv"),
        ("barrier", "barrier"),
        ("ncclDevKernel_Reduce_Sum_f32_RING_LL", "reduce"),
        ("ncclDevKernel_SendRecv", "all_to_all"),
        ("ncclDevKernel_Generic_1", "unknown"),
    ],
)
def test_one_name_of_operations(name: str, expected: str) -> None:
    """Each operation has one name, whatever the library calls it."""
    assert operation(name) == expected


def test_element_sizes() -> None:
    """Sizes of dtypes as NCCL, c10 and autograd write them; an unknown dtype has none."""
    assert [element_bytes(name) for name in ("Float", "BFloat16", "Half", "Long", "Byte", "Bool", "Double", "Int")] == [
        4, 2, 2, 8, 1, 1, 8, 4,
    ]  # fmt: skip
    assert [element_bytes(name) for name in ("Float8_e4m3fn", "Float8_e5m2", "c10::Float8_e4m3fn", "Char")] == [1] * 4
    assert [element_bytes(name) for name in ("float", "long int", "c10::BFloat16", "unsigned char")] == [4, 8, 2, 1]
    assert element_bytes("Quux") is None
    assert element_bytes(None) is None


def test_lists_and_shapes() -> None:
    """Lists stand as lists or strings and may be elided; shapes nest in lists of tensors."""
    assert int_list(b'"[0, 1]"') == [0, 1]
    assert int_list(b"[3]") == [3]
    assert int_list(b'"[0, 1, ..., 7]"') is None
    assert int_list(b"") is None
    assert shape_elements("[[2, 3], [], [4]]") == (6, 4)
    assert shape_elements("[[[2, 3], [5]], []]") == (6, 5)
    assert shape_elements("broken") == ()


def write(folder: Path, records: list[dict[str, Any]], **keys: Any) -> Path:
    """Write a trace."""
    path = folder / "trace.json"
    path.write_text(json.dumps({**keys, "traceEvents": records}))
    return path


def kernel(name: str, ts: float, correlation: int, **args: Any) -> dict[str, Any]:
    """Return a kernel of 10 us."""
    base = {"device": 0, "stream": 7, "correlation": correlation}
    return {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": ts, "dur": 10, "args": base | args}


def host(cat: str, name: str, ts: float, dur: float, tid: int = 1, **args: Any) -> dict[str, Any]:
    """Return a record of the host."""
    return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": tid, "ts": ts, "dur": dur, "args": args}


METADATA = {
    "Collective name": "_allgather_base",
    "In msg nelems": 1000,
    "Out msg nelems": 4000,
    "Group size": 4,
    "dtype": "BFloat16",
    "In split size": "[]",
    "Out split size": "[]",
    "Process Group Name": "3",
    "Process Group Description": "mesh_tp",
    "Process Group Ranks": "[4, 5, 6, 7]",
    "Seq": 17,
}


def only_call(path: Path) -> dict[str, Any]:
    """Read a trace with one call."""
    calls = load_rank(path).collective_calls
    assert calls.height == 1
    return calls.row(0, named=True)


def test_metadata_of_a_kernel(tmp_path: Path) -> None:
    """All that a kernel says of its collective is in the call's row."""
    call = only_call(write(tmp_path, [kernel("ncclDevKernel_AllGather_RING_LL", 10, 1, **METADATA)]))
    assert call[CollectiveCalls.operation] == "all_gather"
    assert call[CollectiveCalls.group_ranks] == [4, 5, 6, 7]
    assert (call[CollectiveCalls.in_bytes], call[CollectiveCalls.out_bytes]) == (2000, 8000)
    assert (call[CollectiveCalls.sequence], call[CollectiveCalls.group_description]) == (17, "mesh_tp")
    assert (call[CollectiveCalls.variant], call[CollectiveCalls.has_metadata]) == ("plain", True)


@pytest.mark.parametrize(
    ("ranks", "config", "stride", "expected"),
    [
        ("[0, 2, ..., 6]", [{"pg_name": "3", "pg_size": 4, "ranks": [0, 2, 4, 6]}], {}, [0, 2, 4, 6]),
        ("[0, 2, ..., 6]", [], {"Global rank start": 0, "Global rank stride": 2}, [0, 2, 4, 6]),
        ("[0, 2, ..., 6]", [], {}, None),
        ("[7, 5, 1, 3]", [], {}, [1, 3, 5, 7]),
    ],
)
def test_elided_ranks(tmp_path: Path, ranks: str, config: Any, stride: Any, expected: Any) -> None:
    """Ranks that a kernel elides come from the process groups, then from start and stride, else they are unknown."""
    info = {"rank": 0, "world_size": 8, "pg_config": config}
    args = METADATA | {"Process Group Ranks": ranks} | stride
    path = write(tmp_path, [kernel("ncclDevKernel_AllGather_RING_LL", 10, 1, **args)], distributedInfo=info)
    assert only_call(path)[CollectiveCalls.group_ranks] == expected


def test_metadata_of_the_operator(tmp_path: Path) -> None:
    """Where the kernel says nothing, the operator around its launch does; the kernels of one operator are one call."""
    records = [
        host("cpu_op", "c10d::allreduce_", 0, 9),
        host("cpu_op", "record_param_comms", 1, 7, **METADATA | {"Collective name": "allreduce", "Seq": 3}),
        host("cuda_runtime", "cudaLaunchKernel", 2, 1, correlation=1),
        host("cuda_runtime", "cudaLaunchKernel", 4, 1, correlation=2),
        kernel("ncclDevKernel_Generic", 10, 1),
        kernel("ncclDevKernel_Generic", 30, 2),
    ]
    trace = load_rank(write(tmp_path, records))
    call = trace.collective_calls.row(0, named=True)
    assert trace.collective_calls.height == 1
    assert call[CollectiveCalls.operation] == "all_reduce"
    assert (call[CollectiveCalls.start_ns], call[CollectiveCalls.end_ns]) == (10_000, 40_000)
    assert trace.device_events[DeviceEvents.call_id].to_list() == [0, 0]


def test_range_around_the_launch(tmp_path: Path) -> None:
    """Without metadata, torch's `nccl:` range around the launch names the operation and its input."""
    records = [
        host("user_annotation", "nccl:reduce_scatter", 1, 7, **{"Input Dims": [[64, 10]], "Input type": ["float"]}),
        host("cuda_runtime", "cudaLaunchKernel", 2, 1, correlation=1),
        kernel("ncclDevKernel_Generic", 10, 1),
    ]
    call = only_call(write(tmp_path, records))
    assert call[CollectiveCalls.operation] == "reduce_scatter"
    assert (call[CollectiveCalls.in_elements], call[CollectiveCalls.in_bytes]) == (640, 2560)
    assert call[CollectiveCalls.out_bytes] is None
    assert not call[CollectiveCalls.has_metadata]


def test_uneven_and_coalesced(tmp_path: Path) -> None:
    """Splits make a call uneven; a coalesced call is one call."""
    uneven = METADATA | {"Collective name": "all_to_allv", "In split size": "[100, 900]", "Out split size": "[1, 2]"}
    call = only_call(write(tmp_path, [kernel("ncclDevKernel_SendRecv", 10, 1, **uneven)]))
    assert (call[CollectiveCalls.operation], call[CollectiveCalls.variant]) == ("all_to_all", "uneven")
    assert (call[CollectiveCalls.in_split], call[CollectiveCalls.out_split]) == ([100, 900], [1, 2])
    coalesced = METADATA | {"Collective name": "allreduce_coalesced"}
    call = only_call(write(tmp_path, [kernel("ncclDevKernel_AllReduce", 10, 1, **coalesced)]))
    assert (call[CollectiveCalls.operation], call[CollectiveCalls.variant]) == ("all_reduce", "coalesced")


RANKS = {"Group size": 4, "Process Group Ranks": "[1, 3, 5, 7]"}


@pytest.mark.parametrize(
    ("told", "source", "destination"),
    [
        # The records of torch 2.13 itself: the group's number of the peer or root, and the peer's global rank.
        ({"Collective name": "send", "Rank": 1, "Dst Rank": 3}, None, 1),
        ({"Collective name": "recv", "Rank": 3, "Src Rank": 7}, 3, None),
        ({"Collective name": "broadcast", "Rank": 1}, 1, None),
        ({"Collective name": "allreduce", "Rank": 1}, None, None),
        # A list of ranks that is too long, or irregular, leaves out the global rank.
        ({"Collective name": "send", "Rank": 2}, None, 2),
        ({"Collective name": "send", "Dst Rank": "5"}, None, 2),
        # Whoever writes the caller into `Rank`, or the group's number twice, is understood as well.
        ({"Collective name": "recv", "Rank": 0, "Src Rank": 7}, 3, None),
        ({"Collective name": "recv", "Rank": 3, "Src Rank": 3}, 3, None),
        ({"Collective name": "send", "Rank": -1, "Dst Rank": 4}, None, None),
    ],
)
def test_root_and_peer_are_numbered_by_the_group(
    tmp_path: Path, told: dict[str, Any], source: int | None, destination: int | None
) -> None:
    """`Src Rank` and `Dst Rank` are global ranks, `Rank` is the group's number of root or peer."""
    call = only_call(write(tmp_path, [kernel("ncclDevKernel_SendRecv", 10, 1, **METADATA | RANKS | told)]))
    assert (call[CollectiveCalls.source_rank], call[CollectiveCalls.destination_rank]) == (source, destination)


def test_gloo_ranges_are_named_after_their_operators(tmp_path: Path) -> None:
    """A gloo range takes its operation from the c10d operator that asked for it, never from gloo's label."""
    shapes = {"Input Dims": [[500], [1000]], "Input type": ["float", "float"]}
    root = ["", "", "1", "0", "False", "-1"]
    records = [
        host("cpu_op", "c10d::_reduce_scatter_base_", 10, 5, **shapes),
        host("cpu_op", "c10d::allreduce_", 20, 5, **{"Input Dims": [[[64]]], "Input type": ["TensorList"]}),
        host("cpu_op", "c10d::broadcast_", 30, 5, **{"Input Dims": [[[8]]], "Concrete Inputs": root}),
        host("user_annotation", "gloo:all_reduce", 12, 100, 2, **{"Input Dims": [[1000]], "Input type": ["float"]}),
        host("user_annotation", "gloo:all_reduce", 22, 50, 3, **{"Input Dims": [[64]], "Input type": ["double"]}),
        host("user_annotation", "gloo:broadcast", 32, 5, 3, **{"Input Dims": [[8]], "Input type": ["float"]}),
    ]  # fmt: skip
    info = {"rank": 0, "world_size": 2, "pg_config": [{"pg_name": "0", "pg_size": 2, "ranks": [0, 1]}]}
    trace = load_rank(write(tmp_path, records, distributedInfo=info))
    calls = trace.collective_calls
    assert trace.is_host_timeline
    assert calls[CollectiveCalls.operation].to_list() == ["reduce_scatter", "all_reduce", "broadcast"]
    assert calls[CollectiveCalls.in_bytes].to_list() == [4000, 512, 32]
    assert calls[CollectiveCalls.out_bytes].to_list() == [2000, 512, 32]
    assert calls[CollectiveCalls.op_id].to_list() == [0, 1, 2]
    assert calls[CollectiveCalls.source_rank].to_list() == [None, None, 1]
    assert calls[CollectiveCalls.group_ranks].to_list() == [[0, 1]] * 3
    assert calls[CollectiveCalls.device].null_count() == 3


def test_operator_first_then_name(tmp_path: Path) -> None:
    """A kernel's class comes from the innermost operator that tells, unless its own name is beyond doubt."""
    launches = [host("cuda_runtime", "cudaLaunchKernel", 2 + index, 0.5, correlation=index) for index in range(1, 5)]
    names = [
        "mystery",
        "void at::native::elementwise_kernel<128>",
        "ncclDevKernel_AllReduce",
        "__amd_rocclr_copyBuffer",
    ]
    records = [
        host("cpu_op", "aten::linear", 0, 20),
        host("cpu_op", "my::custom", 1, 18),
        *launches,
        *(kernel(name, 20 * index, index) for index, name in enumerate(names, start=1)),
    ]
    events = load_rank(write(tmp_path, records)).device_events
    assert events[DeviceEvents.kernel_class].to_list() == ["gemm", "elementwise", "communication", "memory"]
    assert events[DeviceEvents.kind].to_list() == ["kernel", "kernel", "kernel", "memcpy"]


def test_mtia_and_unknown_devices(tmp_path: Path) -> None:
    """Events of other accelerators occupy their device; what a runtime of unknown names launched is linked."""
    records = [
        host("mtia_runtime", "runFunction - job_prep_and_submit_for_execution", 1, 2, correlation=5),
        {**kernel("hccl_all_reduce", 10, 5), "cat": "mtia_ccp_events"},
        {**kernel("fc_kernel", 30, 6), "cat": "npu_kernel"},
        {**kernel("dma_in", 50, 7), "cat": "mtia_ccp_events"},
        host("npu_runtime", "enqueueWork", 25, 2, correlation=6),
        host("privateuse1_runtime", "aclrtLaunch", 45, 2, correlation=7),
    ]
    trace = load_rank(write(tmp_path, records))
    assert trace.device_events[DeviceEvents.category].to_list() == ["communication", "compute", "memory"]
    assert trace.device_events[DeviceEvents.launch_id].is_not_null().to_list() == [True, True, True]


def test_several_devices(tmp_path: Path) -> None:
    """Two devices in one file stay apart."""
    records = [kernel("a", 10, 1), kernel("b", 10, 2, device=1), kernel("c", 15, 3, device=1)]
    events = load_rank(write(tmp_path, records)).device_events
    assert events[DeviceEvents.device].to_list() == [0, 1, 1]
    assert events[DeviceEvents.clipped_end_ns].to_list() == [20_000, 15_000, 25_000]


def test_syncs_and_ranges_occupy_nothing(tmp_path: Path) -> None:
    """`cuda_sync`, device ranges and overhead stand in tables of their own."""
    sync = {"cuda_sync_kind": "Stream Wait Event", "wait_on_stream": 20, "wait_on_cuda_event_record_corr_id": 32}
    records = [
        {**kernel("Stream Wait Event", 10, 54, **sync), "cat": "cuda_sync"},
        {**kernel("ProfilerStep#1", 10, 1), "cat": "gpu_user_annotation"},
        host("overhead", "Buffer Flush", 10, 5),
    ]
    trace = load_rank(write(tmp_path, records))
    assert trace.device_events.height == 0
    assert trace.syncs.rows() == [(0, "stream_wait_event", 0, 7, 20, 32, 54, 10_000, 20_000)]
    assert trace.annotations.height == 2


def test_steps(tmp_path: Path) -> None:
    """Steps are the host's, work belongs to the step of its launch, and a step that the recording cuts says so."""
    records = [
        host("user_annotation", "ProfilerStep#7", 10, 20),
        host("user_annotation", "ProfilerStep#8", 30, 20),
        {**kernel("ProfilerStep#7", 10, 1), "cat": "gpu_user_annotation"},
        {**host("Trace", "PyTorch Profiler (0)", 5, 45), "pid": "Spans", "tid": "PyTorch Profiler"},
        host("cuda_runtime", "cudaLaunchKernel", 29, 3, correlation=1),
        host("cuda_runtime", "cudaLaunchKernel", 30, 3, correlation=2),
        host("cuda_runtime", "cudaLaunchKernel", 50, 3, correlation=3),
        *(kernel("k", 60 + 20 * index, index) for index in (1, 2, 3)),
    ]  # fmt: skip
    trace = load_rank(write(tmp_path, records))
    assert trace.steps.rows() == [(0, 7, 1, 10_000, 30_000, False), (1, 8, 1, 30_000, 50_000, True)]
    assert trace.device_events[DeviceEvents.step_id].to_list() == [0, 1, None]


def test_old_category_names(tmp_path: Path) -> None:
    """The categories, threads and ids of the first Kineto traces mean what today's do."""
    records = [
        {**host("Operator", "ProfilerStep#2", 0, 100), "tid": "1890023232"},
        {**host("Operator", "aten::mm", 5, 50, **{"External id": 3, "Input dims": [[2, 2]]}), "tid": "1890023232"},
        {**host("Runtime", "cudaLaunchKernel", 10, 5, correlation=4), "tid": "1890023232"},
        {**kernel("k", 20, 4), "cat": "Kernel", "tid": "stream 7", "args": {"device": 0, "correlation": 4}},
        {**kernel("Memset (Device)", 40, 5), "cat": "Memset", "args": {"stream": 7, "bytes": 12}},
    ]
    trace = load_rank(write(tmp_path, records))
    assert trace.ops.height == 1
    assert trace.ops["input_dims"].cast(pl.String).to_list() == ["[[2, 2]]"]
    assert trace.steps.height == 1
    assert trace.device_events[DeviceEvents.stream].to_list() == [7, 7]
    assert trace.device_events[DeviceEvents.op_id].to_list() == [0, None]
    assert trace.device_events[DeviceEvents.step_id].to_list() == [0, None]
    assert trace.device_events[DeviceEvents.copy_bytes].to_list() == [None, 12]


def test_python_frames_on_demand(tmp_path: Path) -> None:
    """Python frames are read when asked for, and counted either way."""
    from scope.trace import ReadOptions

    module = {"Python id": 2, "Python parent id": 1, "Python module id": 0}
    frames = [
        host("python_function", "train.py(3): main", 1, 50, **{"Python id": 1, "Python parent id": None}),
        host("python_function", "nn.Module: Linear_0", 2, 30, **module),
    ]  # fmt: skip
    path = write(tmp_path, frames)
    without, with_them = load_rank(path), load_rank(path, options=ReadOptions(python_calls=True))
    assert (without.python_calls.height, without.quality.events_read) == (0, 2)
    rows = with_them.python_calls.rows()
    assert [row[:3] for row in rows] == [(1, None, None), (2, 1, 0)]
    assert with_them.quality.events_read == 2


def test_long_names_are_searched_at_their_ends() -> None:
    """A name of megabytes takes no time that anybody notices, and what it begins and ends with tells its class."""
    start = time.process_time()
    assert kernel_class("void cutlass_gemm" + "a" * 20_000_000) == "gemm"
    assert kernel_class("fused_reduce_kernel_" * 1_000_000) == kernel_class("fused_reduce_kernel_" * 50)
    assert time.process_time() - start < 5


@pytest.mark.parametrize("words", ["multi_tensor_apply", "at::native::"])
def test_words_that_repeat_are_searched_once(words: str) -> None:
    """What must stand behind some words is looked for behind the first of them, not again behind each that follows."""
    names = [f"{number}_norm_softmax_embedding{words * 100}"[:1_200] for number in range(2_000)]
    start = time.process_time()
    for name in names:
        fixed_class(name)
        kernel_class(name)
    assert time.process_time() - start < 4
