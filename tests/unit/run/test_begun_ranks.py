"""A rank that began a moment ago has not written its files yet: that is no fault, and is over once it has."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from scope.errors import RunError
from scope.frames import open_run
from scope.run import paths
from scope.run.reader import RankReader
from scope.run.schema import SCHEMA_VERSION, RankInfo, RunInfo
from scope.run.writer import RankWriter

if TYPE_CHECKING:
    from pathlib import Path

AGO_S = 120


def write_rank(run: Path, rank: int, *, began_s: float = 0.0, **more: Any) -> Path:
    """Write the `rank.json` of a rank that began so many seconds ago, and return its folder."""
    folder = paths.rank_folder(run, 0, rank)
    folder.mkdir(parents=True, exist_ok=True)
    began_ns = time.time_ns() - int(began_s * 1e9)
    info = RankInfo(
        schema=SCHEMA_VERSION, run_id="r", attempt=0, rank=rank, started_ns=began_ns, host="h", pid=1, **more
    )
    (folder / paths.RANK_FILE).write_bytes(msgspec.json.encode(info))
    return folder


def make_older(*places: Path) -> None:
    """Make files or folders two minutes old."""
    then = time.time() - AGO_S
    for place in places:
        os.utime(place, (then, then))


@pytest.mark.parametrize("is_there", [True, False], ids=["empty", "missing"])
def test_rank_json_is_about_to_be_written_or_never_was(tmp_path: Path, *, is_there: bool) -> None:
    """A minute tells one from the other, for an empty file as for none in the rank's folder."""
    folder = paths.rank_folder(tmp_path, 0, 3)
    folder.mkdir(parents=True)
    path = folder / paths.RANK_FILE
    if is_there:
        path.touch()
    with pytest.raises(RunError) as young:
        RankReader(folder).info()
    assert str(young.value) == f"{path}: has not been written yet: its rank began a moment ago"
    assert young.value.is_passing
    make_older(*([path] if is_there else []), folder)
    with pytest.raises(RunError) as old:
        RankReader(folder).info()
    assert str(old.value) == (
        f"{path}: was never written (its rank ended before that, or its disk was full), or was emptied since"
    )
    assert not old.value.is_passing


def test_a_black_box_or_segment_that_is_about_to_be_written(tmp_path: Path) -> None:
    """The black box says so; the segment is read once something stands in it, and only then judged."""
    folder = write_rank(tmp_path, 0)
    box = folder / paths.BLACK_BOX_FILE
    box.touch()
    segment = folder / paths.CALLS_FOLDER / f"000000-0{paths.SEGMENT_SUFFIX}"
    segment.parent.mkdir()
    segment.touch()
    reader = RankReader(folder)
    with pytest.raises(RunError, match="has not been written yet") as young:
        reader.state()
    assert young.value.is_passing
    assert reader.new_calls() == []
    assert not reader.take_problems()
    segment.write_bytes(b"x" * 100)
    assert reader.new_calls() == []
    (problem,) = reader.take_problems()
    assert "is not a segment of calls of Scope" in problem
    make_older(box)
    with pytest.raises(RunError, match="was never written"):
        reader.state()


def test_what_a_rank_has_not_written_yet_is_a_problem_until_it_has(tmp_path: Path) -> None:
    """Whoever follows the run is told of it, and no more once the file is there; a torn file stays told."""
    info = RunInfo(schema=SCHEMA_VERSION, run_id="r", started_ns=1, world_size=3)
    (tmp_path / paths.RUN_FILE).write_bytes(msgspec.json.encode(info))
    write_rank(tmp_path, 0)
    begun = paths.rank_folder(tmp_path, 0, 1)
    begun.mkdir()
    torn = write_rank(tmp_path, 2) / paths.RANK_FILE
    torn.write_text("{")
    run = open_run(tmp_path)
    assert [each.rank for each in run.rank_infos] == [0]
    assert [problem.partition(": ")[0] for problem in run.problems] == [str(torn), str(begun / paths.RANK_FILE)]
    write_rank(tmp_path, 1)
    assert [each.rank for each in run.rank_infos] == [0, 1]
    assert [problem.partition(": ")[0] for problem in run.problems] == [str(torn)]


@pytest.mark.parametrize("more", [{"began_s": AGO_S}, {"ended_ns": 5}], ids=["began long ago", "ended"])
def test_a_black_box_that_was_emptied_is_none_that_is_about_to_be_written(tmp_path: Path, more: dict[str, Any]) -> None:
    """Emptying makes a file young; that its rank began long ago, or has ended, stands in `rank.json`."""
    folder = write_rank(tmp_path, 0, **more)
    (folder / paths.BLACK_BOX_FILE).touch()
    with pytest.raises(RunError, match="was emptied since") as emptied:
        RankReader(folder).state()
    assert not emptied.value.is_passing


@pytest.mark.parametrize("tells", ["black box", "events"])
def test_a_rank_json_that_was_emptied_is_none_that_is_about_to_be_written(tmp_path: Path, tells: str) -> None:
    """A black box that was closed tells so, and so does a first event of long ago."""
    folder = paths.rank_folder(tmp_path, 0, 0)
    info = RankInfo(
        schema=SCHEMA_VERSION, run_id="r", attempt=0, rank=0, started_ns=time.time_ns(), host="h", pid=os.getpid()
    )
    writer = RankWriter(folder, info)
    writer.start()
    writer.add_event("warning", "something", time_ns=time.monotonic_ns() - AGO_S * 10**9)
    writer.close("finished")
    (folder / (paths.EVENTS_FILE if tells == "black box" else paths.BLACK_BOX_FILE)).unlink()
    os.truncate(folder / paths.RANK_FILE, 0)
    with pytest.raises(RunError, match="was emptied since") as emptied:
        RankReader(folder).info()
    assert not emptied.value.is_passing
