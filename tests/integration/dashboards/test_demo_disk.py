"""The demo on a disk that is really full: one clear message, and nothing goes on."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import psutil
import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytest.importorskip("torch")

TIMEOUT_S = 120


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MB."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("needs the right to mount a small tmpfs (root)")
    yield place
    for _ in range(50):
        if subprocess.run(["umount", str(place)], capture_output=True, check=False).returncode == 0:
            return
        time.sleep(0.2)
    pytest.fail("something still holds the disk")


def processes_on(folder: Path) -> list[str]:
    """Return the command lines that name a folder."""
    found: list[str] = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            command = " ".join(process.cmdline())
            if str(folder) in command:
                found.append(command)
    return found


@pytest.mark.system("mount")
@pytest.mark.parametrize("free_bytes", [100_000, 3_200_000])
def test_a_full_disk_is_one_message(small_disk: Path, free_bytes: int) -> None:
    """Whether it fills at once or while the parts start: it says which disk, what to do, and leaves no process."""
    filler = os.statvfs(small_disk)
    (small_disk / "filler").write_bytes(bytes(filler.f_bavail * filler.f_frsize - free_bytes))
    folder = small_disk / "demo"
    command = [sys.executable, "-m", "scope", "demo", "--steps", "100000", "--ranks", "2", "--port", "0"]
    done = subprocess.run(
        [*command, "--folder", str(folder)], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode not in (0, None)
    last = done.stderr.strip().splitlines()[-1]
    assert str(folder) in last
    assert "No space left" in last or "is full" in last
    assert "--folder" in last
    assert "Traceback" not in done.stderr + done.stdout
    assert processes_on(folder) == []
