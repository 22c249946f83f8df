"""What counted steps tell of others: proportions by hand, and nothing where the record shows other work."""

from __future__ import annotations

from typing import Any

import pytest

from scope.record.counted_steps import Work, scale_work
from scope.run.schema import CountedStep


def step(num_microbatches: int | None, flop: float = 0, **facts: Any) -> CountedStep:
    """A step of one update; its hardware FLOPs are a quarter more."""
    facts = {"num_optimizer_steps": 1} | facts
    return CountedStep(step=0, model_flop=flop, hardware_flop=flop * 5 / 4, num_microbatches=num_microbatches, **facts)


def flop_of(counted: list[CountedStep], other: CountedStep) -> float | None:
    """Model FLOPs of another step."""
    work = scale_work(counted, other)
    return None if work is None else work.model_flop


def test_a_smaller_batch_is_less_work() -> None:
    """4 samples of 32 are an eighth, of both kinds of FLOPs; half the tokens are half, whatever the samples."""
    assert scale_work([step(1, 8_000, samples=32)], step(1, samples=4)) == Work(1_000, 1_250)
    assert flop_of([step(1, 8_000, samples=32, tokens=512)], step(1, samples=32, tokens=256)) == 4_000


def test_an_equal_step_is_exactly_as_much() -> None:
    """Seven samples of seven change nothing by rounding, and steps of which neither is known are taken as they are."""
    assert flop_of([step(1, 1e15 / 3, samples=7)], step(1, samples=7)) == 1e15 / 3
    assert flop_of([step(2, 500)], step(2)) == 500


def test_what_is_known_of_one_alone_scales_nothing() -> None:
    """A step without samples, or without tokens, is not taken for one of as many."""
    assert flop_of([step(1, 8_000, samples=32)], step(1)) is None
    assert flop_of([step(1, 8_000)], step(1, samples=32)) is None
    assert flop_of([step(1, 8_000, tokens=512, samples=32)], step(1, samples=32)) is None


def test_other_optimizer_steps_are_other_work() -> None:
    """Two updates of a generator and its critic are no part of three, on equal samples too."""
    assert flop_of([step(2, 8_000, samples=40, num_optimizer_steps=2)], step(2, samples=40)) is None


def test_an_update_cut_short_is_by_its_samples() -> None:
    """The last update of an epoch, of 36 samples in 2 passes where others have 96 in 3, is 36/96."""
    assert flop_of([step(3, 9_600, samples=96)], step(2, samples=36)) == 3_600


@pytest.mark.parametrize("samples", [32, 20], ids=["equal", "fewer"])
def test_more_passes_over_no_more_samples_are_other_work(samples: int) -> None:
    """A second backward pass that came without more samples, a penalty or a search along a line, is not guessed."""
    assert flop_of([step(1, 8_000, samples=32)], step(2, samples=samples)) is None


def test_the_nearest_in_passes_is_scaled() -> None:
    """Between counted steps of 1 and 4 passes, 3 passes are by the samples of the latter."""
    counted = [step(1, 1_000, samples=10), step(4, 4_400, samples=40)]
    assert flop_of(counted, step(3, samples=30)) == 3_300


def test_passes_count_once_they_are_known_to_be_alike() -> None:
    """One step says nothing of another number of passes; two with as much in each do, two with unlike ones do not."""
    assert flop_of([step(2, 600)], step(4)) is None
    assert flop_of([step(2, 600), step(6, 1_800)], step(4)) == 1_200
    assert flop_of([step(2, 600), step(6, 1_500)], step(4)) is None
    assert flop_of([step(2, 600), step(6, 1_800)], step(None)) is None
