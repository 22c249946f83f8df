"""The traces that a person names, read: `scope.load`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from msgspec.structs import replace

from scope.report.recorded_groups import with_recorded_groups
from scope.report.windows import choose_traces
from scope.trace import load as load_traces

if TYPE_CHECKING:
    from collections.abc import Mapping

    from scope.trace import Job, ReadOptions
    from scope.trace.loading import Paths, Progress


def load(
    paths: Paths,
    *,
    window: int | None = None,
    ranks: Mapping[str, int] | None = None,
    options: ReadOptions | None = None,
    processes: int | None = None,
    progress: Progress | None = None,
) -> Job:
    """Read the profiler traces of one job; `scope.load` is this function.

    Args:
        paths: A trace, a folder of traces, a glob, a recorded run (its directory, one of its attempts, a rank's
            folder), or several of them. A run stands for the newest of the profiler windows that most ranks share;
            which one that is, and which others there are, is among the `warnings` of the job. So are traces of several
            windows, as `torch.profiler.schedule(repeat=...)` leaves them in one folder.
        window: First step of another window, of a recorded run or of traces that hold several windows of their ranks.
        ranks: Ranks of files that do not say theirs, or say it wrongly: path or file name -> rank.
        options: How to read.
        processes: How many files are read at the same time at most; None is one a core.
        progress: Told after each file: how many are done, how many there are, and which it was.

    Raises:
        TraceError: No trace was found, one cannot be read, or two files claim one rank.
        InputError: A recorded run holds no profiler window.
        UsageError: `ranks` names a file that is not among the paths, or no window begins at the step `window`.
        LimitError: A file unpacks to more than its cap.
    """
    given = [paths] if isinstance(paths, str | os.PathLike) else paths
    chosen, sentences = choose_traces([os.fspath(path) for path in given], step=window)
    job = load_traces(
        chosen,
        window=None if sentences else window,
        ranks=ranks,
        options=options,
        processes=processes,
        progress=progress,
    )
    named = with_recorded_groups(job)
    return replace(named, warnings=(*sentences, *named.warnings)) if sentences else named
