"""Which traces a command reads where a recorded run is named: those of one profiler window."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from scope.errors import InputError, UsageError
from scope.report.nearby import TRACE_SUFFIXES, where_traces_lie
from scope.run import paths as run_paths

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from scope.run.reader import Trace

_SHOWN_PROBLEMS: Final = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class _Window:
    """One profiler window of a run."""

    attempt: int
    traces: list[Trace]

    @property
    def step(self) -> int:
        """Its first step."""
        from scope.run.captured import first_step_of

        return first_step_of(self.traces)

    def text(self, *, with_attempt: bool) -> str:
        """Return how it is called."""
        from scope.report.sections.quality import format_ranks

        ranks = format_ranks(tuple(trace.info.rank for trace in self.traces))
        attempt = f"attempt {self.attempt}, " if with_attempt else ""
        return f"{attempt}step {self.step} (rank{'s' if len(self.traces) > 1 else ''} {ranks})"


def choose_traces(
    paths: Sequence[str], *, step: int | None = None, option: str = "--window STEP"
) -> tuple[list[str], list[str]]:
    """Return the traces to read, and sentences that say which windows of recorded runs they are.

    A run directory, one of its attempts, a rank's folder or its `traces` stands for the newest of the windows that most
    ranks share. Other paths are returned as they are.

    Args:
        paths: What the user named.
        step: First step of the window of a run that is wanted; None for the newest. Where no path is a run, the reader
            of the traces looks for it.
        option: What the user's command calls the option that names this step.

    Raises:
        InputError: A run holds no window, or a folder holds no trace while folders in it do.
        UsageError: No window of a run begins at that step.
    """
    chosen: list[str] = []
    sentences: list[str] = []
    for path in paths:
        folders = list(_trace_folders(Path(path)))
        if not folders:
            _check_is_no_shelf(path)
            chosen.append(path)
            continue
        windows, problems = _windows(folders)
        if not windows and problems:
            message = f"{path}: none of its profiler windows can be read: {'; '.join(problems[:_SHOWN_PROBLEMS])}"
            raise InputError(message)
        window, sentence = _choose(path, windows, step, option=option)
        chosen += [str(trace.path) for trace in window.traces]
        sentences += [
            sentence,
            *_say_missing(Path(path), window),
            *(f"{problem}; the other windows are read" for problem in problems),
        ]
    return chosen, sentences


def _check_is_no_shelf(path: str) -> None:
    """Raise `InputError` for a folder that holds traces or runs in folders of its own only."""
    within = where_traces_lie(Path(path)) if Path(path).is_dir() else None
    if within is not None:
        message = f"{path}: holds no trace itself; {within}"
        raise InputError(message)


def _say_missing(run: Path, window: _Window) -> list[str]:
    """Return what the run knows of ranks that a window lacks: the slowest is seldom the one that was profiled."""
    from scope.report.recorded_slowest import WAITING_IS_NO_BUCKET, read_slowest

    recorded = read_slowest(run, window.attempt)
    missing = 0 if recorded is None else recorded.num_ranks - len({trace.info.rank for trace in window.traces})
    if recorded is None or missing <= 0:
        return []
    lacks = f"the window lacks {missing} of {recorded.num_ranks} ranks (scope run --capture-ranks all takes them)"
    if recorded.slowest is None:
        return [f"{lacks}: what is found below holds for the others"]
    return [
        f"{lacks}, and by the records of all steps {recorded.slowest}: look at that first (scope show {run}); "
        f"{WAITING_IS_NO_BUCKET}"
    ]


def _trace_folders(path: Path) -> Iterator[tuple[int, Path]]:
    """Yield attempt and folder of a recorded run's traces at or below a path; none for any other path."""
    if not path.is_dir():
        return
    attempts = run_paths.list_attempts(path)
    if attempts:
        for attempt in attempts:
            yield from _of_ranks(attempt, run_paths.attempt_folder(path, attempt) / "ranks")
    elif _trace_names(path) == {run_paths.RUN_FILE}:
        # A run that no rank has begun is one all the same.
        yield 0, path / run_paths.TRACES_FOLDER
    elif path.resolve().name.startswith("attempt-") and (path / "ranks").is_dir():
        yield from _of_ranks(0, path / "ranks")
    elif (path / run_paths.RANK_FILE).is_file():
        yield 0, path / run_paths.TRACES_FOLDER
    elif (path.resolve().parent / run_paths.RANK_FILE).is_file() or _describes_all(path):
        yield 0, path


def _of_ranks(attempt: int, folder: Path) -> Iterator[tuple[int, Path]]:
    # A link is not followed: what a run directory holds must not lead out of it.
    real = folder.is_dir() and not folder.is_symlink()
    for child in (each for each in sorted(folder.iterdir()) if not each.is_symlink()) if real else ():
        yield attempt, child / run_paths.TRACES_FOLDER


def _trace_names(folder: Path) -> set[str]:
    return {child.name for child in folder.iterdir() if child.name.endswith(TRACE_SUFFIXES)}


def _describes_all(folder: Path) -> bool:
    """Return whether every trace of a folder is a window that Scope captured, as in a copy of a rank's traces."""
    from scope.run.reader import CAPTURE_SUFFIX, read_traces
    from scope.run.summaries import SUMMARY_SUFFIX

    names = _trace_names(folder)
    if not any(name.endswith(CAPTURE_SUFFIX) for name in names):
        return False
    traces = {name for name in names if not name.endswith((CAPTURE_SUFFIX, SUMMARY_SUFFIX))}
    return bool(traces) and traces == {trace.path.name for trace in read_traces(folder)[0]}


def _windows(folders: Sequence[tuple[int, Path]]) -> tuple[list[_Window], list[str]]:
    """Return all windows, the oldest first, and what is wrong with those that cannot be read."""
    from scope.run.captured import group_windows
    from scope.run.reader import read_traces

    by_attempt: dict[int, list[Trace]] = {}
    problems: list[str] = []
    for attempt, folder in folders:
        found, torn = read_traces(folder)
        by_attempt.setdefault(attempt, []).extend(found)
        problems += torn
    windows = [
        _Window(attempt=attempt, traces=traces)
        for attempt, found in sorted(by_attempt.items())
        for traces in group_windows(found)
    ]
    return windows, problems


def _choose(path: str, windows: Sequence[_Window], step: int | None, *, option: str) -> tuple[_Window, str]:
    from scope.report.inert import visible
    from scope.run.captured import choose_newest

    if not windows:
        message = (
            f"{path}: is a recorded run without a profiler window; unasked, scope run takes the first after 400 s, or "
            "after 40 s with SCOPE_CAPTURE_BUDGET=0.05; touch RUN/capture.request asks for one while it trains"
        )
        raise InputError(message)
    with_attempt = len({window.attempt for window in windows}) > 1
    fitting = [window for window in windows if step is None or window.step == step]
    if not fitting:
        there = "; ".join(window.text(with_attempt=with_attempt) for window in windows)
        message = f"{option.partition(' ')[0]} {step}: no window of {path} begins at this step; there are: {there}"
        raise UsageError(message)
    chosen = fitting[choose_newest([window.traces for window in fitting])]
    others = [window.text(with_attempt=with_attempt) for window in windows if window is not chosen]
    sentence = f"{visible(path)}: the profiler window of {chosen.text(with_attempt=with_attempt)}"
    if not others:
        return chosen, f"{sentence}, the only one"
    return chosen, f"{sentence}; {_others(others)}, {option} reads another"


def _others(names: Sequence[str]) -> str:
    shown = "; ".join(names[-3:])
    count = "1 other" if len(names) == 1 else f"{len(names)} others"
    return f"{count}: {shown}" if len(names) <= 3 else f"{count} (scope show lists them), the last: {shown}"
