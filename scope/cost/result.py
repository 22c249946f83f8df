"""What an operator's work costs at least: FLOPs, bytes, the dtype of the arithmetic, and whether matrix units fit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from scope.cost.dtypes import element_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from scope.cost.call import TensorArg

FAMILIES: Final = (
    "gemm",
    "attention",
    "convolution",
    "normalisation",
    "elementwise",
    "reduction",
    "embedding",
    "optimizer",
    "fused",
    "copy",
)
MATRIX_FAMILIES: Final = frozenset({"gemm", "attention", "convolution"})


class OperatorCost(msgspec.Struct, frozen=True, kw_only=True):
    """The least work that a call needs: each input read once, each output written once.

    FLOPs count a multiplication and an addition as one each, and an elementary function (exp, tanh, erf) as one; a
    bias or an activation that a matrix product carries is not counted. Absent is None with a reason, never 0.
    """

    family: str
    flops: int | None = None
    flops_reason: str | None = None
    flops_unmasked: int | None = None
    """Attention: FLOPs as if no mask were given, which is what `torch.utils.flop_counter` counts; else None."""
    bytes_read: int | None = None
    bytes_written: int | None = None
    num_bytes: int | None = None
    """Read and written together; it may be known where the split is not."""
    bytes_reason: str | None = None
    math_dtype: str | None = None
    """Dtype of the operands of the arithmetic; None when unknown or when there is none."""
    misaligned: tuple[str, ...] = ()
    """Matrix products: dimensions whose extent is no multiple of 16 bytes, which matrix units want (NVIDIA, Matrix
    Multiplication Background User's Guide, "Tensor Core requirements"), such as `K=5185`."""


def unknown(family: str, reason: str) -> OperatorCost:
    """Return a cost of which nothing is known, and why."""
    return OperatorCost(family=family, flops_reason=reason, bytes_reason=reason)


def cost(
    family: str, *, flops: int | None, read: int | None, written: int | None, math_dtype: str | None = None
) -> OperatorCost:
    """Return a cost whose FLOPs and traffic are known, or unknown for want of a dtype."""
    total = None if read is None or written is None else read + written
    return OperatorCost(
        family=family,
        flops=flops,
        flops_reason=None if flops is not None else "the trace does not say enough",
        bytes_read=read,
        bytes_written=written,
        num_bytes=total,
        bytes_reason=None if total is not None else "the trace does not say the dtype",
        math_dtype=math_dtype,
    )


def stored(tensors: Iterable[TensorArg | None]) -> int | None:
    """Return the bytes that the given tensors hold, absent ones skipped; None when a dtype is unknown."""
    total = 0
    for tensor in tensors:
        if tensor is None:
            continue
        size = tensor.stored_bytes
        if size is None:
            return None
        total += size
    return total


def sized(num_elements: int, dtype: str | None) -> int | None:
    """Return the bytes of a number of elements; None when the dtype is unknown."""
    size = element_bytes(dtype)
    return None if size is None else size * num_elements


def added(*sizes: int | None) -> int | None:
    """Return a sum that is unknown when a part of it is."""
    known = [size for size in sizes if size is not None]
    return sum(known) if len(known) == len(sizes) else None
