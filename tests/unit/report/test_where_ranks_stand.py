"""A run that hangs or ended badly tells where each rank stands; one that waits for input or communication says so."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import polars as pl
import pytest

from scope.analysis.recorded import ProcessTable, Watched, assess_run
from scope.frames import columns
from scope.frames.schema import RankSteps
from scope.report.run_state_costs import cost_lines, find_costs
from scope.report.run_state_ranks import describe_stops, stop_lines
from scope.run.blackbox import BlackBoxIdentity, BlackBoxState, GroupState
from scope.run.schema import GroupInfo, RankInfo, StepRecord

S = 1_000_000_000
MS = 1_000_000
NOW = 1_000 * S


def box(rank: int, *, issued: int, completed: int, sign_s: int, step: int = 16) -> BlackBoxState:
    """Return a black box whose rank has used two groups, an unnamed one of its pair last."""
    groups = (
        GroupState(
            group=0, enqueued=issued, completed=completed, enqueued_ns=800 * S, completed_ns=0, hash_low=1,
            operation="all_reduce", dtype="float32",
        ),
        GroupState(
            group=1, enqueued=4, completed=4, enqueued_ns=801 * S, completed_ns=0, hash_low=1,
            operation="broadcast", dtype="float32",
        ),
    )  # fmt: skip
    return BlackBoxState(
        identity=BlackBoxIdentity(rank=rank, attempt=0, world_size=2, pid=1, process_start_ticks=1, wall_offset_ns=0),
        step=step, num_steps=step, step_start_ns=0, phase="backward", phase_start_ns=0, beat_ns=sign_s * S,
        pulse_ns=sign_s * S, last_step_duration_ns=1, num_dropped=0, closed=False, exception=False, groups=groups,
    )  # fmt: skip


def watch(boxes: list[BlackBoxState], *, last_step_s: int, num_ranks: int | None = None) -> Watched:
    """Return ranks whose processes live as they are at second 1,000."""
    infos = [
        RankInfo(
            schema="1.0", run_id="r", attempt=0, rank=rank, started_ns=0, host="h", pid=50 + rank,
            groups=(
                GroupInfo(group=0, name="0", ranks=tuple(range(len(boxes)))),
                GroupInfo(group=1, name="7", description="undefined", ranks=(0, 1)),
            ),
        )
        for rank in range(num_ranks or len(boxes))
    ]  # fmt: skip
    states = {each.identity.rank: each for each in boxes}
    living = ProcessTable(fate=lambda _: True, is_gone=lambda _: False)
    state = assess_run(infos, states, last_step_ns=last_step_s * S, usual_ns=S, now_ns=NOW, processes=living)
    steps = pl.DataFrame(schema=RankSteps.schema()).lazy()
    return Watched(state=state, infos=infos, boxes=states, steps=steps, now_ns=NOW)


def test_a_hang_has_a_line_for_each_rank_the_one_behind_first() -> None:
    """Rank 2 is two calls behind in step 15 and silent; rank 0 waits; rank 1 used the pair last; rank 3 has no box."""
    boxes = [
        box(0, issued=38, completed=36, sign_s=999),
        replace(box(1, issued=38, completed=38, sign_s=995), step=17),
        box(2, issued=36, completed=36, sign_s=930, step=15),
    ]
    rows = describe_stops(watch(boxes, last_step_s=900, num_ranks=4))
    assert list(stop_lines(rows, now_ns=NOW)) == [
        "where its ranks stand",
        "  rank 2: step 15, backward, last call all_reduce 36 of default_pg (2 behind), "
        "silent since 1970-01-01 00:15:30 UTC (70 s)",
        "  rank 0: step 16, backward, last call broadcast 4 of 7 (ranks 0-1), gives signs of life",
        "  rank 1: step 17, backward, last call broadcast 4 of 7 (ranks 0-1), gives signs of life",
        "  rank 3: no step, no phase known, no collective seen, silent since 1970-01-01 00:00:00 UTC (16 min)",
    ]


def test_a_rank_that_is_known_to_be_gone_gives_no_signs_of_life() -> None:
    """Both beat 3 s ago; the process of rank 1 is no more, whether that of rank 0 lives or not."""
    boxes = [box(0, issued=38, completed=36, sign_s=997), box(1, issued=36, completed=36, sign_s=997)]
    watched = watch(boxes, last_step_s=996)
    both = "gone, last sign of life at 1970-01-01 00:16:37 UTC (3 s ago)"
    for gone, expected in (((1,), [both, "gives signs of life"]), ((0, 1), [both, both])):
        processes = ProcessTable(fate=lambda _: True, is_gone=lambda info, gone=gone: info.rank in gone)
        state = assess_run(
            watched.infos, watched.boxes, last_step_ns=996 * S, usual_ns=S, now_ns=NOW, processes=processes
        )
        rows = describe_stops(replace(watched, state=state))
        assert {row["rank"]: row["gone"] for row in rows} == {0: 0 in gone, 1: True}
        lines = list(stop_lines(rows, now_ns=NOW))[1:]
        assert [each in line for each, line in zip(expected, lines, strict=True)] == [True, True]


def test_many_ranks_are_capped_and_a_run_that_is_well_has_no_lines() -> None:
    """Of ten ranks eight are shown and the rest counted; a run that makes steps needs none."""
    boxes = [box(rank, issued=9, completed=9, sign_s=999) for rank in range(10)]
    lines = list(stop_lines(describe_stops(watch(boxes, last_step_s=900)), now_ns=NOW))
    assert (lines[0], len(lines)) == ("where 8 of its ranks stand", 10)
    assert lines[-1] == "  and 2 more ranks (--json has all)"
    assert describe_stops(watch(boxes, last_step_s=999)) == []
    assert list(stop_lines([], now_ns=NOW)) == []


def steps_of(*, input_ms: int, wait_ms: int | None, num_steps: int = 20, device: bool = False) -> Watched:
    """Return a run of two ranks, 100 ms a step; the first fetches for a second, as a loader that starts does."""
    rows: list[Any] = []
    for rank in range(2):
        start, records = 0, list[StepRecord]()
        for step in range(num_steps):
            fetch = 1_000 * MS if step == 0 else input_ms * MS
            length = max(100 * MS, fetch)
            phases = {"input": fetch, "forward": length - fetch}
            records.append(
                StepRecord(
                    step=step, start_ns=start, end_ns=start + length, phases=phases,
                    communication_wait_ns=None if wait_ms is None else wait_ms * MS,
                    device_ns={"forward": MS} if device else None,
                )
            )  # fmt: skip
            start += length
        rows += columns.step_rows(records, attempt=0, rank=rank)
    boxes = [box(rank, issued=9, completed=9, sign_s=999) for rank in range(2)]
    steps = pl.DataFrame(rows, schema=RankSteps.schema(), orient="row").lazy()
    return replace(watch(boxes, last_step_s=999), steps=steps)


@pytest.mark.parametrize(
    ("input_ms", "wait_ms", "costs"),
    [
        (58, 20, {"input": 0.58, "communication_wait": 0.2}),
        (3, 5, {"communication_wait": 0.05, "input": 0.03}),
        (2, 4, {}),
        (2, None, {}),
    ],
)
def test_what_costs_at_least_as_much_as_a_finding_is_told(
    input_ms: int, wait_ms: int | None, costs: dict[str, float]
) -> None:
    """Thresholds of 3 % and 5 %, both included; the first step, a second of input, counts for nothing."""
    found = find_costs(steps_of(input_ms=input_ms, wait_ms=wait_ms))
    assert {each["cost"]: pytest.approx(each["share_ratio"]) for each in found} == costs
    assert [each["cost"] for each in found] == list(costs)
    assert all(each["num_steps"] == 19 for each in found)


def test_the_two_lengths_of_a_cost_make_its_share() -> None:
    """Nine of nineteen steps are three times as long: the mean, 195 ms, is the base, and no median of 100 ms."""
    run = steps_of(input_ms=10, wait_ms=20)
    longer = pl.when((pl.col("step") > 0) & (pl.col("step") < 10)).then(200 * MS).otherwise(0)
    steps = run.steps.with_columns(pl.col("duration_ns", "end_ns", "forward_ns") + longer)
    found = find_costs(replace(run, steps=steps))
    by_hand = (9 * 300 * MS + 10 * 100 * MS) // 19
    assert {each["cost"]: (each["mean_ns"], each["mean_step_ns"]) for each in found} == {
        "communication_wait": (20 * MS, by_hand),
        "input": (10 * MS, by_hand),
    }
    assert all(each["share_ratio"] == pytest.approx(each["mean_ns"] / by_hand) for each in found)
    lines = list(cost_lines(found))
    assert "on average 20 ms of 194.7 ms a step and rank" in lines[0]


def test_a_cost_is_a_sentence_with_what_to_do() -> None:
    """By hand: 58 ms of 100 ms; few steps say nothing."""
    (words,) = cost_lines(find_costs(steps_of(input_ms=58, wait_ms=None)))
    start = "input takes 58.0 % of the newest 19 undisturbed steps, on average 58 ms of 100 ms a step on ranks 0-1"
    assert words.startswith(start)
    assert find_costs(steps_of(input_ms=58, wait_ms=None, num_steps=10)) == []
    (words,) = cost_lines(find_costs(steps_of(input_ms=58, wait_ms=None, device=True)))
    assert "of 100 ms a step on ranks 0-1; a profiler window tells whether devices wait meanwhile: more" in words


def test_who_makes_others_wait_is_named_where_it_is_known() -> None:
    """A rank that is told to be slow answers the question; else it takes a window, and where none is that is said."""
    costs = find_costs(steps_of(input_ms=2, wait_ms=20))
    said = [
        next(iter(cost_lines(costs, slow_ranks=ranks, has_window=has_window))).rpartition(": ")[2]
        for ranks, has_window in (([2], True), ([2, 3], False), ([], True), ([], False))
    ]
    assert said == [
        "others wait for rank 2, which works longer than its peers",
        "others wait for ranks 2-3, which work longer than their peers",
        "scope stragglers on its profiler windows tells late ranks from slow links",
        "scope stragglers on a profiler window, of which there is none yet, tells late ranks from slow links",
    ]
