"""`open_run` on run directories written by hand, as text."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest

from scope.errors import RunError
from scope.frames import open_run
from scope.frames.schema import PHASE_COLUMNS, CollectiveTotals, Events, Ranks, RankSteps, Traces

if TYPE_CHECKING:
    from pathlib import Path


def write_rank(run: Path, rank: int, *, attempt: int = 0, **values: Any) -> Path:
    """Write a `rank.json` and return its folder."""
    folder = run / f"attempt-{attempt:03d}" / "ranks" / f"{rank:05d}"
    folder.mkdir(parents=True)
    info = {"schema": "1.0", "run_id": "r", "attempt": attempt, "rank": rank, "started_ns": 5, "host": "h", "pid": 9}
    group = {"group": 0, "name": "default_pg", "ranks": [0, 1], "backend": "gloo", "mesh_axis": "dp"}
    (folder / "rank.json").write_text(json.dumps(info | {"groups": [group]} | values))
    return folder


def step_line(step: int, **values: Any) -> str:
    """Return a line of `steps.jsonl` of 100 ns: 60 forward, 30 the user's own, 10 other."""
    record = {"kind": "step", "step": step, "start_ns": 1_000 + 100 * step, "end_ns": 1_100 + 100 * step}
    return json.dumps(record | {"phases": {"forward": 60, "rollout": 30, "other": 10}} | values) + "\n"


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    """A run of one attempt without ranks."""
    (tmp_path / "run.json").write_text(json.dumps({"schema": "1.0", "run_id": "r", "started_ns": 1, "world_size": 2}))
    return tmp_path


def test_steps_of_all_ranks_stand_in_one_frame(run_folder: Path) -> None:
    """Every line becomes a row whose phases sum to its length; the user's own phases are kept by name."""
    for rank in (1, 0):
        (write_rank(run_folder, rank) / "steps.jsonl").write_text(step_line(0, tokens=7) + step_line(1))
    steps = RankSteps.check(open_run(run_folder).steps())
    assert steps.select(RankSteps.rank, RankSteps.step).rows() == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert steps.select(pl.sum_horizontal(PHASE_COLUMNS)).to_series().to_list() == [100] * 4
    assert steps[RankSteps.custom_phases].to_list()[0] == [{"phase": "rollout", "host_ns": 30}]
    assert steps[RankSteps.tokens].to_list() == [7, None, 7, None]


def test_waits_by_phase_are_null_where_a_step_does_not_tell_them(run_folder: Path) -> None:
    """A step that tells its waits, with a phase that nobody knows; one that tells no phase; and an old recording's."""
    lines = (
        step_line(0, communication_wait_ns=9, communication_wait_phases={"backward": 5, "custom": 3, "unheard": 1}),
        step_line(1, communication_wait_ns=9, communication_wait_phases={}),
        step_line(2, communication_wait_ns=9),
    )
    (write_rank(run_folder, 0) / "steps.jsonl").write_text("".join(lines))
    waits = RankSteps.check(open_run(run_folder).steps())[RankSteps.communication_wait_by_phase]
    known = [{name: wait for name, wait in (each or {}).items() if wait is not None} for each in waits]
    assert known == [{"backward": 5, "custom": 3}, {}, {}]


def test_a_live_run_is_read_on_from_where_it_stopped(run_folder: Path) -> None:
    """A second look gives what was appended too; a line that is still being written waits."""
    file = write_rank(run_folder, 0) / "steps.jsonl"
    file.write_text(step_line(0))
    run = open_run(run_folder)
    assert run.steps().height == 1
    with file.open("a") as out:
        out.write(step_line(1) + step_line(2)[:20])
    assert run.steps()[RankSteps.step].to_list() == [0, 1]
    with file.open("a") as out:
        out.write(step_line(2)[20:])
    assert run.steps()[RankSteps.step].to_list() == [0, 1, 2]


def test_a_folded_file_replaces_what_was_read(run_folder: Path) -> None:
    """When old steps are folded into a summary, they are not counted twice."""
    folder = write_rank(run_folder, 0)
    file = folder / "steps.jsonl"
    file.write_text("".join(step_line(step) for step in range(4)))
    run = open_run(run_folder)
    assert run.steps().height == 4
    summary = {"kind": "summary", "first_step": 0, "last_step": 2, "num_steps": 3, "start_ns": 1_000, "end_ns": 1_300}
    summary |= {"duration_ns": 300, "min_duration_ns": 100, "max_duration_ns": 100, "phases": {"forward": 300}}
    summary |= {"communication_wait_ns": 80, "communication_wait_phases": {"forward": 70}}
    new = folder / "new"
    new.write_text(json.dumps(summary) + "\n" + step_line(3))
    new.replace(file)
    steps = run.steps()
    assert steps.select(RankSteps.step, RankSteps.num_steps, RankSteps.duration_ns).rows() == [(0, 3, 300), (3, 1, 100)]
    assert steps[RankSteps.communication_wait_by_phase].struct.field("forward").to_list() == [70, None]


def test_collectives_of_a_step_carry_their_group(run_folder: Path) -> None:
    """Totals name the group's ranks and axis; a group that is not known yet keeps its number."""
    totals = [
        {"group": 0, "operation": "all_reduce", "num_calls": 3, "in_bytes": 12, "out_bytes": 12},
        {"group": 5, "operation": "barrier", "num_calls": 1, "in_bytes": 0, "out_bytes": 0},
    ]
    (write_rank(run_folder, 0) / "steps.jsonl").write_text(step_line(4, collectives=totals))
    frame = open_run(run_folder).collective_totals()
    columns = frame.select(
        CollectiveTotals.step, CollectiveTotals.group, CollectiveTotals.group_ranks, CollectiveTotals.mesh_axis
    )
    assert columns.rows() == [(4, "default_pg", [0, 1], "dp"), (4, "#5", None, None)]
    assert frame[CollectiveTotals.duration_ns].to_list() == [None, None]


def test_one_torn_rank_hides_no_other(run_folder: Path) -> None:
    """A rank with a broken file is named in `problems`; the others are read."""
    write_rank(run_folder, 0)
    (write_rank(run_folder, 1) / "rank.json").write_text("{")
    run = open_run(run_folder)
    assert run.ranks[Ranks.rank].to_list() == [0]
    assert len(run.problems) == 1
    assert "00001" in run.problems[0]


def test_every_attempt_is_in_the_frame(run_folder: Path) -> None:
    """Ranks and steps of a restart stand beside those of the first attempt."""
    for attempt in (0, 1):
        (write_rank(run_folder, 0, attempt=attempt) / "steps.jsonl").write_text(step_line(attempt))
    run = open_run(run_folder)
    assert run.ranks[Ranks.attempt].to_list() == [0, 1]
    assert run.steps().select(RankSteps.attempt, RankSteps.step).rows() == [(0, 0), (1, 1)]


def test_events_and_captures_are_frames(run_folder: Path) -> None:
    """Events keep their figures as JSON; a capture whose trace is not there yet is left out."""
    folder = write_rank(run_folder, 0)
    event = {"time_ns": 8, "kind": "checkpoint", "message": "saved", "detail": {"bytes": 90}}
    (folder / "events.jsonl").write_text(json.dumps(event) + "\n")
    (folder / "traces").mkdir()
    capture = {"rank": 0, "first_step": 3, "num_steps": 2, "start_ns": 1, "end_ns": 2, "reason": "user", "cost_ns": 4}
    for name in ("there", "missing"):
        text = json.dumps(capture | {"trace": f"{name}.json.gz"})
        (folder / "traces" / f"{name}.capture.json").write_text(text)
    (folder / "traces" / "there.json.gz").write_bytes(b"12345")
    run = open_run(run_folder)
    assert json.loads(Events.check(run.events())[Events.detail][0]) == {"bytes": 90}
    assert Traces.check(run.traces()).select(Traces.first_step, Traces.trace_bytes).rows() == [(3, 5)]


def test_no_run_directory_is_a_clear_error(tmp_path: Path) -> None:
    """A folder that is none, or has no `run.json`, is named."""
    with pytest.raises(RunError, match="not a folder"):
        open_run(tmp_path / "nowhere")
    with pytest.raises(RunError, match=r"run\.json"):
        open_run(tmp_path)


def test_collectives_of_unknown_names_are_counted_as_unknown(run_folder: Path) -> None:
    """Two operations and a variant of a newer version: all their calls and bytes stand in the frame, and it is said."""
    names = (("all_reduce", "plain"), ("quick_reduce", "plain"), ("", "plain"), ("all_gather", "tiled"))
    totals = [
        {"group": 0, "operation": operation, "variant": variant, "num_calls": 10**place, "in_bytes": 1, "out_bytes": 2}
        for place, (operation, variant) in enumerate(names)
    ]
    (write_rank(run_folder, 0) / "steps.jsonl").write_text(step_line(0) + step_line(1, collectives=totals))
    run = open_run(run_folder)
    assert run.steps()[RankSteps.step].to_list() == [0, 1]
    told = (CollectiveTotals.operation, CollectiveTotals.variant, CollectiveTotals.num_calls)
    assert run.collective_totals().select(told).rows() == [
        ("all_reduce", "plain", 1),
        ("unknown", "plain", 10),
        ("unknown", "plain", 100),
        ("all_gather", "plain", 1000),
    ]
    sums = dict(run.collective_sums().select(told[0], told[2]).rows())
    assert sums == {"all_reduce": 1, "unknown": 110, "all_gather": 1000}
    (problem,) = run.problems
    assert "steps.jsonl: names collectives that this version does not know" in problem
    assert "'quick_reduce'" in problem
