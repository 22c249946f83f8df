"""The scalar formulas, against worked figures and hand counts."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scope import definitions
from scope.errors import UsageError
from scope.units import NS_PER_S


@pytest.mark.parametrize(
    ("operation", "factor"),
    [
        ("all_reduce", 1.75),
        ("all_gather", 0.875),
        ("reduce_scatter", 0.875),
        ("all_to_all", 0.875),
        ("gather", 0.875),
        ("scatter", 0.875),
        ("broadcast", 1.0),
        ("reduce", 1.0),
        ("send", 1.0),
        ("recv", 1.0),
        ("barrier", None),
        ("unknown", None),
    ],
)
def test_bus_factor_of_eight_ranks(operation: str, factor: float | None) -> None:
    """The factors of eight ranks are those of nccl-tests."""
    assert definitions.bus_factor(operation, num_ranks=8) == factor


def test_a_group_of_one_moves_nothing() -> None:
    """An all_reduce of one rank has factor 0, and a group of none is refused."""
    assert definitions.bus_factor("all_reduce", num_ranks=1) == 0
    with pytest.raises(UsageError, match="at least 1 rank"):
        definitions.bus_factor("all_reduce", num_ranks=0)


@pytest.mark.parametrize(
    ("operation", "in_bytes", "out_bytes", "full"),
    [
        ("all_reduce", 100, 100, 100),
        ("reduce_scatter", 800, 100, 800),
        ("all_gather", 100, 800, 800),
        ("all_to_all", 800, 800, 800),
        ("broadcast", None, 64, 64),
        ("recv", 0, 64, 64),
        ("send", 64, None, 64),
        ("all_gather", 100, None, None),
        ("all_reduce", None, 100, None),
    ],
)
def test_full_message(operation: str, in_bytes: int | None, out_bytes: int | None, full: int | None) -> None:
    """The full message is the buffer that the table of nccl-tests names, and unknown when that buffer is."""
    assert definitions.full_message_bytes(operation, in_bytes=in_bytes, out_bytes=out_bytes) == full


def test_broadcast_of_weights() -> None:
    """6.17 GB in 0.027 s are 228.5 GB/s, and a broadcast's bus bandwidth is the same."""
    expected = pytest.approx(228.5e9, rel=1e-3)
    assert definitions.algorithm_bandwidth_bytes_per_s(6_170_000_000, transfer_ns=27_000_000) == expected
    busbw = definitions.bus_bandwidth_bytes_per_s(
        6_170_000_000, transfer_ns=27_000_000, operation="broadcast", num_ranks=4
    )
    assert busbw == expected


def test_bandwidth_without_time_or_factor_is_absent() -> None:
    """A transfer of no length and a barrier have no bandwidth; a negative length is refused."""
    assert definitions.algorithm_bandwidth_bytes_per_s(5, transfer_ns=0) is None
    assert definitions.bus_bandwidth_bytes_per_s(5, transfer_ns=1, operation="barrier", num_ranks=2) is None
    with pytest.raises(UsageError, match="transfer_ns is at least 0"):
        definitions.algorithm_bandwidth_bytes_per_s(5, transfer_ns=-1)


def test_wait_and_transfer_by_hand() -> None:
    """Ranks arriving at 10, 40, 25 and ending at 60, 61, 59 wait 30, 0, 15 and transfer for 21."""
    assert definitions.waits_ns([10, 40, 25]) == (30, 0, 15)
    assert definitions.transfer_ns(arrivals_ns=[10, 40, 25], ends_ns=[60, 61, 59]) == 21
    assert definitions.imposed_wait_ns([10, 40, 25]) == 15
    assert definitions.imposed_wait_ns([7]) == 0


@given(st.lists(st.integers(-(10**18), 10**18), min_size=1, max_size=20))
def test_fixing_the_last_rank_saves_the_imposed_wait(arrivals: list[int]) -> None:
    """Moving the last rank to any earlier time saves at most the imposed wait, and removing it saves exactly that."""
    others = sorted(arrivals)[:-1]
    saved = max(arrivals) - max(others) if others else 0
    assert definitions.imposed_wait_ns(arrivals) == saved


def test_mfu_of_the_worked_case() -> None:
    """3e9 active parameters, 2.31e6 tokens, 120 s and 5.92 PFLOP/s give 5.9 %, and 7.8 % with full recompute."""
    flops = 6 * 3e9 * 2.31e6
    mfu = definitions.model_flops_utilization(flops, step_ns=120 * NS_PER_S, peak_flop_per_s=5.92e15)
    hfu = definitions.hardware_flops_utilization(
        flops, recompute_flops=2 * 3e9 * 2.31e6, step_ns=120 * NS_PER_S, peak_flop_per_s=5.92e15
    )
    assert mfu is not None
    assert hfu is not None
    assert round(100 * mfu, 1) == 5.9
    assert round(100 * hfu, 1) == 7.8


def test_quotients_without_a_denominator_are_absent() -> None:
    """No communication, no wall time, no capacity and no peak give None and never 0."""
    assert definitions.overlap_ratio(overlap_ns=0, communication_ns=0) is None
    assert definitions.goodput_ratio(kept_ns=0, wall_ns=0) is None
    assert definitions.link_use_ratio(payload_bytes_per_s=1, capacity_bytes_per_s=0) is None
    assert definitions.model_flops_utilization(1, step_ns=1, peak_flop_per_s=0) is None


def test_goodput_above_one_is_absent() -> None:
    """All of the time may be kept, a nanosecond more than passed may not: then a record or a clock is wrong."""
    assert definitions.goodput_ratio(kept_ns=120, wall_ns=120) == 1
    assert definitions.goodput_ratio(kept_ns=121, wall_ns=120) is None
    assert definitions.goodput_since(kept_ns=121, began_ns=1_000, ended_ns=1_120, now_ns=9_000) is None
    assert definitions.goodput_since(kept_ns=121, began_ns=1_000, ended_ns=None, now_ns=1_121) == 1


def test_quotients_by_hand() -> None:
    """Overlap 3 of 4, goodput 90 of 120 s, link 112.5 of 450 GB/s."""
    assert definitions.overlap_ratio(overlap_ns=3, communication_ns=4) == 0.75
    assert definitions.goodput_ratio(kept_ns=90, wall_ns=120) == 0.75
    assert definitions.link_use_ratio(payload_bytes_per_s=112.5e9, capacity_bytes_per_s=450e9) == 0.25


@pytest.mark.parametrize(
    ("tflops", "tb_per_s", "balance"),
    [(148, 4.0, 37), (312, 2.0, 156), (312, 2.039, 153), (989, 3.35, 295)],
)
def test_machine_balance(tflops: float, tb_per_s: float, balance: int) -> None:
    """The balances of H20, A100 and H100 are the table's."""
    value = definitions.machine_balance_flop_per_byte(
        peak_flop_per_s=tflops * 1e12, bandwidth_bytes_per_s=tb_per_s * 1e12
    )
    assert round(value) == balance


def test_machine_balance_without_memory_is_refused() -> None:
    """A bandwidth of 0 is a mistake of the caller."""
    with pytest.raises(UsageError, match="positive"):
        definitions.machine_balance_flop_per_byte(peak_flop_per_s=1, bandwidth_bytes_per_s=0)


@given(flops=st.integers(1, 10**18), num_bytes=st.integers(1, 10**15))
def test_time_at_ceiling_is_work_over_roofline(flops: int, num_bytes: int) -> None:
    """The least time equals FLOPs over the roofline at the kernel's intensity."""
    ceiling = definitions.roofline_flop_per_s(flops / num_bytes, peak_flop_per_s=1e15, bandwidth_bytes_per_s=3e12)
    time_ns = definitions.time_at_ceiling_ns(
        flops=flops, num_bytes=num_bytes, peak_flop_per_s=1e15, bandwidth_bytes_per_s=3e12
    )
    assert time_ns == pytest.approx(1e9 * flops / ceiling)


def test_roofline_both_sides_of_the_ridge() -> None:
    """On a machine of 100 FLOP/s and 10 B/s the ridge is at 10: 5 gives 50, 20 gives 100."""
    sides = [
        definitions.roofline_flop_per_s(x, peak_flop_per_s=100, bandwidth_bytes_per_s=10) for x in (5.0, 10.0, 20.0)
    ]
    assert sides == [50, 100, 100]


def test_pipeline_bubble() -> None:
    """8 stages and 32 micro-batches idle 17.9 %; one stage never idles; no stage is refused."""
    assert round(100 * definitions.pipeline_bubble_ratio(num_stages=8, num_microbatches=32), 1) == 17.9
    assert definitions.pipeline_bubble_ratio(num_stages=1, num_microbatches=4) == 0
    with pytest.raises(UsageError, match="at least 1 stage"):
        definitions.pipeline_bubble_ratio(num_stages=0, num_microbatches=4)


def test_checkpoint_interval() -> None:
    """A write of 490 s and a failure a day give sqrt(2 x 490 x 86400) = 9201.7 s."""
    interval = definitions.checkpoint_interval_ns(write_ns=490 * NS_PER_S, mean_time_to_failure_ns=86_400 * NS_PER_S)
    assert interval / NS_PER_S == pytest.approx(math.sqrt(2 * 490 * 86_400))
    assert round(interval / NS_PER_S) == 9202


def test_full_mesh_of_200000_gpus() -> None:
    """200,000 endpoints need 2e10 links."""
    assert definitions.full_mesh_links(200_000) == 19_999_900_000
