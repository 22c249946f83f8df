"""Ranks that make no steps while others do, and calls that belong to no step: what `scope show` says of both."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec
import polars as pl
import pytest

from scope.analysis.recorded.stepless import describe_stepless, find_stepless
from scope.analysis.recorded.summary import summarize_run
from scope.frames import open_run
from scope.frames.schema import PHASE_COLUMNS, Calls, Ranks, RankSteps
from scope.report.run_state import describe_run, render_run
from scope.report.run_state_outside import find_outside, outside_lines, select_outside
from scope.report.run_state_slowest import slowest_lines
from scope.run import layout, paths
from scope.run.identity import write_run_info
from scope.run.schema import RankInfo, StepRecord
from scope.run.writer import RankWriter

if TYPE_CHECKING:
    from pathlib import Path

S = 1_000_000_000


def table(schema: Any, *rows: dict[str, Any]) -> pl.DataFrame:
    """Return rows of a table, the columns that are not given null."""
    empty: dict[str, Any] = dict.fromkeys(map(str, schema.columns()))
    return pl.DataFrame([empty | {"attempt": 0} | row for row in rows], schema=schema.schema(), orient="row")


def make_steps(*counts: tuple[int, int], attempt: int = 0) -> pl.LazyFrame:
    """Return steps of a second each, as many as each rank made: (rank, number)."""
    zeros = dict.fromkeys(("gc_ns", "recorder_ns", "num_dropped", "start_ns"), 0) | dict.fromkeys(PHASE_COLUMNS, 0)
    rows = [
        zeros | {"attempt": attempt, "rank": rank, "step": step, "num_steps": 1, "duration_ns": S, "end_ns": S}
        for rank, number in counts
        for step in range(number)
    ]
    return RankSteps.check(table(RankSteps, *rows)).lazy()


@pytest.mark.parametrize(
    ("counts", "counted_none", "expected"),
    [
        pytest.param([(1, 10), (2, 10)], [0, 3], (0, 3), id="others-made-ten"),
        pytest.param([(1, 9), (2, 9)], [0, 3], (), id="may-be-about-to-begin"),
        pytest.param([(1, 10)], [3], (3,), id="nobody-knows-of-the-other"),
        pytest.param([(1, 10), (0, 1)], [0], (), id="a-record-tells-more-than-a-box"),
        pytest.param([], [0, 1], (), id="nobody-makes-steps"),
    ],
)
def test_ranks_make_no_steps_when_others_have_made_ten(
    counts: list[tuple[int, int]], counted_none: list[int], expected: tuple[int, ...]
) -> None:
    """Only ranks whose black box has counted none are taken for such, and only of this attempt."""
    assert find_stepless(make_steps(*counts), attempt=0, counted_none=counted_none) == expected
    assert find_stepless(make_steps(*counts, attempt=1), attempt=0, counted_none=counted_none) == ()


def test_the_speed_is_that_of_the_ranks_that_make_steps() -> None:
    """Ranks 1 and 2 make a step of 1 s each second, ranks 0 and 3 none; MFU is of all devices, so it is absent."""
    ranks = table(Ranks, *({"rank": rank, "started_ns": 0, "peak_flop_per_s": 1e12} for rank in range(4)))
    boxes: Any = {(0, rank): SimpleNamespace(num_steps=30 * (rank in (1, 2)), num_dropped=0) for rank in range(4)}
    summary = summarize_run(ranks, make_steps((1, 30), (2, 30)), boxes=boxes)
    assert summary.speed.stepless_ranks == (0, 3)
    assert (summary.speed.num_steps, summary.speed.steps_per_s) == (30, 1.0)
    assert summary.speed.absent["mfu_ratio"] == "ranks 0, 3 make no steps, and MFU is of all ranks"
    unknown = summarize_run(ranks, make_steps((1, 30), (2, 30)))
    assert unknown.speed.absent["step_time"] == "no step has records of all 4 ranks: ranks 0, 3 have none"


def test_what_to_do_for_ranks_without_steps_is_said() -> None:
    """The call that ends a step is named, for one rank and for several."""
    known = "ended no step (of an optimizer of torch, or by end_step()), and what"
    assert describe_stepless([3]).startswith(f"rank 3 has {known} it does is part of no figure")
    assert describe_stepless([0, 3]).startswith(f"ranks 0, 3 have {known} they do is part of no figure")
    assert "recorder.end_step() of a scope.Recorder()" in describe_stepless([3])


def test_stragglers_are_judged_among_those_with_steps() -> None:
    """Who was not compared is said beside the answer."""
    rows = [{"is_notable": False}] * 2
    lines = list(slowest_lines(rows, dict.fromkeys(range(4), 0), stepless=(0, 3)))
    assert lines == ["no rank works notably longer than its peers (ranks 0, 3 without steps not compared)"]


def test_calls_outside_of_ended_steps_are_those_that_no_record_of_a_step_holds() -> None:
    """Before step 0, in the step that never ended, and of a rank without steps; a folded record holds all its own."""
    rows = [
        {"rank": 1, "step": None, "in_bytes": 1},
        {"rank": 1, "step": 0, "in_bytes": 2},
        {"rank": 1, "step": 4, "in_bytes": 4},
        {"rank": 1, "step": 5, "in_bytes": 8},
        {"rank": 0, "step": None, "in_bytes": 16},
        {"rank": 0, "step": 0, "in_bytes": 32},
        {"rank": 1, "attempt": 1, "step": 0, "in_bytes": 64},
    ]
    folded = make_steps((1, 1)).with_columns(pl.lit(5, pl.Int64).alias(RankSteps.num_steps))
    found = select_outside(table(Calls, *rows), folded)
    assert sorted(found["in_bytes"]) == [1, 8, 16, 32, 64]
    assert found.columns == [*Calls.columns()]


def test_many_calls_are_not_read_to_count_them(tmp_path: Path) -> None:
    """Beyond 65,536 calls on record the count is absent with the reason, which a line tells."""
    folder = paths.rank_folder(tmp_path, 0, 0) / paths.CALLS_FOLDER
    folder.mkdir(parents=True)
    (folder / f"000000{paths.SEGMENT_SUFFIX}").write_bytes(bytes((2**16 + 1) * layout.CALL_BYTES))
    run: Any = SimpleNamespace(path=tmp_path)
    outside = find_outside(run)
    assert (outside["num_calls"], outside["in_bytes"], outside["out_bytes"]) == (None, None, None)
    assert "more than 65,536 calls are on record" in outside["absent"]["num_calls"]
    reason = "more than 65,536 calls are on record; scope.open_run(RUN).collectives() reads them"
    assert list(outside_lines(outside)) == [f"  calls outside of ended steps are not known: {reason}"]


def test_segments_are_looked_at_until_they_tell_that_calls_are_many() -> None:
    """One that was deleted behind the listing holds none; those behind what is enough are not looked at."""
    looked_at: list[str] = []

    def segment(name: str, num_calls: int | None) -> Any:
        def stat() -> Any:
            looked_at.append(name)
            if num_calls is None:
                raise FileNotFoundError(name)
            return SimpleNamespace(st_size=num_calls * layout.CALL_BYTES)

        return SimpleNamespace(stat=stat)

    segments = [segment("deleted", None), segment("full", 2**16), segment("one", 1), segment("behind", 9)]
    run: Any = SimpleNamespace(path=SimpleNamespace(glob=lambda _: iter(segments)))
    assert find_outside(run)["num_calls"] is None
    assert looked_at == ["deleted", "full", "one"]


def describe_two_ranks(run: Path, *, reason: str = "finished") -> dict[str, Any]:
    """Write a run of which rank 0 made twelve steps and rank 1, which ended for a reason, none; describe it."""
    write_run_info(run, run_id="r", source="option")
    for rank, number in ((0, 12), (1, 0)):
        info = RankInfo(schema="1.0", run_id="r", attempt=0, rank=rank, world_size=2, started_ns=1, host="h", pid=1)
        writer = RankWriter(paths.rank_folder(run, 0, rank), info)
        writer.black_box.write_state(layout.STATE.pack(number or -1, number, 100, 150, 160, S, 1, b"forward"))
        records = [
            StepRecord(step=at, start_ns=S * at, end_ns=S * (at + 1), phases={"other": S}) for at in range(number)
        ]
        lines = b"".join(msgspec.json.encode(each) + b"\n" for each in records)
        (writer.folder / paths.STEPS_FILE).write_bytes(lines)
        writer.close(reason if rank == 1 else "finished")
    return describe_run(open_run(run), now_ns=20 * S)


@pytest.mark.parametrize("reason", ["finished", "interrupted", "terminated by signal 15"])
def test_a_run_of_which_one_rank_trains_tells_of_both(tmp_path: Path, reason: str) -> None:
    """Of a run on disk: the speed of rank 0, and in words that rank 1 makes none and how it would.

    So it is said of one that is asked to end: that makes no figure unknown which was known before.
    """
    state = describe_two_ranks(tmp_path, reason=reason)
    assert state["steps_absent"] == describe_stepless([1])
    assert state["collectives_outside_steps"] == {"num_calls": 0, "in_bytes": 0, "out_bytes": 0, "absent": {}}
    text = render_run(state)
    assert "step 1 s (median of the newest 12 undisturbed steps; rank 1 makes no steps)" in text
    assert "no steps: rank 1 has ended no step (of an optimizer of torch, or by end_step())" in text
    assert "collectives" not in text


@pytest.mark.parametrize("reason", ["exception", "exited with code 3"])
def test_a_rank_that_failed_before_its_first_step_is_not_told_how_to_end_steps(tmp_path: Path, reason: str) -> None:
    """It would have made steps: none of the run is whole, and its speed is not known for that reason."""
    state = describe_two_ranks(tmp_path, reason=reason)
    assert (state["steps_absent"], state["summary"]["speed"]["stepless_ranks"]) == (None, ())
    assert "speed unknown: no step has records of all 2 ranks: rank 1 has none" in render_run(state)
    assert "end_step()" not in render_run(state)


def test_calls_that_are_not_known_are_not_shown_as_none(tmp_path: Path) -> None:
    """A run without a call in its steps and with too many outside to count says so."""
    unknown = dict.fromkeys(("num_calls", "in_bytes", "out_bytes"))
    outside = {**unknown, "absent": dict.fromkeys(unknown, "too many")}
    text = render_run(describe_two_ranks(tmp_path) | {"collectives_outside_steps": outside})
    told = "collectives of ended steps: none\n  calls outside of ended steps are not known: too many\n"
    assert told in f"{text}\n"
