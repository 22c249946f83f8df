"""Folders of spools and of the registry that others may write into are passed over: a link there leads anywhere."""

from __future__ import annotations

import os
import stat
import tempfile
from typing import TYPE_CHECKING

import pytest

from scope.run import paths

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
        folder = paths.default_spool()
    finally:
        os.umask(before)
    assert folder == memory / f"scope-{os.getuid()}" == paths.default_spool()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o750


@pytest.mark.parametrize("make", [open_to_all, link_elsewhere])
def test_a_folder_that_others_made_is_passed_over(memory: Path, make: Callable[[Path], None]) -> None:
    """In memory first, then on disk, where at last a new folder is made; what others made is left as it is."""
    name = f"scope-{os.getuid()}"
    make(memory / name)
    on_disk = memory.parent / "disk" / name
    assert paths.default_spool() == on_disk
    on_disk.rmdir()
    make(on_disk)
    fresh = paths.default_spool()
    assert fresh.parent == on_disk.parent
    assert fresh not in (on_disk, memory / name)
    assert stat.S_IMODE(fresh.stat().st_mode) == 0o700
    assert (memory / name).is_symlink() == (make is link_elsewhere)


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
