"""What reports say of collectives that are cut or miss ranks, and why a figure is absent."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

from scope.report.build import compute_results
from scope.report.findings import find_all
from scope.report.page_figures import lateness_figure, wait_bars
from scope.report.rows import to_records
from scope.report.sections import collectives as sections
from scope.report.summary import print_summary
from scope.report.text import make_console
from scope.testing import scenarios
from scope.trace import load

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from scope.analysis.collectives import Collectives
    from scope.report.results import Results
    from scope.testing.scenarios import Scenario

    Make = Callable[..., Results]


def collectives_of(scenario: Scenario, folder: Path) -> Collectives:
    """Return the collectives of a simulated job."""
    files = [str(path) for path in scenario.write(folder)]
    found = compute_results(load(files)).collectives
    assert found is not None
    return found


def test_a_cut_collective_counts_in_no_wait_and_says_so(tmp_path: Path) -> None:
    """Of three collectives the first is cut: its waits are absent, and every table says that one is left out."""
    found = collectives_of(scenarios.window_edge(), tmp_path)
    first, *others = to_records(sections.collective_calls_table(found))
    assert (first["is_cut"], first["total_wait_ns"], first["imposed_wait_ns"]) == (True, None, None)
    for key in ("total_wait_ns", "imposed_wait_ns"):
        assert "recording began while others were in it" in first["absent"][key]
    assert first["transfer_ns"] > 0
    (summary,) = to_records(sections.collectives_table(found))
    assert (summary["num_measured"], summary["num_cut"]) == (3, 1)
    assert summary["total_wait_ns"] == sum(each["total_wait_ns"] for each in others)
    assert summary["max_skew_ns"] == max(each["skew_ns"] for each in others) < first["skew_ns"]
    waits = sections.rank_waits_table(found)
    records = to_records(waits)
    assert [(each["num_collectives"], each["num_cut"]) for each in records] == [(2, 1)] * len(records)
    assert sum(each["wait_ns"] for each in records) == summary["total_wait_ns"]
    for table in (waits, sections.collectives_table(found), sections.collective_calls_table(found)):
        assert any("Left out of waits and skews: 1 of 3 collectives" in note for note in table.notes)


def test_the_summary_says_that_one_is_left_out(tmp_path: Path) -> None:
    """A person who reads the summary alone sees that a collective is cut."""
    files = [str(path) for path in scenarios.window_edge().write(tmp_path)]
    results = compute_results(load(files))
    out = io.StringIO()
    print_summary(results, find_all(results), make_console(out, width=200))
    assert "Left out of waits and skews: 1 of 3 collectives, at the edge of a window" in out.getvalue()


def test_bars_of_waits_are_those_of_the_table(tmp_path: Path) -> None:
    """What a cut collective shows of waiting is in no bar, and no row of the heat map is of it."""
    files = [str(path) for path in scenarios.window_edge().write(tmp_path)]
    results = compute_results(load(files))
    assert results.collectives is not None
    waits = [each["wait_ns"] for each in to_records(sections.rank_waits_table(results.collectives))]
    assert wait_bars(results).parts["wait"] == waits
    (drawn,) = lateness_figure(results.collectives).to_plotly_json()["data"]
    assert drawn["z"]["shape"].split(", ")[1] == "2"


def test_what_is_imposed_is_absent_where_ranks_miss(tmp_path: Path) -> None:
    """With two of four ranks the last less the second-last that are seen bounds nothing: another may lie between."""
    found = collectives_of(scenarios.missing_ranks(), tmp_path)
    for record in to_records(sections.collective_calls_table(found)):
        assert record["imposed_wait_ns"] is None
        assert "imposed wait unknown" in record["absent"]["imposed_wait_ns"]
        assert record["total_wait_ns"] is not None


def test_an_absent_tier_says_that_no_topology_is_known(tmp_path: Path, builder: Any) -> None:
    """A collective without a tier says how to give one, not what is wrong with its bandwidth."""
    other = type(builder)(rank=1, world_size=2)
    builder.world_size = 2
    for each in (builder, other):
        args = {"Collective name": "barrier", "Group size": 2, "dtype": "Float", "Process Group Name": "0"}
        each.launch("ncclDevKernel_AllReduce_Sum", 1, 100 + each.rank, 50, stream=20, **args)
    found = compute_results(load([str(each.write(tmp_path)) for each in (builder, other)])).collectives
    assert found is not None
    (record,) = to_records(sections.collective_calls_table(found))
    assert "--ranks-per-node" in record["absent"]["tier"]
    assert "no message" in record["absent"]["message_bytes"]
    assert record["absent"]["step_number"] == "it was launched in no step"
