"""Scripts, and files beside them, that have the names of our modules: never run for us, and the program's to import."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from scope.run import paths

SCOPE = str(Path(sys.executable).parent / "scope")
TRAIN = """
print("begins", flush=True)
import torch
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    optimizer.zero_grad()
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
"""
ASKS = """
import resource
import scope
print(scope.X, resource.X)
if hasattr(scope, "__path__"):
    import scope.record
    print(scope.record.X)
"""


@pytest.mark.parametrize(
    ("script", "files", "said"),
    [
        pytest.param("scope.py", {}, "begins\n", id="the-script-itself"),
        pytest.param(
            "train.py",
            {"scope.py": "X = 5\n", "resource.py": "X = 7\n"},
            "begins\n5 7\n",
            id="a-module-and-one-of-the-library",
        ),
        pytest.param(
            "train.py",
            {
                "scope/__init__.py": "X = 5\n",
                "scope/record/__init__.py": "import sys\nif 'scope' not in sys.argv: X = 6\n",
                "resource.py": "X = 7\n",
                "msgspec.py": "raise SystemExit(3)\n",
            },
            "begins\n5 7\n6\n",
            id="a-package-and-what-we-need",
        ),
    ],
)
def test_the_program_runs_once_and_is_recorded(tmp_path: Path, script: str, files: dict[str, str], said: str) -> None:
    """Output and exit code are those without Scope, all three steps are recorded, and names lead to the program's."""
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / script).write_text(TRAIN + (ASKS if files else ""))
    own = {"SCOPE_SPOOL": str(tmp_path / "spool"), "SCOPE_REGISTRY": str(tmp_path / "registry"), "OMP_NUM_THREADS": "1"}
    command = [SCOPE, "run", "--run-dir", str(tmp_path / "run"), "--", sys.executable, script]
    ended = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, **own}, capture_output=True, text=True, timeout=120, check=False
    )
    assert (ended.returncode, ended.stdout) == (0, said), ended.stderr
    rank = paths.rank_folder(tmp_path / "run", 0, 0)
    assert len((rank / paths.STEPS_FILE).read_text().splitlines()) == 3


def test_a_module_that_is_run_is_the_programs_unless_python_is_told(tmp_path: Path) -> None:
    """`python -m scope` runs the `scope.py` of this folder; with `-P`, and as the command, it is Scope."""
    (tmp_path / "scope.py").write_text("print('mine')\n")
    said = {}
    for name, command in {
        "-m": [sys.executable, "-m", "scope"],
        "-P": [sys.executable, "-P", "-m", "scope"],
        "command": [SCOPE],
    }.items():
        done = subprocess.run([*command, "--version"], cwd=tmp_path, capture_output=True, text=True, check=True)
        said[name] = done.stdout.split()[0]
    assert said == {"-m": "mine", "-P": "scope", "command": "scope"}
