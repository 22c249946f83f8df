"""A run whose ranks fold their old steps all the time, and profile a window on request, in real processes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("torch")

from scope.analysis.recorded import summarize_run
from scope.frames import open_run
from scope.run.folding import STEPS_PER_SUMMARY
from scope.run.reader import RankReader
from scope.run.schema import StepRecord, StepSummary

if TYPE_CHECKING:
    from conftest import Recording

JOB = Path(__file__).parent / "folding_job.py"
NUM_STEPS = 1_200
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


@pytest.fixture(scope="module")
def folded(tmp_path_factory: pytest.TempPathFactory, new_recording: type[Recording]) -> Recording:
    """A job whose ranks may write 25 kB of steps each, which is about 60 of them, run once for all tests."""
    recording = new_recording(tmp_path_factory.mktemp("folded"))
    options = ("--max-run-bytes", "100KB", "--capture", "file", "--capture-ranks", "0,1")
    recording.finish(sys.executable, *TORCHRUN, str(JOB), options=options)
    return recording


@pytest.mark.parametrize("rank", [0, 1])
def test_every_step_is_there_once(folded: Recording, rank: int) -> None:
    """Lines are records, follow each other without gap, and those that are folded are hundreds of the same steps."""
    reader = RankReader(folded.rank(rank))
    lines = reader.new_steps()
    assert reader.take_problems() == []
    following = 0
    for line in lines:
        first, last = (line.step,) * 2 if isinstance(line, StepRecord) else (line.first_step, line.last_step)
        assert first == following
        following = last + 1
    assert following == NUM_STEPS
    summaries = [line for line in lines if isinstance(line, StepSummary)]
    assert len(summaries) >= NUM_STEPS // STEPS_PER_SUMMARY - 2
    assert [line.first_step for line in summaries] == list(range(0, len(summaries) * 100, 100))
    assert sum(line.num_steps for line in summaries) + len(lines) - len(summaries) == NUM_STEPS
    assert not folded.spooled("steps.jsonl")


def test_the_run_counts_each_step_once(folded: Recording) -> None:
    """1,200 steps of two ranks are 1,200 steps, none of them without a record."""
    run = open_run(folded.run)
    boxes = {(0, rank): box for rank, box in run.black_boxes().items()}
    summary = summarize_run(run.ranks, run.steps().lazy(), boxes=boxes, events=run.events())
    assert (summary.num_steps, summary.first_step, summary.last_step) == (NUM_STEPS, 0, NUM_STEPS - 1)
    assert summary.num_unwritten_steps == 0
    assert run.collective_totals()["num_calls"].sum() == 2 * NUM_STEPS


def test_a_window_on_request_begins_at_one_step_on_all_ranks(folded: Recording) -> None:
    """Asked for in step 3, it begins on both ranks at the same step, which its trace names too."""
    traces = [RankReader(folded.rank(rank)).traces() for rank in range(2)]
    ((first,), (second,)) = traces
    assert first.info.first_step == second.info.first_step > 3
    assert {trace.info.reason for (trace,) in traces} == {"trigger_file"}
    for (trace,) in traces:
        assert f"ProfilerStep#{trace.info.first_step}" in trace.path.read_text()
