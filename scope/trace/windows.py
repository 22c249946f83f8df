"""Which of several profiler windows that the same processes recorded is read.

`torch.profiler.schedule(repeat=N)` writes N files a rank, most often into one folder. They tell of other steps at other
times, so they are no ranks of one job side by side: one window is read, the others are named.
"""

from __future__ import annotations

import re
from collections import defaultdict
from itertools import pairwise
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final

from scope.errors import UsageError
from scope.structs import Record
from scope.trace.schema import Steps

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scope.trace.model import RankTrace

_HANDLERS_NAME: Final = re.compile(r"(?P<worker>.+)\.\d{10,20}\.pt\.trace\.json(\.gz|\.zst)?")
"""What `torch.profiler.tensorboard_trace_handler` calls a file: host, process, and the instant it was written."""
_MOST_NAMED: Final = 3


class _Window(Record, frozen=True, kw_only=True):
    """One file as a window of its process."""

    owner: int | str
    """The rank, else the host and process in the file's name."""
    step: int
    """Number of its first step."""
    start_ns: int
    """Of its first step on the host."""
    end_ns: int
    """Of its last step on the host."""
    trace: RankTrace


def choose_window(traces: Sequence[RankTrace], *, step: int | None = None) -> tuple[list[RankTrace], list[str]]:
    """Return the traces of one window, and sentences that say which it is and which others there are.

    Files are windows of one process where they bear one rank (or, without a rank, the name that torch's handler gives
    the files of one process), hold steps of other numbers, and do not overlap in time. Where no process has several,
    all traces are returned, however much else is wrong with them.

    Args:
        traces: All that was read, with their ranks.
        step: First step of the window that is wanted; None for the newest of those that most ranks share.

    Raises:
        UsageError: No window begins at this step.
    """
    windows = [window for trace in traces if (window := _as_window(trace)) is not None]
    if step is None and not _is_repeated(windows):
        return list(traces), []
    by_step: defaultdict[int, list[_Window]] = defaultdict(list)
    for window in windows:
        by_step[window.step].append(window)
    if step is not None and step not in by_step:
        message = f"--window {step}: no trace begins at this step; {_those_there(by_step)}"
        raise UsageError(message)
    chosen = max(by_step, key=lambda first: (len(by_step[first]), first)) if step is None else step
    kept = [window.trace for window in by_step[chosen]]
    others = [_text(first, by_step[first]) for first in sorted(by_step) if first != chosen]
    sentences = [
        f"of {len(traces)} traces those of the window of {_text(chosen, by_step[chosen])} are read; {_named(others)}"
    ] * bool(others)
    left = [trace for trace in traces if not any(trace is window.trace for window in windows)]
    if left:
        paths = ", ".join(trace.path for trace in left[:_MOST_NAMED])
        sentences.append(f"left out, since no steps say which window they are of: {paths}{_more(len(left))}")
    return kept, sentences


def _as_window(trace: RankTrace) -> _Window | None:
    """Return None where no rank or name says whose a trace is, or no step which."""
    owner = trace.rank if trace.rank is not None else _worker(trace.path)
    first: Any = trace.steps[Steps.number].min()
    if owner is None or first is None:
        return None
    start: Any = trace.steps[Steps.start_ns].min()
    end: Any = trace.steps[Steps.end_ns].max()
    return _Window(owner=owner, step=first, start_ns=start, end_ns=end, trace=trace)


def _worker(path: str) -> str | None:
    found = _HANDLERS_NAME.fullmatch(PurePath(path).name)
    return str(PurePath(path).with_name(found["worker"])) if found else None


def _is_repeated(windows: Sequence[_Window]) -> bool:
    """Say whether some process has several windows, and each that does has them one after the other."""
    by_owner: defaultdict[int | str, list[_Window]] = defaultdict(list)
    for window in windows:
        by_owner[window.owner].append(window)
    several = [sorted(each, key=lambda window: window.start_ns) for each in by_owner.values() if len(each) > 1]
    return bool(several) and all(
        earlier.end_ns <= later.start_ns and earlier.step < later.step
        for each in several
        for earlier, later in pairwise(each)
    )


def _text(first: int, windows: Sequence[_Window]) -> str:
    count = len(windows)
    return f"step {first} ({count} file{'s' * (count != 1)})"


def _those_there(by_step: dict[int, list[_Window]]) -> str:
    if not by_step:
        return "none of them says which steps it holds"
    return "there are: " + "; ".join(_text(first, by_step[first]) for first in sorted(by_step))


def _named(others: Sequence[str]) -> str:
    count = "1 other" if len(others) == 1 else f"{len(others)} others"
    last = "; ".join(others[-_MOST_NAMED:])
    listed = f"{count}: {last}" if len(others) <= _MOST_NAMED else f"{count}, the last: {last}"
    return f"{listed}; --window STEP reads another"


def _more(count: int) -> str:
    return f" and {count - _MOST_NAMED} more" if count > _MOST_NAMED else ""
