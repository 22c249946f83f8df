"""What a run directory holds already when another launch begins in it: the launch becomes the run's next attempt."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from scope.errors import RunError
from scope.run import paths
from scope.run.alive import find_fate, find_signs, has_ended
from scope.run.reader import RankReader
from scope.units import NS_PER_S

if TYPE_CHECKING:
    from pathlib import Path

_RECENT_NS: Final = 10 * NS_PER_S


def describe_earlier(run: Path, *, now_ns: int | None = None) -> str | None:
    """Return what a launch into a run directory should know, in a sentence without a full stop; None for a new run.

    Args:
        run: The run directory.
        now_ns: Now, since the epoch; by default it is asked for.
    """
    attempts = paths.list_attempts(run)
    if not attempts:
        return None
    last = attempts[-1]
    now = time.time_ns() if now_ns is None else now_ns
    num_living = sum(_seems_living(run, last, rank, now) for rank in paths.list_ranks(run, last))
    message = f"{run} is an existing run: this becomes attempt {last + 1} of it"
    if not num_living:
        return f"{message} (--run-dir names another folder)"
    ranks = "1 rank of attempt {} seems" if num_living == 1 else f"{num_living:,} ranks of attempt {{}} seem"
    return (
        f"{message}, though {ranks.format(last)} to train still, and both then share one record: end what runs there, "
        "or name another folder with --run-dir"
    )


def _seems_living(run: Path, attempt: int, rank: int, now_ns: int) -> bool:
    """Return whether a rank lives on this host, or, where nobody here can tell, gave a sign of life lately."""
    reader = RankReader(paths.rank_folder(run, attempt, rank))
    try:
        info, box = reader.info(), reader.state(with_ring=False)
    except RunError:
        return False
    if has_ended(info, box):
        return False
    lives = find_fate(info)
    return now_ns - max(find_signs(info, box)) < _RECENT_NS if lives is None else lives
