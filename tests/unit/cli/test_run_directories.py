"""Commands on traces take the run directories that `scope run` records: one profiler window, and say which."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from scope import load
from scope.errors import UsageError
from scope.run import paths
from scope.run.schema import CaptureInfo
from scope.trace import ReadOptions

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Done


@pytest.fixture
def run(tmp_path: Path, trace: Callable[..., Path]) -> Path:
    """Return a run with windows at step 1 of ranks 0 and 1, 2 steps apart by rank, and at step 9 of rank 0 alone."""
    folder = tmp_path / "first"
    folder.mkdir()
    (folder / "run.json").write_text("{}")
    for rank, step, start in ((0, 1, 100), (1, 2, 150), (0, 9, 900)):
        traces = paths.rank_folder(folder, 0, rank) / "traces"
        traces.mkdir(parents=True, exist_ok=True)
        (traces.parent / paths.RANK_FILE).write_text("{}")
        name = f"rank{rank}-step{step}"
        shutil.copy(trace(rank=rank, kernel=f"kernel_{rank}_{step}"), traces / f"{name}.json")
        info = CaptureInfo(
            trace=f"{name}.json",
            rank=rank,
            first_step=step,
            num_steps=2,
            start_ns=start,
            end_ns=start + 200,
            reason="user",
            cost_ns=1,
        )
        (traces / f"{name}.capture.json").write_bytes(msgspec.json.encode(info))
        (traces / f"{name}.summary.json").write_text('{"schema": "scope.report/1"}')
    return folder


def kernels(done: Done) -> set[str]:
    """Return the names of the kernels that a command printed as JSON."""
    assert done.code == 0, done.err
    return {record["key"] for record in json.loads(done.out)}


def test_a_run_stands_for_the_window_that_most_ranks_share(scope: Callable[..., Done], run: Path) -> None:
    """The window of two ranks is read, not the newer one of a single rank; both are named on stderr."""
    done = scope("kernels", run, "--json")
    assert kernels(done) == {"kernel_0_1", "kernel_1_2"}
    assert "window of step 1 (ranks 0-1); 1 other: step 9 (rank 0)" in done.err
    summary = scope("analyze", run)
    assert summary.code == 0, summary.err
    assert summary.out.startswith("ranks 0-1")
    assert "skipped" not in summary.out + summary.err


def test_another_window_is_read_by_its_step(scope: Callable[..., Done], run: Path) -> None:
    """`--window 9` reads that window; a step at which none begins is told with those that there are."""
    assert kernels(scope("kernels", run, "--window", 9, "--json")) == {"kernel_0_9"}
    wrong = scope("kernels", run, "--window", 5)
    assert wrong.code == 2
    assert "step 1 (ranks 0-1); step 9 (rank 0)" in wrong.err


@pytest.mark.parametrize("place", ["", "traces"])
def test_windows_of_one_rank_do_not_clash(scope: Callable[..., Done], run: Path, place: str) -> None:
    """A rank's folder, and its traces, stand for the newest of its windows."""
    folder = paths.rank_folder(run, 0, 0) / place
    assert kernels(scope("kernels", folder, "--json")) == {"kernel_0_9"}


def test_a_copy_of_a_ranks_traces_is_read_as_they_are(scope: Callable[..., Done], run: Path, tmp_path: Path) -> None:
    """A copied folder stands for its newest window; with a trace of another origin all files count, and they clash."""
    copy = tmp_path / "copy"
    shutil.copytree(paths.rank_folder(run, 0, 0) / "traces", copy)
    assert kernels(scope("kernels", copy, "--json")) == {"kernel_0_9"}
    shutil.copy(copy / "rank0-step1.json", copy / "other.json")
    assert "both claim rank 0" in scope("kernels", copy).err


def test_a_later_attempt_is_named(scope: Callable[..., Done], run: Path) -> None:
    """Of windows of as many ranks the one of the later attempt is read, and attempts are told apart."""
    shutil.copytree(paths.attempt_folder(run, 0), paths.attempt_folder(run, 1))
    done = scope("kernels", run, "--json")
    assert kernels(done) == {"kernel_0_1", "kernel_1_2"}
    assert "window of attempt 1, step 1 (ranks 0-1)" in done.err


def test_a_run_without_a_window_says_how_to_get_one(scope: Callable[..., Done], run: Path) -> None:
    """Before and after ranks began, the message names the request; ranks without one are not read."""
    for folder in paths.rank_folder(run, 0, 0).parent.iterdir():
        shutil.rmtree(folder / "traces")
    for _ in range(2):
        done: Any = scope("analyze", run)
        assert (done.code, done.out) == (3, "")
        assert "without a profiler window" in done.err
        assert "capture.request" in done.err
        shutil.rmtree(run / "attempt-000", ignore_errors=True)


def test_python_loads_what_the_commands_read(run: Path) -> None:
    """`scope.load` takes a run too, other windows of it by their step, and the job says which it is."""
    options = ReadOptions(use_cache=False)
    job = load(run, options=options)
    assert [rank.device_events["name"][0] for rank in job.ranks] == ["kernel_0_1", "kernel_1_2"]
    assert job.warnings[0].endswith(
        "window of step 1 (ranks 0-1); 1 other: step 9 (rank 0), --window STEP reads another"
    )
    other = load([run], window=9, options=options)
    assert [rank.device_events["name"][0] for rank in other.ranks] == ["kernel_0_9"]
    first: Any = other.ranks[0].steps["number"].min()
    assert load(other.ranks[0].path, window=first, options=options).ranks[0].steps.height
    with pytest.raises(UsageError, match="--window 99: no trace begins at this step"):
        load(other.ranks[0].path, window=99, options=options)


def test_a_window_that_no_plain_trace_has_is_refused(scope: Callable[..., Done], trace: Callable[..., Path]) -> None:
    """`--window` of plain traces is the step that one begins at; else the steps that there are, are named."""
    done = scope("analyze", trace(), "--window", 98)
    assert done.code == 2
    assert "--window 98: no trace begins at this step; there are: step " in done.err
    path = trace()
    done = scope("compare", path, path, "--windows", 98, 1)
    assert done.code == 2
    assert "--windows 98: no trace begins at this step; there are: step " in done.err
