"""The whole analysis of a job: sums over ranks, steps over ranks, absences with reasons, one step's tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

import scope
from scope.analysis import analyze
from scope.analysis import tables as scope_tables
from scope.analysis.breakdown import Breakdown
from scope.analysis.copies import CopyStats
from scope.analysis.options import Options
from scope.analysis.tables import narrow_tables
from scope.errors import UsageError
from scope.trace import load
from scope.trace.model import Job, RankTrace

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import polars as pl

    from scope.analysis.windows import Timeline

MakeTrace = Callable[..., RankTrace]


def rank_trace(make_trace: MakeTrace, rank: int, length: int) -> RankTrace:
    """Return a rank of two steps, of which the second takes `length`."""
    steps = [{"start_ns": 0, "end_ns": 100, "number": 1}, {"start_ns": 100, "end_ns": 200, "number": 2}]
    calls = [{"start_ns": start, "end_ns": start + 2, "num_device_events": 1} for start in (10, 110)]
    return make_trace(
        label=f"rank {rank}",
        rank=rank,
        path=f"{rank}.json",
        steps=steps,
        launches=[{"step_id": index, **call} for index, call in enumerate(calls)],
        device_events=[
            {"name": "first", "start_ns": 20, "end_ns": 60, "step_id": 0, "launch_id": 0},
            {"name": "second", "start_ns": 120, "end_ns": 120 + length, "step_id": 1, "launch_id": 1},
        ],
    )


@pytest.fixture
def job(make_trace: MakeTrace) -> Job:
    """Return two ranks of four; the second is slower in its second step."""
    ranks = tuple(rank_trace(make_trace, rank, length) for rank, length in ((0, 30), (3, 50)))
    return Job(ranks=ranks, world_size=4, missing_ranks=(1, 2), warnings=("two files are missing",))


def test_ranks_and_steps_sum_up(job: Job) -> None:
    """The job's breakdown is the sum of its ranks', a step's that of its windows, and the slowest rank is named."""
    analysis = analyze(job).check()
    assert analysis.breakdown is not None
    assert (analysis.breakdown.window_ns, analysis.breakdown.compute_ns) == (130 + 150, 70 + 90)
    first, second = analysis.steps
    assert (first.number, first.num_devices, first.breakdown.window_ns, first.slowest) == (1, 2, 200, "rank 0")
    assert (second.min_window_ns, second.median_window_ns, second.max_window_ns) == (30, 30, 50)
    assert second.slowest == "rank 3"
    # Each rank idles in its first step from 60 to 120: the host up to the call at 110, then the launch's latency.
    assert first.idle is not None
    assert (first.idle.idle_ns, first.idle.host_ns, first.idle.launch_latency_ns) == (120, 100, 20)
    assert second.queue is not None
    assert (second.queue.num_launches, second.queue.waited_ns) == (2, 0)
    assert analysis.queue is not None
    assert analysis.queue.num_launches == 4
    assert analysis.kernels.by_name.select("key", "num_events", "total_ns").rows() == [
        ("first", 2, 80),
        ("second", 2, 80),
    ]
    assert analysis.launches["num_calls"].to_list() == [4]
    assert (analysis.world_size, analysis.missing_ranks) == (4, (1, 2))
    assert analysis.warnings == ("two files are missing",)


def test_the_median_step_has_a_critical_path(job: Job) -> None:
    """Of two steps the shorter is the lower median; without the option there is no path, with the reason."""
    analysis = analyze(job)
    numbers = [
        device.critical_path.step_number for rank in analysis.ranks for device in rank.devices if device.critical_path
    ]
    assert numbers == [2, 2]
    (device,) = analyze(job, options=Options(critical_path=False)).check().ranks[0].devices
    assert device.critical_path is None
    assert device.absent["critical_path"] == "not asked for"


def test_cut_steps_are_marked_and_no_median(job: Job) -> None:
    """A step that some rank has only a part of is marked, and no critical path is taken of it."""
    first = job.ranks[0]
    cut = replace(first, steps=first.steps.with_columns(is_cut=first.steps["number"] == 2))
    analysis = analyze(replace(job, ranks=(cut, job.ranks[1]))).check()
    assert [step.is_cut for step in analysis.steps] == [False, True]
    path = analysis.ranks[0].devices[0].critical_path
    assert path is not None
    assert path.step_number == 1


def test_one_step_has_tables_of_its_own(job: Job) -> None:
    """The tables of a step hold what started in its windows and what was called in it, over all ranks."""
    analysis = analyze(job)
    narrow = narrow_tables(analysis, job, number=2).check()
    assert narrow.breakdown == analysis.breakdown
    tables = narrow.tables.check()
    assert [rank.launches["num_calls"].sum() for rank in narrow.ranks] == [1, 1]
    assert tables.kernels.by_name.select("key", "num_events").rows() == [("second", 2)]
    assert tables.launches.select("num_calls", "total_delay_ns").rows() == [(2, 20)]
    with pytest.raises(UsageError, match=r"no rank has a step 7; the traces hold 1, 2"):
        narrow_tables(analysis, job, number=7)


def test_ranks_without_a_step_are_in_none_of_its_tables(job: Job) -> None:
    """A rank that lacks the step is left out, instead of standing there with nothing."""
    first, second = job.ranks
    renumbered = second.steps.with_columns(number=second.steps["number"] + 10)
    alone = replace(job, ranks=(first, replace(second, steps=renumbered)))
    narrow = narrow_tables(analyze(alone), alone, number=2)
    assert [rank.label for rank in narrow.ranks] == [first.label]
    assert narrow.kernels.by_name.select("key", "num_events").rows() == [("second", 1)]


def test_an_empty_trace_is_all_reasons(make_trace: MakeTrace) -> None:
    """With nothing recorded every figure is absent and says why; nothing is 0 that was not seen."""
    analysis = analyze(Job(ranks=(make_trace(rank=None, label="file 1"),), world_size=None)).check()
    (rank,) = analysis.ranks
    assert (analysis.breakdown, analysis.idle, analysis.queue, rank.rank, rank.breakdown) == (None,) * 5
    assert rank.devices == ()
    assert "breakdown" in rank.absent
    assert analyze(Job(ranks=(), world_size=None)).check().ranks == ()


def test_a_device_only_trace_has_no_idle_causes(make_trace: MakeTrace) -> None:
    """Without launches idle time has no cause and the queue no depth, rather than `unknown` and empty."""
    trace = make_trace(device_events=[{"start_ns": 0, "end_ns": 5}, {"start_ns": 9, "end_ns": 10}])
    analysis = analyze(Job(ranks=(trace,), world_size=1)).check()
    assert analysis.breakdown is not None
    assert analysis.breakdown.idle_ns == 4
    assert (analysis.idle, analysis.queue) == (None, None)
    assert analysis.ranks[0].absent["idle"] == "the trace holds no launches"


def test_attribution_is_a_share_of_device_time(make_trace: MakeTrace) -> None:
    """The quality says which share of device time has a known operator."""
    trace = make_trace(
        ops=[{"start_ns": 0, "end_ns": 1}],
        device_events=[{"start_ns": 0, "end_ns": 30, "op_id": 0}, {"start_ns": 30, "end_ns": 40}],
    )
    assert analyze(Job(ranks=(trace,), world_size=1)).ranks[0].quality.attributed_ratio == 0.75


def test_a_missing_reason_fails_the_check() -> None:
    """A figure that is None without a reason, or a reason for a figure that is there, is a defect."""
    figures: dict[str, Any] = {
        "window_ns": 0,
        "compute_ns": 0,
        "exposed_communication_ns": 0,
        "exposed_memory_ns": 0,
        "idle_ns": 0,
        "communication_ns": 0,
        "memory_ns": 0,
        "overlap_ns": 0,
        "peer_copy_ns": 0,
    }
    with pytest.raises(AssertionError, match="overlap_ratio"):
        Breakdown(**figures, overlap_ratio=None).check()
    with pytest.raises(AssertionError, match="overlap_ratio"):
        Breakdown(**figures, overlap_ratio=0.5, absent={"overlap_ratio": "none"}).check()


def test_eight_ranks_sum_up_to_the_nanosecond(shared_traces: Path) -> None:
    """Over the eight ranks of a real job every sum is that of the ranks, and of a device that of its parts."""
    analysis = analyze(load([shared_traces / "param" / "dlrm_v100_8ranks"])).check()
    assert [rank.rank for rank in analysis.ranks] == list(range(8))
    assert analysis.breakdown is not None
    for name in ("window_ns", "compute_ns", "exposed_communication_ns", "idle_ns"):
        total = getattr(analysis.breakdown, name)
        assert total == sum(getattr(rank.breakdown, name) for rank in analysis.ranks)
        for rank in analysis.ranks:
            for device in rank.devices:
                parts = [device.before, *device.steps, device.after]
                figures = [part.breakdown for part in parts if part is not None and part.breakdown is not None]
                assert not figures or sum(getattr(each, name) for each in figures) == getattr(
                    device.whole.breakdown, name
                )


def test_one_call_gives_everything(shared_traces: Path) -> None:
    """`scope.analyze` gives the figures of each rank and, beside them, what takes several ranks, all consistent."""
    results = scope.analyze(scope.load(shared_traces / "param" / "dlrm_v100_8ranks")).check()
    assert [rank.rank for rank in results.analysis.ranks] == list(range(8))
    assert results.collectives is not None
    assert results.collectives.num_matched > 0
    assert results.stragglers is not None
    assert set(results.rooflines) == {rank.label for rank in results.analysis.ranks}


def test_one_rank_says_why_nothing_compares_ranks(shared_traces: Path) -> None:
    """What takes several ranks is absent, with the reason, from the results of one."""
    results = scope.analyze(scope.load(shared_traces / "hta" / "a100_nccl_metadata_rank0of2.json.gz")).check()
    assert results.stragglers is None
    assert results.absent["stragglers"] == "the traces of at least two ranks are needed"


def test_a_table_is_computed_when_it_is_looked_at(shared_traces: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is computed for a table that nobody looks at, and nothing twice for one that is looked at twice."""
    made: list[int] = []

    def count(timelines: Sequence[Timeline]) -> pl.DataFrame:
        made.append(len(timelines))
        return CopyStats.empty()

    monkeypatch.setattr(scope_tables, "summarize_copies", count)
    analysis = analyze(load([shared_traces / "hta" / "a100_alexnet.json.gz"]))
    assert not made
    assert analysis.copies is analysis.copies
    assert made == [1]
