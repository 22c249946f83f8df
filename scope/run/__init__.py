"""The run directory: schema, black box, writers and plain readers."""

from __future__ import annotations

from scope.run.reader import RankReader, RunReader

__all__ = ["RankReader", "RunReader"]
