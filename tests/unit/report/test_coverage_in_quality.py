"""The share of compute time that the roofline places stands in each rank's quality."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scope.report.sections.quality import quality_record

if TYPE_CHECKING:
    from collections.abc import Callable

    from scope.report.results import Results

    Make = Callable[..., Results]


def test_coverage_is_the_rooflines(builder: Any, results_of: Make) -> None:
    """A product of 300 us with shapes beside 100 us of a kernel without an operator: three quarters are placed."""
    dims = [[4096, 4096], [4096, 4096]]
    builder.host("cpu_op", "aten::mm", 50, 40, **{"Input Dims": dims, "Input type": ["c10::BFloat16"] * 2})
    builder.launch("sm90_xmma_gemm_bf16bf16_bf16f32", 55, 100, 300)
    builder.launch("made_elsewhere_kernel", 95, 400, 100)
    (rank,) = results_of(builder).analysis.ranks
    record = quality_record(rank)
    assert record["roofline_coverage_ratio"] == 0.75
    assert "roofline_coverage_ratio" not in record["absent"]


def test_a_rank_without_compute_has_no_coverage(builder: Any, results_of: Make) -> None:
    """Where nothing computes there is nothing to place: absent with a reason."""
    builder.launch("Memset (Device)", 5, 10, 20)
    builder.records[-1]["cat"] = "gpu_memset"
    (rank,) = results_of(builder).analysis.ranks
    record = quality_record(rank)
    assert record["roofline_coverage_ratio"] is None
    assert "no compute kernels" in record["absent"]["roofline_coverage_ratio"]
