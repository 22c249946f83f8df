"""Two runs made by hand, and what changed between them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from scope.analysis.comparison import compare_jobs
from scope.trace.model import Job

if TYPE_CHECKING:
    from collections.abc import Callable

    from scope.trace.model import RankTrace

STEPS = [
    {"number": 4, "start_ns": 0, "end_ns": 1_000},
    {"number": 5, "start_ns": 1_000, "end_ns": 2_200},
    {"number": 6, "start_ns": 2_200, "end_ns": 2_300, "is_cut": True},
]


def _events(*rows: tuple[str, int, int, int | None]) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "kernel_class": "gemm" if name.startswith("gemm") else "elementwise",
            "start_ns": start,
            "end_ns": start + length,
            "step_id": step,
            "op_id": 0 if name.startswith("gemm") else None,
        }
        for name, start, length, step in rows
    ]


def _job(*traces: RankTrace) -> Job:
    return Job(ranks=traces, world_size=len(traces))


@pytest.fixture
def before(make_trace: Callable[..., RankTrace]) -> RankTrace:
    """Two whole steps: 300 ns of gemm and 50 of add in each, 40 of old in one; the cut step and no step don't count."""
    events = _events(
        ("gemm", 0, 300, 0),
        ("add", 400, 50, 0),
        ("old", 500, 40, 0),
        ("gemm", 1_000, 300, 1),
        ("add", 1_400, 50, 1),
        ("gemm", 2_200, 77, 2),
        ("gemm", 2_900, 99, None),
    )
    return make_trace(
        device_events=events,
        steps=STEPS,
        ops=[{"name": "aten::mm", "start_ns": 0, "end_ns": 10}],
        annotations=[
            {"name": "forward", "start_ns": 10, "end_ns": 110},
            {"name": "forward", "start_ns": 1_010, "end_ns": 1_210},
            {"name": "ProfilerStep#4", "start_ns": 0, "end_ns": 1_000},
            {"name": "nccl:all_reduce", "start_ns": 20, "end_ns": 30},
            {"name": "forward", "start_ns": 2_250, "end_ns": 2_290},
        ],
    )


@pytest.fixture
def after(make_trace: Callable[..., RankTrace]) -> RankTrace:
    """As before with gemm at 450 ns, a new kernel, and no old one."""
    events = _events(
        ("gemm", 0, 450, 0),
        ("add", 500, 51, 0),
        ("gemm", 1_000, 450, 1),
        ("add", 1_500, 50, 1),
        ("new", 1_600, 20, 1),
    )
    return make_trace(
        device_events=events,
        steps=STEPS,
        ops=[{"name": "aten::mm", "start_ns": 0, "end_ns": 10}],
        annotations=[{"name": "forward", "start_ns": 10, "end_ns": 310}],
    )


def test_changes_of_kernels(before: RankTrace, after: RankTrace) -> None:
    """Times are per rank and step, the largest change first, and the match rate is the share of common names."""
    result = compare_jobs(_job(before), _job(after)).check()
    rows = result.kernels.changes.select("name", "change", "before_ns", "after_ns").rows()
    assert rows == [
        ("gemm", "slower", 300.0, 450.0),
        ("old", "removed", 20.0, 0.0),
        ("new", "added", 0.0, 10.0),
        ("add", "same", 50.0, 50.5),
    ]
    assert result.kernels.changes["ratio"].to_list() == [1.5, 0.0, None, 1.01]
    assert (result.kernels.before_ns, result.kernels.after_ns) == (370.0, 510.5)
    assert result.kernels.match_rate_ratio == pytest.approx((300 + 450 + 50 + 50.5) / (370 + 510.5))
    assert result.unit == "rank and step"
    assert (result.before_num_steps, result.after_num_steps) == (2, 2)
    # On the device the first step lasts from gemm to gemm, the second to the cut one's gemm, or to the last event.
    assert (result.before_step_ns, result.after_step_ns) == (1_000, 620)
    assert (result.before_host_step_ns, result.after_host_step_ns) == (1_000, 1_000)
    assert result.steps_lie_on == "device"


def test_changes_of_classes_operators_and_phases(before: RankTrace, after: RankTrace) -> None:
    """Classes and operators hold the same device time; phases are the user's ranges, those of libraries left out."""
    result = compare_jobs(_job(before), _job(after))
    assert result.classes.changes.select("name", "before_ns").rows() == [("gemm", 300.0), ("elementwise", 70.0)]
    assert result.operators.changes.select("name", "before_ns", "after_ns").rows() == [
        ("aten::mm", 300.0, 450.0),
        ("(operator unknown)", 70.0, 60.5),
    ]
    # The two whole steps of each run, of 1,000 and 1,200 ns on the host, are 1,100 on average.
    assert result.phases.changes.select("name", "change", "before_ns", "after_ns").rows() == [
        ("(outside of phases)", "same", 950.0, 950.0),
        ("forward", "same", 150.0, 150.0),
    ]
    # Time outside of phases is no number of occurrences.
    assert result.phases.changes.select("before_count", "after_count").rows() == [(None, None), (1.0, 0.5)]


def test_what_has_no_operator_matches_nothing(make_trace: Callable[..., RankTrace]) -> None:
    """Two runs whose operators are all unknown share no name, however much time that is."""
    jobs = [_job(make_trace(device_events=_events(("gemm", 0, 300, None)))) for _ in range(2)]
    unknown = [_job(make_trace(device_events=_events(("add", 0, 300, None)))) for _ in range(2)]
    assert compare_jobs(*jobs).kernels.match_rate_ratio == 1.0
    result = compare_jobs(*unknown)
    assert result.operators.changes["name"].to_list() == ["(operator unknown)"]
    assert result.operators.match_rate_ratio == 0.0


def test_ranks_share_the_time(before: RankTrace) -> None:
    """A run of two equal ranks has the same times per rank and step as one of them alone."""
    result = compare_jobs(_job(before, before), _job(before))
    assert set(result.kernels.changes["change"].to_list()) == {"same"}
    assert result.kernels.changes["delta_ns"].abs().max() == 0
    assert result.warnings == ("2 ranks are compared with 1",)
    assert compare_jobs(_job(before), _job(before, before)).warnings == ("1 rank is compared with 2",)


def test_runs_without_steps_are_compared_by_rank(make_trace: Callable[..., RankTrace], before: RankTrace) -> None:
    """Where a run has no whole step, whole windows are compared, and a warning says so."""
    bare = make_trace(device_events=_events(("gemm", 0, 300, None)))
    result = compare_jobs(_job(bare), _job(before)).check()
    assert result.unit == "rank"
    assert result.before_step_ns is None
    assert result.absent == dict.fromkeys(("before_step_ns", "before_host_step_ns"), "the run has no whole step")
    gemm = result.kernels.changes.filter(result.kernels.changes["name"] == "gemm").row(0, named=True)
    assert (gemm["before_ns"], gemm["after_ns"]) == (300.0, 776.0)
    assert "no whole profiler step" in result.warnings[0]


def test_empty_runs(make_trace: Callable[..., RankTrace]) -> None:
    """Two runs with nothing in them have no match rate, with the reason."""
    result = compare_jobs(_job(make_trace()), _job(make_trace())).check()
    assert result.kernels.match_rate_ratio is None
    assert result.kernels.absent == {"match_rate_ratio": "neither run has any"}


def test_triton_kernels_match_whatever_number_the_compiler_gave_them(make_trace: Callable[..., RankTrace]) -> None:
    """One more kernel renames add_0 to add_1: add is 100 ns slower, mul the same, and 200 of 2,300 ns match nothing."""
    first = _events(("triton_poi_fused_add_0", 0, 300, 0), ("triton_poi_fused_add_mul_1", 400, 700, 0))
    second = _events(
        ("triton_red_fused_sum_0", 0, 90, 0),
        ("triton_poi_fused_add_1", 100, 150, 0),
        ("triton_poi_fused_add_3", 300, 250, 0),
        ("triton_poi_fused_add_mul_2", 600, 700, 0),
        ("triton_1", 1_400, 110, 0),
    )
    steps = [{"number": 4, "start_ns": 0, "end_ns": 2_000}]
    jobs = [_job(make_trace(device_events=events, steps=steps)) for events in (first, second)]
    comparison = compare_jobs(*jobs).check()
    found = {row["name"]: (row["change"], row["delta_ns"]) for row in comparison.kernels.changes.iter_rows(named=True)}
    assert found == {
        "triton_poi_fused_add": ("slower", 100.0),
        "triton_poi_fused_add_mul": ("same", 0.0),
        "triton_red_fused_sum": ("added", 90.0),
        "triton_1": ("added", 110.0),
    }
    assert comparison.kernels.match_rate_ratio == (1_000 + 1_100) / (1_000 + 1_300)
    assert "without the compiler's number" in comparison.warnings[0]


def test_runs_without_triton_kernels_say_nothing_of_them(before: RankTrace, after: RankTrace) -> None:
    """The remark on names stands only where a name lost its number."""
    assert not any("Triton" in each for each in compare_jobs(_job(before), _job(after)).warnings)
