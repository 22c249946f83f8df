"""Documentation and code agree: commands, exit codes, environment variables, the report's schema, code that runs."""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from scope import errors
from scope.cli.registry import COMMANDS
from scope.report.schema_page import render_schema_page
from scope.report.sections import breakdown, collectives, idle, kernels, path, quality, roofline, stragglers
from scope.testing.jobs import TrainingJob
from scope.testing.layout import Layout
from scope.testing.scenarios import Scenario

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()

pytestmark = pytest.mark.docs


def test_the_schema_page_is_what_the_code_says() -> None:
    """`python -m scope.report.schema_page > docs/report-schema.md` was run after the last change."""
    assert (ROOT / "docs" / "report-schema.md").read_text() == render_schema_page()


def test_words_that_need_one_are_explained_in_the_glossary() -> None:
    """Headings that no reader of training code knows by themselves have a row, and the README leads there."""
    headings = {
        each.heading
        for columns in (
            breakdown.STEP_COLUMNS, collectives.SUMMARY_COLUMNS, collectives.POINT_COLUMNS, collectives.CALL_COLUMNS,
            stragglers.STRAGGLER_COLUMNS, idle.QUEUE_COLUMNS, path.PATH_COLUMNS, quality.QUALITY_COLUMNS,
            kernels.kernel_columns("operator"), roofline.ROOFLINE_COLUMNS,
        )
        for each in columns
    }  # fmt: skip
    words = {"cut", "tier", "sisters", "imposed wait", "noise floor", "inferred", "host-bound share", "skew", "ceiling"}
    words |= {"asynchronous", "no launch", "no event", "overrun", "host overlaps", "most in class", "bound by"}
    assert words <= headings, "a heading is called otherwise now: so must the glossary"
    explained = re.findall(r"^\| ([a-z -]+) \| ", (ROOT / "docs" / "glossary.md").read_text(), flags=re.MULTILINE)
    assert words | {"busbw", "algbw"} <= set(explained)
    assert "(docs/glossary.md)" in README


def test_the_readme_names_every_command_and_no_other() -> None:
    """Its tables of commands and the command line's registry hold the same names."""
    named = set(re.findall(r"^\| `scope ([a-z-]+)` \|", README, flags=re.MULTILINE))
    assert named == set(COMMANDS)


def test_the_readme_names_every_exit_code() -> None:
    """Each error's own code stands in the table beside its name."""
    documented = {name: int(code) for code, name in re.findall(r"^\| (\d) \| `(\w+)`", README, flags=re.MULTILINE)}
    classes = [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, errors.ScopeError)]
    direct = [each for each in classes if each.__base__ is errors.ScopeError]
    assert documented == {each.__name__: each.exit_code for each in direct}


def test_the_readme_names_the_variables_that_reading_obeys() -> None:
    """Every SCOPE_ variable that the reader asks for is documented."""
    source = "\n".join(path.read_text() for path in (ROOT / "scope" / "trace").glob("*.py"))
    asked = set(re.findall(r'"(SCOPE_[A-Z_]+)"', source))
    documented = set(re.findall(r"^\| `(SCOPE_[A-Z_]+)` \|", README, flags=re.MULTILINE))
    assert asked <= documented


def test_the_readme_names_the_variables_that_recording_obeys() -> None:
    """Every SCOPE_ variable that a user may set for a recording is documented, and none that nothing asks for."""
    folders = ("run", "record", "record/launcher", "trace", "cli")
    source = "\n".join(path.read_text() for folder in folders for path in (ROOT / "scope" / folder).glob("*.py"))
    asked = set(re.findall(r'"(SCOPE_[A-Z_]+)"', source))
    # What `scope run` and ranks tell each other.
    of_launcher = {"RUN_DIR", "SPOOL_RUN", "FIRST_ATTEMPT", "PARENT_PID", "LAUNCH_HOST"}
    private = {*of_launcher, "RECORDING_PID", "SPAWN_ATTEMPT", "SPAWNED_BY"}
    documented = set(re.findall(r"^\| `(SCOPE_[A-Z_]+)` \|", README, flags=re.MULTILINE))
    assert asked - {f"SCOPE_{name}" for name in private} == documented


def test_links_lead_to_files_that_are_there() -> None:
    """Relative links of the documents exist."""
    for document in ("README.md", "CONTRIBUTING.md", "docs/glossary.md"):
        for target in re.findall(r"\]\(([^)#]+)\)", (ROOT / document).read_text()):
            assert "://" in target or ((ROOT / document).parent / target).exists(), f"{document}: {target}"


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    """Return a folder that holds `traces/`, `before/` and `after/`, each with the traces of two ranks."""
    job = TrainingJob(layout=Layout(dp=2))
    for name in ("traces", "before", "after"):
        (tmp_path / name).mkdir()
        Scenario(layout=job.layout, simulation=job.run()).write(tmp_path / name)
    return tmp_path


def test_python_of_the_readme_runs(traces: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every Python block that is not marked `notest` runs and prints something."""
    blocks = re.findall(r"^```python\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)
    assert blocks
    monkeypatch.chdir(traces)
    for block in blocks:
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(block, "README.md", "exec"), {})
        assert out.getvalue()


def test_the_readmes_recorder_runs_under_scope_run(tmp_path: Path) -> None:
    """In a fresh folder the block ends well, and reads steps of the recording that it joined."""
    blocks = re.findall(r"^```python\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)
    (tmp_path / "loop.py").write_text(next(block for block in blocks if "scope.Recorder(" in block))
    command = [sys.executable, "-m", "scope", "run", "--run-dir", "runs/first", "--", sys.executable, "loop.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    counted = re.search(r"^(\d+) steps; 0 collectives$", done.stdout, flags=re.MULTILINE)
    assert counted, done.stdout
    assert int(counted[1]) >= 1
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["first"]


def test_commands_of_the_readme_run(traces: Path) -> None:
    """Every `scope analyze` and `scope compare` line of the README does what it says."""
    lines = re.findall(r"^(scope (?:analyze|compare) .*)$", README, flags=re.MULTILINE)
    assert len(lines) >= 5
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "NO_COLOR": "1"}
    for line in lines:
        done = subprocess.run(
            ["/bin/sh", "-c", f"{line.partition('#')[0]} --no-cache" if "analyze" in line else line],
            cwd=traces,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert done.returncode == 0, f"{line}: {done.stderr}"
