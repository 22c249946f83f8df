"""Scope: an observability dashboard and profiler for PyTorch training clusters.

Names are resolved when they are first used: a training process that imports `scope` must not load polars, and an
analysis must not load torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scope.frames import open_run
    from scope.record import Recorder
    from scope.report.build import compute_results as analyze
    from scope.report.loading import load

__all__ = ["Recorder", "__version__", "analyze", "load", "open_run"]

__version__ = "0.1.0"

_HOMES = {
    "Recorder": ("scope.record", "Recorder"),
    "analyze": ("scope.report.build", "compute_results"),
    "load": ("scope.report.loading", "load"),
    "open_run": ("scope.frames", "open_run"),
}
"""By public name: the module that it comes from, and what it is called there."""


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        message = f"module 'scope' has no attribute {name!r}"
        raise AttributeError(message)
    return getattr(import_module(home[0]), home[1])


def __dir__() -> list[str]:
    return sorted(__all__)
