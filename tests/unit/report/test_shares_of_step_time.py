"""No finding costs more step time than there is, whatever the records say."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec
import polars as pl
import pytest

from scope.analysis.savings import StragglerSavings
from scope.analysis.straggler_waits import StragglerWaits
from scope.report.build import Choices, compute_results
from scope.report.findings import find_all, make_basis
from scope.report.findings.collectives import judged_sums
from scope.testing.jobs import straggling_job
from scope.testing.layout import Layout
from scope.testing.scenarios import Scenario
from scope.trace import load

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from scope.report.results import Results

NUM_STREAMS = 8
LATE = 2


@pytest.fixture
def straggling(tmp_path: Path) -> Results:
    """Four ranks of which one is late in every step; a slow link beside them."""
    job = replace(straggling_job(Layout(dp=4), rank=LATE, kind="host"), slow_groups={"mesh_dp:0": 0.05})
    files = Scenario(layout=job.layout, simulation=job.run()).write(tmp_path)
    nodes = dict.fromkeys(range(4), "node 0")
    return compute_results(load([str(file) for file in files]), Choices(nodes=nodes))


def check_shares(results: Results) -> list[str]:
    """Assert that each finding costs at most all step time, also in its words; return the kinds found."""
    window_ns = make_basis(results.analysis).window_ns
    found = find_all(results)
    for finding in found:
        shares = [float(text) for text in re.findall(r"([\d.]+) % of (?:step time|the window)", finding.title)]
        assert max(shares, default=0) <= 100, finding.title
        assert (finding.share_ratio or 0) <= 1, finding.title
        assert (finding.cost_ns or 0) <= window_ns, finding.title
    return [finding.kind for finding in found]


def test_a_step_saves_no_more_than_it_lasts(straggling: Results) -> None:
    """Of a saving of 100 s in one step its length counts, of one of 5 ns in another all, of a cut step none."""
    (rank,) = (each for each in straggling.analysis.ranks if each.rank == 0)
    steps = [part for device in rank.devices for part in device.steps]
    numbers = [part.step.number for part in steps if part.step is not None]
    breakdown = steps[0].breakdown
    assert breakdown is not None
    rows = [(LATE, 0, numbers[0], 10**11), (LATE, 0, numbers[1], 5), (LATE, 0, numbers[-1], 7), (LATE, 9, 10, 11)]
    assert judged_sums(straggling, rows) == {LATE: breakdown.window_ns + 5}
    # What stands in several rows of one step is one saving in it; a loss stays one.
    assert judged_sums(straggling, [(1, 0, numbers[0], -8), (1, 0, numbers[0], 3)]) == {1: -5}


def test_a_straggler_costs_no_more_than_step_time(straggling: Results) -> None:
    """Savings and waits a thousand times what was planted: the straggler is told with all of step time at most."""
    found = straggling.stragglers
    assert found is not None
    inflated = msgspec.structs.replace(
        found,
        savings=found.savings.with_columns(pl.col(StragglerSavings.saved_ns) * 1_000),
        waits=found.waits.with_columns(pl.col(StragglerWaits.exposed_wait_ns) * 1_000),
    )
    assert "straggler" in check_shares(straggling)
    assert "straggler" in check_shares(msgspec.structs.replace(straggling, stragglers=inflated))


@pytest.mark.parametrize(
    ("kernel", "operator", "dtype", "dims", "kind"),
    [
        pytest.param(
            "void at::native::vectorized_elementwise_kernel<4, CUDAFunctor_add<float>>(int)",
            "aten::add", "float", [[4096, 4096], [4096, 4096], []], "memory_bound_kernels", id="memory-bound",
        ),
        pytest.param(
            "ampere_sgemm_128x64_tn",
            "aten::mm", "float", [[4096, 4096], [4096, 4096]], "tensor_cores_unused", id="fp32",
        ),
        pytest.param(
            "sm90_xmma_gemm_bf16bf16_bf16f32",
            "aten::mm", "c10::BFloat16", [[4096, 4096], [4096, 4097]], "tensor_cores_unused", id="misaligned",
        ),
        pytest.param(
            "sm90_xmma_gemm_bf16bf16_bf16f32",
            "aten::mm", "c10::BFloat16", [[8192, 65536], [65536, 8192]], "roofline_exceeded", id="above-its-ceiling",
        ),
    ],
)  # fmt: skip
def test_kernels_side_by_side_cost_no_more_than_step_time(  # noqa: PLR0913 - a case and two fixtures
    builder: Any, results_of: Callable[..., Results], kernel: str, operator: str, dtype: str, dims: Any, kind: str
) -> None:
    """Eight streams that run the same kernels at once: eight times the step's length, told as all of step time."""
    builder.step(1, 0, 3000)
    for index in range(NUM_STREAMS):
        at = 100 + 10 * index
        given = {"Input Dims": dims, "Input type": [dtype] * len(dims)}
        builder.host("cpu_op", operator, at - 50, 9, **given)
        builder.launch(kernel, at - 48, 300, 1_000, stream=7 + index)
    assert kind in check_shares(results_of(builder))
