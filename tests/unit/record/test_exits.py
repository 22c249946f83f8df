"""What a program says that it ends with is what it ends with: the operating system's word beside our own."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import msgspec
import pytest

from scope.record.exits import describe_end, read_exit_code, tell_at_once
from scope.run import paths
from scope.run.schema import EventRecord

if TYPE_CHECKING:
    from pathlib import Path

NOTING = """\
import atexit, os, sys, threading
from scope.record.exits import ExitCodes
codes = ExitCodes(lambda code: os.write(1, b"%d" % code))
atexit.register(lambda: os.write(1, str(codes.find()).encode()))
"""


def run(*command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run Python with a command line."""
    return subprocess.run(
        [sys.executable, *command], cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.parametrize("code", ["", "0", "3", "-1", "256", "True", "'words'", "(1, 2)", "2**70", "-2**70", "1.0"])
def test_exit_codes_are_read_as_python_reads_them(tmp_path: Path, code: str) -> None:
    """Numbers, their lowest byte alone, and what Python prints instead of a number."""
    done = run("-S", "-E", "-c", f"import sys; sys.exit({code})", folder=tmp_path)
    asked = SystemExit(eval(code) if code else None)
    assert read_exit_code(asked.code) == done.returncode


@pytest.mark.parametrize(
    ("ending", "is_told"),
    [
        ("pass", True),
        ("sys.exit(3)", True),
        ("sys.exit('no more data')", True),
        ("os._exit(4)", True),
        ("os._exit(status=4)", True),
        ("os._exit(0)", True),
        ("try:\n    sys.exit(3)\nexcept SystemExit:\n    pass", True),
        ("try:\n    sys.exit(3)\nexcept SystemExit:\n    sys.exit(5)", True),
        ("def leave():\n    sys.exit(3)\nthread = threading.Thread(target=leave)\nthread.start()\nthread.join()", True),
        ("if not os.fork():\n    os._exit(6)\nos.wait()", True),
        ("try:\n    sys.exit(1, 2)\nexcept TypeError:\n    sys.exit(8)", True),
        ("exit(3)", True),
        ("quit(code=3)", True),
        ("exit()", True),
        ("try:\n    exit(3, 4)\nexcept TypeError:\n    exit(9)", True),
        ("try:\n    exit(3)\nexcept SystemExit:\n    pass", True),
        # Nobody can tell these, but for who started the program.
        ("raise SystemExit(3)", False),
        ("raise SystemExit", False),
    ],
)
@pytest.mark.parametrize("job", [("job.py",), ("-m", "job")])
def test_a_program_tells_the_code_that_it_ends_with(
    tmp_path: Path, job: tuple[str, ...], ending: str, is_told: bool
) -> None:
    """However it comes to its end: what it tells there is what the operating system says of it, or that is unknown."""
    (tmp_path / "job.py").write_text(f"{NOTING}{ending}\n")
    done = run(*job, folder=tmp_path)
    assert done.stdout == (str(done.returncode) if is_told else "None"), done.stderr


def test_functions_of_the_program_work_as_before(tmp_path: Path) -> None:
    """Names, errors and refusals are those of Python's own."""
    code = "assert (sys.exit.__name__, os._exit.__name__) == ('exit', '_exit')\n"
    code += "for call in (lambda: sys.exit(1, 2), lambda: os._exit('a'), lambda: os._exit()):\n"
    code += "    try:\n        call()\n    except TypeError as error:\n        print(error)\n"
    (tmp_path / "with.py").write_text(NOTING + code)
    (tmp_path / "without.py").write_text(f"import os, sys\n{code}")
    with_us, without = run("with.py", folder=tmp_path), run("without.py", folder=tmp_path)
    assert without.stdout.count("\n") == 3
    assert with_us.stdout == without.stdout + "0"


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (SystemExit(), "finished"),
        (SystemExit(0), "finished"),
        (SystemExit(3), "exited with code 3"),
        (KeyboardInterrupt(), "interrupted"),
        (ValueError("bad sample"), "exception"),
    ],
)
def test_an_end_by_an_exception_has_its_word(error: BaseException, reason: str) -> None:
    """SystemExit is an exit code, Ctrl-C is a person, all else is an exception."""
    assert describe_end(error) == reason


def test_a_process_that_leaves_at_once_tells_its_events(tmp_path: Path) -> None:
    """One line more; none where another rank has its place by now, or the folder is gone."""
    folder = paths.rank_folder(tmp_path, 0, 0)
    folder.mkdir(parents=True)
    (folder / paths.EVENTS_FILE).write_bytes(b"{}\n")
    tell_at_once(folder, 9, step=4, wall_offset_ns=0, is_after_update=True)
    before, told, rest = (folder / paths.EVENTS_FILE).read_bytes().split(b"\n")
    event = msgspec.json.decode(told, type=EventRecord)
    assert (before, rest) == (b"{}", b"")
    assert (event.kind, event.message, event.step) == ("attempt_end", "recording ended: exited with code 9", 4)
    assert event.detail == {"after_update": True}
    displaced = folder.rename(tmp_path / "elsewhere")
    with pytest.raises(FileNotFoundError):
        tell_at_once(folder, 9, step=4, wall_offset_ns=0)
    assert not folder.exists()
    assert (displaced / paths.EVENTS_FILE).read_bytes().count(b"\n") == 2
