"""Steps of a job whose ranks folded old ones at boundaries of their own, against the steps before folding."""

from __future__ import annotations

import random
from typing import Any

import polars as pl
import pytest

from scope.analysis.recorded import StepSummary, summarize_run, summarize_steps
from scope.frames.schema import PHASE_COLUMNS, Ranks, RankSteps

FORWARD = "forward_ns"


def plain_row(attempt: int, rank: int, step: int, length: int) -> dict[str, Any]:
    """A step that is forward alone."""
    row: dict[str, Any] = dict.fromkeys(map(str, RankSteps.columns()))
    row |= dict.fromkeys(map(str, PHASE_COLUMNS), 0) | {FORWARD: length}
    row |= {"attempt": attempt, "rank": rank, "step": step, "num_steps": 1, "start_ns": step * 1000}
    row |= {"end_ns": step * 1000 + length, "duration_ns": length, "gc_ns": 1, "recorder_ns": 0, "num_dropped": 0}
    return row | {"tokens": length % 7, "communication_wait_ns": length // 2 if length % 3 else None}


def fold(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """One row for several steps of one rank that follow each other."""
    waits = [row["communication_wait_ns"] for row in rows if row["communication_wait_ns"] is not None]
    sums = {name: sum(row[name] for row in rows) for name in ("duration_ns", FORWARD, "gc_ns", "tokens")}
    return rows[0] | sums | {
        "num_steps": len(rows),
        "end_ns": rows[-1]["end_ns"],
        "communication_wait_ns": sum(waits) if waits else None,
    }  # fmt: skip


def fold_somewhere(rows: list[dict[str, Any]], numbers: random.Random) -> list[dict[str, Any]]:
    """Fold the oldest steps of a rank into pieces of random length; the newest stay."""
    folded: list[dict[str, Any]] = []
    at, last = 0, numbers.randrange(len(rows) + 1)
    while at < last:
        end = min(last, at + numbers.choice([1, 1, 2, 3, 10]))
        folded.append(fold(rows[at:end]))
        at = end
    return folded + rows[at:]


def ranges_by_brute_force(rows: list[dict[str, Any]]) -> list[set[int]]:
    """Sets of steps, joined as long as two of them have a step in common."""
    ranges = [set(range(row["step"], row["step"] + row["num_steps"])) for row in rows]
    while True:
        for one in ranges:
            other = next((each for each in ranges if each is not one and each & one), None)
            if other is not None:
                ranges = [each for each in ranges if each is not one and each is not other] + [one | other]
                break
        else:
            return sorted(ranges, key=min)


def as_frame(rows: list[dict[str, Any]]) -> pl.LazyFrame:
    """The rows as a checked table."""
    return RankSteps.check(pl.DataFrame(rows, schema=RankSteps.schema(), orient="row")).lazy()


@pytest.mark.parametrize("seed", range(40))
def test_ranks_that_fold_apart_make_the_steps_that_they_made(seed: int) -> None:
    """Whatever the boundaries, steps add up to those of the job, and a row sums the steps of its range alone."""
    numbers = random.Random(seed)
    num_ranks, steps_of = numbers.randrange(1, 5), [numbers.randrange(1, 40) for _ in range(2)]
    before: list[dict[str, Any]] = []
    after: list[dict[str, Any]] = []
    for attempt, num_steps in enumerate(steps_of):
        for rank in range(num_ranks):
            begun = numbers.choice([0, 0, 3])
            lengths = [numbers.randrange(1, 900) for _ in range(begun, num_steps + begun)]
            rows = [plain_row(attempt, rank, begun + at, length) for at, length in enumerate(lengths)]
            before += rows
            after += fold_somewhere(rows, numbers)
    numbers.shuffle(after)
    summary = summarize_steps(as_frame(after))
    assert summary[StepSummary.num_steps].sum() == len({(row["attempt"], row["step"]) for row in before})
    for attempt in range(2):
        expected = ranges_by_brute_force([row for row in after if row["attempt"] == attempt])
        found = summary.filter(pl.col(StepSummary.attempt) == attempt)
        assert found[StepSummary.step].to_list() == [min(each) for each in expected]
        assert found[StepSummary.num_steps].to_list() == [len(each) for each in expected]
        for row, steps in zip(found.iter_rows(named=True), expected, strict=True):
            inside = [each for each in before if each["attempt"] == attempt and each["step"] in steps]
            by_rank: dict[int, int] = {}
            for each in inside:
                by_rank[each["rank"]] = by_rank.get(each["rank"], 0) + each["duration_ns"]
            works = dict(by_rank)
            for each in inside:
                works[each["rank"]] -= each["communication_wait_ns"] or 0
            slowest = max(works, key=lambda rank: (works[rank], -rank))
            own = [each for each in inside if each["rank"] == slowest]
            waits = [each["communication_wait_ns"] for each in own if each["communication_wait_ns"] is not None]
            assert (row["slowest_rank"], row["num_ranks"]) == (slowest, len(by_rank))
            assert row["slowest_ns"] == row[FORWARD] == by_rank[slowest]
            assert row["duration_ns"] == max(by_rank.values())
            assert row["tokens"] == sum(each["tokens"] for each in inside)
            assert row["communication_wait_ns"] == (sum(waits) if waits else None)
            assert row["gc_ns"] == len(own)
            assert row["start_ns"] == min(each["start_ns"] for each in inside)
            assert row["end_ns"] == max(each["end_ns"] for each in inside)


def test_a_run_that_was_folded_to_its_end_has_the_last_step_it_had() -> None:
    """The last step of a summary counts, not its first, and ranks that folded apart count no step twice."""
    rows = [[plain_row(0, rank, step, 5) for step in range(250)] for rank in range(2)]
    folded = [fold(rows[0][:100]), fold(rows[0][100:]), fold(rows[1][:99]), fold(rows[1][99:197]), fold(rows[1][197:])]
    facts = {"attempt": 0, "world_size": 2, "host": "a", "pid": 1, "started_ns": 0}
    ranks = [dict.fromkeys(map(str, Ranks.columns())) | facts | {"rank": rank} for rank in range(2)]
    table = Ranks.check(pl.DataFrame(ranks, schema=Ranks.schema(), orient="row"))
    run = summarize_run(table, as_frame(folded))
    assert (run.num_steps, run.first_step, run.last_step) == (250, 0, 249)
