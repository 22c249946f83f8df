"""Tables become figures: pure functions, no input or output, no plots."""

from __future__ import annotations

from scope.analysis.options import Options
from scope.analysis.summary import analyze

__all__ = ["Options", "analyze"]
