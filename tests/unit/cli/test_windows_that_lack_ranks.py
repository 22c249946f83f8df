"""A window of one rank of a run: the run's own records say who is slow, and that stands beside the findings."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from click.testing import CliRunner

from scope.cli.show import show
from scope.report.windows import choose_traces
from scope.run import paths
from scope.run.schema import CaptureInfo
from scope.testing.layout import Layout
from scope.testing.runs import SyntheticRun

if TYPE_CHECKING:
    from pathlib import Path


def write_window(run: Path, rank: int) -> None:
    """Write a window of a rank."""
    folder = paths.rank_folder(run, 0, rank) / paths.TRACES_FOLDER
    folder.mkdir()
    (folder / "w.json").write_text("{}")
    info = CaptureInfo(
        trace="w.json", rank=rank, first_step=3, num_steps=2, start_ns=1, end_ns=2, reason="schedule", cost_ns=1
    )
    (folder / "w.capture.json").write_bytes(msgspec.json.encode(info))


def test_the_slow_rank_that_was_not_profiled_is_told(tmp_path: Path) -> None:
    """Rank 1 computes 40 ms longer and rank 0 alone has a window: rank 1 is named; with windows of both nothing is."""
    run = SyntheticRun(layout=Layout(dp=2), num_steps=40, straggler=1, slow_steps=range(40))
    run.write(tmp_path / "r")
    write_window(tmp_path / "r", 0)
    _, (_, said) = choose_traces([str(tmp_path / "r")])
    assert said.startswith("the window lacks 1 of 2 ranks, and by the records of all steps rank 1 works 40 ms (")
    assert "larger buckets do not mend" in said
    write_window(tmp_path / "r", 1)
    assert len(choose_traces([str(tmp_path / "r")])[1]) == 1


def test_without_a_slow_rank_the_lack_is_told_alone(tmp_path: Path) -> None:
    """Nothing is planted: no rank is named."""
    SyntheticRun(layout=Layout(dp=2), num_steps=40).write(tmp_path / "r")
    write_window(tmp_path / "r", 0)
    _, (_, said) = choose_traces([str(tmp_path / "r")])
    assert said == "the window lacks 1 of 2 ranks: what is found below holds for the others"


def test_show_tells_that_a_window_was_taken(tmp_path: Path) -> None:
    """Whoever asked for a window sees that it is there, and which ranks it holds."""
    SyntheticRun(layout=Layout(dp=2), num_steps=10).write(tmp_path / "r")
    assert "profiler window" not in CliRunner().invoke(show, [str(tmp_path / "r")]).output
    write_window(tmp_path / "r", 0)
    shown = CliRunner().invoke(show, [str(tmp_path / "r")]).output
    said = "1 trace of profiler windows; the newest window: rank 0, from step 3 (schedule): scope analyze reads it"
    assert said in shown
    write_window(tmp_path / "r", 1)
    shown = CliRunner().invoke(show, [str(tmp_path / "r")]).output
    assert "2 traces of profiler windows; the newest window: ranks 0-1, from step 3 (schedule)" in shown
    assert " on average, blocked " in shown
