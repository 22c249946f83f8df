"""The scalar formulas of every figure, and the name of a group's axis, each once; standard library only.

A quotient whose denominator is 0 does not exist: the functions return None there, never 0 and never NaN, and the caller
states the reason. Impossible arguments (a group of 0 ranks, a negative length) raise `UsageError`. Collective factors
are those of nccl-tests (`doc/PERFORMANCE.md`); bandwidth is decimal bytes a second, one way.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from scope.errors import UsageError
from scope.units import NS_PER_S

if TYPE_CHECKING:
    from collections.abc import Sequence

_MESH: Final = "mesh_"
"""How torch's description of the group of a mesh axis begins; the name of the axis follows."""
_UNNAMED_AXIS: Final = "mesh_dim_"
"""How it begins where the axis has no name, and its place in the mesh follows."""
_SHARED: Final = frozenset({"all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"})
_WHOLE: Final = frozenset({"broadcast", "reduce", "send", "recv"})
_OUTPUT_IS_FULL: Final = frozenset({"all_gather", "gather"})


def bus_factor(operation: str, *, num_ranks: int) -> float | None:
    """Return what the algorithm bandwidth is multiplied by to give the bus bandwidth.

    `all_reduce` 2(N-1)/N; `all_gather`, `reduce_scatter`, `all_to_all`, `gather`, `scatter` (N-1)/N; `broadcast`,
    `reduce`, `send`, `recv` 1. Source: nccl-tests, `doc/PERFORMANCE.md`.

    Args:
        operation: One of `scope.trace.schema.OPERATIONS`.
        num_ranks: Ranks of the group, at least 1. A group of one moves nothing: factor 0 where the formula says so.

    Returns:
        The factor, or None for an operation that has none (`barrier`, `unknown`).

    Raises:
        UsageError: Fewer than one rank.

    Examples:
        >>> bus_factor("all_reduce", num_ranks=8)
        1.75
    """
    if num_ranks < 1:
        message = f"a group has at least 1 rank, not {num_ranks}"
        raise UsageError(message)
    if operation == "all_reduce":
        return 2 * (num_ranks - 1) / num_ranks
    if operation in _SHARED:
        return (num_ranks - 1) / num_ranks
    return 1.0 if operation in _WHOLE else None


def full_message_bytes(operation: str, *, in_bytes: int | None, out_bytes: int | None) -> int | None:
    """Return S, the full message that algorithm bandwidth counts, from one rank's buffers.

    The output for `all_gather` and `gather` (the data of all ranks; on a rank other than the root of a gather it is
    unknown), the input for all others. Receivers of `broadcast`, `scatter` and `recv` hold the message in their output,
    so the larger of the two counts there; a scatter's receiver sees its part alone.

    Returns:
        Bytes, or None when the buffer that would say is unknown.
    """
    if operation in _OUTPUT_IS_FULL:
        return out_bytes
    if operation in {"broadcast", "recv", "scatter"}:
        known = [size for size in (in_bytes, out_bytes) if size is not None]
        return max(known, default=None)
    return in_bytes


def mean_message_bytes(
    operation: str, *, num_calls: int, in_bytes: int, out_bytes: int, num_ranks: int | None
) -> float | None:
    """Return the mean S, the full message of `full_message_bytes`, from sums over the calls of several ranks.

    The sums are of what each rank gave and got: of a broadcast the root gives the message and each other rank gets it;
    of a gather each rank gives its part of the message, of a scatter each gets its part.

    Args:
        operation: One of `scope.trace.schema.OPERATIONS`.
        num_calls: Calls added, each rank's part of a collective being one.
        in_bytes: What the ranks gave in these.
        out_bytes: What they got.
        num_ranks: Ranks of the group; None where that is not known.

    Returns:
        Bytes, or None without a call, or where the parts of a gather or scatter are known and not how many there are.

    Examples:
        >>> mean_message_bytes("broadcast", num_calls=4, in_bytes=80, out_bytes=240, num_ranks=4)
        80.0
        >>> mean_message_bytes("gather", num_calls=4, in_bytes=80, out_bytes=80, num_ranks=4)
        80.0
    """
    if num_calls <= 0:
        return None
    if operation in {"gather", "scatter"}:
        parts = in_bytes if operation == "gather" else out_bytes
        return None if num_ranks is None else parts * num_ranks / num_calls
    if operation in {"broadcast", "recv"}:
        return (in_bytes + out_bytes) / num_calls
    message = full_message_bytes(operation, in_bytes=in_bytes, out_bytes=out_bytes)
    return None if message is None else message / num_calls


def algorithm_bandwidth_bytes_per_s(message_bytes: int, *, transfer_ns: int) -> float | None:
    """Return algbw, message bytes / transfer time; None for a transfer of no length.

    Args:
        message_bytes: The full message, see `full_message_bytes`.
        transfer_ns: Last end minus last arrival.

    Raises:
        UsageError: A negative argument.
    """
    _refuse_negative(message_bytes=message_bytes, transfer_ns=transfer_ns)
    return message_bytes * NS_PER_S / transfer_ns if transfer_ns else None


def bus_bandwidth_bytes_per_s(message_bytes: int, *, transfer_ns: int, operation: str, num_ranks: int) -> float | None:
    """Return busbw, algbw times `bus_factor`; None where either does not exist."""
    factor = bus_factor(operation, num_ranks=num_ranks)
    bandwidth = algorithm_bandwidth_bytes_per_s(message_bytes, transfer_ns=transfer_ns)
    return None if factor is None or bandwidth is None else factor * bandwidth


def transfer_ns(*, arrivals_ns: Sequence[int], ends_ns: Sequence[int]) -> int:
    """Return the transfer time of a symmetric collective: last end minus last arrival.

    Negative only when the clocks of the ranks disagree, which the caller must report and not clip.

    Args:
        arrivals_ns: When each rank arrived, on one clock; not empty.
        ends_ns: When each rank's part ended, on the same clock; not empty.
    """
    return max(ends_ns) - max(arrivals_ns)


def waits_ns(arrivals_ns: Sequence[int]) -> tuple[int, ...]:
    """Return each rank's wait in a symmetric collective: last arrival minus its own, in the order given."""
    last = max(arrivals_ns)
    return tuple(last - arrival for arrival in arrivals_ns)


def imposed_wait_ns(arrivals_ns: Sequence[int]) -> int:
    """Return what the last rank alone imposes: last minus second-last arrival; 0 for a group of one.

    This is what a fix of that rank alone saves at this collective: behind it the second-last rank is waited for.
    """
    *_, second, last = sorted((*arrivals_ns, max(arrivals_ns))) if len(arrivals_ns) == 1 else sorted(arrivals_ns)
    return last - second


def overlap_ratio(*, overlap_ns: int, communication_ns: int) -> float | None:
    """Return communication that compute hides / communication, 0 to 1; None without communication."""
    return _share(overlap_ns, communication_ns)


def model_flops_utilization(model_flops: float, *, step_ns: int, peak_flop_per_s: float) -> float | None:
    """Return MFU: model FLOPs of all ranks / (step time x sum of the ranks' peaks).

    Args:
        model_flops: What forward and backward need, recompute excluded (Chowdhery et al. 2022, PaLM, appendix B).
        step_ns: The slowest rank's step time.
        peak_flop_per_s: Sum of the dense peaks of all ranks for the matrix dtype, FLOP/s.

    Returns:
        A ratio (above 1 the peak or the count is wrong, which the caller flags), or None for no time or no peak.
    """
    available = step_ns * peak_flop_per_s / NS_PER_S
    return model_flops / available if available > 0 else None


def hardware_flops_utilization(
    model_flops: float, *, recompute_flops: float, step_ns: int, peak_flop_per_s: float
) -> float | None:
    """Return HFU: as MFU, with the recomputed FLOPs added (Korthikanti et al. 2022)."""
    return model_flops_utilization(model_flops + recompute_flops, step_ns=step_ns, peak_flop_per_s=peak_flop_per_s)


def goodput_ratio(*, kept_ns: int, wall_ns: int) -> float | None:
    """Return time in steps that were kept / wall time since the first attempt began; None before any time passed.

    None too where more time was kept than passed, which cannot be: a record, or a clock, is wrong.

    Args:
        kept_ns: Time in steps whose result was not lost to a restart.
        wall_ns: Wall time since the first attempt began, start-up counted.
    """
    return _share(kept_ns, wall_ns) if kept_ns <= wall_ns else None


def goodput_since(*, kept_ns: int, began_ns: int, ended_ns: int | None, now_ns: int) -> float | None:
    """Return the goodput of a rank: of the time until its end, or until now while it goes on; None before any passed.

    None too where its steps last longer than that (`goodput_ratio`).

    Args:
        kept_ns: Time in steps whose result was not lost to a restart.
        began_ns: When the run's first attempt began, start-up counted.
        ended_ns: When the rank ended; None while it goes on.
        now_ns: Now, since the epoch like the others.
    """
    return goodput_ratio(kept_ns=kept_ns, wall_ns=max(0, (now_ns if ended_ns is None else ended_ns) - began_ns))


def transformer_flops_per_token(
    num_parameters: float,
    *,
    num_layers: int = 0,
    attention_width: int = 0,
    sequence_length: int = 0,
    causal_halved: bool = False,
    recompute: bool = False,
) -> float:
    """Return the FLOPs that training a transformer needs for one token: 6 N + 12 L H Q T (PaLM, appendix B).

    Forward 2 N, backward 4 N; full recompute runs the forward once more (8 N, and attention 16 instead of 12).

    Args:
        num_parameters: N, parameters in matrix products that one token meets (`active_parameters` for experts;
            embedding tables that are only looked up don't count).
        num_layers: L, blocks with attention.
        attention_width: H x Q, heads of the queries times width of a head. Grouped queries (GQA) have fewer keys and
            values, hence fewer parameters, but no fewer attention FLOPs.
        sequence_length: T, tokens that a token may attend to.
        causal_halved: Count only the half of the scores that a causal mask keeps.
        recompute: Full activation checkpointing: the figure for HFU.

    Raises:
        UsageError: An argument is negative.
    """
    _refuse_negative(num_layers=num_layers, attention_width=attention_width, sequence_length=sequence_length)
    if num_parameters < 0:
        message = f"num_parameters is {num_parameters}; it cannot be negative"
        raise UsageError(message)
    attention = 12 * num_layers * attention_width * sequence_length * (0.5 if causal_halved else 1.0)
    return (6 * num_parameters + attention) * (4 / 3 if recompute else 1.0)


def active_parameters(shared: int, *, expert: int, num_experts: int, top_k: int) -> float:
    """Return the parameters of a mixture of experts that one token meets: shared + experts x k / E.

    Args:
        shared: Parameters that every token meets: attention, router, shared experts.
        expert: Parameters of all routed experts together.
        num_experts: E, routed experts.
        top_k: k, experts that a token is sent to.

    Raises:
        UsageError: k is not between 1 and E.
    """
    if not 1 <= top_k <= num_experts:
        message = f"top_k is {top_k}; it must be between 1 and the {num_experts} experts"
        raise UsageError(message)
    return shared + expert * top_k / num_experts


def link_use_ratio(*, payload_bytes_per_s: float, capacity_bytes_per_s: float) -> float | None:
    """Return payload one way / payload capacity one way; None without a capacity."""
    return payload_bytes_per_s / capacity_bytes_per_s if capacity_bytes_per_s > 0 else None


def machine_balance_flop_per_byte(*, peak_flop_per_s: float, bandwidth_bytes_per_s: float) -> float:
    """Return peak / memory bandwidth: below this intensity a kernel is bound by memory (Williams et al. 2009).

    Raises:
        UsageError: A bandwidth that is not positive.
    """
    if bandwidth_bytes_per_s <= 0:
        message = f"a memory bandwidth is positive, not {bandwidth_bytes_per_s}"
        raise UsageError(message)
    return peak_flop_per_s / bandwidth_bytes_per_s


def roofline_flop_per_s(
    intensity_flop_per_byte: float, *, peak_flop_per_s: float, bandwidth_bytes_per_s: float
) -> float:
    """Return the roofline at an intensity: min(peak, intensity x bandwidth) (Williams et al. 2009)."""
    return min(peak_flop_per_s, intensity_flop_per_byte * bandwidth_bytes_per_s)


def time_at_ceiling_ns(
    *, flops: float, num_bytes: float, peak_flop_per_s: float, bandwidth_bytes_per_s: float
) -> float:
    """Return the least time that the work can take: max(FLOPs / peak, bytes / bandwidth), in nanoseconds.

    For FLOPs above 0 this equals FLOPs / `roofline_flop_per_s`; it exists for copies as well.
    """
    return NS_PER_S * max(flops / peak_flop_per_s, num_bytes / bandwidth_bytes_per_s)


def pipeline_bubble_ratio(*, num_stages: int, num_microbatches: int) -> float:
    """Return the idle share of a pipeline, (p-1)/(m+p-1), for GPipe and 1F1B (Narayanan et al. 2021).

    Raises:
        UsageError: Fewer than one stage or micro-batch.

    Examples:
        >>> round(pipeline_bubble_ratio(num_stages=8, num_microbatches=32), 3)
        0.179
    """
    if num_stages < 1 or num_microbatches < 1:
        message = f"a pipeline has at least 1 stage and 1 micro-batch, not {num_stages} and {num_microbatches}"
        raise UsageError(message)
    return (num_stages - 1) / (num_microbatches + num_stages - 1)


def checkpoint_interval_ns(*, write_ns: int, mean_time_to_failure_ns: int) -> int:
    """Return the checkpoint interval that loses least, sqrt(2 x write time x mean time to failure) (Young 1974).

    Raises:
        UsageError: A negative argument.
    """
    _refuse_negative(write_ns=write_ns, mean_time_to_failure_ns=mean_time_to_failure_ns)
    return math.isqrt(2 * write_ns * mean_time_to_failure_ns)


def full_mesh_links(num_endpoints: int) -> int:
    """Return the number of links that join every pair of n endpoints, n(n-1)/2."""
    _refuse_negative(num_endpoints=num_endpoints)
    return num_endpoints * (num_endpoints - 1) // 2


def find_mesh_axis(description: str | None) -> str | None:
    """Return the name of the mesh axis that a process group spans; None where its description tells none.

    Args:
        description: Torch's description of the group; None where it is not known.

    Examples:
        >>> find_mesh_axis("mesh_tp"), find_mesh_axis("mesh_dp_shard_cp")
        ('tp', 'dp_shard_cp')
        >>> [find_mesh_axis(each) for each in (None, "default_pg", "mesh_", "mesh_dim_0")]
        [None, None, None, None]
    """
    if description is None or not description.startswith(_MESH) or description.startswith(_UNNAMED_AXIS):
        return None
    return description.removeprefix(_MESH) or None


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole > 0 else None


def _refuse_negative(**values: int) -> None:
    for name, value in values.items():
        if value < 0:
            message = f"{name} is at least 0, not {value}"
            raise UsageError(message)
