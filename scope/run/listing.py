"""Runs in a folder: listed, labelled, deleted."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from scope.errors import RunError, UsageError
from scope.run import paths
from scope.run.alive import find_fate, find_signs, has_ended
from scope.run.files import open_regular, replace_document
from scope.run.reader import RankReader, RunReader, read_run_info
from scope.run.removal import remove_run_files
from scope.run.schema import StepLine, StepSummary
from scope.units import NS_PER_S

if TYPE_CHECKING:
    from pathlib import Path

    from scope.run.blackbox import BlackBoxState
    from scope.run.schema import RunInfo

_GONE_NS: Final = 5 * NS_PER_S
"""Silence after which the word of the table of processes is taken, which knows no process of another container."""
_TAIL_BYTES: Final = 1 << 20
"""What is read of a file of steps to find the last one."""


@dataclass(frozen=True, kw_only=True)
class RunEntry:
    """One run directory.

    Attributes:
        path: The folder.
        info: What `run.json` says.
        attempts: Number of attempts.
        ranks: Ranks of the last attempt that have recorded anything.
        last_step: Last step that a rank of the last attempt has ended and written; absent before the first.
        last_step_ns: When the last one of any rank ended; absent before the first.
        usual_ns: Length of that step, the mean of those that were folded into one line with it.
        unrecorded: Why it has no rank in any attempt, where its command has ended; None of a run that has one, or may.
        ended: Every rank of the last attempt has ended: it closed its recording, or a signal to the job ended it.
        num_bytes: Size of all files.
    """

    path: Path
    info: RunInfo
    attempts: int
    ranks: int
    last_step: int | None
    last_step_ns: int | None
    usual_ns: int | None
    unrecorded: str | None
    ended: bool
    num_bytes: int


def list_runs(folder: Path) -> tuple[list[RunEntry], list[str]]:
    """Return the runs below a folder (or the folder itself), the latest last, and what could not be read.

    Raises:
        RunError: There is no such folder, or it cannot be read.
    """
    if not folder.is_dir():
        message = f"{folder}: there is no such folder"
        raise RunError(message)
    found: list[RunEntry] = []
    problems: list[str] = []
    for path in _candidates(folder):
        try:
            found.append(_describe(path))
        except RunError as error:
            problems.append(str(error))
    return sorted(found, key=lambda entry: entry.info.started_ns), problems


def _candidates(folder: Path) -> list[Path]:
    """Return what may be a run: a folder that holds `run.json`, or one that cannot be looked into."""
    if os.path.lexists(folder / paths.RUN_FILE):
        return [folder]
    try:
        inside = sorted(folder.iterdir())
    except OSError as error:
        message = f"{folder}: cannot be read ({error.strerror})"
        raise RunError(message) from error
    return [path for path in inside if os.path.isfile(path / paths.RUN_FILE) or _is_closed(path)]  # noqa: PTH113


def _is_closed(path: Path) -> bool:
    return os.path.isdir(path) and not os.access(path, os.X_OK)  # noqa: PTH112 - Path's own may raise


def tag_run(run: Path, tags: dict[str, str]) -> RunInfo:
    """Add tags to a run (an empty value removes one) and return what `run.json` says now.

    Raises:
        RunError: It is no run directory, or cannot be written.
    """
    info = read_run_info(run)
    kept = {name: value for name, value in {**info.tags, **tags}.items() if value}
    info = msgspec.structs.replace(info, tags=kept)
    try:
        replace_document(run / paths.RUN_FILE, msgspec.json.encode(info))
    except OSError as error:
        message = f"{run / paths.RUN_FILE}: cannot be written ({error.strerror})"
        raise RunError(message) from error
    return info


def delete_run(run: Path, *, force: bool = False) -> tuple[int, list[str]]:
    """Delete what was recorded in a run directory; files of others stay.

    Returns:
        The bytes that are gone, and the names of what lies in the folder besides and stays.

    Raises:
        RunError: It is no run directory, is a link, or cannot be deleted.
        UsageError: A rank of it has not ended, nor is its process known to be gone, and `force` was not given.
    """
    if run.is_symlink():
        message = f"{run}: is a link; name the run directory itself"
        raise RunError(message)
    entry = _describe(run)
    why = None if force or entry.ended else _why_open(run)
    if why is not None:
        message = f"{run}: {why}; stop the run, or delete it with --force"
        raise UsageError(message)
    try:
        left = remove_run_files(run)
    except OSError as error:
        message = f"{run}: cannot be deleted ({error.strerror})"
        raise RunError(message) from error
    return entry.num_bytes - (_size(run) if left else 0), left


def _why_open(run: Path) -> str | None:
    """Return why ranks of the last attempt may still write; None where all have ended or their processes are gone."""
    unknown: list[str] = []
    for rank in RunReader(run).ranks():
        try:
            info = rank.info()
        except RunError:
            unknown.append(f"how {rank.folder.name} stands cannot be read")
            continue
        box = _state(rank)
        if has_ended(info, box):
            continue
        fate = find_fate(info)
        is_silent = time.time_ns() - max(find_signs(info, box)) > _GONE_NS
        if fate is False and is_silent:
            continue
        if fate is None:
            unknown.append(f"rank {info.rank} has not ended on record, and only its host {info.host} knows if it lives")
        else:
            return f"rank {info.rank} has not ended" + ("" if fate else ": its last sign of life is a few seconds old")
    return unknown[0] if unknown else None


def _describe(path: Path) -> RunEntry:
    info = read_run_info(path)
    reader = RunReader(path)
    attempts, ranks = reader.attempts(), reader.ranks()
    num_ended = sum(_has_ended(rank) for rank in ranks)
    lines = [line for rank in ranks if (line := _last_line(rank)) is not None]
    latest = max(lines, key=lambda line: line.end_ns, default=None)
    return RunEntry(
        path=path,
        info=info,
        attempts=len(attempts),
        ranks=len(ranks),
        last_step=max(map(_number, lines), default=None),
        last_step_ns=None if latest is None else latest.end_ns,
        usual_ns=None if latest is None else _length_ns(latest),
        unrecorded=None if any(reader.ranks(attempt) for attempt in attempts) else info.unrecorded,
        ended=bool(ranks) and num_ended == len(ranks),
        num_bytes=_size(path),
    )


def _last_line(rank: RankReader) -> StepLine | None:
    """Return what a rank has written last of its steps, from the end of its file; None where that cannot be told.

    The black box names the step in progress, which after the last step may be one that never was.
    """
    try:
        with open(open_regular(rank.folder / paths.STEPS_FILE), "rb") as file:  # noqa: PTH123 - takes a descriptor
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
            lines = file.read(_TAIL_BYTES).split(b"\n")[:-1]
    except (OSError, RunError):
        return None
    for line in reversed(lines):
        try:
            return msgspec.json.decode(line, type=StepLine)
        except (msgspec.MsgspecError, RecursionError):
            continue
    return None


def _number(line: StepLine) -> int:
    return line.last_step if isinstance(line, StepSummary) else line.step


def _length_ns(line: StepLine) -> int:
    if isinstance(line, StepSummary):
        return line.duration_ns // max(1, line.num_steps)
    return max(0, line.end_ns - line.start_ns)


def _has_ended(rank: RankReader) -> bool:
    try:
        return has_ended(rank.info(), _state(rank))
    except RunError:
        return False


def _state(rank: RankReader) -> BlackBoxState | None:
    try:
        return rank.state(with_ring=False)
    except RunError:
        return None


def _size(path: Path) -> int:
    total = 0
    for folder, _, names in os.walk(path):
        for name in names:
            try:
                total += os.lstat(os.path.join(folder, name)).st_size  # noqa: PTH118
            except OSError:
                continue
    return total
