"""Figures of recorded runs against plain Python over the same rows."""

from __future__ import annotations

import random
import statistics
from typing import Any

import msgspec
import polars as pl
import pytest

from scope.analysis.recorded import (
    CollectiveSummary,
    RankExcess,
    StepSummary,
    bin_rank_steps,
    compute_phase_totals,
    compute_rank_excess,
    describe_slowest,
    peer_sets,
    summarize_collectives,
    summarize_run,
    summarize_steps,
)
from scope.frames.schema import PHASE_COLUMNS, CollectiveTotals, Ranks, RankSteps
from scope.run.schema import GroupInfo, RankInfo

MS = 1_000_000


def rank_row(rank: int, **values: Any) -> dict[str, Any]:
    """Return a row of `Ranks`; what is not given is null."""
    row: dict[str, Any] = dict.fromkeys(map(str, Ranks.columns()))
    return row | {"attempt": 0, "rank": rank, "world_size": 2, "host": "a", "pid": rank, "started_ns": 0} | values


def step_row(rank: int, step: int, phases: dict[str, int], **values: Any) -> dict[str, Any]:
    """Return a row of `RankSteps` whose length is the sum of its phases."""
    row: dict[str, Any] = dict.fromkeys(map(str, RankSteps.columns()))
    row |= dict.fromkeys(map(str, PHASE_COLUMNS), 0) | {f"{name}_ns": length for name, length in phases.items()}
    duration = sum(phases.values())
    start = step * 1_000 * MS
    row |= {"attempt": 0, "rank": rank, "step": step, "num_steps": 1, "start_ns": start, "end_ns": start + duration}
    return row | {"duration_ns": duration, "gc_ns": 0, "recorder_ns": 7, "num_dropped": 0} | values


def frame(table: type[Ranks | RankSteps | CollectiveTotals], rows: list[dict[str, Any]]) -> pl.DataFrame:
    """Return the rows as a checked frame."""
    return table.check(pl.DataFrame(rows, schema=table.schema(), orient="row"))


def random_rows(seed: int, *, ranks: int, steps: int) -> list[dict[str, Any]]:
    """Return steps with random phases and waits, in random order."""
    random_numbers = random.Random(seed)
    rows = [
        step_row(
            rank,
            step,
            {name.removesuffix("_ns"): random_numbers.randrange(50 * MS) for name in PHASE_COLUMNS},
            communication_wait_ns=random_numbers.choice([None, random_numbers.randrange(20 * MS)]),
            tokens=random_numbers.randrange(100),
        )
        for rank in range(ranks)
        for step in range(steps)
    ]
    random_numbers.shuffle(rows)
    return rows


@pytest.mark.parametrize("seed", range(5))
def test_steps_take_the_slowest_rank(seed: int) -> None:
    """Phases are those of the rank that works longest, and sum to its length; a step lasts as on the longest."""
    rows = random_rows(seed, ranks=5, steps=7)
    summary = summarize_steps(frame(RankSteps, rows).lazy())
    assert summary.height == 7
    for row in summary.iter_rows(named=True):
        same = [each for each in rows if each["step"] == row["step"]]
        works = {each["rank"]: each["duration_ns"] - (each["communication_wait_ns"] or 0) for each in same}
        slowest = max(same, key=lambda each: (works[each["rank"]], -each["rank"]))
        assert row["slowest_rank"] == slowest["rank"]
        assert row["slowest_ns"] == slowest["duration_ns"] == sum(row[phase] for phase in PHASE_COLUMNS)
        assert row["duration_ns"] == max(each["duration_ns"] for each in same)
        assert row["median_ns"] == statistics.median_low([each["duration_ns"] for each in same])
        assert row["tokens"] == sum(each["tokens"] for each in same)


def test_tokens_of_a_step_are_unknown_when_one_rank_does_not_know() -> None:
    """A sum over ranks is absent, not smaller, when one of them does not know its part."""
    rows = [step_row(0, 0, {"forward": 5}, tokens=8), step_row(1, 0, {"forward": 5}, tokens=None)]
    assert summarize_steps(frame(RankSteps, rows).lazy())[StepSummary.tokens].to_list() == [None]


def test_phase_totals_sum_to_all_steps() -> None:
    """Host time by phase sums to the length of all steps of all ranks."""
    rows = random_rows(1, ranks=3, steps=4)
    totals = compute_phase_totals(frame(RankSteps, rows).lazy())
    assert sum(totals.values()) == sum(row["duration_ns"] for row in rows)
    assert totals["backward"] == sum(row["backward_ns"] for row in rows)


def test_the_rank_that_does_not_wait_is_the_slow_one() -> None:
    """All steps are equally long; the rank with long forward and no wait exceeds its peers, and forward is named."""
    rows = [
        step_row(
            rank,
            step,
            {"forward": 40 * MS if rank == 2 else 10 * MS, "backward": 20 * MS if rank == 2 else 50 * MS},
            communication_wait_ns=0 if rank == 2 else 30 * MS,
        )
        for rank in range(4)
        for step in range(10)
    ]
    excess = compute_rank_excess(frame(RankSteps, rows).lazy())
    worst = excess.row(0, named=True)
    assert (worst["rank"], worst["phase"], worst["phase_excess_ns"]) == (2, "forward", 30 * MS)
    assert (worst["busy_ns"], worst["peers_busy_ns"], worst["excess_ns"]) == (60 * MS, 30 * MS, 30 * MS)
    assert excess.filter(pl.col(RankExcess.rank) != 2)[RankExcess.excess_ns].to_list() == [0, 0, 0]


def equal_backward(waits_in: str | None) -> list[dict[str, Any]]:
    """Return steps of three ranks with 50 ms of backward each; rank 2 then works 40 ms, in which its peers wait.

    Args:
        waits_in: The phase that records say the waits were in; None where they do not say it.
    """
    return [
        step_row(
            rank,
            step,
            {"backward": 50 * MS, "other": 40 * MS},
            communication_wait_ns=wait,
            communication_wait_by_phase=waits_in and {waits_in: wait},
        )
        for rank, wait in enumerate((40 * MS, 40 * MS, 0))
        for step in range(10)
    ]


def test_a_wait_counts_in_the_phase_that_it_was_in() -> None:
    """Backward is 50 ms on all; outside of all phases rank 2 works 40 ms and its peers 0, for there they waited."""
    worst = compute_rank_excess(frame(RankSteps, equal_backward("other")).lazy()).row(0, named=True)
    assert (worst["rank"], worst["excess_ns"]) == (2, 40 * MS)
    assert (worst["phase"], worst["phase_excess_ns"], worst["phase_absent_reason"]) == ("other", 40 * MS, None)


def test_waits_in_forward_blame_forward() -> None:
    """The same with the wait in forward (a sharded model gathers there): rank 2 works 40 ms longer in forward."""
    rows = [
        step_row(
            rank,
            step,
            {"forward": 60 * MS, "backward": 50 * MS},
            communication_wait_ns=wait + 5 * MS,
            communication_wait_by_phase={"forward": wait, "backward": 5 * MS},
        )
        for rank, wait in enumerate((40 * MS, 40 * MS, 0))
        for step in range(10)
    ]
    worst = compute_rank_excess(frame(RankSteps, rows).lazy()).row(0, named=True)
    assert (worst["rank"], worst["phase"], worst["phase_excess_ns"]) == (2, "forward", 40 * MS)


def test_no_phase_is_blamed_where_the_waits_may_have_been_in_any() -> None:
    """Without the waits' phases the peers may have worked 10 ms in backward or 0 outside of it: nobody knows."""
    excess = compute_rank_excess(frame(RankSteps, equal_backward(None)).lazy())
    worst = excess.row(0, named=True)
    assert (worst["rank"], worst["excess_ns"], worst["phase"], worst["phase_excess_ns"]) == (2, 40 * MS, None, None)
    assert worst["phase_absent_reason"].startswith("no phase exceeds its peers' by half")
    assert describe_slowest(excess) == (
        "rank 2 works 40 ms (80.0 %) a step longer than its peers, its phases do not tell where"
    )
    assert excess.row(1, named=True)["phase_absent_reason"] == "it works no longer than its peers"


@pytest.mark.parametrize(("share_ms", "phase"), [(20, "forward"), (19, None)])
def test_a_phase_is_named_from_half_of_the_excess(share_ms: int, phase: str | None) -> None:
    """Of 40 ms that rank 1 works longer, 20 lie in forward, the rest in parts below that; with 19 no phase is named."""
    parts = {"forward": share_ms, "backward": 19, "optimizer": 40 - share_ms - 19}
    rows = [
        step_row(
            rank,
            step,
            {name: 100 * MS + (length * MS if rank == 1 else 0) for name, length in parts.items()},
            communication_wait_ns=0,
        )
        for rank in range(3)
        for step in range(3)
    ]
    worst = compute_rank_excess(frame(RankSteps, rows).lazy()).row(0, named=True)
    assert (worst["rank"], worst["excess_ns"], worst["phase"]) == (1, 40 * MS, phase)


def test_a_rank_is_measured_against_its_peers() -> None:
    """Ranks 0 and 1 work 10 ms, 2 and 3 of the other stage 40 and 45 ms: rank 3 exceeds its stage's median by 5 ms."""
    forward = (10, 10, 40, 45)
    rows = [
        step_row(rank, step, {"forward": forward[rank] * MS}, communication_wait_ns=0)
        for rank in range(4)
        for step in range(3)
    ]
    excess = compute_rank_excess(frame(RankSteps, rows).lazy(), peers={0: 0, 1: 0, 2: 2, 3: 2})
    assert dict(excess.select("rank", "excess_ns").iter_rows()) == {0: 0, 1: 0, 2: 0, 3: 5 * MS}
    assert dict(excess.select("rank", "peers_busy_ns").iter_rows()) == {0: 10 * MS, 1: 10 * MS, 2: 40 * MS, 3: 40 * MS}


def test_peers_differ_along_data_parallel_axes_alone() -> None:
    """2 replicas x 2 shards x 2 tensor parallel: peers are the four ranks of equal tensor parallel place."""
    axes = {"dp_replicate": 4, "dp_shard": 2, "tp": 1}
    infos = [
        RankInfo(
            schema="1.0",
            run_id="mesh",
            attempt=0,
            rank=rank,
            started_ns=1,
            host="a",
            pid=1,
            groups=tuple(
                GroupInfo(group=place, name=axis, ranks=(rank & ~stride, rank | stride), mesh_axis=axis)
                for place, (axis, stride) in enumerate(axes.items())
            ),
        )
        for rank in range(8)
    ]
    assert peer_sets(infos) == {rank: rank % 2 for rank in range(8)}
    flattened = GroupInfo(group=0, name="0", ranks=(0, 1), mesh_axis="dp_shard+cp")
    assert peer_sets([msgspec.structs.replace(infos[0], groups=(flattened,))]) == {0: 0}
    unnamed = GroupInfo(group=0, name="0", ranks=(0, 1))
    assert peer_sets([msgspec.structs.replace(infos[0], groups=(unnamed,))]) == {}


def test_no_rank_is_named_when_no_wait_is_known() -> None:
    """Without a known wait a slow rank cannot be told from its victims."""
    rows = [step_row(0, 0, {"forward": 5}), step_row(1, 0, {"forward": 9})]
    assert compute_rank_excess(frame(RankSteps, rows).lazy()).is_empty()


@pytest.mark.parametrize(("max_ranks", "max_steps"), [(100, 100), (2, 3), (1, 1)])
def test_bins_hold_the_mean_of_their_cells(max_ranks: int, max_steps: int) -> None:
    """Each cell of the heat map is the mean busy time of the ranks and steps in it."""
    rows = random_rows(3, ranks=5, steps=7)
    binned = bin_rank_steps(frame(RankSteps, rows).lazy(), max_ranks=max_ranks, max_steps=max_steps)
    rank_width, step_width = -(-5 // max_ranks), -(-7 // max_steps)
    cells: dict[tuple[int, int], list[int]] = {}
    for row in rows:
        key = (row["rank"] // rank_width * rank_width, row["step"] // step_width * step_width)
        cells.setdefault(key, []).append(row["duration_ns"] - (row["communication_wait_ns"] or 0))
    expected = {key: sum(values) // len(values) for key, values in cells.items()}
    assert {(rank, step): busy for rank, step, busy in binned.iter_rows()} == expected


def test_bandwidth_is_a_lower_bound_over_issue_to_completion() -> None:
    """Two ranks reduce 8 MB in 4 ms each: 2 (N-1)/N x 8 MB / 4 ms = 2 GB/s."""
    base = dict.fromkeys(map(str, CollectiveTotals.columns()))
    rows = [
        base
        | {"attempt": 0, "rank": rank, "step": 0, "group": "0", "group_ranks": [0, 1], "operation": "all_reduce"}
        | {"variant": "plain", "control": False, "num_calls": 1, "in_bytes": 8_000_000, "out_bytes": 8_000_000}
        | {"num_timed": 1, "duration_ns": 4 * MS}
        for rank in (0, 1)
    ]
    row = summarize_collectives(frame(CollectiveTotals, rows).lazy()).row(0, named=True)
    assert row[CollectiveSummary.busbw_at_least_bytes_per_s] == pytest.approx(2e9)
    assert (row["num_calls"], row["group_size"], row["message_bytes"], row["blocked_ns"]) == (2, 2, 8e6, None)


def test_mfu_counts_the_slowest_rank_against_all_peaks() -> None:
    """1.2e12 model FLOPs a rank in 2 s on the slowest of two ranks of 1e12 FLOP/s: 2.4e12 / (2 s x 2e12) = 0.6."""
    ranks = frame(Ranks, [rank_row(rank, peak_flop_per_s=1e12) for rank in (0, 1)])
    steps = [
        step_row(0, 0, {"forward": 1_000 * MS}, model_flop=1.2e12, hardware_flop=1.6e12, tokens=500),
        step_row(1, 0, {"forward": 2_000 * MS}, model_flop=1.2e12, hardware_flop=1.6e12, tokens=500),
    ]
    speed = summarize_run(ranks, frame(RankSteps, steps).lazy()).check().speed
    assert speed.mfu_ratio == pytest.approx(0.6)
    assert speed.hfu_ratio == pytest.approx(0.8)
    assert speed.tokens_per_s == pytest.approx(500)
    assert speed.steps_per_s == pytest.approx(0.5)


def test_mfu_that_no_device_has_is_none() -> None:
    """33e12 FLOPs in a second of a peak of 2e12 are 16.5 times it: no MFU, with the reason; HFU of 8 is given."""
    ranks = frame(Ranks, [rank_row(0, peak_flop_per_s=2e12)])
    steps = [step_row(0, 0, {"forward": 1_000 * MS}, model_flop=33e12, hardware_flop=16e12)]
    speed = summarize_run(ranks, frame(RankSteps, steps).lazy()).check().speed
    assert (speed.mfu_ratio, speed.hfu_ratio) == (None, pytest.approx(8))
    assert speed.absent["mfu_ratio"] == "the FLOPs on record are more than 16 times what the peaks on record allow"


def test_mfu_is_of_the_steps_whose_flops_are_known() -> None:
    """A step of 10 s without FLOPs counts for steps/s alone; the other: 1.2e12 in 2 s against 1e12 FLOP/s is 0.6."""
    ranks = frame(Ranks, [rank_row(0, peak_flop_per_s=1e12)])
    steps = [
        step_row(0, 0, {"forward": 10_000 * MS}),
        step_row(0, 1, {"forward": 2_000 * MS}, model_flop=1.2e12, hardware_flop=1.6e12),
    ]
    speed = summarize_run(ranks, frame(RankSteps, steps).lazy()).check().speed
    assert speed.mfu_ratio == pytest.approx(0.6)
    assert speed.hfu_ratio == pytest.approx(0.8)
    assert (speed.num_steps, speed.num_mfu_steps) == (2, 1)
    assert speed.steps_per_s == pytest.approx(2 / 12)


def test_what_is_unknown_is_absent_with_its_reason() -> None:
    """Without peak, tokens and waits the figures are None and say why."""
    ranks = frame(Ranks, [rank_row(0, mfu_absent_reason="GPU 'X' is not in the catalogue", world_size=3)])
    summary = summarize_run(ranks, frame(RankSteps, [step_row(0, 0, {"forward": 5}, model_flop=1.0)]).lazy()).check()
    assert (summary.num_missing_ranks, summary.missing_ranks) == (2, (1, 2))
    assert summary.speed.absent["mfu_ratio"] == "GPU 'X' is not in the catalogue"
    assert set(summary.speed.absent) == {"mfu_ratio", "hfu_ratio", "tokens_per_s"}
    assert summary.absent["communication_wait_ns"] == "no wait site was seen"


@pytest.mark.parametrize("peak", [None, 1e9], ids=["no peak", "a peak"])
def test_without_flops_of_any_step_the_reason_of_a_rank_is_given(peak: float | None) -> None:
    """A model that cannot be counted, or steps that are like no counted one: what the rank says stands there."""
    ranks = frame(Ranks, [rank_row(0, mfu_absent_reason="the model is compiled", peak_flop_per_s=peak)])
    summary = summarize_run(ranks, frame(RankSteps, [step_row(0, 0, {"forward": 5})]).lazy()).check()
    assert summary.speed.mfu_ratio is None
    assert summary.speed.absent["mfu_ratio"] == summary.speed.absent["hfu_ratio"] == "the model is compiled"


def test_a_run_without_steps_says_so() -> None:
    """Before the first step every figure is absent."""
    summary = summarize_run(frame(Ranks, [rank_row(0)]), RankSteps.empty().lazy()).check()
    assert (summary.last_step, summary.num_steps, summary.speed.num_steps) == (None, 0, 0)
    assert summary.absent["goodput_ratio"] == "no step has ended yet"


def test_goodput_leaves_out_steps_that_a_restart_did_again() -> None:
    """Steps 0 to 3 of the first attempt, restart from step 2: 2 of them were in vain; 4 kept seconds of 8."""
    ranks = frame(Ranks, [rank_row(0, world_size=1), rank_row(0, attempt=1, started_ns=5_000 * MS, world_size=1)])
    steps = [step_row(0, step, {"forward": 1_000 * MS}) for step in range(4)]
    steps += [
        step_row(0, step, {"forward": 1_000 * MS}, attempt=1, start_ns=start * MS, end_ns=(start + 1_000) * MS)
        for step, start in ((2, 6_000), (3, 7_000))
    ]
    assert summarize_run(ranks, frame(RankSteps, steps).lazy()).check().goodput_ratio == pytest.approx(4 / 8)
