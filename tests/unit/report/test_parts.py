"""The summary leaves out what it does not print; nothing that it prints may change by that."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import pytest

from scope.report.build import compute_results
from scope.report.findings import find_all
from scope.report.results import ALL_PARTS, SUMMARY_PARTS
from scope.report.summary import print_summary
from scope.report.text import make_console
from scope.testing.jobs import straggling_job
from scope.testing.layout import Layout
from scope.testing.scenarios import Scenario
from scope.trace import load

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from scope.report.results import Part
    from scope.trace.model import Job


def _summary(job: Job, parts: Collection[Part]) -> str:
    results = compute_results(job, parts=parts)
    written = io.StringIO()
    print_summary(results, find_all(results), make_console(written, width=120))
    return written.getvalue()


@pytest.mark.parametrize("num_ranks", [1, 4])
def test_the_summary_needs_only_its_parts(tmp_path: Path, num_ranks: int) -> None:
    """Text and findings are the same as with all analyses, for one rank and for several."""
    planned = straggling_job(Layout(dp=4), rank=2, kind="host")
    files = Scenario(layout=planned.layout, simulation=planned.run()).write(tmp_path)
    job = load([str(file) for file in files[:num_ranks]])
    text = _summary(job, SUMMARY_PARTS)
    assert text == _summary(job, ALL_PARTS)
    kinds = {finding.kind for finding in find_all(compute_results(job, parts=SUMMARY_PARTS))}
    assert ("straggler" in kinds) == (num_ranks > 1)


def test_parts_that_are_left_out_are_absent_with_a_reason(tmp_path: Path) -> None:
    """Nothing that was not computed looks like a figure, and all parts together leave nothing out."""
    planned = straggling_job(Layout(dp=4), rank=2, kind="host")
    files = Scenario(layout=planned.layout, simulation=planned.run()).write(tmp_path)
    job = load([str(files[0])])
    short, full = (compute_results(job, parts=parts) for parts in (SUMMARY_PARTS, ALL_PARTS))
    assert short.collectives is None
    assert short.absent["collectives"] == "the traces of at least two ranks are needed"
    assert full.collectives is not None
    (device,) = short.analysis.ranks[0].devices
    assert device.critical_path is None
    assert device.absent["critical_path"] == "not asked for"
    assert full.analysis.ranks[0].devices[0].critical_path is not None
