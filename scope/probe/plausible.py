"""What cannot be: values beyond every physical limit, and the blanks that drivers write instead of "unknown".

One rule for every counter, whether NVML, sysfs, a network driver or mountstats tells it: 64 bits that are all ones, the
blanks of DCGM, and what does not fit into 64 bits are no reading; where a counter may have 32 bits, neither are 32 that
are all ones, which is what a device that fell off the bus reads as. Such a figure is absent, and counted.
"""

from __future__ import annotations

from typing import Final


def _dcgm_blanks(first: int) -> frozenset[int]:
    """Return blank, not found, not supported and not permitted, which DCGM numbers one after the other."""
    return frozenset(range(first, first + 4))


_DOUBLE_BLANKS: Final = _dcgm_blanks(2**47)
_COUNTER_BLANKS: Final = frozenset({2**64 - 1, 2**63 - 1, 2**63}) | _dcgm_blanks(0x7FFF_FFFF_FFFF_FFF0) | _DOUBLE_BLANKS
BLANKS: Final = _COUNTER_BLANKS | {2**32 - 1} | _dcgm_blanks(0x7FFF_FFF0)
"""All ones of 64 and 32 bits, and DCGM's blank values, which found their way into drivers' answers."""

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
    "bits": (0, 1 << 62),
    "recovery_action": (0, 63),
    "link_state": (0, 15),
    "ratio": (0, 1),
    "xid": (0, 999),
}
"""Smallest and largest possible value of what is not a counter."""


def is_plausible(value: float, kind: str) -> bool:
    """Return whether a value can be true.

    Args:
        value: What the hardware answered, in the unit that `kind` names; NaN is never plausible.
        kind: A key of `LIMITS`; or `counter`, or `counter32` for one that may have only 32 bits. Where that one is
            wider, or wraps, it can pass a blank of 32 bits: it is absent for that one reading.
    """
    if kind == "counter32":
        return 0 <= value < _COUNTER_END and value not in BLANKS
    if kind == "counter":
        return 0 <= value < _COUNTER_END and value not in _COUNTER_BLANKS
    low, high = LIMITS[kind]
    return low <= value <= high and value not in BLANKS
