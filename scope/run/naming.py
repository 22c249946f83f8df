"""The short label that stands for a run where its id is too long or too free: in series and in alerts."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scope.run.schema import RunInfo


def short_hash(run_id: str, run_dir: str | None = None) -> str:
    """Return the label that stands for a run: eight characters, the same in all attempts and on every node.

    Args:
        run_id: The run.
        run_dir: Its run directory, by the path that all its nodes name it by: runs of one id in two folders are two.
            Recordings of earlier versions do not tell it.
    """
    text = run_id if run_dir is None else f"{run_id}\0{run_dir}"
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]


def label_run(info: RunInfo) -> str:
    """Return the label of a run."""
    return short_hash(info.run_id, info.run_dir)
