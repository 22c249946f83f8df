"""A run directory as polars frames."""

from scope.frames.run import Run, open_run

__all__ = ["Run", "open_run"]
