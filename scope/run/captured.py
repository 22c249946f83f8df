"""Captured profiler windows: which traces of several ranks belong together."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from scope.run.reader import Trace


def group_windows(traces: Iterable[Trace]) -> list[list[Trace]]:
    """Return the traces of one attempt, those of one window together by rank, the windows in the order of time.

    Two traces belong to one window when different ranks recorded them at overlapping times.
    """
    windows: list[list[Trace]] = []
    for trace in sorted(traces, key=lambda each: (each.info.start_ns, each.info.rank)):
        fitting = next((window for window in windows if _overlaps(trace, window)), None)
        if fitting is None:
            windows.append([trace])
        else:
            fitting.append(trace)
    return [sorted(window, key=lambda each: each.info.rank) for window in windows]


def first_step_of(window: Sequence[Trace]) -> int:
    """Return the number by which a window is called: its first step on the rank that began first."""
    return min(trace.info.first_step for trace in window)


def choose_newest(windows: Sequence[Sequence[Trace]]) -> int:
    """Return the place of the newest of the windows that most ranks share: the one that is read unasked.

    Args:
        windows: In the order of attempts and time, at least one.
    """
    return max(range(len(windows)), key=lambda place: (len(windows[place]), place))


def _overlaps(trace: Trace, window: Sequence[Trace]) -> bool:
    return all(trace.info.rank != other.info.rank and trace.info.start_ns < other.info.end_ns for other in window)
