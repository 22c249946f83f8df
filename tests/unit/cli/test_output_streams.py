"""What the command does when its output cannot be written, or its terminal knows no Unicode."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

FULL = Path("/dev/full")


def run(arguments: list[str], *, out: Path, **environment: str) -> tuple[int, str]:
    """Run `scope` in a process of its own; return its exit code and what it complained."""
    with out.open("wb") as file:
        done = subprocess.run(
            [sys.executable, "-c", "from scope.cli.main import main; main()", *arguments],
            stdout=file,
            stderr=subprocess.PIPE,
            env={**os.environ, "COLUMNS": "100", **environment},
            timeout=60,
            check=False,
        )
    return done.returncode, done.stderr.decode()


@pytest.mark.skipif(not FULL.exists(), reason="needs /dev/full")
@pytest.mark.parametrize("arguments", [["analyze"], ["analyze", "--json"], ["kernels", "--csv"]])
def test_a_full_disk_is_one_clear_line(arguments: list[str], trace: Callable[..., Path]) -> None:
    """Text, JSON and CSV onto a full disk end with one line and an exit code of their own."""
    code, complaint = run([*arguments, str(trace())], out=FULL)
    assert code == 74
    assert complaint == "scope: the output: No space left on device\n"


def test_a_terminal_without_unicode_gets_ascii(trace: Callable[..., Path], tmp_path: Path) -> None:
    """In an ASCII locale bars and dashes become ASCII, and names are written out."""
    out = tmp_path / "out.txt"
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    code, complaint = run(["analyze", str(trace(kernel="kernel_λ"))], out=out, **plain)
    assert (code, complaint) == (0, "")
    text = out.read_bytes().decode("ascii")
    assert "###" in text
    assert "kernel_\\u03bb" in text


def test_a_path_in_an_error_moves_no_cursor(tmp_path: Path) -> None:
    """An escape sequence in the name of a file is written out in the complaint about it."""
    code, complaint = run(["analyze", str(tmp_path / "a\x1b[31m.json")], out=tmp_path / "out.txt")
    assert code == 3
    assert "\x1b" not in complaint
    assert "a\\x1b[31m.json" in complaint


def test_the_process_ends_with_all_that_it_wrote(trace: Callable[..., Path], tmp_path: Path) -> None:
    """Its modules are not taken apart at the end, but output is whole and what was to run at the end has run."""
    out, mark = tmp_path / "out.json", tmp_path / "mark"
    code = (
        f"import atexit, pathlib\natexit.register(pathlib.Path({str(mark)!r}).touch)\n"
        "from scope.cli.main import main\nmain()\nraise AssertionError"
    )
    with out.open("wb") as file:
        subprocess.run(
            [sys.executable, "-c", code, "analyze", "--json", str(trace())], stdout=file, timeout=60, check=True
        )
    assert json.loads(out.read_bytes())["schema"] == "scope.report/1"
    assert mark.exists()


def test_a_summary_of_a_file_loads_no_more_than_it_needs(trace: Callable[..., Path]) -> None:
    """What draws on terminals, reads runs or finds critical paths stays out: each costs more than a short analysis."""
    code = (
        "import sys\nfrom scope.cli.main import run\nassert run() == 0\n"
        "heavy = {'rich', 'plotly', 'html', 'scope.run', 'scope.analysis.critical_path', 'multiprocessing'}\n"
        "sys.stderr.write(','.join(sorted(heavy & set(sys.modules))))"
    )
    command = [sys.executable, "-c", code, "analyze", "--no-cache", str(trace())]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stderr == ""


@pytest.mark.parametrize("before", [None, "an older page"])
def test_a_page_that_finds_no_room_leaves_nothing(
    trace: Callable[..., Path], tmp_path: Path, before: str | None
) -> None:
    """Neither half a page nor an empty one nor a helper file stays; a page that was there before is there still."""
    page = tmp_path / "pages" / "report.html"
    page.parent.mkdir()
    if before is not None:
        page.write_text(before)
    code = (
        "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        "from scope.cli.main import main\nmain()"
    )
    command = [sys.executable, "-c", code, "analyze", "--no-cache", str(trace()), "--html", str(page), "--force"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 3
    assert done.stderr == f"scope: {page}: cannot be written: File too large\n"
    assert [child.name for child in page.parent.iterdir()] == ([] if before is None else ["report.html"])
    assert before is None or page.read_text() == before


def test_a_page_takes_the_place_of_no_device(trace: Callable[..., Path], tmp_path: Path) -> None:
    """What is no regular file is written to; a link keeps pointing to the file that is replaced."""
    real, link = tmp_path / "real.html", tmp_path / "link.html"
    link.symlink_to(real)
    real.write_text("old")
    for place in (link, Path(os.devnull)):
        command = [sys.executable, "-m", "scope", "analyze", "--no-cache", str(trace()), "--html", str(place)]
        subprocess.run([*command, "--force"], capture_output=True, timeout=60, check=True)
    assert link.is_symlink()
    assert "<html" in real.read_text()
    assert Path(os.devnull).is_char_device()
