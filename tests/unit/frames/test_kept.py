"""Steps kept in the cache folder: the next reader goes on from them and sees what a fresh one would."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from homeless import forget_home

from scope.frames import open_run
from scope.frames.kept import MAX_ENTRIES, KeptSteps, entry_of, read_kept, write_kept
from scope.testing.layout import Layout
from scope.testing.runs import SyntheticRun

if TYPE_CHECKING:
    from scope.frames.run import Run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run of two ranks and 250 steps, the first 50 of them folded."""
    place = tmp_path / "run"
    SyntheticRun(layout=Layout(dp=2), num_steps=250).write(place)
    return place


def kept_of(folder: Path) -> KeptSteps:
    """Return what a reader of the whole run would keep."""
    run = open_run(folder)
    run.steps()
    return run.to_keep()


def resumed(folder: Path, kept: KeptSteps) -> Run:
    """Return a reader that goes on from there."""
    run = open_run(folder)
    run.resume(kept)
    return run


def steps_file(folder: Path, rank: int) -> Path:
    """Return the file of a rank's steps."""
    return folder / "attempt-000" / "ranks" / f"{rank:05d}" / "steps.jsonl"


def test_an_entry_gives_back_what_was_written(folder: Path, tmp_path: Path) -> None:
    """Tables and places survive the disk, and the next reader equals a fresh one."""
    entry = tmp_path / "cache" / "entry"
    kept = kept_of(folder)
    write_kept(entry, kept)
    found = read_kept(entry)
    assert found is not None
    assert found.places == kept.places
    run, fresh = resumed(folder, found), open_run(folder)
    assert run.steps().equals(fresh.steps())
    assert run.collective_totals().equals(fresh.collective_totals())


def test_only_what_is_new_is_read(folder: Path) -> None:
    """A line that came since is read, and those before are not: spoiling one of them goes unseen."""
    kept = kept_of(folder)
    file = steps_file(folder, 1)
    lines = file.read_bytes().splitlines(keepends=True)
    with file.open("r+b") as out:
        out.write(b"#" * (len(lines[0]) - 1))
        out.seek(0, 2)
        out.write(lines[-1].replace(b'"step":249', b'"step":250'))
    run = resumed(folder, kept)
    steps = run.steps()
    assert not run.problems
    assert steps.height == kept.steps.height + 1
    assert steps.row(-1, named=True)["step"] == 250


def test_a_file_that_was_replaced_is_read_anew(folder: Path) -> None:
    """Another run was recorded in the same folder: nothing of the old one is left of the rank."""
    kept = kept_of(folder)
    file = steps_file(folder, 0)
    lines = file.read_bytes().splitlines(keepends=True)
    file.unlink()
    file.write_bytes(b"".join(lines[-3:]))
    steps = resumed(folder, kept).steps()
    assert steps["rank"].value_counts(sort=True).rows() == [(1, kept.steps.height // 2), (0, 3)]


@pytest.mark.parametrize("damage", ["torn", "writable", "absent"])
def test_an_entry_that_cannot_be_trusted_is_none(folder: Path, tmp_path: Path, damage: str) -> None:
    """A torn entry, and one that others may write, are as good as an absent one."""
    entry = tmp_path / "cache" / "entry"
    if damage != "absent":
        write_kept(entry, kept_of(folder))
        assert read_kept(entry) is not None
    if damage == "torn":
        (entry / "steps.arrow").write_bytes(b"x")
    if damage == "writable":
        entry.chmod(0o777)
    assert read_kept(entry) is None


def test_the_oldest_entries_are_forgotten(folder: Path, tmp_path: Path) -> None:
    """No more than sixteen runs are kept."""
    kept = kept_of(folder)
    for number in range(MAX_ENTRIES + 3):
        write_kept(tmp_path / "cache" / str(number), kept)
    assert len(list((tmp_path / "cache").iterdir())) == MAX_ENTRIES


def test_each_run_has_an_entry_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries lie below the folder that the environment names, each under a digest."""
    monkeypatch.setenv("SCOPE_CACHE_DIR", str(tmp_path))
    first, second = entry_of(tmp_path / "a"), entry_of(tmp_path / "b")
    assert first is not None
    assert second is not None
    assert first != second
    assert first.parent == second.parent == tmp_path / "runs"


def test_a_user_without_a_home_folder_keeps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing tells a home folder, as in a container whose user has no name, a run has no entry."""
    forget_home(monkeypatch)
    assert entry_of(Path("run")) is None
