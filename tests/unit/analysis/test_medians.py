"""One rule for the median, wherever one is computed: the middle value, of two the lower."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import polars as pl
import pytest

from exporters.rank_totals import RankTotals
from scope.analysis.medians import lower_median, lower_median_ns, median_rate
from scope.analysis.recorded import StepSummary, compute_rank_excess, summarize_run, summarize_steps
from scope.frames import columns
from scope.frames.schema import Ranks, RankSteps
from scope.run.schema import RankInfo, StepRecord

if TYPE_CHECKING:
    from collections.abc import Sequence


def middle(values: Sequence[int]) -> int:
    """Return the value below which as few lie as can be, so that at least half lie at it or below."""
    return next(value for value in sorted(values) if 2 * sum(other <= value for other in values) >= len(values))


@pytest.mark.parametrize("number", range(1, 9))
def test_columns_are_treated_like_plain_numbers(number: int) -> None:
    """Of one value up to eight; nulls are no values, and of nothing there is no median."""
    values = random.Random(number).sample(range(100), number)
    table = pl.DataFrame({"a": [None, *values]}, schema={"a": pl.Int64})
    assert table.select(lower_median_ns("a")).item() == middle(values)
    assert table.select(lower_median(pl.col("a") / 2)).item() == middle(values) / 2
    assert table.head(1).select(lower_median_ns("a")).item() is None


@pytest.mark.parametrize("number", range(1, 9))
def test_the_median_rate_is_that_of_the_median_time(number: int) -> None:
    """Equal amounts in the times given: the median of the rates belongs to the median of the times."""
    times = random.Random(number).sample(range(1, 100), number)
    rates = pl.DataFrame({"rate": [None, *(1_000 / time for time in times)]}, schema={"rate": pl.Float64})
    assert rates.select(median_rate("rate")).item() == 1_000 / middle(times)
    assert rates.head(1).select(median_rate("rate")).item() is None


@pytest.mark.parametrize("num_steps", [3, 4])
def test_exporter_and_run_state_have_one_median(num_steps: int) -> None:
    """Steps of 10, 20, 40 and 80 ns on both of two ranks: 20 for three of them, and 20, not 30, for all four."""
    lengths = [10, 20, 40, 80][:num_steps]
    records = [
        StepRecord(step=step, start_ns=0, end_ns=length, phases={"forward": length}, communication_wait_ns=0)
        for step, length in enumerate(lengths)
    ]
    totals = RankTotals()
    totals.add(records)
    assert totals.median_ns() == 20
    rows = [row for rank in range(2) for row in columns.step_rows(records, attempt=0, rank=rank)]
    steps = pl.DataFrame(rows, schema=RankSteps.schema(), orient="row").lazy()
    infos = [
        RankInfo(schema="1.0", run_id="r", attempt=0, rank=rank, started_ns=0, host="h", pid=1, world_size=2)
        for rank in range(2)
    ]
    ranks = Ranks.check(columns.rank_frame(infos))
    length = summarize_run(ranks, steps).speed.step_time
    assert length is not None
    assert length.median_ns == 20
    assert set(compute_rank_excess(steps)["busy_ns"]) == {20}
    assert summarize_steps(steps)[StepSummary.median_ns].to_list() == lengths
