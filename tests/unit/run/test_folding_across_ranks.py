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
    steps = [
        msgspec.structs.replace(
            make_step(step, numbers),
            communication_wait_phases=numbers.choice([None, {"input": 2, "custom": step}, {"backward": step}]),
        )
        for step in range(numbers.randrange(40, 90), 1500)
    ]
    at, num_folds, max_bytes = 0, 0, numbers.randrange(60_000, 120_000)
    while at < len(steps):
        end = at + numbers.randrange(1, 80)
        append(path, *steps[at:end])
        at = end
        num_folds += fold_file(path, max_bytes=max_bytes)
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
        waits = [step.communication_wait_phases or {} for step in own]
        expected = {name: sum(each.get(name, 0) for each in waits) for each in waits for name in each}
        assert line.communication_wait_phases == (expected or None)
        assert line.tokens == (None if any(step.tokens is None for step in own) else 7 * len(own))
        assert sum(total.in_bytes for total in line.collectives) == sum(step.collectives[0].in_bytes for step in own)
    whole = [line for line in summaries if line.first_step % STEPS_PER_SUMMARY == 0]
    assert all(line.last_step == line.first_step + STEPS_PER_SUMMARY - 1 for line in whole[:-1])
    assert len(whole) >= len(summaries) - 1  # the first block begins where the program does


def test_steps_that_are_counted_anew_are_not_joined_with_earlier_ones(tmp_path: Path) -> None:
    """A program that begins at step 0 again in the same attempt has two summaries of the block."""
    path = tmp_path / paths.STEPS_FILE
    numbers = random.Random(1)
    again = [make_step(step, numbers) for step in range(60)]
    moved = {"start_ns": 10**12, "end_ns": 10**12}
    again = [
        msgspec.structs.replace(step, **{name: getattr(step, name) + more for name, more in moved.items()})
        for step in again
    ]
    append(path, *(make_step(step, numbers) for step in range(60)), *again)
    assert fold_file(path, max_bytes=1)
    assert [span_of(line) for line in RankReader(tmp_path).new_steps()] == [(0, 59), (0, 59)]


@pytest.mark.parametrize("seed", range(3))
def test_a_long_run_stays_in_its_budget_and_keeps_its_newest_steps(tmp_path: Path, seed: int) -> None:
    """20,000 steps in 24 kB: old hundreds are joined by tens and more, within aligned blocks, and no step is lost."""
    numbers = random.Random(seed)
    path = tmp_path / paths.STEPS_FILE
    total_ns = at = num_folds = 0
    while at < 20_000:
        steps = [make_step(step, numbers) for step in range(at, at + numbers.randrange(1, 15))]
        total_ns += sum(step.end_ns - step.start_ns for step in steps)
        at += len(steps)
        append(path, *steps)
        if path.stat().st_size > 24_000:
            num_folds += fold_file(path, max_bytes=24_000)
            assert path.stat().st_size <= 18_000
    lines = RankReader(tmp_path).new_steps()
    assert [step for line in lines for step in range(span_of(line)[0], span_of(line)[1] + 1)] == list(range(at))
    summaries = [line for line in lines if isinstance(line, StepSummary)]
    assert len(lines) - len(summaries) >= 20
    assert sum(sum(line.phases.values()) for line in lines) == total_ns
    assert sum(line.num_steps for line in summaries) + len(lines) - len(summaries) == at
    for line in summaries[:-1]:
        assert any(
            line.first_step % level == 0 and line.last_step == line.first_step + level - 1
            for level in (100, 1_000, 10_000, 100_000)
        )
    assert num_folds < 2_500  # each makes room for some steps


def test_the_newest_steps_stay_from_the_beginning_of_a_block(tmp_path: Path) -> None:
    """With room for 200 lines in half of what may stay, the last 100 to 199 are not folded."""
    path = tmp_path / paths.STEPS_FILE
    numbers = random.Random(3)
    append(path, *(make_step(step, numbers) for step in range(1_234)))
    size = path.stat().st_size
    assert fold_file(path, max_bytes=size * 9 // 10)
    assert fold_file(path, max_bytes=size * 6 // 10)
    first = next(line.step for line in RankReader(tmp_path).new_steps() if isinstance(line, StepRecord))
    assert first % STEPS_PER_SUMMARY == 0
    assert first <= 1_100


def test_a_file_with_nothing_to_fold_is_left_as_it_is(tmp_path: Path) -> None:
    """Nothing is written where nothing more can be folded, as where a torn line stands between two summaries."""
    path = tmp_path / paths.STEPS_FILE
    numbers = random.Random(2)
    steps = [make_step(step, numbers) for step in range(197)]
    old = [msgspec.json.encode(summarize_steps(each)) + b"\n" for each in (steps[:97], steps[97:197])]
    path.write_bytes(b"{torn\n".join(old))
    before = path.stat()
    assert not fold_file(path, max_bytes=1)
    assert path.stat().st_ino == before.st_ino


def test_summaries_of_older_versions_are_joined_whatever_their_boundaries(tmp_path: Path) -> None:
    """Those that begin at no multiple of a hundred belong to the block of their last step."""
    path = tmp_path / paths.STEPS_FILE
    numbers = random.Random(2)
    steps = [make_step(step, numbers) for step in range(1_090)]
    old = [summarize_steps(steps[at : at + 97]) for at in range(0, 1_067, 97)]
    path.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in old))
    assert fold_file(path, max_bytes=path.stat().st_size)
    lines = RankReader(tmp_path).new_steps()
    assert [span_of(line) for line in lines][:2] == [(0, 969), (970, 1066)]
    assert lines[0] == summarize_steps(steps[:970])


def test_a_reader_tells_a_file_from_one_whose_lines_end_alike(tmp_path: Path) -> None:
    """After two folds a file may have the number of the one that was read, and lines of the same length and ending."""
    path = tmp_path / paths.STEPS_FILE
    numbers = random.Random(4)
    step = msgspec.structs.replace(make_step(500, numbers), disturbed="x" * 300)
    length = step.end_ns - step.start_ns
    begins = [10**12 + at * length for at in range(20)]
    steps = [
        msgspec.structs.replace(step, step=500 + at, start_ns=begin, end_ns=begin + length)
        for at, begin in enumerate(begins)
    ]
    append(path, *steps[:10])
    reader = RankReader(tmp_path)
    assert reader.new_steps() == steps[:10]
    number, kept = path.stat().st_ino, b"".join(msgspec.json.encode(each) + b"\n" for each in steps[5:])
    with path.open("r+b") as file:
        file.write(kept)
    assert path.stat().st_ino == number
    assert reader.new_steps() == steps[5:]
    assert reader.restarts == 1
