"""A spool in whose place somebody puts a link, or another folder, is neither published nor emptied."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from scope.run import paths
from scope.run.files import AppendFile, identify_folder
from scope.run.identity import claim_folder
from scope.run.publish import Publisher
from scope.run.removal import remove_run_files

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def fill(run: Path) -> dict[str, bytes]:
    """Write what a run holds into a folder, and return all of it."""
    rank = paths.rank_folder(run, 0, 0)
    (rank / paths.CALLS_FOLDER).mkdir(parents=True)
    (rank / paths.CALLS_FOLDER / "000001-0.bin").write_bytes(b"closed")
    (rank / paths.STEPS_FILE).write_bytes(b"{}\n")
    (run / paths.RUN_FILE).write_bytes(b"{}")
    return contents(run)


def contents(folder: Path) -> dict[str, bytes]:
    """Return every file below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def link_to(victim: Path, spool: Path) -> None:
    """Put a link to a folder in the place of a spool."""
    spool.symlink_to(victim)


def move_where_all_may_write(victim: Path, spool: Path) -> None:
    """Put a folder in the place of a spool that lies in a folder which everybody may write into."""
    spool.parent.chmod(0o777)
    victim.rename(spool)


def move_open_to_all(victim: Path, spool: Path) -> None:
    """Put a folder that everybody may write into in the place of a spool."""
    victim.chmod(0o777)
    victim.rename(spool)


def give_away(victim: Path, spool: Path) -> None:
    """Put a folder of somebody else in the place of a spool."""
    if os.geteuid():
        pytest.skip("only root can make a folder of somebody else")
    os.chown(victim, 4242, -1)
    victim.rename(spool)


@pytest.mark.parametrize("put", [link_to, move_where_all_may_write, move_open_to_all, give_away])
def test_another_folder_in_the_place_of_a_spool_is_left_as_it_is(
    tmp_path: Path, put: Callable[[Path, Path], None]
) -> None:
    """Neither its segments nor its runs go, nothing of it is published, and the publisher says why."""
    spool, victim, run = tmp_path / "spools" / "spool", tmp_path / "victim", tmp_path / "run"
    fill(spool)
    publisher = Publisher(spool, run)
    spool.rename(tmp_path / "taken")
    before = fill(victim)
    put(victim, spool)
    assert not publisher.publish()
    assert not publisher.publish_last()
    assert list(publisher.problems) == [str(spool)]
    publisher.remove_spool()
    assert contents(spool) == before
    assert not run.exists()


def test_a_spool_that_ranks_made_anew_is_published_on(tmp_path: Path) -> None:
    """Somebody deletes it under them: what they write from then on is published, a new attempt too; then it goes."""
    spool, run = tmp_path / "spools" / "spool", tmp_path / "run"
    fill(spool)
    publisher = Publisher(spool, run)
    assert publisher.publish()
    before = contents(run)
    spool.rename(tmp_path / "deleted")  # nobody else is given its number then
    assert publisher.publish()
    later = AppendFile(paths.rank_folder(spool, 0, 0) / paths.STEPS_FILE)
    assert later.append(b'{"step":1}\n')
    _, restarted = claim_folder(spool, attempt=1, rank=0)
    (restarted / paths.RANK_FILE).write_bytes(b"{}")
    assert publisher.publish()
    assert publisher.publish_last()
    publisher.remove_spool()
    steps, rank = (f"attempt-{name}" for name in ("000/ranks/00000/steps.jsonl", "001/ranks/00000/rank.json"))
    assert contents(run) == {**before, steps: b'{"step":1}\n', rank: b"{}"}
    assert not spool.exists()


def test_a_publisher_that_begins_again_takes_a_spool_made_anew(tmp_path: Path) -> None:
    """It is told which folder was made at the start; ranks have made another since, and a link is refused still."""
    spool, run = tmp_path / "spool", tmp_path / "run"
    fill(spool)
    made = identify_folder(spool)
    assert made is not None
    spool.rename(tmp_path / "deleted")
    arguments = ["--spool", str(spool), "--run-dir", str(run), "--identity", *map(str, made)]
    publish = [sys.executable, "-P", "-m", "scope.run.publish", *arguments]
    spool.symlink_to(tmp_path / "deleted")
    assert subprocess.run(publish, stdin=subprocess.DEVNULL, capture_output=True, check=False).returncode == 1
    assert not run.exists()
    spool.unlink()
    written = fill(spool)
    assert subprocess.run(publish, stdin=subprocess.DEVNULL, capture_output=True, check=False).returncode == 0
    assert contents(run) == written
    assert not spool.exists()


def test_nothing_is_deleted_through_a_link_or_in_another_folder(tmp_path: Path) -> None:
    """Of the folder that it was made for all goes."""
    run = tmp_path / "run"
    before = fill(run)
    (tmp_path / "link").symlink_to(run)
    (tmp_path / "other").mkdir()
    with pytest.raises(OSError, match="link"):
        remove_run_files(tmp_path / "link")
    with pytest.raises(OSError, match="another folder"):
        remove_run_files(run, identity=identify_folder(tmp_path / "other"))
    assert contents(run) == before
    assert remove_run_files(run, identity=identify_folder(run)) == []
    assert not run.exists()


@pytest.mark.parametrize("num_ranks", [0, 1])
def test_a_launch_empties_no_folder_that_a_link_leads_to(tmp_path: Path, num_ranks: int) -> None:
    """Somebody puts a link in the place of the spool while the command runs: it ends as it ends, and that is said."""
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / paths.RUN_FILE).write_bytes(b"{}")
    before = fill(victim) if num_ranks else contents(victim)
    shell = f'mv "$SCOPE_SPOOL_RUN" taken && ln -s {shlex.quote(str(victim))} "$SCOPE_SPOOL_RUN"; sleep 2; exit 3'
    outside = {name: value for name, value in os.environ.items() if not name.startswith("SCOPE_")}
    done = subprocess.run(
        [
            *(sys.executable, "-P", "-m", "scope", "run", "--run-dir", "run", "--spool", "spool"),
            *("--", "sh", "-c", shell),
        ],
        cwd=tmp_path, env={**outside, "SCOPE_REGISTRY": str(tmp_path / "registry")},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 3
    assert contents(victim) == before
    assert "a link, stands in its place" in done.stderr or not num_ranks
