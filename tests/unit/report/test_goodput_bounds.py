"""What `scope show` says of runs of which a line tells of more time than there was."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import polars as pl
import pytest

from scope.analysis.recorded import compute_kept
from scope.frames import open_run
from scope.frames.schema import RankSteps
from scope.report.run_state import describe_run, render_run
from scope.run import paths
from scope.run.schema import SCHEMA_VERSION, RankInfo, RunInfo, StepRecord

if TYPE_CHECKING:
    from pathlib import Path

S = 1_000_000_000
BEGAN = 1_790_000_000 * S
NUM_STEPS = 20


def write_run(folder: Path, *, ranks: int = 1, changed: dict[int, dict[str, Any]]) -> Path:
    """Write a run that took 25 s: 5 s of start-up, then 20 steps of 1 s; of rank 0 some lines are changed."""
    folder.mkdir()
    run = RunInfo(schema=SCHEMA_VERSION, run_id="job", started_ns=BEGAN, world_size=ranks)
    (folder / paths.RUN_FILE).write_bytes(msgspec.json.encode(run))
    for rank in range(ranks):
        place = paths.rank_folder(folder, 0, rank)
        place.mkdir(parents=True)
        info = RankInfo(
            schema=SCHEMA_VERSION, run_id="job", attempt=0, rank=rank, started_ns=BEGAN, host="node1", pid=1,
            world_size=ranks, ended_ns=BEGAN + 25 * S,
        )  # fmt: skip
        (place / paths.RANK_FILE).write_bytes(msgspec.json.encode(info))
        steps = [
            StepRecord(step=n, start_ns=BEGAN + (n + 5) * S, end_ns=BEGAN + (n + 6) * S, phases={"forward": S})
            for n in range(NUM_STEPS)
        ]
        for step, fields in changed.items() if rank == 0 else ():
            steps[step] = msgspec.structs.replace(steps[step], **fields)
        lines = b"".join(msgspec.json.encode(step) + b"\n" for step in steps)
        (place / paths.STEPS_FILE).write_bytes(lines)
    return folder


@pytest.mark.parametrize(
    "changed",
    [
        {7: {"start_ns": 0}},
        {7: {"end_ns": 2 * (BEGAN + 13 * S)}},
        {7: {"end_ns": BEGAN + (12 + 3_600) * S}},
        {step: {"end_ns": 2 * (BEGAN + (step + 6) * S)} for step in range(6)},
        {7: {"end_ns": BEGAN + 20 * S, "phases": {"forward": 8 * S}}},
    ],
    ids=["begins in 1970", "ends in 2083", "an hour", "six in 2083", "into others, phases too"],
)
def test_a_line_that_cannot_be_costs_itself_alone(tmp_path: Path, changed: dict[int, dict[str, Any]]) -> None:
    """The other steps give goodput, mean and phases; the line is named, and the run has as many steps fewer."""
    run = open_run(write_run(tmp_path / "job", changed=changed))
    state = describe_run(run, now_ns=BEGAN + 25 * S)
    num_left = NUM_STEPS - len(changed)
    summary = state["summary"]
    assert summary["num_steps"] == num_left
    assert summary["goodput_ratio"] == pytest.approx(num_left / 25)
    assert summary["phases_ns"]["forward"] == num_left * S
    assert (summary["speed"]["step_time"]["min_ns"], summary["speed"]["step_time"]["max_ns"]) == (S, S)
    (problem,) = run.problems
    assert "steps.jsonl: is torn or foreign: " in problem


@pytest.mark.parametrize("ranks", [1, 2])
def test_more_time_in_steps_than_passed_is_no_goodput(tmp_path: Path, ranks: int) -> None:
    """The last step claims 60 s of a run of 25 s, which nothing in its file denies: no goodput, and why."""
    last = {"end_ns": BEGAN + 84 * S, "phases": {"forward": 60 * S}}
    folder = write_run(tmp_path / "job", ranks=ranks, changed={NUM_STEPS - 1: last})
    state = describe_run(open_run(folder), now_ns=BEGAN + 25 * S)
    assert state["summary"]["goodput_ratio"] is None
    why = "the steps on record last longer than the run did: a record, or a clock, is wrong"
    assert state["summary"]["absent"]["goodput_ratio"] == why
    assert f"no goodput: {why}" in render_run(state)


def test_time_in_steps_beyond_64_bits_is_added_all_the_same() -> None:
    """Steps of 2**62 ns, of which three do not fit: their sum is theirs, not one that wrapped around."""
    length = 2**62
    rows = {
        RankSteps.attempt: [0] * 3, RankSteps.rank: [0] * 3, RankSteps.step: [0, 1, 2],
        RankSteps.num_steps: [1] * 3, RankSteps.duration_ns: [length] * 3,
    }  # fmt: skip
    assert compute_kept(pl.LazyFrame(rows)) == {0: 3 * length}
