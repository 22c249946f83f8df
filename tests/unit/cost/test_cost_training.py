"""The worked figures of collectives, training state and training time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scope.cost import (
    TransformerShape,
    bytes_per_link,
    checkpoint_bytes,
    data_parallel_step_bytes,
    decode_tokens_per_s,
    expected_time_ns,
    layout_problems,
    least_gpus,
    mixed_precision_adam_bytes,
    moe_active_parameters,
    num_hops,
    run_seconds,
    transformer_flops_per_token,
    uneven_all_to_all_bytes,
)
from scope.errors import UsageError
from scope.hardware import NVLINK, choose_gpu, network_bytes_per_s, pcie_bytes_per_s

GB = 10**9


def test_memory_of_weights_and_state() -> None:
    """70e9 parameters: 140 GB of BF16 weights, 1,120 GB of mixed-precision Adam, at least 14 GPUs of 80 GB."""
    state = mixed_precision_adam_bytes(70 * GB)
    assert state.weights == 140 * GB
    assert state.total == 1_120 * GB
    assert least_gpus(state.total, memory_bytes=80 * GB) == 14


def test_a_measured_peak_fits_one_gpu_and_not_the_other() -> None:
    """85.6 GB fit the 96 GB of an H20 and not the 80 GB of an H100."""
    peak = 85_600_000_000
    h20, h100 = choose_gpu("h20-96gb").memory_bytes, choose_gpu("h100-sxm").memory_bytes
    assert h20 is not None
    assert h100 is not None
    assert h100 < peak <= h20


def test_checkpoint() -> None:
    """35e9 parameters: 70 + 140 + 280 = 490 GB, 490 s at 1 GB/s, about 4 steps of 120 s."""
    size = checkpoint_bytes(35 * GB)
    assert size == 490 * GB == (70 + 140 + 280) * GB
    assert size / GB == 490
    assert round(490 / 120) == 4


@pytest.mark.parametrize(("stage", "times_less"), [(1, 4), (2, 8)])
def test_zero_of_many_ranks(stage: int, times_less: int) -> None:
    """With many ranks stage 1 takes 4 times less than 16 bytes a parameter, stage 2 takes 8 times less."""
    state = mixed_precision_adam_bytes(10**12, zero_stage=stage, num_ranks=10**6)
    assert 16 * 10**12 / state.total == pytest.approx(times_less, rel=1e-4)


@given(stage=st.integers(0, 3), num_ranks=st.integers(1, 1000))
def test_zero_stages_are_their_formulas(stage: int, num_ranks: int) -> None:
    """16, 4 + 12/N, 2 + 14/N and 16/N bytes a parameter."""
    parameters = num_ranks * 1000
    total = mixed_precision_adam_bytes(parameters, zero_stage=stage, num_ranks=num_ranks).total
    assert total * num_ranks == parameters * [16 * num_ranks, 4 * num_ranks + 12, 2 * num_ranks + 14, 16][stage]


def test_zero_3_on_64_ranks_and_nonsense() -> None:
    """Stage 3 on 64 ranks takes 64 times less; a fifth stage or no rank is refused."""
    assert mixed_precision_adam_bytes(64 * 10**6, zero_stage=3, num_ranks=64).total == 16 * 10**6
    with pytest.raises(UsageError, match="stages 0 to 3"):
        mixed_precision_adam_bytes(1, zero_stage=4)
    with pytest.raises(UsageError, match="memory is positive"):
        least_gpus(1, memory_bytes=0)


@pytest.mark.parametrize(
    ("operation", "sent"),
    [
        ("all_reduce", 1750),
        ("reduce_scatter", 875),
        ("all_gather", 875),
        ("all_to_all", 875),
        ("gather", 875),
        ("scatter", 875),
        ("broadcast", 1000),
        ("reduce", 1000),
        ("send", 1000),
        ("recv", 1000),
        ("barrier", None),
    ],
)
def test_bytes_that_one_rank_of_eight_sends(operation: str, sent: int | None) -> None:
    """A full message of 1,000 bytes over 8 ranks, by the table of ring and chain algorithms."""
    assert bytes_per_link(operation, num_ranks=8, message_bytes=1000) == sent


def test_gradients_of_seven_billion_parameters() -> None:
    """14 GB of BF16 gradients over 8 GPUs: each sends 24.5 GB, and the times over the common links."""
    sent = bytes_per_link("all_reduce", num_ranks=8, message_bytes=14 * GB)
    assert sent == 24_500_000_000
    pcie = pcie_bytes_per_s(4)
    assert pcie is not None
    links = [(pcie, 0.77, 2), (network_bytes_per_s(400 * GB), 0.49, 2), (NVLINK[4].bytes_per_s, 0.054, 3)]
    links.append((NVLINK[5].bytes_per_s, 0.027, 3))
    for bandwidth, seconds, digits in links:
        time_ns = expected_time_ns("all_reduce", num_ranks=8, message_bytes=14 * GB, bandwidth_bytes_per_s=bandwidth)
        assert time_ns is not None
        assert round(time_ns / 1e9, digits) == seconds


def test_weights_sent_as_bf16_are_half() -> None:
    """1.54e9 parameters are 6.17 GB in FP32 and half that in BF16."""
    fp32, bf16 = 1_542_500_000 * 4, 1_542_500_000 * 2
    assert fp32 == 6_170_000_000
    assert bytes_per_link("broadcast", num_ranks=5, message_bytes=bf16) == fp32 // 2


def test_alpha_counts_hops() -> None:
    """A ring of 8 has 14 hops for an all_reduce and 7 for an all_gather; a send has one."""
    assert [num_hops(each, num_ranks=8) for each in ("all_reduce", "all_gather", "send")] == [14, 7, 1]
    time_ns = expected_time_ns("all_reduce", num_ranks=8, message_bytes=0, bandwidth_bytes_per_s=1e9, latency_ns=1000)
    assert time_ns == 14_000
    assert num_hops("barrier", num_ranks=8) is None
    assert expected_time_ns("barrier", num_ranks=8, message_bytes=0, bandwidth_bytes_per_s=1e9) is None
    with pytest.raises(UsageError, match="bandwidth is positive"):
        expected_time_ns("send", num_ranks=2, message_bytes=1, bandwidth_bytes_per_s=0)


def test_uneven_all_to_all() -> None:
    """The largest sum that one rank sends to others bounds it; what stays at home does not count."""
    assert uneven_all_to_all_bytes([[100, 1, 2], [5, 100, 6], [3, 4, 0]]) == 11
    with pytest.raises(UsageError, match="rank 1 has 1 splits"):
        uneven_all_to_all_bytes([[1, 2], [3]])


def test_volume_of_data_parallel_strategies() -> None:
    """ZeRO-1 and 2 move what DDP moves, FSDP 1.5 times it, and again for each micro-batch."""
    ddp = data_parallel_step_bytes("ddp", num_ranks=8, gradient_bytes=8000)
    assert ddp == 14_000
    for same in ("zero1", "zero2"):
        assert data_parallel_step_bytes(same, num_ranks=8, gradient_bytes=8000) == ddp
    assert data_parallel_step_bytes("fsdp", num_ranks=8, gradient_bytes=8000) == 1.5 * ddp
    assert data_parallel_step_bytes("zero3", num_ranks=8, gradient_bytes=8000, num_microbatches=4) == 6 * ddp
    with pytest.raises(UsageError, match="choose one of ddp"):
        data_parallel_step_bytes("magic", num_ranks=8, gradient_bytes=1)


def test_leaving_nvlink_loses_a_factor_of_twenty_to_forty() -> None:
    """EP=16 over two 8-GPU machines leaves NVLink 4 for a port of 12.5 to 25 GB/s."""
    nvlink = NVLINK[4].bytes_per_s
    assert nvlink == 450 * GB
    assert round(nvlink / network_bytes_per_s(180 * GB)) == 20
    assert round(nvlink / network_bytes_per_s(100 * GB)) == 36


def test_parallel_layouts() -> None:
    """TP1 PP1 EP8 DP40 on 40 GPUs is valid; EP must divide DP x CP; the axes must make the GPUs."""
    assert layout_problems({"dp": 40, "tp": 1, "pp": 1, "ep": 8}, num_gpus=40) == []
    assert layout_problems({"dp": 4, "cp": 2, "tp": 2, "ep": 8}, num_gpus=16) == []
    assert "does not divide" in layout_problems({"dp": 40, "ep": 16}, num_gpus=40)[0]
    assert "the job has 40 GPUs" in layout_problems({"dp": 4, "tp": 4}, num_gpus=40)[0]
    assert len(layout_problems({"dp": 0, "xp": 2}, num_gpus=1)) == 2


def test_flops_of_a_transformer() -> None:
    """6 N a token, 8 N with full recompute, plus attention 12 L H Q T, halved to 6 where the mask is causal."""
    dense = TransformerShape(num_active_parameters=3 * GB)
    assert transformer_flops_per_token(dense) == 18 * GB
    assert transformer_flops_per_token(dense, full_recompute=True) == 24 * GB
    shape = TransformerShape(num_active_parameters=10, num_layers=2, num_heads=3, head_dim=4, sequence_length=5)
    assert transformer_flops_per_token(shape) == 60 + 12 * 2 * 3 * 4 * 5
    assert transformer_flops_per_token(shape, causal_halved=True) == 60 + 6 * 2 * 3 * 4 * 5


def test_active_parameters_of_a_mixture_of_experts() -> None:
    """Two of eight experts: shared, router and a quarter of the experts."""
    assert moe_active_parameters(shared=100, router=10, experts=800, num_experts=8, num_chosen=2) == 310
    with pytest.raises(UsageError, match="1 to 8 experts"):
        moe_active_parameters(shared=1, router=1, experts=1, num_experts=8, num_chosen=9)


def test_time_of_a_run() -> None:
    """1e24 FLOPs at 2e15 FLOP/s on one GPU take 16 years."""
    seconds = run_seconds(1e24, num_gpus=1, achieved_flop_per_s=2e15)
    assert round(seconds / (365.25 * 86_400)) == 16


def test_cluster_peak_and_decode_bound() -> None:
    """40 H20 have 5.92 PFLOP/s; 6 GB a token decode at 667 tokens/s on an H20 and 558 on an H100."""
    h20, h100 = choose_gpu("h20-96gb"), choose_gpu("h100-sxm")
    assert 40 * h20.matrix_flop_per_s["bfloat16"].value == pytest.approx(5.92e15)
    for gpu, tokens in ((h20, 667), (h100, 558)):
        assert gpu.memory_bytes_per_s is not None
        bound = decode_tokens_per_s(bytes_per_token=2 * 3e9, bandwidth_bytes_per_s=gpu.memory_bytes_per_s.value)
        assert round(bound) == tokens


def test_input_of_a_step() -> None:
    """80 samples of 29K tokens are 2.3e6 tokens, some 10 MB a step at 4 bytes each: no bottleneck in 120 s."""
    tokens = 80 * 29_000
    assert tokens == pytest.approx(2.31e6, rel=0.01)
    assert tokens * 4 == pytest.approx(10e6, rel=0.1)


def test_sizes_of_a_scalable_unit_and_mig() -> None:
    """32 nodes of 8 GPUs are 256; A100, H100, H200 and B200 split 7 ways, an A30 and an RTX PRO 6000 4 ways."""
    assert 32 * 8 == 256
    seven = ("a100-sxm4-80gb", "h100-sxm", "h200-sxm", "b200-hgx")
    assert [choose_gpu(each).mig_instances for each in seven] == [7] * 4
    assert [choose_gpu(each).mig_instances for each in ("a30", "rtx-pro-6000")] == [4, 4]
