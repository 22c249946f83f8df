"""What the figures mean that findings rest on: each key once, with its meaning; the unit stands in the key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from scope.report.sections.base import column

if TYPE_CHECKING:
    from scope.report.table import ReportColumn

_SLOW_RANK_OR_LINK: Final = "`straggler`, `slow_collective`"

EVIDENCE_KEYS: Final[dict[str, str]] = {
    # What shares are of, and exposed communication.
    "window_ns": "Length of the time that shares are taken of: whole steps, or windows without steps.",
    "basis_ns": "The same as `window_ns`, beside times that are no part of it.",
    "exposed_communication_ns": "Communication minus compute.",
    "overlap_ratio": "Share of communication that compute hides.",
    "worst_exposed_ns": "Exposed time of the collective that is named first.",
    "straggler_wait_ns": "Of `exposed_communication_ns`: waits for stragglers that are findings of their own.",
    "slow_link_ns": "Of `exposed_communication_ns`: what slow links cost that are findings of their own.",
    "unknown_wait_ns": (
        "Of `exposed_communication_ns`, beside stragglers: collectives that a window's edge cuts or that were not "
        "matched with those of other ranks, so that whether they waited is not known."
    ),
    # Ranks that are late.
    "imposed_wait_ns": "How long the groups of this rank wait for it alone, in the whole recording.",
    "exposed_wait_ns": "How long others wait for this rank, or for one that waits for it, and compute nothing.",
    "saved_ns": "What all devices gain in their step time when this rank works as its peers do, or all that are late.",
    "saving_ns": (
        f"How much sooner the recording would have ended, had this rank or link done as its peers do, with no other "
        f"change ({_SLOW_RANK_OR_LINK}); time of kernels above their ceiling while nothing else computed (others)."
    ),
    "together_saving_ns": "How much sooner the recording would have ended without the lateness of all late ranks.",
    "compute_excess_ns": "Compute of this rank beyond the median of its peers.",
    "input_excess_ns": "Idle time for input of this rank beyond the median of its peers.",
    "memory_excess_ns": "Copies and allocation of this rank beyond the median of its peers.",
    "host_excess_ns": "Other idle time of this rank beyond the median of its peers.",
    "num_collectives": "Collectives that this rank was late for.",
    "noise_floor_ns": "Lateness below the clocks' probable error plus this counts for nobody.",
    # Collectives and links.
    "small_ns": "Exposed time of messages below 1 MB, without waits for late ranks where these are known.",
    "largest_bytes": "The largest of these messages.",
    "busbw_bytes_per_s": "Median bus bandwidth.",
    "sister_busbw_bytes_per_s": "Median bus bandwidth of the other groups of the same axis, shape and message.",
    "sister_ratio": "`busbw_bytes_per_s` / `sister_busbw_bytes_per_s`.",
    "num_sisters": "Those other groups.",
    "ceiling_bytes_per_s": "What the link allows.",
    "num_groups": "Groups that run as slowly.",
    # Idle time.
    "idle_ns": "Nothing ran on the device, whatever the cause.",
    "host_ns": "Idle while the launching thread ran host code.",
    "launch_latency_ns": "Idle from the launching call to the start, without launches awaited in blocking calls.",
    "host_bound_ns": (
        "Nothing was launched and not yet started while the launching thread was busy. What was launched before may "
        "still run, so that this is more than idle time."
    ),
    "launches_per_part": "Launches a step (or window) and device; a count.",
    "input_ns": "Idle while the launching thread fetched data.",
    "sync_ns": "Idle after blocking calls.",
    "allocation_ns": "Idle while the launching thread allocated or freed device memory in the driver.",
    "num_calls": (
        "Calls of collectives below 1 MB on all ranks (`small_messages`), blocking calls (`synchronising_calls`), "
        "allocations and frees in the driver (`device_allocation`)."
    ),
    "num_frees": "Of those allocations and frees, the frees.",
    # Kernels.
    "duration_ns": "Sum of the lengths of these kernels.",
    "num_kernels": "How many kernels there are.",
    "attained_ratio": (
        "Time at the ceiling / duration: of the first kernel (`far_below_ceiling`), the largest (`roofline_exceeded`; "
        "above 1); `busbw_bytes_per_s` / `ceiling_bytes_per_s` (`slow_collective`)."
    ),
    "recompute_ns": "Sum of the lengths of kernels of backward that compute forward again.",
    "recompute_ratio": "`recompute_ns` / lengths of all compute kernels.",
    "num_ops": "Outermost operators that are computed again.",
    # What traces lack.
    "num_traces": "Ranks of which a trace was read.",
    "num_missing_ranks": "Ranks of the job of which no trace was read.",
    "events_lost": "Records that could not be read; a count over all ranks.",
    "device_events_without_launch": "Device events whose launch the traces do not hold; a count over all ranks.",
}
"""By key of `evidence`: what it means. Times lie in step time and are sums over devices or ranks, unless it is said."""

_COUNTS: Final = frozenset({"launches_per_part", "events_lost", "device_events_without_launch"})
"""Counts whose key does not begin with `num_`."""


def evidence_column(key: str, heading: str) -> ReportColumn:
    """Return the column of a documented key.

    Args:
        key: One of `EVIDENCE_KEYS`.
        heading: What a person reads before the figure.
    """
    return column(key, heading, EVIDENCE_KEYS[key], unit="count" if key in _COUNTS else None)
