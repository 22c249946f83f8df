"""What waiting for data costs, against the sentence that defines it in plain Python and steps worked out by hand."""

from __future__ import annotations

import random
from typing import Any

import polars as pl
import pytest

from scope.analysis.recorded import InputCost, StepSummary, compute_input_cost, summarize_steps
from scope.frames.schema import PHASE_COLUMNS, RankSteps

MS = 1_000_000


def row(rank: int, step: int, *, work_ns: int, input_ns: int, length_ns: int, **values: Any) -> dict[str, Any]:
    """Return a step of one rank: input, other work, and the wait that fills it up to its length."""
    found: dict[str, Any] = dict.fromkeys(map(str, RankSteps.columns()))
    found |= dict.fromkeys(map(str, PHASE_COLUMNS), 0)
    found |= {"attempt": 0, "rank": rank, "step": step, "num_steps": 1, "start_ns": step * 1_000 * MS}
    found |= {"end_ns": step * 1_000 * MS + length_ns, "duration_ns": length_ns, "gc_ns": 0, "recorder_ns": 0}
    found |= {"input_ns": input_ns, "forward_ns": work_ns - input_ns, "backward_ns": length_ns - work_ns}
    return found | {"num_dropped": 0, "communication_wait_ns": length_ns - work_ns} | values


def table(rows: list[dict[str, Any]]) -> pl.LazyFrame:
    """Return rows as the frame that a run is read into."""
    return RankSteps.check(pl.DataFrame(rows, schema=RankSteps.schema(), orient="row")).lazy()


def steps_of(ranks: dict[int, tuple[int, int]], *, jitter: random.Random | None = None) -> list[dict[str, Any]]:
    """Return twenty steps of ranks that wait for each other, by rank its input and its other work in ms."""
    longest = max(map(sum, ranks.values())) * MS
    return [
        row(
            rank, step, work_ns=(own + other) * MS, input_ns=own * MS,
            length_ns=longest + (jitter.randrange(MS // 2) if jitter else 0),
        )
        for step in range(20)
        for rank, (own, other) in ranks.items()
    ]  # fmt: skip


@pytest.mark.parametrize("seed", range(4))
def test_a_loader_that_is_slow_on_one_rank_costs_what_mending_it_gains(seed: int) -> None:
    """Rank 1 fetches for 100 of 200 ms: the step falls to rank 0's 103 ms without its data, whose length jitters."""
    steps = table(steps_of({0: (3, 100), 1: (100, 100)}, jitter=random.Random(seed)))
    cost = compute_input_cost(steps)
    assert cost is not None
    assert (cost.num_steps, cost.ranks) == (19, (1,))
    # Jitter is work of unknown kind here, less than half a millisecond.
    assert abs(cost.mean_ns - 100 * MS) <= MS
    assert set(summarize_steps(steps)[StepSummary.slowest_rank]) == {1}


def test_data_that_nobody_waits_for_costs_nothing() -> None:
    """Rank 0 computes for 200 ms whatever rank 1 fetches meanwhile."""
    cost = compute_input_cost(table(steps_of({0: (0, 200), 1: (100, 50)})))
    assert cost == InputCost(num_steps=19, mean_ns=0, mean_step_ns=200 * MS, share_ratio=0.0, ranks=())


def test_equal_loaders_are_all_named() -> None:
    """Four ranks fetch for 25 of 100 ms each: mending one alone gains nothing, mending all 25 ms."""
    cost = compute_input_cost(table(steps_of(dict.fromkeys(range(4), (25, 75)))))
    assert cost == InputCost(num_steps=19, mean_ns=25 * MS, mean_step_ns=100 * MS, share_ratio=0.25, ranks=(0, 1, 2, 3))


def test_stages_of_a_pipeline_are_not_compared() -> None:
    """The first stage fetches for 40 ms and works 20; the second works for 200, and waits for it all the same."""
    cost = compute_input_cost(table(steps_of({0: (40, 20), 1: (0, 200)})), peers={0: 0, 1: 1})
    assert cost is not None
    assert (cost.mean_ns, cost.ranks) == (40 * MS, (0,))


def test_a_step_that_was_disturbed_on_one_rank_counts_for_no_stage() -> None:
    """Rank 0, of the stage that fetches, is profiled in every other step: the others say that each costs 40 ms."""
    rows = steps_of({0: (40, 20), 1: (40, 20), 2: (0, 150), 3: (0, 150)})
    for each in rows:
        if each["rank"] == 0 and each["step"] % 2:
            each["disturbed"] = "capture"
    cost = compute_input_cost(table(rows), peers={0: 0, 1: 0, 2: 1, 3: 1})
    assert cost is not None
    assert (cost.num_steps, cost.mean_ns, cost.ranks) == (9, 40 * MS, (0, 1))


@pytest.mark.parametrize("unknown", [{"communication_wait_ns": None}, {"communication_wait_coverage_ratio": 0.5}])
def test_where_the_wait_is_not_known_input_counts_whole(unknown: dict[str, Any]) -> None:
    """Rank 1 fetches for 100 ms of 200; who of the two works longest nobody knows, so that is gained at most."""
    rows = [each | (unknown if each["rank"] == 0 else {}) for each in steps_of({0: (3, 100), 1: (100, 100)})]
    cost = compute_input_cost(table(rows))
    assert cost == InputCost(num_steps=19, mean_ns=100 * MS, mean_step_ns=200 * MS, share_ratio=0.5, ranks=(1,))


@pytest.mark.parametrize("seed", range(10))
def test_the_cost_is_what_the_definition_says(seed: int) -> None:
    """The longest work less the longest without input, of each set of peers; the largest of the sets, added up."""
    numbers = random.Random(seed)
    peers = {rank: rank % 2 for rank in range(4)}
    rows = [
        row(rank, step, input_ns=own, work_ns=own + numbers.randrange(50 * MS), length_ns=150 * MS)
        for step in range(1, 70)
        for rank in peers
        for own in [numbers.randrange(50 * MS)]
    ]
    recent = [each for each in rows if each["step"] >= 20]
    total = 0
    for step in range(20, 70):
        of_sets: list[int] = []
        for peer_set in (0, 1):
            own = [each for each in recent if each["step"] == step and peers[each["rank"]] == peer_set]
            works = [(each["input_ns"] + each["forward_ns"], each["forward_ns"]) for each in own]
            of_sets.append(max(work for work, _ in works) - max(rest for _, rest in works))
        total += max(of_sets)
    numbers.shuffle(rows)
    cost = compute_input_cost(table(rows), peers=peers)
    assert cost is not None
    assert (cost.num_steps, cost.mean_ns) == (50, total // 50)
    assert cost.share_ratio == pytest.approx(total / (50 * 150 * MS))


def test_before_a_step_that_counts_nothing_is_known() -> None:
    """No step, and the first step alone, in which a loader starts."""
    assert compute_input_cost(table([])) is None
    assert compute_input_cost(table([row(0, 0, work_ns=9, input_ns=5, length_ns=9)])) is None
