"""What lies around a folder that a command cannot read: the folders that were meant, most likely."""

from __future__ import annotations

import os
import shlex
from itertools import islice
from typing import TYPE_CHECKING, Final

from scope.errors import RunError
from scope.run import paths as run_paths

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from scope.frames import Run

TRACE_SUFFIXES: Final = (".json", ".json.gz", ".json.zst")
"""How the names of traces end."""
_OWN_SUFFIXES: Final = (".capture.json", ".summary.json")
"""Names of what Scope itself lays beside a captured trace."""
_DEPTH: Final = 2
_MOST_FOLDERS: Final = 500
"""Folders that are looked into; a home or a file system of a cluster holds many more."""
_MOST_NAMED: Final = 4


def where_traces_lie(folder: Path) -> str | None:
    """Return in words which folder with traces was meant by one without; None where it holds some, or nothing tells.

    It may be a part of a run, or hold folders with traces and runs (two levels deep, in the first 500 folders).
    """
    if _holds_traces(folder):
        return None
    whole = _run_around(folder)
    if whole is not None:
        return f"it is a part of the run {whole}; name that"
    runs, traces = _found_in(folder)
    parts = [f"folders in it with traces: {_listed(folder, traces)}"] * bool(traces)
    parts += [f"recorded runs in it: {_listed(folder, runs)}"] * bool(runs)
    if not parts:
        return None
    together = _name_all(folder, traces) if len(traces) > 1 else None
    all_of_them = f", or all that are ranks of one job: {together}" if together is not None else ""
    return f"{'; '.join(parts)}; name one of them{all_of_them}"


def where_runs_lie(folder: Path) -> str | None:
    """Return in words which run directory was meant by a folder that is none; None where nothing tells.

    It may be a part of a run, hold runs (two levels deep, in the first 500 folders), or hold traces.
    """
    whole = _run_around(folder)
    if whole is not None:
        return f"it is a part of the run {whole}; name that"
    runs, traces = _found_in(folder)
    if runs:
        return f"runs in it: {_listed(folder, runs)}; name one of them"
    if _holds_traces(folder):
        return f"it holds traces: scope analyze {folder} reads them"
    return f"folders in it hold traces, which scope analyze reads: {_listed(folder, traces)}" if traces else None


def open_run_near(folder: Path) -> Run:
    """Open a run directory.

    Raises:
        RunError: It is none; the message says which lies around it.
    """
    from scope.frames import open_run

    try:
        return open_run(folder)
    except RunError as error:
        within = where_runs_lie(folder)
        if within is None:
            raise
        message = f"{error}; {within}"
        raise RunError(message) from error


def _name_all(folder: Path, found: list[Path]) -> str | None:
    """Return what names all of these folders in a shell; None where that is long.

    It is a pattern where one matches them and no other folders. Files beside them are left out by its last slash.
    """
    depths = {len(each.relative_to(folder).parts) for each in found}
    pattern = "/".join("*" * min(depths)) + "/"
    # One more than are looked into: a pattern that matches others behind them must not look as if it did not.
    matches = islice(folder.glob(pattern), _MOST_FOLDERS + 1)
    seen = {each for each in matches if not _is_hidden(each.relative_to(folder))}
    if len(depths) == 1 and seen == set(found):
        return f"{shlex.quote(str(folder))}/{pattern}"
    return " ".join(shlex.quote(str(each)) for each in found) if len(found) <= _MOST_NAMED else None


def _is_hidden(path: Path) -> bool:
    """Return whether a pattern of a shell leaves it out."""
    return any(part.startswith(".") for part in path.parts)


def _run_around(folder: Path) -> Path | None:
    return next((parent for parent in folder.absolute().parents if _is_run(parent)), None)


def _found_in(folder: Path) -> tuple[list[Path], list[Path]]:
    """Return the runs and the other folders with traces in a folder; nothing within a run is looked at."""
    runs: list[Path] = []
    traces: list[Path] = []
    level, num_seen = [folder], 0
    for _ in range(_DEPTH):
        below: list[Path] = []
        for child in (child for parent in level for child in _folders(parent)):
            num_seen += 1
            if num_seen > _MOST_FOLDERS:
                return runs, traces
            if _is_run(child):
                runs.append(child)
                continue
            if _holds_traces(child):
                traces.append(child)
            below.append(child)
        level = below
    return runs, traces


def _folders(parent: Path) -> Iterator[Path]:
    try:
        with os.scandir(parent) as entries:
            names = sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    except OSError:
        return
    yield from (parent / name for name in names)


def _is_run(folder: Path) -> bool:
    try:
        return (folder / run_paths.RUN_FILE).is_file() or bool(run_paths.list_attempts(folder))
    except OSError:
        return False


def _holds_traces(folder: Path) -> bool:
    try:
        with os.scandir(folder) as entries:
            return any(
                entry.name.endswith(TRACE_SUFFIXES) and not entry.name.endswith(_OWN_SUFFIXES) and entry.is_file()
                for entry in entries
            )
    except OSError:
        return False


def _listed(folder: Path, found: list[Path]) -> str:
    names = ", ".join(str(each.relative_to(folder)) for each in found[:_MOST_NAMED])
    return f"{names} and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else names
