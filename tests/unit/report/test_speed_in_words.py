"""What `scope show` says beside the speed of a run: what MFU is against, why there is none, who wrote checkpoints."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from scope.analysis.recorded import summarize_steps
from scope.analysis.recorded.summary import compute_speed
from scope.frames.schema import PHASE_COLUMNS, Ranks, RankSteps
from scope.report.run_state import unwritten_words
from scope.report.run_state_peaks import describe_mfu, find_peaks

SPEED = {"mfu_ratio": 0.08, "num_steps": 50, "num_mfu_steps": 48}


def ranks(*rows: dict[str, Any]) -> pl.DataFrame:
    """Return rows of `Ranks`, the columns that are not given null."""
    empty: dict[str, Any] = dict.fromkeys(map(str, Ranks.columns()))
    return pl.DataFrame([empty | {"attempt": 0} | row for row in rows], schema=Ranks.schema(), orient="row")


def steps(*rows: dict[str, Any]) -> pl.LazyFrame:
    """Return rows of `RankSteps` of a second each, the columns that are not given null or 0."""
    empty: dict[str, Any] = dict.fromkeys(map(str, RankSteps.columns())) | dict.fromkeys(map(str, PHASE_COLUMNS), 0)
    zeros = dict.fromkeys(("attempt", "gc_ns", "recorder_ns", "num_dropped", "start_ns"), 0)
    full = [empty | zeros | {"num_steps": 1, "end_ns": 10**9, "duration_ns": 10**9} | row for row in rows]
    return RankSteps.check(pl.DataFrame(full, schema=RankSteps.schema(), orient="row")).lazy()


def test_mfu_says_its_convention_and_its_peak() -> None:
    """Two CPUs whose products were measured: a range of the attempt's own peaks, with type, source and convention."""
    measured = {
        "peak_dtype": "float32",
        "peak_source": "measured matrix product",
        "flop_convention": "full",
    }
    table = ranks(
        {"rank": 0, "peak_flop_per_s": 94.4e9, **measured},
        {"rank": 1, "peak_flop_per_s": 25.4e9, **measured},
        {"rank": 2, "peak_flop_per_s": 1e15, "attempt": 1, **measured},
    )
    (peak,) = peaks = find_peaks(table, attempt=0)
    assert peak == {
        "source": "measured matrix product", "dtype": "float32", "convention": "full", "num_ranks": 2,
        "least_flop_per_s": 25.4e9, "largest_flop_per_s": 94.4e9,
        "uncounted": None,
    }  # fmt: skip
    assert describe_mfu(SPEED, peaks) == (
        "MFU: model FLOPs (attention counted whole) of 48 of these 50 steps against float32 at "
        "25.4 GFLOP/s to 94.4 GFLOP/s a rank (measured matrix product)"
    )


def test_mfu_names_operators_that_are_not_in_it() -> None:
    """What one of two ranks says of them is said once, behind the peak."""
    rank = {"peak_flop_per_s": 1e12, "peak_dtype": "float32", "peak_source": "user"}
    table = ranks({"rank": 0, **rank}, {"rank": 1, "uncounted_flop_reason": "no formula for x", **rank})
    assert (describe_mfu(SPEED, find_peaks(table, attempt=0)) or "").endswith("a rank (user); no formula for x")


def test_without_mfu_nothing_is_said_of_peaks() -> None:
    """Neither where there is no MFU, nor where no rank knows its peak."""
    table = ranks({"rank": 0, "peak_flop_per_s": 1e12})
    assert describe_mfu(SPEED | {"mfu_ratio": None}, find_peaks(table, attempt=0)) is None
    assert describe_mfu(SPEED, find_peaks(ranks({"rank": 0}), attempt=0)) is None


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        pytest.param([], "no step of which there is a record has ended yet", id="none"),
        pytest.param(
            [{"rank": 0, "step": 3}], "no step has records of all 2 ranks: rank 1 has none", id="killed-early"
        ),
        pytest.param(
            [{"rank": 0, "step": 3, "disturbed": "flop_count"}, {"rank": 1, "step": 3}],
            "no undisturbed step has ended yet",
            id="disturbed",
        ),
    ],
)
def test_an_unknown_speed_says_why(rows: list[dict[str, Any]], reason: str) -> None:
    """No step at all, steps of one rank alone, and steps that were disturbed are told apart."""
    table = steps(*rows)
    speed = compute_speed(ranks({"rank": 0}, {"rank": 1}), summarize_steps(table), table)
    assert speed.step_time is None
    assert set(speed.absent.values()) == {reason}


def test_steps_without_a_record_are_no_more_steps_of_the_run() -> None:
    """Whose count they are of is said, and not that they come on top of those of other ranks."""
    one = unwritten_words(20, ranks=(1,), is_recording=False)
    assert one == "20 steps of rank 1, by its own count, of which no record can be read"
    two = unwritten_words(40, ranks=(1, 2), is_recording=False)
    assert two == "40 steps of ranks 1-2 (summed over them), by their own count, of which no record can be read"
