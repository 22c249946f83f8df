"""What cannot be: values beyond every physical limit, and the blanks that drivers write instead of "unknown".

One rule for every counter, whether NVML, sysfs, a network driver or mountstats tells it: 64 bits that are all ones, and
the other blanks, are no reading; so is what does not fit into 64 bits. Such a figure is absent, and counted.
"""

from __future__ import annotations

from typing import Final

BLANKS: Final = frozenset({2**64 - 1, 2**63 - 1, 2**63, 2**32 - 1, 9223372036854775792, 140737488355328})
"""All-ones of 64 and 32 bits, and DCGM's blank values that found their way into drivers' answers."""

_COUNTER_BLANKS: Final = frozenset({2**64 - 1, 2**63 - 1, 2**63, 9223372036854775792})
_COUNTER_END: Final = 2**64

LIMITS: Final[dict[str, tuple[float, float]]] = {
    "utilization_percent": (0, 100),
    "memory_bytes": (0, 16 << 40),
    "power_mw": (0, 20_000_000),
    "clock_mhz": (0, 20_000),
    "temperature_celsius": (-60, 200),
    "margin_celsius": (-100, 200),
    "link_mb_per_s": (0, 10_000_000),
    "pcie_generation": (1, 16),
    "pcie_width": (1, 64),
    "rows": (0, 1 << 20),
    "flag": (0, 1),
    "recovery_action": (0, 63),
    "link_state": (0, 15),
    "ratio": (0, 1),
}
"""Smallest and largest possible value of what is not a counter."""


def is_plausible(value: float, kind: str) -> bool:
    """Return whether a value can be true.

    Args:
        value: What the hardware answered, in the unit that `kind` names; NaN is never plausible.
        kind: A key of `LIMITS`, or `counter`.
    """
    if kind == "counter":
        return 0 <= value < _COUNTER_END and value not in _COUNTER_BLANKS
    low, high = LIMITS[kind]
    return low <= value <= high and value not in BLANKS
