"""Steps that a file tells of more than once count once, and which figures of a step no step can have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from scope.run import paths
from scope.run.folding import summarize_steps
from scope.run.reader import RankReader
from scope.run.schema import StepLine, StepRecord

if TYPE_CHECKING:
    from pathlib import Path


def make_step(step: int, *, start_ns: int | None = None, **more: Any) -> StepRecord:
    """A step of 100 ns."""
    begin = step * 100 if start_ns is None else start_ns
    record = StepRecord(step=step, start_ns=begin, end_ns=begin + 100, phases={"forward": 100})
    return msgspec.structs.replace(record, **more)


STEPS = [make_step(step) for step in range(60)]


def write(folder: Path, *lines: StepLine) -> RankReader:
    """Write a rank's steps; return its reader."""
    content = b"".join(msgspec.json.encode(line) + b"\n" for line in lines)
    with (folder / paths.STEPS_FILE).open("ab") as file:
        file.write(content)
    return RankReader(folder)


@pytest.mark.parametrize("max_bytes", [None, 1], ids=["whole", "in pieces"])
@pytest.mark.parametrize("times", [2, 50])
def test_lines_that_stand_several_times_count_once(tmp_path: Path, times: int, max_bytes: int | None) -> None:
    """All 60 lines written over and over are 60 steps, in pieces too, and one sentence names the first copy."""
    reader = write(tmp_path, *STEPS * times)
    read: list[StepLine] = []
    while lines := reader.new_steps(max_bytes=max_bytes):
        read += lines
    assert read == STEPS
    (problem,) = reader.take_problems()
    assert "steps.jsonl: tells of steps more than once (" in problem
    assert "the first of step 0): each step is counted once" in problem


@pytest.mark.parametrize("first", [True, False], ids=["summary first", "summary last"])
def test_a_summary_beside_all_its_steps_is_left_out(tmp_path: Path, first: bool) -> None:
    """Of a summary and the same steps one by one the latter count, which tell more."""
    summary = summarize_steps(STEPS)
    reader = write(tmp_path, *([summary] if first else []), *STEPS, *([] if first else [summary]))
    assert reader.new_steps() == STEPS
    assert len(reader.take_problems()) == 1


def test_a_summary_beside_some_of_its_steps_counts(tmp_path: Path) -> None:
    """Steps 50 to 69 after a summary of 60: it counts, and of them those that it does not hold."""
    summary = summarize_steps(STEPS)
    later = [make_step(step) for step in range(50, 70)]
    assert write(tmp_path, summary, *later).new_steps() == [summary, *later[10:]]


def test_steps_that_a_program_made_again_count(tmp_path: Path) -> None:
    """Equal numbers at another time are other steps; so are steps in any order, and nothing is said of either."""
    again = [make_step(step, start_ns=10_000 + step * 100) for step in range(60)]
    reader = write(tmp_path, *STEPS, *again)
    assert reader.new_steps() == [*STEPS, *again]
    shuffled = tmp_path / "shuffled"
    shuffled.mkdir()
    mixed = [*STEPS[40:], *STEPS[:20], *STEPS[20:40]]
    assert write(shuffled, *mixed).new_steps() == mixed
    assert reader.take_problems() == []


def test_what_an_earlier_reader_gave_counts_once(tmp_path: Path) -> None:
    """A reader that goes on where another stopped leaves out copies of what that one gave."""
    earlier = write(tmp_path, *STEPS)
    assert earlier.new_steps() == STEPS
    reader = write(tmp_path, *STEPS, make_step(60))
    assert reader.resume_steps(earlier.steps_place)
    assert reader.new_steps() == [make_step(60)]
    assert len(reader.take_problems()) == 1


def test_a_file_that_was_folded_is_read_anew(tmp_path: Path) -> None:
    """After the file was replaced all of it counts again, as its caller forgets what it had."""
    reader = write(tmp_path, *STEPS)
    assert reader.new_steps() == STEPS
    (tmp_path / paths.STEPS_FILE).unlink()
    summary = summarize_steps(STEPS)
    write(tmp_path, summary)
    assert reader.new_steps() == [summary]
    assert reader.restarts == 1
    assert reader.take_problems() == []


@pytest.mark.parametrize(
    ("figures", "why"),
    [
        ({"mfu_ratio": 2_828_811.9}, "MFU or HFU is above 16 times the peak"),
        ({"hfu_ratio": 16.1}, "MFU or HFU is above 16 times the peak"),
        ({"communication_wait_ns": 1_601}, "waits for communication more than 16 times as long as it is"),
        ({"start_ns": 0, "end_ns": 200}, "its phases add up to 100 ns, but it lasts 200 ns"),
        ({"end_ns": 400}, "its phases add up to 100 ns, but it lasts 300 ns"),
        ({"end_ns": 101 + 3_600 * 10**9}, "its phases add up to 100 ns, but it lasts 3600000000001 ns"),
        ({"phases": {}}, "its phases add up to 0 ns, but it lasts 100 ns"),
        ({"end_ns": 99, "phases": {}}, "it ends before it begins"),
    ],
)
def test_figures_that_no_step_has_are_no_record(tmp_path: Path, figures: dict[str, Any], why: str) -> None:
    """Such a line costs itself alone, and the sentence says which figure it is."""
    reader = write(tmp_path, STEPS[0], make_step(1, **figures), STEPS[2])
    assert reader.new_steps() == [STEPS[0], STEPS[2]]
    (problem,) = reader.take_problems()
    assert "line 2: " in problem
    assert why in problem


@pytest.mark.parametrize(
    "figures",
    [
        {"mfu_ratio": 3.0, "hfu_ratio": 4.0},
        {"communication_wait_ns": 1_600},
        {"communication_wait_ns": 5_000, "device_ns": {"forward": 90}},
    ],
    ids=["peak measured too low", "threads that wait", "a device behind the host"],
)
def test_figures_that_a_step_may_have_are_kept(tmp_path: Path, figures: dict[str, Any]) -> None:
    """A peak that is too low by a few times, threads that wait at once, and a device behind its host are in order."""
    step = make_step(0, **figures)
    reader = write(tmp_path, step)
    assert reader.new_steps() == [step]
    assert reader.take_problems() == []


@pytest.mark.parametrize(
    ("figures", "why"),
    [
        ({"duration_ns": 6_001, "phases": {"forward": 6_001}}, "longer together than the time that they lie in"),
        ({"duration_ns": 5_999}, "its phases add up to 6000 ns, but it lasts 5999 ns"),
        ({"min_duration_ns": 101}, "its shortest and its longest step cannot be among its steps"),
        ({"max_duration_ns": 6_001}, "its shortest and its longest step cannot be among its steps"),
    ],
)
def test_lengths_that_no_summary_has_are_no_record(tmp_path: Path, figures: dict[str, Any], why: str) -> None:
    """A summary of 60 steps of 100 ns whose lengths contradict each other is left out and named."""
    summary = msgspec.structs.replace(summarize_steps(STEPS), **figures)
    reader = write(tmp_path, summary, make_step(60))
    assert reader.new_steps() == [make_step(60)]
    (problem,) = reader.take_problems()
    assert "line 1: " in problem
    assert why in problem


@pytest.mark.parametrize(("begin", "end"), [(500, 900), (200, 600), (0, 6_000)], ids=["late", "early", "both"])
def test_a_step_that_lasts_into_two_others_is_left_out(tmp_path: Path, begin: int, end: int) -> None:
    """Of steps 0 to 59, step 5 claims time of its neighbours, its phases with it: it alone is left out and named."""
    wrong = make_step(5, start_ns=begin, end_ns=end, phases={"forward": end - begin})
    reader = write(tmp_path, *STEPS[:5], wrong, *STEPS[6:])
    assert reader.new_steps() == [*STEPS[:5], *STEPS[6:]]
    (problem,) = reader.take_problems()
    assert "1 of its lines, the first of step 5, last into two steps beside them" in problem


def test_two_steps_in_one_time_both_count(tmp_path: Path) -> None:
    """A step that lasts into the next alone, or the next that began in it: nothing tells which of them is wrong."""
    steps = [*STEPS[:5], make_step(5, end_ns=650, phases={"forward": 150}), *STEPS[6:]]
    assert write(tmp_path, *steps).new_steps() == steps


def test_steps_all_of_which_overlap_count(tmp_path: Path) -> None:
    """Where every step lasts into all others none is in order, and so none is told apart as the wrong one."""
    steps = [make_step(step, start_ns=step, end_ns=step + 100) for step in range(10)]
    assert write(tmp_path, *steps).new_steps() == steps
