"""Folders of spools and of the registry that others may write into are passed over: a link there leads anywhere."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from typing import TYPE_CHECKING

import pytest

from scope.run import identity, paths
from scope.run.files import make_folders
from scope.run.launch import LaunchPlan, launch
from scope.run.publish import Publisher

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder in place of that in memory; the one on disk, `disk`, stands beside it."""
    for name in ("memory", "disk"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(paths, "_MEMORY_FOLDER", tmp_path / "memory")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "disk"))
    for name in ("SCOPE_SPOOL", "SCOPE_REGISTRY"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "memory"


def open_to_all(folder: Path) -> None:
    """Make a folder that everybody may write into."""
    folder.mkdir()
    folder.chmod(0o777)


def link_elsewhere(folder: Path) -> None:
    """Make a link to a folder of the user's own."""
    (folder.parent / "own").mkdir(mode=0o700)
    folder.symlink_to(folder.parent / "own")


@pytest.mark.parametrize("umask", [0, 0o022, 0o777])
def test_a_spool_folder_is_the_users_alone_whatever_the_umask(memory: Path, umask: int) -> None:
    """The mode is that of folders of runs, 0750; a second call finds the same folder."""
    before = os.umask(umask)
    try:
        folder = paths.default_spool().folder
    finally:
        os.umask(before)
    assert folder == memory / f"scope-{os.getuid()}" == paths.default_spool().folder
    assert stat.S_IMODE(folder.stat().st_mode) == 0o750


@pytest.mark.parametrize("make", [open_to_all, link_elsewhere])
def test_a_folder_that_others_made_is_passed_over(memory: Path, make: Callable[[Path], None]) -> None:
    """In memory first, then on disk, where one of another name is made; what others made is left as it is."""
    name = f"scope-{os.getuid()}"
    make(memory / name)
    on_disk = memory.parent / "disk" / name
    assert paths.default_spool().folder == on_disk
    on_disk.rmdir()
    make(on_disk)
    fresh, passed_over = paths.default_spool()
    assert fresh == on_disk.with_name(f"{name}-2")
    assert stat.S_IMODE(fresh.stat().st_mode) == 0o750
    assert (memory / name).is_symlink() == (make is link_elsewhere)
    fault = "is a link" if make is link_elsewhere else "can be written by others"
    assert passed_over == (f"{memory / name} {fault}", f"{on_disk} {fault}")


def test_ranks_that_each_look_for_a_spool_find_the_same_one(memory: Path) -> None:
    """The first that is there: neither one of others before it, nor a name that they gave back, parts the ranks."""
    disk = memory.parent / "disk"
    usual = disk / f"scope-{os.getuid()}"
    for folder in (memory / usual.name, usual, usual.with_name(f"{usual.name}-2")):
        open_to_all(folder)
    found = paths.default_spool().folder
    assert found == usual.with_name(f"{usual.name}-3") == paths.default_spool().folder
    usual.with_name(f"{usual.name}-2").rmdir()
    assert paths.default_spool().folder == found


def test_where_no_folder_is_the_users_alone_there_is_none(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody holds every name: the run goes unrecorded, with the reason."""
    monkeypatch.setattr(paths, "_MAX_FOLDERS", 4)
    usual = memory.parent / "disk" / f"scope-{os.getuid()}"
    for folder in (memory / usual.name, usual, *(usual.with_name(f"{usual.name}-{number}") for number in (2, 3))):
        open_to_all(folder)
    with pytest.raises(OSError, match="can be written by others"):
        paths.default_spool()


@pytest.mark.parametrize("mode", [0, 0o400, 0o550])
def test_rights_that_a_umask_took_from_the_user_are_given_back(memory: Path, mode: int) -> None:
    """A folder that was once made under `umask 0777` takes spools again."""
    folder = memory / f"scope-{os.getuid()}"
    folder.mkdir(mode=mode)
    folder.chmod(mode)
    assert paths.default_spool() == (folder, ())
    assert stat.S_IMODE(folder.stat().st_mode) == 0o750


@pytest.mark.parametrize(("umask", "mode"), [(0, 0o750), (0o022, 0o750), (0o077, 0o700)])
def test_every_folder_of_a_run_is_closed_to_others(tmp_path: Path, umask: int, mode: int) -> None:
    """What a rank makes, and what is published of it, has the mode 0750 at most; folders above are the user's own."""
    spool, run = tmp_path / "spools" / "spool", tmp_path / "runs" / "run"
    before = os.umask(umask)
    try:
        identity.write_run_info(spool, run_id="r", source="option")
        _, rank = identity.claim_folder(spool, attempt=0, rank=0)
        traces = rank / paths.TRACES_FOLDER
        make_folders(traces)
        (traces / "w.capture.json").write_text("{}")
        assert Publisher(spool, run).publish()
    finally:
        os.umask(before)
    for top in (spool, run):
        below = [top, *(path for path in top.rglob("*") if path.is_dir())]
        assert traces.relative_to(spool) in [path.relative_to(top) for path in below]
        assert {stat.S_IMODE(path.stat().st_mode) for path in below} == {mode}
        assert stat.S_IMODE(top.parent.stat().st_mode) == 0o777 & ~umask


@pytest.mark.parametrize("umask", [0o277, 0o477, 0o777])
def test_a_umask_that_keeps_the_user_out_leaves_nothing_behind(tmp_path: Path, umask: int) -> None:
    """Neither an empty spool nor a run directory stays; the command runs, and the reason is said."""
    as_a_user: list[str] = []
    if not os.geteuid():
        if shutil.which("setpriv") is None:
            pytest.skip("root may use every folder")
        as_a_user = ["setpriv", "--bounding-set=-dac_override,-dac_read_search", "--"]
    spools = tmp_path / "spools"
    spools.mkdir(mode=0o700)
    places = {"SCOPE_SPOOL": str(spools), "TMPDIR": str(tmp_path), "SCOPE_REGISTRY": str(tmp_path / "registry")}
    arguments = ["run", "--run-dir", str(tmp_path / "run"), "--", "sh", "-c", "exit 3"]
    done = subprocess.run(
        [*as_a_user, sys.executable, "-P", "-m", "scope", *arguments],
        env={**os.environ, **places, "PYTHONDONTWRITEBYTECODE": "1"},
        umask=umask, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 3
    assert "unrecorded" in done.stderr
    assert "umask" in done.stderr
    assert list(spools.iterdir()) == []
    assert not (tmp_path / "run").exists()


def test_a_launch_says_why_it_records_in_another_place(memory: Path) -> None:
    """Before the command begins, once each: which usual folder was passed over, and that nothing is registered."""
    name = f"scope-{os.getuid()}"
    open_to_all(memory / name)
    open_to_all(paths.registry_folder())
    told: list[str] = []
    run = memory.parent / "run"
    plan = LaunchPlan(command=["true"], run_dir=run, run_id="r")
    assert launch(plan, os.environ, tell=told.append).returncode == 0
    spool = memory.parent / "disk" / name / f"r-{os.getpid()}"
    assert told == [
        f"{memory / name} can be written by others: ranks write to {spool} until it is published",
        f"{paths.registry_folder()} can be written by others: the node's exporter finds this run only where --runs "
        "names it",
    ]


@pytest.mark.parametrize("make", [open_to_all, link_elsewhere])
def test_nothing_is_registered_in_a_folder_that_others_made(memory: Path, make: Callable[[Path], None]) -> None:
    """The exporter reads no such registry either; the run is recorded without."""
    entry = paths.Registration(run_id="r", spool=str(memory / "spool"))
    folder = paths.registry_folder()
    make(folder)
    paths.register_spool(entry)
    assert list(folder.iterdir()) == []
    (folder.unlink if folder.is_symlink() else folder.rmdir)()
    paths.register_spool(entry)
    assert len(list(folder.iterdir())) == 1
