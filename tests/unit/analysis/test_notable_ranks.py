"""A rank is named when its excess is above what varies by itself, and not otherwise."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import polars as pl

from scope.analysis.recorded import RankExcess, compute_rank_excess, describe_slowest
from scope.frames import columns
from scope.frames.schema import RankSteps
from scope.run.schema import StepRecord

if TYPE_CHECKING:
    from collections.abc import Sequence

MS = 1_000_000


def table(forward_ms: Sequence[Sequence[float]]) -> pl.LazyFrame:
    """Return steps whose forward took so long, by rank and step, without waits."""
    rows = [
        row
        for rank, lengths in enumerate(forward_ms)
        for row in columns.step_rows(
            [
                StepRecord(
                    step=step,
                    start_ns=0,
                    end_ns=round(length * MS),
                    phases={"forward": round(length * MS)},
                    communication_wait_ns=0,
                )
                for step, length in enumerate(lengths)
            ],
            attempt=0,
            rank=rank,
        )
    ]
    return pl.DataFrame(rows, schema=RankSteps.schema(), orient="row").lazy()


def test_noise_is_blamed_on_nobody() -> None:
    """Four ranks whose steps vary by 60 % at random: medians differ by some percent, and nobody is named."""
    for seed in range(20):
        dice = random.Random(seed)
        excess = compute_rank_excess(table([[dice.uniform(60, 160) for _ in range(60)] for _ in range(4)]))
        assert not excess[RankExcess.is_notable].any()
        assert describe_slowest(excess) is None


def test_a_planted_rank_is_named_above_the_noise() -> None:
    """Rank 2 takes 40 ms longer in each step of 100 ms that varies by 10 ms."""
    dice = random.Random(1)
    steps = [[dice.uniform(95, 105) + 40 * (rank == 2) for _ in range(60)] for rank in range(4)]
    excess = compute_rank_excess(table(steps))
    assert excess.filter(pl.col(RankExcess.is_notable))[RankExcess.rank].to_list() == [2]
    sentence = describe_slowest(excess)
    assert sentence is not None
    assert sentence.startswith("rank 2 works ")
    assert sentence.endswith("a step longer than its peers, most of it in forward")


def test_an_excess_without_noise_is_named_from_three_percent() -> None:
    """2 ms of 100 ms are left out, 4 ms are told."""
    for extra, named in ((2, []), (4, [1])):
        excess = compute_rank_excess(table([[100] * 5, [100 + extra] * 5, [100] * 5]))
        assert excess.filter(pl.col(RankExcess.is_notable))[RankExcess.rank].to_list() == named


def test_one_long_step_is_no_straggler() -> None:
    """One step of a second among ten of 100 ms."""
    excess = compute_rank_excess(table([[100] * 11, [100] * 5 + [1000] + [100] * 5]))
    assert not excess[RankExcess.is_notable].any()
