"""The peak that MFU is held against: the user's, that of the GPU's datasheet, or that of a product on this CPU."""

# torch annotates only a part of itself.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportPrivateUsage=false

from __future__ import annotations

import time
from typing import Final

import torch

from scope.hardware.match import DeviceFacts, match_gpu

_PRODUCT_SIZE: Final = 512
_NUM_PRODUCTS: Final = 8


def find_peak(dtype: str, *, of_user: float | None) -> tuple[float | None, str | None, str]:
    """Return the peak, its source, and the reason when there is none.

    Args:
        dtype: Of the matrix products, as torch names it.
        of_user: What the user says that it is, in FLOP/s; None to find it.
    """
    if of_user is not None:
        return of_user, "user", ""
    if not (torch.cuda.is_available() and torch.cuda.is_initialized()):
        return measure_product(dtype), "measured matrix product", ""
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    match = match_gpu(
        DeviceFacts(
            name=properties.name,
            total_memory_bytes=properties.total_memory,
            num_sms=properties.multi_processor_count,
            compute_capability=(properties.major, properties.minor),
        )
    )
    gpu = match.usable
    figure = gpu.matrix_peak(dtype) if gpu is not None else None
    if figure is None:
        return None, None, gpu.why_absent(dtype) if gpu is not None else match.reason
    return figure.value, figure.source, ""


def measure_product(dtype: str) -> float:
    """Return the FLOP/s of a 512 x 512 matrix product on this process's CPU threads, the best of eight.

    No random numbers are drawn, so that training stays bit-identical; no mode that the program has entered (a default
    device, its own dispatch or function modes, autocast) sees the product or changes it.
    """
    best = 0
    with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch(), torch._C._DisableAutocast():
        matrix = torch.ones(_PRODUCT_SIZE, _PRODUCT_SIZE, dtype=getattr(torch, dtype), device="cpu")
        with torch.no_grad():
            for _ in range(_NUM_PRODUCTS):
                start = time.perf_counter_ns()
                torch.mm(matrix, matrix)
                elapsed = time.perf_counter_ns() - start
                best = elapsed if not best else min(best, elapsed)
    return 2 * _PRODUCT_SIZE**3 * 1e9 / max(best, 1)
