"""Commands whose standard streams the caller closed, and names that are no UTF-8."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from scope.errors import UsageError
from scope.run import paths
from scope.run.identity import read_tags

SCOPE = str(Path(sys.executable).parent / "scope")


@pytest.mark.parametrize(("closed", "code"), [(">&-", 7), ("2>&-", 7), (">&- 2>&-", 7)])
def test_the_exit_code_is_the_commands(tmp_path: Path, closed: str, code: int) -> None:
    """Whatever is closed, the exit code is the command's, and nothing of ours is on its standard output."""
    line = f'"{SCOPE}" run --run-dir run -- sh -c "echo own; exit 7" {closed}'
    own = {**os.environ, "SCOPE_SPOOL": str(tmp_path / "spool"), "SCOPE_REGISTRY": str(tmp_path / "registry")}
    ended = subprocess.run(["sh", "-c", line], cwd=tmp_path, env=own, capture_output=True, timeout=60, check=False)
    assert ended.returncode == code
    assert ended.stdout == (b"own\n" if closed == "2>&-" else b"")
    assert b"Traceback" not in ended.stderr


def test_a_folder_that_is_no_text_is_passed_over(tmp_path: Path) -> None:
    """A spool whose name no document can hold is left out of the registry, without an error."""
    entry = paths.Registration(run_id="r", spool=str(tmp_path / "n\udcff"))
    paths.register_spool(entry, folder=tmp_path / "registry")
    assert paths.read_registry(tmp_path / "registry") == ([], [])


def test_a_tag_that_is_no_text_is_refused() -> None:
    """It is a mistake of usage, not a traceback."""
    with pytest.raises(UsageError, match="printable"):
        read_tags("n\udcff=1")
