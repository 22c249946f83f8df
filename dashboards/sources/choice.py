"""What a page shows when nobody has chosen: a run that lives, makes it steps or hangs, else the latest with ranks."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from scope.analysis.recorded import ProcessTable, assess_run
from scope.errors import ScopeError
from scope.run import paths
from scope.run.reader import RunReader, read_run_info

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dashboards.sources.catalogue import Source, SourceKind

_MAX_RUNS: Final = 20
"""How many of the latest runs are asked whether they live: a visitor waits."""
_MAX_RANKS: Final = 8
_ORDER: Final[tuple[SourceKind, ...]] = ("run", "trace", "prometheus")


def choose_source(sources: Sequence[Source]) -> Source:
    """Return the source to show first: of the runs, else of the traces, else a server.

    Args:
        sources: At least one.
    """
    kind = next(kind for kind in _ORDER if any(source.kind == kind for source in sources))
    fitting = [source for source in sources if source.kind == kind]
    if kind == "trace":
        return max(fitting, key=_written_ns)
    if kind == "run":
        latest = sorted(fitting, key=_began, reverse=True)
        return next((source for source in latest[:_MAX_RUNS] if _lives(Path(source.place))), latest[0])
    return fitting[0]


def choose_like(source: Source, others: Sequence[Source]) -> Source:
    """Return what to compare a source with: the latest run of as many ranks, or the trace of as many files.

    Args:
        source: What is judged.
        others: At least one, of the same kind. Those that are alike are preferred, the latest of them.
    """
    alike = [other for other in others if _likeness(other) == _likeness(source)]
    return max(alike or others, key=_began if source.kind == "run" else _written_ns)


def _likeness(source: Source) -> tuple[bool, int | None]:
    """Return whether a source is made up, and its number of ranks."""
    if source.kind != "run":
        return False, len(source.files)
    try:
        info = read_run_info(Path(source.place))
    except ScopeError:
        return False, None
    return info.synthetic, info.world_size


def _began(source: Source) -> tuple[bool, bool, int]:
    """Return when a run began; one in which nothing was recorded comes last, before it one that is made up."""
    run = Path(source.place)
    try:
        info = read_run_info(run)
    except ScopeError:
        return False, False, 0
    has_ranks = any(paths.list_ranks(run, attempt) for attempt in paths.list_attempts(run))
    return has_ranks, not info.synthetic, info.started_ns


def _lives(run: Path) -> bool:
    """Return whether one of the first ranks of the last attempt lives."""
    with suppress(ScopeError):
        reader = RunReader(run)
        attempts = reader.attempts()
        for rank in reader.ranks(attempts[-1])[:_MAX_RANKS] if attempts else ():
            # The others are to be asked even if the files of one are torn.
            with suppress(ScopeError):
                info, box = rank.info(), rank.state(with_ring=False)
                boxes = {} if box is None else {info.rank: box}
                now_ns = time.time_ns()
                near = ProcessTable.of_run(run)
                state = assess_run([info], boxes, last_step_ns=None, usual_ns=None, now_ns=now_ns, processes=near)
                if state.is_live:
                    return True
    return False


def _written_ns(source: Source) -> int:
    """Return when a file of a trace was written last, 0 where it cannot be told."""
    with suppress(OSError):
        return max(Path(each).stat().st_mtime_ns for each in source.files or (source.place,))
    return 0
