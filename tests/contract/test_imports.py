"""What an import loads is a promise: training stays light, analysis needs no torch, exporting no polars."""

from __future__ import annotations

import subprocess
import sys

import pytest

_PROBE = """
import importlib, pathlib, pkgutil, sys
skipped = []
for package in {packages!r}:
    root = importlib.import_module(package)
    for found in pkgutil.walk_packages(root.__path__, root.__name__ + "."):
        source = pathlib.Path(found.module_finder.path, found.name.rpartition(".")[2] + ".py")
        if {skip_torch!r} and source.is_file() and "import torch" in source.read_text():
            skipped.append(found.name)
            continue
        if found.name.endswith("__main__"):
            continue
        importlib.import_module(found.name)
loaded = sorted(name for name in {forbidden!r} if name in sys.modules)
print(",".join(loaded))
"""

_HEAVY = ("torch", "polars", "plotly", "streamlit")


@pytest.mark.parametrize(
    ("packages", "forbidden", "skip_torch"),
    [
        pytest.param([], _HEAVY, False, id="scope-alone"),
        pytest.param(["exporters"], _HEAVY, False, id="exporters"),
        pytest.param(["scope.run", "scope.probe"], _HEAVY, False, id="run-and-probe"),
        pytest.param(["scope.record"], ("polars", "plotly", "streamlit"), True, id="record"),
        pytest.param(["scope.cli"], ("torch", "polars", "plotly", "streamlit"), False, id="cli"),
        pytest.param(["scope.trace", "scope.analysis"], ("torch", "plotly", "streamlit"), False, id="analysis"),
        # The parser of the catalogue, which a process without a GPU never reads.
        pytest.param(["scope.hardware", "scope.cost"], (*_HEAVY, "tomllib"), False, id="hardware-and-cost"),
    ],
)
def test_import_loads_nothing_forbidden(packages: list[str], forbidden: tuple[str, ...], skip_torch: bool) -> None:
    """Importing every module of a package in a fresh interpreter loads none of the libraries it must do without."""
    code = "import scope\n" + _PROBE.format(packages=packages, forbidden=forbidden, skip_torch=skip_torch)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == ""
