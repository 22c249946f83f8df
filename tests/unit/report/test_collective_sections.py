"""What reports say of collectives that are cut or miss ranks, and why a figure is absent."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from scope.report.build import compute_results
from scope.report.findings import find_all
from scope.report.page_figures import lateness_figure, wait_bars
from scope.report.rows import to_records
from scope.report.sections import collectives as sections
from scope.report.summary import print_summary
from scope.report.text import make_console
from scope.testing import scenarios
from scope.trace import ReadOptions, load

if TYPE_CHECKING:
    from collections.abc import Callable

    from scope.analysis.collectives import Collectives
    from scope.report.results import Results
    from scope.testing.scenarios import Scenario

    Make = Callable[..., Results]

SAMPLES = Path(__file__).parents[3] / "sample_traces"


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


def test_time_and_rate_of_a_row_are_those_of_one_collective() -> None:
    """Of two all_reduces the bandwidth is the message divided by the median transfer that stands beside it."""
    results = compute_results(
        load(
            str(SAMPLES / "gloo-4-ranks-straggler/attempt-000/ranks/*/traces/*.gz"),
            options=ReadOptions(use_cache=False),
        )
    )
    assert results.collectives is not None
    table = sections.collectives_table(results.collectives)
    (record,) = [each for each in to_records(table) if each["operation"] == "all_reduce"]
    assert record["num_measured"] == 2
    rate = record["message_bytes"] * 1e9 / record["median_transfer_ns"]
    assert record["median_algbw_bytes_per_s"] == pytest.approx(rate)
    # 2 (N - 1) / N of four ranks.
    assert record["median_busbw_bytes_per_s"] == pytest.approx(1.5 * rate)
    headings = [each.heading for each in table.columns]
    assert {"total transfer", "total wait", "median transfer", "median busbw", "median algbw"} <= set(headings)
    assert any("total wait over collectives and ranks" in note for note in table.notes)


def test_collectives_that_miss_ranks_are_bounds_only_where_they_are_shown(tmp_path: Path) -> None:
    """The summary counts them in no row and says so; one by one they stand with what is a bound."""
    found = collectives_of(scenarios.missing_ranks(), tmp_path)
    assert all(each["total_transfer_ns"] is None for each in to_records(sections.collectives_table(found)))
    summary, each = (
        " ".join(table.notes) for table in (sections.collectives_table(found), sections.collective_calls_table(found))
    )
    assert "count in no row (--view each shows" in summary
    assert "at least" not in summary
    assert "total wait over" not in summary
    assert "waits are at least and transfer at most what stands here" in each


def test_why_a_remark_is_absent_reads_as_a_sentence(tmp_path: Path) -> None:
    """A person reads the reason below the table without its cell."""
    found = collectives_of(scenarios.window_edge(), tmp_path)
    assert "remark: none; no time of these collectives is absent or a bound" in (
        sections.collective_calls_table(found).reasons()
    )
    assert any("this rank's clock is the reference" in each for each in sections.clock_table(found).reasons())


def _said(tmp_path: Path, *sizes: Any) -> Collectives:
    """Return the collectives of one all_reduce of two ranks, whose traces say these numbers of floats."""
    files: list[str] = []
    for rank, size in enumerate(sizes):
        args = {"correlation": 1, "device": 0, "stream": 7, "Collective name": "allreduce", "dtype": "Float"}
        args |= {"In msg nelems": size, "Out msg nelems": size, "Group size": 2, "Process Group Name": "0"}
        args |= {"Process Group Ranks": "[0, 1]", "Seq": 3}
        name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
        kernel = {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": 10.0, "dur": 5.0, "args": args}
        path = tmp_path / f"rank{rank}.json"
        path.write_text(json.dumps({"distributedInfo": {"rank": rank, "world_size": 2}, "traceEvents": [kernel]}))
        files.append(str(path))
    found = compute_results(load(files)).collectives
    assert found is not None
    return found


@pytest.mark.parametrize("size", [-5, 2**62, 2**64, 10.5, 1e300])
def test_a_size_that_cannot_be_used_is_not_called_unsaid(tmp_path: Path, size: float) -> None:
    """A complete collective whose size is nonsense lacks a size, and neither ranks nor the word of the trace."""
    found = _said(tmp_path, size, size)
    (record,) = to_records(sections.collectives_table(found))
    assert (record["num_measured"], record["message_bytes"], record["median_busbw_bytes_per_s"]) == (1, None, None)
    assert "no usable size" in record["absent"]["message_bytes"]
    assert record["absent"]["median_busbw_bytes_per_s"].startswith("no complete collective of this row has a size")
    (call,) = to_records(sections.collective_calls_table(found))
    assert "no usable size" in call["absent"]["busbw_bytes_per_s"]


def test_ranks_that_say_different_sizes_are_counted_in_a_note(tmp_path: Path) -> None:
    """1,024 floats on one rank and 4,096 on the other are no size: it is absent, and both tables say why."""
    found = _said(tmp_path, 1024, 4096)
    for table in (sections.collectives_table(found), sections.collective_calls_table(found)):
        (record,) = to_records(table)
        assert record["message_bytes"] is None
        assert any("1 of 1 collectives have no size" in note for note in table.notes)
        assert "its ranks say different sizes" in record["absent"]["message_bytes"]
    assert not any("no size" in note for note in sections.collectives_table(_said(tmp_path, 64, 64)).notes)
