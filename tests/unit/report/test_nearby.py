"""A folder that a command cannot read: the message names those that were meant."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from scope.cli.show import show
from scope.cli.watch import watch
from scope.errors import InputError, RunError
from scope.report.nearby import where_runs_lie, where_traces_lie
from scope.report.windows import choose_traces

if TYPE_CHECKING:
    from pathlib import Path

    from click import Command


def _place(folder: Path, *names: str) -> Path:
    """Make files, and the folders that they stand in."""
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}")
    return folder


def _expand(words: str) -> list[str]:
    """Return what a shell makes of words that are pasted into it."""
    command = ["/bin/sh", "-c", f"printf '%s\\n' {words}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def test_folders_with_traces_are_named_in_their_order(tmp_path: Path) -> None:
    """Of many folders the first four are named and the others counted; what Scope lays beside a trace is none."""
    shelf = _place(tmp_path, *(f"job{number}/rank0.json.gz" for number in range(6)), "own/a.summary.json", "txt/a.txt")
    message = "folders in it with traces: job0, job1, job2, job3 and 2 more; name one of them"
    assert where_traces_lie(shelf) == message
    with pytest.raises(InputError) as caught:
        choose_traces([str(shelf)])
    assert str(caught.value) == f"{shelf}: holds no trace itself; {message}"


def test_a_folder_a_rank_is_named_by_a_pattern(tmp_path: Path) -> None:
    """Where a pattern matches the folders with traces and no others, it names all; the reader takes them together."""
    shelf = _place(tmp_path / "my job", *(f"rank_{rank}/step/trace.json" for rank in range(3)), ".old/step/note.txt")
    said = where_traces_lie(shelf)
    assert said is not None
    assert said.startswith("folders in it with traces: rank_0/step, rank_1/step, rank_2/step; name one of them, or all")
    assert said.endswith(f"ranks of one job: '{shelf}'/*/*/")
    named = _expand(said.rpartition(": ")[2])
    assert named == [f"{shelf}/rank_{rank}/step/" for rank in range(3)]


def test_files_beside_the_folders_do_not_spoil_the_pattern(tmp_path: Path) -> None:
    """A README beside six folders with traces is left out by the pattern, which the shell makes these six of."""
    shelf = _place(tmp_path, *(f"r{rank}/trace.json" for rank in range(6)), "README.md")
    said = where_traces_lie(shelf)
    assert said is not None
    named = _expand(said.rpartition("or all that are ranks of one job: ")[2])
    assert named == [f"{shelf}/r{rank}/" for rank in range(6)]
    assert choose_traces(named) == (named, [])


def test_a_few_folders_that_no_pattern_fits_are_named_each(tmp_path: Path) -> None:
    """A folder without traces beside two that hold some: both are named, and both can be pasted."""
    shelf = _place(tmp_path / "my jobs", "r0/trace.json", "r1/trace.json", "notes/readme.txt")
    said = where_traces_lie(shelf)
    assert said is not None
    named = _expand(said.rpartition("or all that are ranks of one job: ")[2])
    assert named == [str(shelf / "r0"), str(shelf / "r1")]


@pytest.mark.parametrize(("command", "options"), [(show, []), (watch, ["--once"])])
def test_commands_that_want_a_run_name_those_in_a_folder(command: Command, options: list[str], tmp_path: Path) -> None:
    """A folder of runs is none: each command says which runs lie in it."""
    shelf = _place(tmp_path, "first/run.json", "second/run.json")
    error = CliRunner().invoke(command, [*options, str(shelf)]).exception
    assert isinstance(error, RunError)
    assert str(error).endswith("runs in it: first, second; name one of them")


def test_a_run_is_named_as_one_and_not_by_its_inner_folders(tmp_path: Path) -> None:
    """A folder of a run and of traces: the run stands for all that lies in it."""
    shelf = _place(tmp_path, "first/run.json", "first/attempt-000/ranks/00000/traces/a.json", "day/two/rank0.json")
    assert where_traces_lie(shelf) == "folders in it with traces: day/two; recorded runs in it: first; name one of them"
    assert where_runs_lie(shelf) == "runs in it: first; name one of them"


def test_a_part_of_a_run_names_the_run(tmp_path: Path) -> None:
    """Within a run there is one thing to name: the run."""
    run = _place(tmp_path / "first", "run.json", "attempt-000/ranks/00000/rank.json")
    expected = f"it is a part of the run {run}; name that"
    assert where_runs_lie(run / "attempt-000") == expected
    assert where_traces_lie(run / "attempt-000" / "ranks") == expected


def test_traces_are_no_run(tmp_path: Path) -> None:
    """A folder of traces is for `scope analyze`, and so are the folders of traces in a folder."""
    shelf = _place(tmp_path, "job/rank0.json")
    assert where_runs_lie(shelf / "job") == f"it holds traces: scope analyze {shelf / 'job'} reads them"
    assert where_runs_lie(shelf) == "folders in it hold traces, which scope analyze reads: job"


def test_nothing_is_said_where_nothing_is_found(tmp_path: Path) -> None:
    """An empty folder, and one that holds traces itself, keep the messages of the reader."""
    shelf = _place(tmp_path / "shelf", "notes/readme.txt", "one/two/three/rank0.json")
    assert where_traces_lie(shelf) is None
    assert where_runs_lie(shelf) is None
    _place(shelf, "rank0.json", "more/rank1.json")
    assert where_traces_lie(shelf) is None
    assert choose_traces([str(shelf)]) == ([str(shelf)], [])


def test_links_are_not_followed(tmp_path: Path) -> None:
    """A link to a folder above would be looked into without end."""
    shelf = _place(tmp_path / "shelf", "a/readme.txt")
    (shelf / "a" / "up").symlink_to(shelf)
    _place(tmp_path / "other", "rank0.json")
    (shelf / "elsewhere").symlink_to(tmp_path / "other")
    assert where_traces_lie(shelf) is None
