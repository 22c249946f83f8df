"""Names as real profilers, libraries and compilers write them, each with where it is known from."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest

from scope.trace import load_rank
from scope.trace.calls import operation
from scope.trace.classes import class_under, communication_library, copy_kind, fixed_class, kernel_class
from scope.trace.launches import launch_kind
from scope.trace.schema import Annotations, CollectiveCalls, DeviceEvents, Steps, Syncs

if TYPE_CHECKING:
    from pathlib import Path

# fmt: off
# ruff: noqa: E501 - names are as long as they are
COMMUNICATION = [
    # name, library, operation, known from
    ("ncclAllReduceRingLLKernel_sum_f32(ncclColl)", "nccl", "all_reduce", "NVIDIA/nccl 2.8"),
    ("ncclKernel_AllReduce_TREE_LL_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)", "nccl", "all_reduce", "nccl 2.18"),
    ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "nccl", "reduce_scatter", "nccl 2.20"),
    ("ncclSymkDevKernel_AllGather_LLMC(ncclSymkDevWorkArgs4K)", "symmetric_memory", "all_gather", "nccl 2.28"),
    ("ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)", "nccl", "unknown", "ROCm/rccl"),
    ("void deep_ep::intranode::notify_dispatch<8>(int const*, int*, int const*, int*)", "deep_ep", "all_to_all", "DeepEP"),
    ("void deep_ep::internode_ll::combine<(bool)1, (int)7168>(void *, void *)", "deep_ep", "all_to_all", "DeepEP"),
    ("void deep_ep::intranode::dispatch<(int)2, (int)768, (int)8192>(int4 *, float *)", "deep_ep", "all_to_all", "DeepEP"),
    ("void deep_ep::elastic::dispatch_impl<true, 3, false>(void*)", "deep_ep", "all_to_all", "DeepEP v2"),
    ("void hybrid_ep::dispatch_kernel<config>(hybrid_ep::dispatch_kernel_param_t<unsigned char>)", "deep_ep", "all_to_all", "DeepEP"),
    ("void uccl::internode_ll::dispatch<true, false, 7168>(void*)", "uccl", "all_to_all", "uccl-project/uccl"),
    ("void nixl_ep::ep_kernels::combine<true>(void*)", "nixl", "all_to_all", "ai-dynamo/nixl"),
    ("void mori::moe::EpDispatchIntraNodeKernel<hip_bfloat16>(mori::moe::Args)", "mori", "all_to_all", "ROCm/mori"),
    ("EpCombineIntraNodeKernel_bf16", "mori", "all_to_all", "ROCm/mori"),
    ("void moeA2ADispatchKernel<half, 8>(int const*)", "custom", "all_to_all", "NVIDIA/TensorRT-LLM"),
    ("kuserbuffers_pushsend(int*, int*, int4*, int4*, int)", "userbuffers", "send", "TransformerEngine"),
    ("void userbuffers_fp16_sum_inplace_gpu_rw_ag<8>(int, int)", "userbuffers", "unknown", "TransformerEngine"),
    ("hybridCubeMeshAllReduceKernel<true>(c10::BFloat16*)", "custom", "all_reduce", "pytorch IntraNodeComm"),
    ("void (anonymous namespace)::multimem_one_shot_all_reduce_kernel<float, 16>", "symmetric_memory", "all_reduce", "pytorch"),
    ("void (anonymous namespace)::two_shot_all_reduce_kernel_inplace<c10::BFloat16>", "symmetric_memory", "all_reduce", "pytorch"),
    ("void (anonymous namespace)::multimem_all_gather_kernel<16>", "symmetric_memory", "all_gather", "pytorch"),
    ("void vllm::cross_device_reduce_2stage<half, 4>(vllm::RankData*)", "custom", "all_reduce", "vllm-project/vllm"),
    ("void quickreduce::allreduce_prototype_twoshot<quickreduce::AllReduceTwoshot>", "custom", "all_reduce", "vllm, ROCm"),
    ("void aiter::allgather_vec<hip_bfloat16, 8>", "custom", "all_gather", "ROCm/aiter"),
    ("void mscclpp::collective::allreduce7<half>", "custom", "all_reduce", "microsoft/mscclpp"),
    ("hcom_allReduce__428_0_1", "hccl", "all_reduce", "Ascend profiler"),
    ("hcom_alltoallv_", "hccl", "all_to_all", "Ascend profiler"),
    ("nvshmemi_barrier_all_kernel", "nvshmem", "barrier", "NVSHMEM"),
    ("void barrier_on_stream_kernel_threadgroup<(threadgroup_t)1>(int, int)", "nvshmem", "barrier", "NVSHMEM, its host calls"),
    ("alltoall_on_stream_kernel", "nvshmem", "all_to_all", "NVSHMEM, its host calls"),
    ("void oneRankReduce<FuncPreMulSum<__nv_bfloat16>>(void*, void*, unsigned long, unsigned long, bool)", "nccl", "reduce", "nccl, groups of one rank"),
    ("void dpsk::ep::internode::dispatch_ll<true, 3, 10, 7168>(void*, float*, int*, long*)", "deep_ep", "all_to_all", "DeepSeek's own traces of H800"),
    ("void dpsk::ep::internode::combine_ll<3, 10, 7168, 9>(void*, void*, int*)", "deep_ep", "all_to_all", "DeepSeek's own traces of H800"),
    ("void deep_ep::internode::cached_notify<false>(int, int, int, int, int*, int)", "deep_ep", "all_to_all", "DeepEP"),
    ("void primus_turbo::deep_ep::intranode::notify_dispatch<8>(int const*)", "deep_ep", "all_to_all", "DeepEP on ROCm"),
    ("_ZN4dpsk2ep9internode11dispatch_llILb1ELi3ELi10ELi7168EEEvPvPf", "deep_ep", "all_to_all", "not demangled"),
    ("_ZN4uccl11internode_ll8dispatchILb1EEEvPv", "uccl", "all_to_all", "not demangled"),
    ("_ZN4mori3moe27EpDispatchIntraNodeKernelI12hip_bfloat16EEvNS0_4ArgsE", "mori", "all_to_all", "not demangled"),
    ("_ZN5aiter27cross_device_reduce_2stageI12hip_bfloat16Li8EEEvPNS_8RankDataE", "custom", "all_reduce", "not demangled"),
    ("void aiter::local_device_load_rmsnorm_naive<hip_bfloat16, 8>", "custom", "all_reduce", "ROCm/aiter: its second half"),
    ("void tensorrt_llm::kernels::fusedMoeCommKernel(FusedMoeCommParam)", "custom", "all_to_all", "NVIDIA/TensorRT-LLM"),
    ("void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<__half, 8>", "custom", "all_reduce", "FlashInfer"),
    ("MoeDistributeDispatch", "custom", "all_to_all", "Ascend CANN"),
    ("MoeDistributeCombineV2", "custom", "all_to_all", "Ascend CANN"),
]
COMPUTE = [
    # name, class, known from
    ("nvjet_sm100_tst_256x128_64x5_2x1_2cta_v_bz_TNT", "gemm", "cuBLAS on B200"),
    ("nvjet_qqtst_128x128_128x6_1x2_h_bz_TNT", "gemm", "cuBLAS FP8"),
    ("cutlass3x_sm100_tensorop_s256x128x16gemm_bf16", "gemm", "CUTLASS on B200"),
    ("void deep_gemm::sm100_fp8_gemm_1d1d_impl<(cute::UMMA::Major)0>", "gemm", "DeepGEMM"),
    ("bmm_E4m3_E4m3E4m3_Fp32_t128x8x128u2_s6_et64x8_m64x8x32_cga1x1x1_16dp256b_rM_TN_transOut", "gemm", "TensorRT-LLM"),
    ("fused_moe_kernel", "gemm", "vllm-project/vllm"),
    ("void dpsk::gemm::fp8_gemm_kernel<7168u, 2048u, 128u, (dpsk::gemm::GemmType)1>(__nv_bfloat16*, float*)", "gemm", "DeepSeek's own traces of H800"),
    ("void deep_gemm::transpose_and_pack_fp32_into_ue8m0<512u, 64u>(float const*, unsigned int*)", "elementwise", "DeepGEMM: its scales"),
    ("bmm_E2m1_E2m1E2m1_Fp32_t128x8x512u2_s5_et64x8_m128x8x64", "gemm", "TensorRT-LLM, FP4"),
    ("cutlass3x_sm100_bstensorop_s256x128x64gemm_block_scaled_ue4m3xf4_ue4m3xf4_f32_bf16_bf16", "gemm", "CUTLASS, FP4"),
    ("_matmul_ogs_NNT_bf16xbf16xmxfp4_16x128x256x1_swiglu", "gemm", "triton_kernels, FP4"),
    ("fmoe_bf16_blockscaleFp8_g1u1_vs_silu_1tg_ps_32x256", "gemm", "ROCm/aiter"),
    ("_ZN5aiter47fmoe_bf16_blockscaleFp8_g1u1_vs_silu_1tg_32x256E", "gemm", "ROCm/aiter"),
    ("_w8a8_triton_block_scaled_mm", "gemm", "vllm-project/vllm"),
    ("triton_mm_17", "gemm", "Inductor, choosing a template"),
    ("triton_poi_fused_mm_17", "fused", "Inductor"),
    ("void moe_common::count_tokens<int>(int const*)", "other", "moe_common is no moe_comm"),
    ("void deep_ep::layout::get_dispatch_layout<256, 32, 8>(long const*, int*, int*, int*, bool*)", "other", "DeepEP: counts tokens, moves none"),
    ("_ZN7deep_ep6layout19get_dispatch_layoutILi256ELi32ELi8EEEvPKlPiS4_S4_Pbiiii", "other", "not demangled"),
    ("kernel_cutlass_kernel_quackrmsnormRMSNorm_object_at__tensor000o1024", "normalisation", "CuTe's compiler: no GEMM"),
    ("kernel_cutlass_kernel_quackcross_entropyCrossEntropy_object_at__tensor", "reduction", "CuTe's compiler: no GEMM"),
    ("kernel_cutlass_kernel_quackgemm_sm100GemmSm100_object_at__tensor", "gemm", "CuTe's compiler"),
    ("void fast_hadamard_transform_kernel<fast_hadamard_transform_kernel_traits<256, 14>>", "other", "hadamard is no Adam"),
    ("void kOptimizerStatic8bit2StateBlockwise<__nv_bfloat16, 0, 256, 1>", "optimizer", "bitsandbytes"),
    ("void vllm::concat_and_cache_mla_kernel<__nv_bfloat16>", "elementwise", "vllm-project/vllm"),
    ("void vllm::cvt_fp16_to_fp4<__nv_bfloat16, false>", "elementwise", "vllm-project/vllm, NVFP4"),
    ("void tensorrt_llm::kernels::fusedQKNormRopeKernel<128>", "normalisation", "NVIDIA/TensorRT-LLM"),
    ("l2norm_fwd_kernel", "normalisation", "flash-linear-attention"),
    ("_geglu_tanh_forward_kernel", "elementwise", "Liger"),
    ("_bwd_preprocess_do_o_dot", "attention", "Triton's flash attention"),
    ("bwd_kernel_fuse", "attention", "Triton's flash attention on ROCm"),
    ("pa_bf16_noquant_gqa8_1tg_4w", "attention", "ROCm/aiter"),
    ("void cudnn::fusion::compute_dot_do_o<__half, 128>", "attention", "cuDNN"),
    ("void transformer_engine::(anonymous namespace)::amax_kernel<8, true, __nv_bfloat16>", "reduction", "TransformerEngine"),
    ("void at::native::vol2col_kernel<float>", "convolution", "pytorch"),
    ("void at::native::(anonymous namespace)::krn_partials_per_segment<int>", "embedding", "pytorch, gradient of embedding"),
    ("void marlin::Marlin<__nv_bfloat16, 1125899906909960l>", "gemm", "vllm-project/vllm"),
    ("void cutlass::device_kernel<flash::FlashAttnFwdSm90<flash::CollectiveMainloopFwdSm90>>", "attention", "flash-attention 3"),
    ("kernel_cutlass_kernel_flash_attncuteflash_fwd_sm100FlashAttentionForwardSm100_object_at", "attention", "flash-attention 4"),
    ("fmhaSm100fKernel_QkvBfloat16OBfloat16H128PagedKvCausalP32VarSeqQ128Kv128PersistentContext", "attention", "TensorRT-LLM"),
    ("fmha_cutlassB_bf16_aligned_64x64_k64_sm80(PyTorchMemEffAttention::Params)", "attention", "xformers"),
    ("void flashinfer::BatchPrefillWithPagedKVCacheKernel<>", "attention", "FlashInfer"),
    ("void flashinfer::PrefillWithKVCacheKernel<flashinfer::CollectiveMainloop<>>", "attention", "FlashInfer on Hopper"),
    ("void flashinfer::BatchDecodeWithPagedKVCacheKernel<(flashinfer::PosEncodingMode)0>", "attention", "FlashInfer"),
    ("void flashinfer::PersistentVariableLengthMergeStatesKernel<8u, 16u>", "attention", "FlashInfer"),
    ("void flashinfer::norm::FusedAddRMSNormKernel<8u, __nv_bfloat16>", "normalisation", "FlashInfer"),
    ("void flashinfer::norm::RMSNormKernel<8u, __nv_bfloat16>", "normalisation", "FlashInfer"),
    ("void flashinfer::activation::act_and_mul_kernel<__nv_bfloat16, &silu>", "elementwise", "FlashInfer"),
    ("create_flashinfer_kv_indices_triton", "elementwise", "sglang"),
    ("_ZN5aiter24add_rmsnorm_quant_kernelIDF16bDF16bLi256ELi16ELb1ELb0ELb1ELi1EEEvPT0_PT_", "normalisation", "ROCm/aiter"),
    ("void vllm::rms_norm_static_fp8_quant_kernel<c10::BFloat16>", "normalisation", "vllm-project/vllm"),
    ("_fwd_grouped_kernel_stage1", "attention", "sglang, vllm"),
    ("kernel_unified_attention_2d", "attention", "vllm-project/vllm"),
    ("void ck_tile::kentry<256, 1, ck_tile::FmhaFwdKernel<>>", "attention", "ROCm composable kernel"),
    ("_ZN5aiter30fmha_bwd_hd128_bf16_a32_pssk_psE", "attention", "ROCm/aiter"),
    ("void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16>", "elementwise", "vllm-project/vllm"),
    ("void vllm::rotary_embedding_kernel<c10::BFloat16, true>", "elementwise", "vllm-project/vllm"),
    ("_per_token_group_quant_8bit", "elementwise", "sglang"),
    ("void transformer_engine::(anonymous namespace)::cast_transpose_fused_kernel<true>", "elementwise", "TransformerEngine"),
    ("void transformer_engine::normalization::ln_fwd_tuned_kernel<>", "normalisation", "TransformerEngine"),
    ("void transformer_engine::scaled_upper_triang_masked_softmax_warp_forward", "reduction", "TransformerEngine"),
    ("void cuComputePartGradGammaBeta<float, float, c10::BFloat16>", "normalisation", "NVIDIA/apex"),
    ("void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<float, float>>", "optimizer", "NVIDIA/apex"),
    ("multi_tensor_apply_kernel<TensorListMetadata<2>, CopyFunctor<int, long, 2, 1, 1>, Copy<int, long>>", "elementwise", "foreach copy"),
    ("multi_tensor_apply_kernel<TensorListMetadata<1>, UnaryOpFunctor<float, 1, 1, 0>, {lambda(float)#1}>", "elementwise", "foreach, no LAMB"),
    ("multi_tensor_apply_kernel<TensorListMetadata<1>, LpNormFunctor<float, (NormType)1, float>>", "reduction", "foreach norm"),
    ("multi_tensor_apply_kernel<TensorListMetadata<4>, LAMBStage1Functor<float>>", "optimizer", "NVIDIA/apex"),
    ("multi_tensor_apply_kernel", "other", "says nothing of what it applies"),
    ("void fbgemm_gpu::permute_2D_lengths_kernel<int>", "other", "FBGEMM: its namespace is no gemm"),
    ("void split_embedding_codegen_forward_unweighted_kernel<float>", "embedding", "FBGEMM"),
    ("turing_h1688cudnn_256x64_sliced1x2_ldg8_relu_exp_small_nhwc_tn_v1", "convolution", "cuDNN 7"),
    ("cudnn_infer_ampere_scudnn_128x32_relu_small_nn_v1", "convolution", "cuDNN 8"),
    ("triton_poi_fused__to_copy_all_gather_into_tensor_1", "fused", "Inductor names the operators around"),
    ("triton_red_fused_reduce_scatter_tensor_wait_tensor_add_3", "fused", "Inductor"),
    ("triton_poi_fused_add_one_shot_all_reduce_0", "fused", "Inductor"),
    ("triton_unk_fused_mul_1", "fused", "Inductor"),
    ("void SmallReduceKernel<float>", "reduction", "contains the letters of all-reduce"),
    ("void c10d::checkForNaN<float>(float*, unsigned long)", "other", "pytorch NanCheck"),
]
# fmt: on


@pytest.mark.parametrize(("name", "library", "expected", "source"), COMMUNICATION)
def test_libraries_that_communicate(name: str, library: str, expected: str, source: str) -> None:
    """A kernel of a library that communicates is communication, with the operation that its name tells."""
    assert fixed_class(name) == "communication", source
    assert communication_library(name) == library, source
    assert operation(name) == expected, source


@pytest.mark.parametrize(("name", "expected", "source"), COMPUTE)
def test_kernels_that_compute(name: str, expected: str, source: str) -> None:
    """A kernel that computes is never communication, whatever collective its name mentions."""
    assert (fixed_class(name) or kernel_class(name)) == expected, source


@pytest.mark.parametrize(
    ("name", "kind", "source"),
    [
        ("cuLaunchKernelEx", "kernel", "Triton, CUDA 12"),
        ("cudaLaunchKernelExC_v11060", "kernel", "CUPTI"),
        ("hipExtModuleLaunchKernel", "kernel", "ROCm"),
        ("hipLaunchKernelExC", "kernel", "ROCm 6"),
        ("cudaMemcpyPeerAsync", "memcpy", "CUDA"),
        ("cudaMemcpyBatchAsync", "memcpy", "CUDA 12.8"),
        ("cudaMemcpy3DPeerAsync", "memcpy", "CUDA"),
        ("cuMemsetD32Async", "memset", "CUDA"),
        ("cuMemSetAccess", "allocation", "expandable segments; sets no memory"),
        ("cuMemAddressReserve", "allocation", "expandable segments"),
        ("cudaMallocFromPoolAsync", "allocation", "CUDA"),
        ("cudaGraphLaunch_v10000", "graph", "CUPTI"),
        ("cudaGraphInstantiate", "other", "launches nothing"),
        ("hipGraphLaunch", "graph", "ROCm"),
        ("urEnqueueKernelLaunch", "kernel", "pytorch on XPU"),
        ("urEnqueueUSMMemcpy", "memcpy", "pytorch on XPU"),
        ("urEnqueueUSMFill", "memset", "pytorch on XPU"),
        ("urEnqueueMemBufferRead", "memcpy", "pytorch on XPU"),
        ("urQueueFinish", "sync", "pytorch on XPU"),
        ("urUSMDeviceAlloc", "allocation", "pytorch on XPU"),
        ("zeCommandListAppendLaunchKernel", "kernel", "Level Zero"),
        ("zeCommandListAppendMemoryFill", "memset", "Level Zero"),
        ("aclrtSynchronizeStream", "sync", "torch_npu"),
    ],
)
def test_calls_of_runtimes(name: str, kind: str, source: str) -> None:
    """Calls of CUDA, HIP, Unified Runtime, Level Zero and others say what they do."""
    assert launch_kind(name) == kind, source


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Memcpy M2D (MEMORY -> DEVICE)", "H2D"),
        ("Memcpy D2M (DEVICE -> MEMORY)", "D2H"),
        ("Memcpy D2D (DEVICE -> DEVICE)", "D2D"),
        ("Memcpy S2D (SHARED -> DEVICE)", None),
        ("Memset (0 -> DEVICE)", "set"),
    ],
)
def test_copies_of_xpu(name: str, expected: str | None) -> None:
    """Copies as the XPU profiler names them; where shared memory stands is not known."""
    assert copy_kind(name) == expected


def test_a_collective_by_its_metadata_or_its_operator_alone() -> None:
    """Metadata, or an operator of communication, decides on a kernel of an unknown library."""
    cast = "void at::native::vectorized_elementwise_kernel<4, at::native::CopyFunctor>"
    assert fixed_class("vendor_kernel_17") is None
    assert fixed_class("vendor_kernel_17", is_collective=True) == "communication"
    assert fixed_class(cast, is_collective=True) == "elementwise"
    assert class_under("communication", "vendor_kernel_17") == "communication"
    assert class_under("communication", "nvjet_tst_128x256") == "gemm"
    assert class_under(None, "vendor_kernel_17") == "other"


def record(category: str, name: str, start: float, length: float, **args: Any) -> dict[str, Any]:
    """Return a record on process 0 and thread 7."""
    return {"ph": "X", "cat": category, "name": name, "pid": 0, "tid": 7, "ts": start, "dur": length, "args": args}


def write(folder: Path, records: list[dict[str, Any]]) -> Path:
    """Write a trace."""
    path = folder / "rank0.json"
    path.write_text(json.dumps({"distributedInfo": {"rank": 0, "world_size": 1}, "traceEvents": records}))
    return path


def test_ranges_that_never_occupy_a_device(tmp_path: Path) -> None:
    """Counters, profiler ranges and synchronisations occupy nothing, even where they name a device and a stream."""
    on = {"device": 0, "stream": 7}
    names = (
        "mtia_insight",
        "cuda_profiler_range",
        "xpu_scope_profiler",
        "gpu_user_annotation",
        "overhead",
        "cuda_event",
    )
    records = [record(category, category, 10, 100, **on) for category in names]
    records += [record("cuda_sync", "Stream Sync", 10, 5, **on), record("xpu_sync", "zeEventHostSynchronize", 10, 5)]
    trace = load_rank(write(tmp_path, records))
    assert trace.device_events.height == 0
    assert trace.annotations.height == len(names)
    assert trace.syncs[Syncs.kind].to_list() == ["stream", "other"]


def test_categories_of_other_accelerators(tmp_path: Path) -> None:
    """Categories of makers that put their own word before the usual ones mean the same."""
    records = [
        {**record("user_annotation", "ProfilerStep#1", 0, 100), "pid": 9},
        record("GCU_USER_ANNOTATION", "ProfilerStep#1", 10, 90, device=0, stream=7),
        record("gcu_runtime", "topsLaunchKernel", 5, 1, correlation=1),
        record("kernel", "gemm", 10, 5, device=0, stream=7, correlation=1),
        record("GCU_MEMCPY", "Memcpy HtoD", 20, 5, device=0, stream=7),
        record("GCU_MEMSET", "Memset (Device)", 30, 5, device=0, stream=7),
    ]
    trace = load_rank(write(tmp_path, records))
    assert trace.device_events[DeviceEvents.kind].cast(pl.String).to_list() == ["kernel", "memcpy", "memset"]
    assert trace.steps[Steps.number].to_list() == [1]
    assert trace.annotations[Annotations.on_device].to_list() == [False, True]
    assert trace.quality.device_events_without_launch == 2


def test_collectives_as_a_category_of_their_own(tmp_path: Path) -> None:
    """`collective_comm` is communication on a device where it names one, else a range of the host."""
    on = {"device": 0, "stream": 9}
    records = [
        record("collective_comm", "job 17", 10, 30, **on),
        {**record("collective_comm", "xccl::allreduce", 5, 2, Communicator_id=3), "pid": 4242, "tid": 1},
    ]
    trace = load_rank(write(tmp_path, records))
    assert trace.device_events[DeviceEvents.category].cast(pl.String).to_list() == ["communication"]
    assert trace.collective_calls[CollectiveCalls.operation].to_list() == ["unknown"]
    assert trace.annotations[Annotations.name].cast(pl.String).to_list() == ["xccl::allreduce"]
