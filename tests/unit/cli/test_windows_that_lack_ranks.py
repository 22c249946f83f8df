"""A window of one rank of a run: the run's own records say who is slow, and that stands beside the findings."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest
from click.testing import CliRunner

from scope.cli.compare import compare
from scope.cli.show import show
from scope.errors import UsageError
from scope.report.windows import choose_traces
from scope.run import paths
from scope.run.schema import CaptureInfo
from scope.testing.layout import Layout
from scope.testing.runs import SyntheticRun

if TYPE_CHECKING:
    from pathlib import Path

LACKS = "the window lacks 1 of 2 ranks (scope run --capture-ranks all takes them)"


def write_window(run: Path, rank: int, *, step: int = 3, start_ns: int = 1) -> None:
    """Write a window of a rank, 100 ns long."""
    folder = paths.rank_folder(run, 0, rank) / paths.TRACES_FOLDER
    folder.mkdir(exist_ok=True)
    name = f"w{step}"
    (folder / f"{name}.json").write_text("{}")
    info = CaptureInfo(
        trace=f"{name}.json",
        rank=rank,
        first_step=step,
        num_steps=2,
        start_ns=start_ns,
        end_ns=start_ns + 100,
        reason="schedule",
        cost_ns=1,
    )
    (folder / f"{name}.capture.json").write_bytes(msgspec.json.encode(info))


def test_the_slow_rank_that_was_not_profiled_is_told(tmp_path: Path) -> None:
    """Rank 1 computes 40 ms longer and rank 0 alone has a window: rank 1 is named; with windows of both nothing is."""
    run = SyntheticRun(layout=Layout(dp=2), num_steps=40, straggler=1, slow_steps=range(40))
    run.write(tmp_path / "r")
    write_window(tmp_path / "r", 0)
    _, (_, said) = choose_traces([str(tmp_path / "r")])
    assert said.startswith(f"{LACKS}, and by the records of all steps rank 1 works 40 ms (")
    assert "larger buckets do not mend" in said
    write_window(tmp_path / "r", 1)
    assert len(choose_traces([str(tmp_path / "r")])[1]) == 1


def test_without_a_slow_rank_the_lack_is_told_alone(tmp_path: Path) -> None:
    """Nothing is planted: no rank is named."""
    SyntheticRun(layout=Layout(dp=2), num_steps=40).write(tmp_path / "r")
    write_window(tmp_path / "r", 0)
    _, (_, said) = choose_traces([str(tmp_path / "r")])
    assert said == f"{LACKS}: what is found below holds for the others"


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


def test_show_and_analyze_call_a_window_by_one_step(tmp_path: Path) -> None:
    """Ranks began at 18, 17, 13 and 17; the first was done by then: it is the window of step 17, for both commands."""
    run = tmp_path / "r"
    SyntheticRun(layout=Layout(dp=4), num_steps=30).write(run)
    for rank, step, start_ns in ((0, 18, 1150), (1, 17, 1100), (2, 13, 900), (3, 17, 1110)):
        write_window(run, rank, step=step, start_ns=start_ns)
    shown = CliRunner().invoke(show, [str(run)]).output
    said = "ranks 0-1, 3, from step 17, the last rank from step 18 (schedule): scope analyze reads it"
    assert f"4 traces of profiler windows; the newest window: {said}" in shown
    read, (sentence, *_) = choose_traces([str(run)])
    assert "the profiler window of step 17 (ranks 0-1, 3); 1 other: step 13 (rank 2)" in sentence
    assert choose_traces([str(run)], step=17)[0] == read


def test_show_tells_the_window_that_is_read_where_a_newer_one_has_fewer_ranks(tmp_path: Path) -> None:
    """A later window of rank 0 alone is not what `scope analyze` reads unasked."""
    run = tmp_path / "r"
    SyntheticRun(layout=Layout(dp=2), num_steps=30).write(run)
    for rank in range(2):
        write_window(run, rank)
    write_window(run, 0, step=20, start_ns=5000)
    shown = CliRunner().invoke(show, [str(run)]).output
    assert "3 traces of profiler windows; the newest window that most ranks share: ranks 0-1, from step 3" in shown
    assert "the profiler window of step 3 (ranks 0-1)" in choose_traces([str(run)])[1][0]


def test_compare_names_its_own_option(tmp_path: Path) -> None:
    """What a command says of other windows, or of one that is not there, names an option that it has."""
    run = str(tmp_path / "r")
    SyntheticRun(layout=Layout(dp=1), num_steps=40).write(tmp_path / "r")
    write_window(tmp_path / "r", 0)
    write_window(tmp_path / "r", 0, step=9, start_ns=1000)
    said = CliRunner().invoke(compare, [run, run]).stderr
    assert "step 3 (rank 0), --windows STEP STEP reads another" in said
    assert "--window STEP" not in said
    error = CliRunner().invoke(compare, [run, run, "--windows", "5", "9"]).exception
    assert isinstance(error, UsageError)
    assert "--windows 5: no window" in str(error)
    for_both = CliRunner().invoke(compare, [run, run, "--window", "5"]).exception
    assert "--window 5: no window" in str(for_both)
    both = CliRunner().invoke(compare, [run, run, "--window", "5", "--windows", "5", "9"]).exception
    assert str(both).startswith("--window 5 is the step of both sides, and --windows names one of each")
    with pytest.raises(UsageError, match="--window 5: no window"):
        choose_traces([run], step=5)


def test_show_lists_the_windows_that_are_not_read(tmp_path: Path) -> None:
    """One of rank 1 was asked for; later ones of both ranks are read, and it is told which others there are."""
    run = tmp_path / "r"
    SyntheticRun(layout=Layout(dp=2), num_steps=30).write(run)
    write_window(run, 1, step=1, start_ns=0)
    write_window(run, 0, step=7, start_ns=1_000)
    shown = CliRunner().invoke(show, [str(run)]).output
    assert "  --window STEP reads another, from step 1 (schedule), rank 1\n" in shown
    for number in range(20):
        for rank in range(2):
            write_window(run, rank, step=8 + number, start_ns=2_000 + 1_000 * number)
    shown = CliRunner().invoke(show, [str(run)]).output
    assert "ranks 0-1, from step 27 (schedule): scope analyze reads it" in shown
    (others,) = [line for line in shown.splitlines() if "--window STEP" in line]
    assert others.startswith("  --window STEP reads another, from step 11 (schedule), ranks 0-1; 12 (schedule), ")
    assert others.endswith("; 26 (schedule), ranks 0-1; and 5 earlier ones")
    _, (said,) = choose_traces([str(run)])
    assert "; 21 others (scope show lists them), the last: step 24 (ranks 0-1); " in said
