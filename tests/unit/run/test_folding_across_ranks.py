"""Old steps folded by ranks whose files fill at different times, and joined as folding goes on."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import msgspec
import pytest

from scope.run import paths
from scope.run.folding import STEPS_PER_SUMMARY, fold_file, summarize_steps
from scope.run.reader import RankReader
from scope.run.schema import CollectiveTotal, MemoryPeak, MemoryRecord, StepLine, StepRecord, StepSummary

if TYPE_CHECKING:
    from pathlib import Path


def make_step(step: int, numbers: random.Random) -> StepRecord:
    """A step with figures of its own, some of which may be unknown."""
    length = numbers.randrange(1, 10**9)
    timed = numbers.choice([0, 1])
    calls = CollectiveTotal(
        group=numbers.randrange(3),
        operation="all_reduce",
        num_calls=numbers.randrange(1, 9),
        in_bytes=numbers.randrange(10**9),
        out_bytes=8,
        num_timed=timed,
        duration_ns=numbers.randrange(10**6) if timed else None,
    )
    return StepRecord(
        step=step,
        start_ns=step * 10**9,
        end_ns=step * 10**9 + length,
        phases={"forward": length // 3, "other": length - length // 3},
        communication_wait_ns=numbers.choice([None, 5]),
        gc_ns=numbers.randrange(5),
        collectives=(calls,),
        memory=numbers.choice([None, MemoryRecord(peak=MemoryPeak(resident_bytes=numbers.randrange(10**9)))]),
        tokens=numbers.choice([7, 7, 7, None]),
        recorder_ns=numbers.randrange(9),
    )


def append(path: Path, *steps: StepRecord) -> None:
    """Append steps as the writer does."""
    with path.open("ab") as file:
        file.writelines(msgspec.json.encode(step) + b"\n" for step in steps)


def span_of(line: StepLine) -> tuple[int, int]:
    """First and last step of a line."""
    return (line.step, line.step) if isinstance(line, StepRecord) else (line.first_step, line.last_step)


@pytest.mark.parametrize("seed", range(8))
def test_summaries_are_of_the_same_steps_on_all_ranks(tmp_path: Path, seed: int) -> None:
    """However often and from whatever size a rank folds, a block is one line whose figures are those of its steps."""
    numbers = random.Random(seed)
    path = tmp_path / paths.STEPS_FILE
    steps = [make_step(step, numbers) for step in range(numbers.randrange(40, 90), 1500)]
    at, num_folds = 0, 0
    while at < len(steps):
        end = at + numbers.randrange(1, 80)
        append(path, *steps[at:end])
        at = end
        num_folds += fold_file(path, max_bytes=numbers.randrange(20_000, 60_000))
    assert num_folds > 5
    lines = RankReader(tmp_path).new_steps()
    covered = [step for line in lines for step in range(span_of(line)[0], span_of(line)[1] + 1)]
    assert covered == [step.step for step in steps]
    by_number = {step.step: step for step in steps}
    summaries = [line for line in lines if isinstance(line, StepSummary)]
    assert len(summaries) >= 10
    for line in summaries:
        own = [by_number[step] for step in range(line.first_step, line.last_step + 1)]
        assert line == summarize_steps(own)
        assert line.num_steps == len(own)
        assert line.duration_ns == sum(step.end_ns - step.start_ns for step in own) == sum(line.phases.values())
        assert line.min_duration_ns == min(step.end_ns - step.start_ns for step in own)
        assert line.tokens == (None if any(step.tokens is None for step in own) else 7 * len(own))
        assert sum(total.in_bytes for total in line.collectives) == sum(step.collectives[0].in_bytes for step in own)
    whole = [line for line in summaries if line.first_step % STEPS_PER_SUMMARY == 0]
    assert all(line.last_step == line.first_step + STEPS_PER_SUMMARY - 1 for line in whole[:-1])
    assert len(whole) >= len(summaries) - 1  # the first block begins where the program does


def test_steps_that_are_counted_anew_are_not_joined_with_earlier_ones(tmp_path: Path) -> None:
    """A program that begins at step 0 again in the same attempt has two summaries of the block."""
    path = tmp_path / paths.STEPS_FILE
    numbers = random.Random(1)
    append(path, *(make_step(step, numbers) for step in (*range(60), *range(60))))
    assert fold_file(path, max_bytes=1)
    assert [span_of(line) for line in RankReader(tmp_path).new_steps()] == [(0, 59), (0, 59)]


def test_a_file_of_summaries_alone_is_left_as_it_is(tmp_path: Path) -> None:
    """Nothing is written where nothing more can be folded, and misaligned summaries of older versions stay."""
    path = tmp_path / paths.STEPS_FILE
    numbers = random.Random(2)
    steps = [make_step(step, numbers) for step in range(197)]
    old = [summarize_steps(steps[:97]), summarize_steps(steps[97:197])]
    path.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in old))
    before = path.stat()
    assert not fold_file(path, max_bytes=1)
    assert path.stat().st_ino == before.st_ino
    assert RankReader(tmp_path).new_steps() == old
