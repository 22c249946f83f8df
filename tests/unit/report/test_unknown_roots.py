"""Traces that do not tell the root of a broadcast are too poor, and the finding and the verdict say what to record."""

from __future__ import annotations

import gzip
import re
from typing import TYPE_CHECKING

import pytest

from scope.report.build import compute_results
from scope.report.findings import find_all
from scope.report.sections.stragglers import stragglers_table
from scope.testing import scenarios
from scope.trace import ReadOptions, load

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("is_told", [True, False])
def test_what_hides_who_waits_for_whom_is_said(is_told: bool, tmp_path: Path) -> None:
    """The number of broadcasts is the simulated one; with the roots in the traces nothing is said of them."""
    scenario = scenarios.late_broadcast_root()
    scenario.write(tmp_path)
    if not is_told:
        for file in tmp_path.glob("*.gz"):
            file.write_bytes(gzip.compress(re.sub(rb'"Rank":\d+', b'"Rank":-1', gzip.decompress(file.read_bytes()))))
    results = compute_results(load([str(tmp_path)], options=ReadOptions(use_cache=False), processes=1))
    assert results.stragglers is not None
    number = sum(each.operation == "broadcast" for each in scenario.simulation.collectives)
    assert number > 1
    assert results.stragglers.num_of_unknown_root == (0 if is_told else number)
    actions = " ".join(each.action for each in find_all(results) if each.kind == "trace_too_poor")
    notes = stragglers_table(results.stragglers).notes
    for said in (actions, notes[0]):
        assert ("ecord with record_shapes=True, which writes roots down" in said) != is_told
    assert (f"{number} collectives have a root" in notes[0]) != is_told
