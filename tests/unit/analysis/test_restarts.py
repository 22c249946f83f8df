"""What is said of a run that was restarted: steps that were lost, and an attempt that has made none yet."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec
import polars as pl
import pytest

from dashboards.sources.runs import LiveRun
from scope.analysis.recorded import RunState, compute_kept, count_lost_steps, is_count_of_lost_at_least
from scope.frames import open_run
from scope.frames.schema import PHASE_COLUMNS, RankSteps
from scope.report.run_state import describe_run, render_run
from scope.report.standing import standing_words
from scope.report.watching import look_at_run
from scope.run import paths
from scope.run.schema import SCHEMA_VERSION, RankInfo, RunInfo, StepRecord

if TYPE_CHECKING:
    from pathlib import Path

S = 1_000_000_000
BEGAN = 1_800_000_000 * S


def frame(rows: list[dict[str, int]]) -> pl.LazyFrame:
    """Return rows of `RankSteps`, the columns that are not given null or 0."""
    empty = dict.fromkeys(map(str, RankSteps.columns())) | dict.fromkeys(map(str, PHASE_COLUMNS), 0)
    full = [empty | {"start_ns": 0, "end_ns": 1, "gc_ns": 0, "recorder_ns": 0, "num_dropped": 0} | row for row in rows]
    return RankSteps.check(pl.DataFrame(full, schema=RankSteps.schema(), orient="row")).lazy()


@pytest.mark.parametrize("seed", range(8))
def test_lost_and_kept_steps_by_brute_force(seed: int) -> None:
    """Attempts that begin anywhere, on ranks that got unequally far: each step on its own, a later start loses it."""
    numbers = random.Random(seed)
    firsts = [0, *(numbers.randrange(12) for _ in range(numbers.randrange(4)))]
    rows = [
        {"attempt": attempt, "rank": rank, "step": step, "num_steps": 1, "duration_ns": numbers.randrange(1, 99)}
        for attempt, first in enumerate(firsts)
        for rank in range(2)
        for step in range(first, first + numbers.randrange(1, 9))
    ]
    lost = [row for row in rows if any(row["step"] >= first for first in firsts[row["attempt"] + 1 :])]
    by_attempt = [[sum((row["attempt"], row["rank"]) == (a, r) for row in lost) for r in (0, 1)] for a in range(9)]
    assert count_lost_steps(frame(rows)) == sum(map(max, by_attempt))
    kept = {r: sum(row["duration_ns"] for row in rows if row not in lost and row["rank"] == r) for r in (0, 1)}
    assert compute_kept(frame(rows)) == kept


def test_a_summary_is_lost_whole() -> None:
    """Of steps that were folded into one line and cannot be told apart, all are lost with the last."""
    rows = [
        {"attempt": 0, "rank": 0, "step": 0, "num_steps": 100, "duration_ns": 10},
        {"attempt": 0, "rank": 0, "step": 100, "num_steps": 1, "duration_ns": 3},
        {"attempt": 1, "rank": 0, "step": 99, "num_steps": 1, "duration_ns": 5},
    ]
    assert count_lost_steps(frame(rows)) == 101
    assert count_lost_steps(frame(rows[:2])) == 0


@pytest.mark.parametrize(
    ("broken_off", "is_at_least"),
    [({0: 11}, True), ({}, False), ({1: 13}, False), ({0: 10}, False), ({0: 3}, False)],
)
def test_a_step_without_a_record_may_be_lost_too(broken_off: dict[int, int], is_at_least: bool) -> None:
    """Killed in step 11 after its update, resumed from 10: steps 10 and 11 are lost, and 10 alone has a record."""
    rows = [{"attempt": 0, "rank": 0, "step": step, "num_steps": 1, "duration_ns": 5} for step in range(11)]
    rows += [{"attempt": 1, "rank": 0, "step": step, "num_steps": 1, "duration_ns": 5} for step in range(10, 13)]
    assert count_lost_steps(frame(rows)) == 1
    assert is_count_of_lost_at_least(frame(rows), broken_off) == is_at_least


def write_attempt(run: Path, attempt: int, *, steps: range) -> None:
    """Write a rank of another host that began 100 s after the one of the attempt before, and steps of 2 s."""
    folder = paths.rank_folder(run, attempt, 0)
    folder.mkdir(parents=True)
    start_ns = BEGAN + 100 * attempt * S
    info = RankInfo(
        schema=SCHEMA_VERSION, run_id="r", attempt=attempt, rank=0, started_ns=start_ns, host="h", pid=1, world_size=1
    )
    (folder / paths.RANK_FILE).write_bytes(msgspec.json.encode(info))
    lines = [
        StepRecord(step=step, start_ns=start_ns + 2 * n * S, end_ns=start_ns + 2 * (n + 1) * S, phases={"other": 2 * S})
        for n, step in enumerate(steps)
    ]
    (folder / paths.STEPS_FILE).write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))


@pytest.fixture
def restarted(tmp_path: Path) -> Path:
    """A run of twelve steps, whose second attempt has just begun."""
    run = tmp_path / "r"
    run.mkdir()
    info = RunInfo(schema=SCHEMA_VERSION, run_id="r", started_ns=BEGAN, world_size=1)
    (run / paths.RUN_FILE).write_bytes(msgspec.json.encode(info))
    write_attempt(run, 0, steps=range(12))
    write_attempt(run, 1, steps=range(0))
    return run


def test_a_restarted_run_says_which_attempt_has_no_step(restarted: Path) -> None:
    """Thirty seconds into attempt 1: it runs, its own steps are awaited, and the last ones were of attempt 0."""
    now_ns = BEGAN + 130 * S
    lines = render_run(describe_run(open_run(restarted), now_ns=now_ns)).splitlines()
    words = "running; no step of attempt 1 has ended yet; the last of the attempts before ended 106 s ago"
    assert lines[0] == f"run r: {words}"
    assert lines[1].startswith("  attempt 1, 1 of 1 rank, last step 11 (of attempt 0), 12 steps, goodput ")
    state = look_at_run(open_run(restarted), now_ns=now_ns).state
    assert (state.attempt, state.last_step_ns, state.earlier_step_ns) == (1, None, BEGAN + 24 * S)


def test_the_dashboard_takes_no_restart_for_a_hang(restarted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That the last step was one of the attempt before is no standstill of this one; later its own steps count."""
    monkeypatch.setattr("time.time_ns", lambda: BEGAN + 130 * S)
    live = LiveRun(run=open_run(restarted), refresh_s=0.0)
    live.refresh()
    state = live.state()
    assert (state.standing, state.last_step_ns, state.earlier_step_ns) == ("running", None, BEGAN + 24 * S)
    assert live.last_step == 11
    write_attempt(restarted, 2, steps=range(5, 8))
    monkeypatch.setattr("time.time_ns", lambda: BEGAN + 212 * S)
    later = LiveRun(run=open_run(restarted), refresh_s=0.0)
    later.refresh()
    state = later.state()
    assert (state.standing, state.last_step_ns, state.earlier_step_ns) == ("running", BEGAN + 206 * S, BEGAN + 24 * S)
    assert later.last_step == 7


def test_lost_steps_are_told_with_what_to_do(restarted: Path) -> None:
    """Attempt 2 counts from 0, so twelve steps are lost: how a program says where it resumes stands beside."""
    write_attempt(restarted, 2, steps=range(3))
    state = describe_run(open_run(restarted), now_ns=BEGAN + 207 * S)
    assert (state["summary"]["num_lost_steps"], state["summary"]["last_step"]) == (12, 2)
    told = "12 steps of earlier attempts lost: attempt 2 began at step 0; "
    told += "a program that resumes says where with recorder.steps(loader, start=STEP)"
    assert f"  {told}" in render_run(state).splitlines()


def test_words_of_a_first_attempt_and_of_one_without_earlier_steps() -> None:
    """Before any step of any attempt there is nothing to compare with."""
    state = RunState(standing="running", last_step_ns=None, last_sign_ns=BEGAN)
    assert standing_words(state, now_ns=BEGAN) == "running; no step has ended yet"
    assert standing_words(replace(state, attempt=3), now_ns=BEGAN) == "running; no step of attempt 3 has ended yet"
