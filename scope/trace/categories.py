"""What the category of a record says it is: names of Kineto old and new, and of the makers of accelerators."""

from __future__ import annotations

from typing import Final

KERNEL, MEMCPY, MEMSET, OP, LAUNCH, ANNOTATION, SYNC, PYTHON = range(8)

PYTHON_CATEGORY: Final = "python_function"
COLLECTION_NAME: Final = "Python GC"
"""A run of Python's garbage collector, which torch files under Python frames, though it is none and has no number."""
CATEGORY_KINDS: Final = {
    "kernel": KERNEL,
    "Kernel": KERNEL,
    "concurrent_kernel": KERNEL,
    "mtia_ccp_events": KERNEL,
    "gpu_memcpy": MEMCPY,
    "Memcpy": MEMCPY,
    "gpu_memset": MEMSET,
    "Memset": MEMSET,
    "cpu_op": OP,
    "Operator": OP,
    "Runtime": LAUNCH,
    "runtime": LAUNCH,
    "driver": LAUNCH,
    "cuda_runtime": LAUNCH,
    "cuda_driver": LAUNCH,
    "hip_runtime": LAUNCH,
    "xpu_runtime": LAUNCH,
    "xpu_driver": LAUNCH,
    "mtia_runtime": LAUNCH,
    "glow_runtime": LAUNCH,
    "hpu_op": LAUNCH,
    "privateuse1_runtime": LAUNCH,
    "privateuse1_driver": LAUNCH,
    "cuda_sync": SYNC,
    "xpu_sync": SYNC,
    PYTHON_CATEGORY: PYTHON,
}
BACKWARD_ARROWS: Final = frozenset({"fwdbwd", "forward_backward"})
NAMED_RANGES: Final = frozenset(
    {
        "user_annotation",
        "cuda_event",
        "cuda_profiler_range",
        "xpu_scope_profiler",
        "mtia_insight",
        "mtia_counters",
        "external_correlation",
        "overhead",
        "Trace",
    }
)
COLLECTIVE_CATEGORY: Final = "collective_comm"
"""Ranges of the host that a library reports (XPU), or of a device; the arguments tell."""
_ENDINGS: Final = (
    ("_runtime", LAUNCH),
    ("_driver", LAUNCH),
    ("_memcpy", MEMCPY),
    ("_memset", MEMSET),
    ("_sync", SYNC),
    ("_user_annotation", ANNOTATION),
)
"""What makers of other accelerators call their categories, as in GCU_MEMCPY; in lower case."""


def kind_of(category: str) -> int | None:
    """Return what the records of a category are; None for an unknown one, of which each record tells."""
    kind = CATEGORY_KINDS.get(category)
    if kind is not None or category in NAMED_RANGES:
        return ANNOTATION if kind is None else kind
    return next((kind for ending, kind in _ENDINGS if category.lower().endswith(ending)), None)
