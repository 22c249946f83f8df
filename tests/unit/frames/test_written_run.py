"""`open_run` on what the writer of a rank wrote: every value in its column, also while steps are folded."""

from __future__ import annotations

import tracemalloc
from typing import TYPE_CHECKING

import msgspec
import polars as pl
import pytest

from scope.frames import open_run
from scope.frames.schema import PHASE_COLUMNS, Calls, CollectiveTotals, Events, Ranks, RankSteps
from scope.run import paths
from scope.run.calls import CallShape
from scope.run.schema import (
    OPERATIONS,
    GroupInfo,
    MemoryPeak,
    MemoryRecord,
    RankInfo,
    RunInfo,
    StepRecord,
)
from scope.run.writer import RankWriter, StepDraft, WriterBudget

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run directory with nothing but `run.json`."""
    (tmp_path / "run.json").write_bytes(msgspec.json.encode(RunInfo(schema="1.0", run_id="r", started_ns=1)))
    return tmp_path


def make_writer(run: Path, rank: int, *, ranks: tuple[int, ...] = (0, 1)) -> RankWriter:
    """A writer of one rank of two, with one group."""
    info = RankInfo(schema="1.0", run_id="r", attempt=0, rank=rank, started_ns=1, host="h", pid=1, world_size=2)
    writer = RankWriter(
        paths.rank_folder(run, 0, rank), info, budget=WriterBudget(max_bytes=60_000, max_calls_per_s=10**15)
    )
    writer.put_group(GroupInfo(group=0, name="world", ranks=ranks, mesh_axis="dp"))
    writer.calls.next_step(0)
    return writer


def add_step(writer: RankWriter, number: int, *, num_calls: int = 1) -> None:
    """A step of 100 ns with all_reduces of 64 bytes."""
    shape = CallShape(0, OPERATIONS.index("all_reduce"), 0, 1, 64, 64)
    for _ in range(num_calls):
        call = writer.calls.issue(shape, 0, number * 100 + 1)
        writer.calls.complete(call, number * 100 + 11)
    record = StepRecord(
        step=number,
        start_ns=number * 100,
        end_ns=number * 100 + 100,
        phases={"forward": 60, "rollout": 30, "other": 10},
        memory=MemoryRecord(peak=MemoryPeak(resident_bytes=1000 + number)),
        tokens=8,
    )
    writer.add_step(StepDraft(record=record, calls=writer.calls.next_step(number + 1)))


def test_frames_hold_what_was_written(run: Path) -> None:
    """Ranks, steps, totals, calls and events of two ranks stand in frames of the declared schema."""
    for rank in (0, 1):
        writer = make_writer(run, rank)
        add_step(writer, 0)
        add_step(writer, 1)
        writer.add_event("warning", "odd", path="a")
        writer.close("finished")
    opened = open_run(run)
    assert Ranks.check(opened.ranks)["exit_reason"].to_list() == ["finished", "finished"]
    steps = RankSteps.check(opened.steps())
    assert steps.select("rank", "step", "forward_ns", "custom_ns", "resident_peak_bytes").rows() == [
        (0, 0, 60, 30, 1000),
        (0, 1, 60, 30, 1001),
        (1, 0, 60, 30, 1000),
        (1, 1, 60, 30, 1001),
    ]
    assert steps["custom_phases"][0].to_list() == [{"phase": "rollout", "host_ns": 30}]
    assert (steps.select(pl.sum_horizontal(PHASE_COLUMNS)).to_series() == steps["duration_ns"]).all()
    totals = CollectiveTotals.check(opened.collective_totals())
    assert totals.select("group", "mesh_axis", "num_calls", "in_bytes", "duration_ns").unique().rows() == [
        ("world", "dp", 1, 64, 10)
    ]
    calls = Calls.check(opened.collectives())
    assert calls.select("rank", "step", "sequence").rows() == [(0, 0, 1), (0, 1, 2), (1, 0, 1), (1, 1, 2)]
    assert (calls["completed_ns"] - calls["issued_ns"]).to_list() == [10] * 4
    assert calls["blocked_ns"].null_count() == 4
    assert Events.check(opened.events())["detail"].to_list() == ['{"path":"a"}'] * 2


def test_calls_do_not_list_the_ranks_of_their_group_each(run: Path) -> None:
    """Of 300 calls in a group of 4,096 ranks, whose lists would take 10 MB, every one names them in the frame."""
    writer = make_writer(run, 0, ranks=tuple(range(4096)))
    add_step(writer, 0, num_calls=300)
    writer.close("finished")
    opened = open_run(run)
    assert opened.ranks.height == 1
    tracemalloc.start()
    try:
        calls = opened.collectives()
        largest = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert calls["group_ranks"].to_list() == [list(range(4096))] * 300
    assert calls.select("group", "mesh_axis").unique().rows() == [("world", "dp")]
    assert largest < 4 << 20


def test_a_group_that_is_named_twice_counts_once(run: Path) -> None:
    """Where `rank.json` has two groups of one number, calls and totals are not doubled; the last one names them."""
    writer = make_writer(run, 0)
    add_step(writer, 0)
    writer.close("finished")
    path = paths.rank_folder(run, 0, 0) / paths.RANK_FILE
    info = msgspec.json.decode(path.read_bytes(), type=RankInfo)
    twice = (*info.groups, msgspec.structs.replace(info.groups[0], name="again"))
    path.write_bytes(msgspec.json.encode(msgspec.structs.replace(info, groups=twice)))
    opened = open_run(run)
    assert opened.collectives()["group"].to_list() == ["again"]
    assert opened.collective_totals()["group"].to_list() == ["again"]


def test_a_live_run_grows_and_survives_folding(run: Path) -> None:
    """Every call returns all so far; after old steps were folded no step is counted twice or lost."""
    writer = make_writer(run, 0)
    opened = open_run(run)
    add_step(writer, 0)
    writer.flush()
    assert opened.steps().height == 1
    for number in range(1, 150):
        add_step(writer, number)
    writer.flush()
    steps = RankSteps.check(opened.steps())
    assert steps["num_steps"].sum() == 150
    assert steps.height < 150
    assert steps["duration_ns"].sum() == 150 * 100
    assert opened.collective_totals()["num_calls"].sum() == 150
    writer.close("finished")
