"""A library of communication that Scope does not know is asked about, not silently counted as compute."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scope.report.findings import find_all

if TYPE_CHECKING:
    from collections.abc import Callable


def title(results: Any) -> str:
    """Return the title of the finding on what the trace lacks."""
    return next((each.title for each in find_all(results) if each.kind == "trace_too_poor"), "")


def test_a_stream_of_unknown_kernels_is_asked_about(builder: Any, results_of: Callable[..., Any]) -> None:
    """Kernels of no known class and no operator, alone on a stream beside the busiest, are named with their stream."""
    builder.launch("sm90_gemm_kernel", 1, 100, 500)
    builder.launch("vendor_exchange_17", 3, 200, 100, stream=33)
    assert "stream 33 of device 0" in title(results_of(builder))


def test_a_stream_of_known_kernels_is_not(builder: Any, results_of: Callable[..., Any]) -> None:
    """Neither known kernels on a second stream, nor unknown ones on the only stream, nor a trifle are asked about."""
    builder.launch("sm90_gemm_kernel", 1, 100, 500)
    builder.launch("vendor_thing", 2, 600, 50)
    builder.launch("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 3, 200, 100, stream=33)
    builder.launch("vendor_trifle", 5, 700, 1, stream=34)
    assert "stream" not in title(results_of(builder))
