"""An import of torch that fails, or is interrupted, looks under `scope run` as it does without it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import scope

LAUNCHER = Path(scope.__file__).parent / "record" / "launcher"
JOB = """\
def main():
    import torch
main()
"""
FAILURES = {
    "a module is missing": "import nothing_such",
    "an error": "def fail():\n    raise ValueError('broken')\nfail()",
    "Ctrl-C": "def wait():\n    raise KeyboardInterrupt\nwait()",
}
INTERRUPTS_SCOPE = """\
import sys
class Interrupt:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "scope.record.autostart":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupt)
"""


def run(folder: Path, torch: str, *, recorded: bool) -> subprocess.CompletedProcess[str]:
    """Run a program that imports a torch of the given text."""
    (folder / "torch").mkdir(exist_ok=True)
    (folder / "torch" / "__init__.py").write_text(torch)
    (folder / "job.py").write_text(JOB)
    own = {"RANK": "0", "WORLD_SIZE": "1", "SCOPE_RUN_ID": "r", "PYTHONPATH": str(LAUNCHER)} if recorded else {}
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("SCOPE_", "PYTHONPATH"))}
    return subprocess.run(
        [sys.executable, str(folder / "job.py")],
        env=environment | own,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("how", FAILURES)
def test_a_failing_import_reads_as_without_scope(tmp_path: Path, how: str) -> None:
    """Exit code and traceback are those of the program alone, to the byte."""
    plain, recorded = (run(tmp_path, FAILURES[how], recorded=recorded) for recorded in (False, True))
    assert plain.returncode != 0
    assert plain.stderr.count("File ") >= 3
    assert (recorded.returncode, recorded.stderr) == (plain.returncode, plain.stderr)


def test_an_interrupt_while_recording_begins_shows_the_import_alone(tmp_path: Path) -> None:
    """Ctrl-C that comes when torch is there and the recording is being opened is one in the program's import."""
    ended = run(tmp_path, INTERRUPTS_SCOPE, recorded=True)
    job = tmp_path / "job.py"
    assert [line for line in ended.stderr.splitlines() if "File " in line] == [
        f'  File "{job}", line 3, in <module>',
        f'  File "{job}", line 2, in main',
    ]
    assert ended.stderr.splitlines()[-1] == "KeyboardInterrupt"
    assert ended.returncode == -2
