"""What counted steps tell of others: proportions by hand, and nothing where the record shows other work."""

from __future__ import annotations

from typing import Any

import pytest

from scope.record.counted_steps import scale_work
from scope.record.fitted_steps import Work
from scope.run.schema import CountedStep, StepInputs


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


def of_inputs(*batches: tuple[int, int], flop: float = 0, pattern: str = "Net(B,L)", **facts: Any) -> CountedStep:
    """A step with a forward and a backward for each batch of so many rows of such a length."""
    inputs = StepInputs(
        pattern=pattern,
        num_forwards=len(batches),
        rows=sum(rows for rows, _ in batches),
        positions=sum(rows * length for rows, length in batches),
        position_pairs=sum(rows * length**2 for rows, length in batches),
    )
    return step(len(batches), flop, inputs=inputs, **facts)


def attend(*batches: tuple[int, int]) -> int:
    """FLOPs of 5 a row, 7 a position and 3 a pair of positions."""
    return sum(rows * (5 + 7 * length + 3 * length**2) for rows, length in batches)


def test_rows_of_one_length_are_in_proportion_in_any_passes() -> None:
    """96 rows are three times 32; so are two passes of 16 and 80. Samples and tokens of the loader change nothing."""
    counted = [of_inputs((32, 8), flop=1_000, samples=4, tokens=99)]
    assert flop_of(counted, of_inputs((96, 8), samples=4)) == 3_000
    assert flop_of(counted, of_inputs((16, 8), (80, 8))) == 3_000


def test_rows_out_of_proportion_are_not_scaled() -> None:
    """Where 32 rows have more than twice the FLOPs of 16, of 64 nothing is known, and those counted are as counted."""
    counted = [of_inputs((16, 8), flop=1_000), of_inputs((32, 8), flop=2_500)]
    assert flop_of(counted, of_inputs((64, 8))) is None
    assert flop_of(counted, of_inputs((32, 8))) == 2_500


def test_other_inputs_are_other_work() -> None:
    """Another pattern, another length, and one more forward to a backward pass are not scaled."""
    counted = [of_inputs((32, 8), flop=1_000)]
    assert flop_of(counted, of_inputs((32, 8), pattern="Net 2(B,L)")) is None
    assert flop_of(counted, of_inputs((32, 9))) is None
    assert flop_of(counted, step(1, inputs=of_inputs((16, 8), (16, 8)).inputs)) is None
    assert flop_of(counted, step(1, samples=32)) is None


def test_two_lengths_of_equal_flops_a_position_tell_of_all() -> None:
    """Without attention 10 FLOPs a position hold for a third length; with two lengths that differ nothing does."""
    alike = [of_inputs((4, 8), flop=320), of_inputs((2, 5), flop=100)]
    assert flop_of(alike, of_inputs((3, 7))) == 210
    assert flop_of([alike[0], of_inputs((2, 5), flop=101)], of_inputs((3, 7))) is None


def test_four_lengths_tell_rows_positions_and_pairs_apart() -> None:
    """Three lengths leave three unknowns unproven; the fourth proves them, for batches of mixed lengths too."""
    batches = [((4, 8),), ((2, 5),), ((3, 11), (1, 2)), ((1, 16),)]
    counted = [of_inputs(*each, flop=attend(*each)) for each in batches]
    other = ((6, 9), (2, 30))
    assert flop_of(counted[:3], of_inputs(*other)) is None
    assert scale_work(counted, of_inputs(*other)) == Work(attend(*other), attend(*other) * 5 / 4)


def test_what_fits_all_but_one_is_no_proof() -> None:
    """One counted step off by a single FLOP, and no other length is worked out."""
    batches = [(4, 8), (2, 5), (3, 11), (1, 16), (2, 21)]
    counted = [of_inputs(each, flop=attend(each) + (each == (1, 16))) for each in batches]
    assert flop_of(counted, of_inputs((6, 9))) is None
