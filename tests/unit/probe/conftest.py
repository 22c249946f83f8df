"""A fake NVML library, built once, and nodes scripted for it."""

from __future__ import annotations

import ctypes
import shutil
from typing import TYPE_CHECKING

import pytest

from scope.probe.nvml.library import NvmlLibrary
from scope.probe.nvml.probe import NvmlProbe
from scope.probe.tree import Tree
from scope.testing.fake_nvml.build import SCRIPT_VARIABLE, Script, build_library
from scope.testing.fake_nvml.nodes import make_node

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

Node = tuple[Script, NvmlProbe]


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The fake library, loaded under the name that the bindings look for."""
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc (make setup-system)")
    library = build_library(tmp_path_factory.mktemp("nvml"))
    ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
    return library


@pytest.fixture
def open_node(nvml_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Node]:
    """Opens a node of a generation; returns its script and its probe."""

    def make(generation: str = "hopper", num_gpus: int = 2, **options: object) -> Node:
        script = make_node(tmp_path / "nvml.txt", generation=generation, num_gpus=num_gpus)
        monkeypatch.setenv(SCRIPT_VARIABLE, str(script.path))
        library = NvmlLibrary(library_path=str(nvml_library))
        probe = NvmlProbe(library, Tree(tmp_path), slow_every_ns=0, **options)  # pyright: ignore[reportArgumentType]
        probe.open()
        return script, probe

    return make
