"""Files of one job -> `Job`: which files, which ranks, read side by side."""

from __future__ import annotations

import gc
import glob
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from scope.errors import TraceError, UsageError
from scope.trace.assemble import Identity, assemble
from scope.trace.model import Job, RankTrace
from scope.trace.ranks import rank_of_metadata, rank_of_name
from scope.trace.reader import NotATraceError, read_trace
from scope.trace.sources import Limits, Source

if TYPE_CHECKING:
    from scope.trace.classes import Pattern

_SUFFIXES: Final = (".json", ".json.gz", ".json.zst")
Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
Progress = Callable[[int, int, str], None]
"""Called with the number of files done, the number of files, and the path of the one just done."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadOptions:
    """How files are read."""

    python_calls: bool = False
    """Read Python frames and modules too; they are most of a trace recorded with stacks."""
    patterns: tuple[Pattern, ...] = ()
    """The user's classes of kernels, before all other rules; see `read_patterns`."""
    limits: Limits | None = None
    """Caps on what a file may unpack to; None takes them from the environment."""


def load(
    paths: Paths,
    *,
    ranks: Mapping[str, int] | None = None,
    options: ReadOptions | None = None,
    processes: int = 1,
    progress: Progress | None = None,
) -> Job:
    """Read the profiler traces of one job.

    Args:
        paths: A file, a folder (its traces, not those of folders in it), a glob, or several of them.
        ranks: Ranks of files that do not say theirs, or say it wrongly: path or file name -> rank.
        options: How to read.
        processes: How many files are read at the same time, each in a process of its own.
        progress: Told after each file.

    Raises:
        TraceError: No trace was found, one cannot be read, or two files claim one rank.
        UsageError: `ranks` names a file that is not among the paths.
        LimitError: A file unpacks to more than its cap.
    """
    files, may_skip = _expand(paths)
    chosen = _chosen_ranks(files, ranks or {})
    traces, warnings = _read_all(files, may_skip, options or ReadOptions(), progress)
    named = _with_ranks(traces, chosen)
    _check_distinct(named)
    ordered = sorted(named, key=lambda trace: (trace.rank is None, trace.rank or 0, trace.path))
    return _job(ordered, warnings)


def load_rank(path: str | os.PathLike[str], *, options: ReadOptions | None = None) -> RankTrace:
    """Read one file.

    Raises:
        TraceError: It cannot be read, or is no trace.
        LimitError: It unpacks to more than its cap.
    """
    options = options or ReadOptions()
    with _without_collector():
        read = read_trace(
            Source(Path(path), limits=options.limits or Limits.from_environment()), python_calls=options.python_calls
        )
        rank = rank_of_metadata(read.metadata)
        if rank is None:
            rank = rank_of_name(str(path))
        label = f"rank {rank}" if rank is not None else "file 1"
        return assemble(read, Identity(label=label, rank=rank, path=str(path)), patterns=options.patterns)


@contextmanager
def _without_collector() -> Iterator[None]:
    """Decoded records hold no cycles; looking for some would cost a fifth of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _expand(paths: Paths) -> tuple[list[Path], set[Path]]:
    """Return the files, and those among them that may be skipped when they turn out to be no traces."""
    given = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    files: dict[Path, None] = {}
    may_skip: set[Path] = set()
    for entry in given:
        found, is_certain = _one_entry(Path(entry))
        for path in found:
            files[path] = None
            if not is_certain:
                may_skip.add(path)
    if not files:
        message = "no path given; name a trace, a folder of traces, or a glob"
        raise UsageError(message)
    return list(files), may_skip


def _one_entry(path: Path) -> tuple[list[Path], bool]:
    if path.is_dir():
        found = sorted(child for child in path.iterdir() if child.is_file() and child.name.endswith(_SUFFIXES))
        if not found:
            message = f"{path}: holds no file that ends in {', '.join(_SUFFIXES)}"
            raise TraceError(message)
        return found, False
    if path.exists():
        return [path], True
    found = sorted(Path(match) for match in glob.glob(str(path), recursive=True) if Path(match).is_file())  # noqa: PTH207 - takes absolute patterns
    if not found:
        message = f"{path}: no such file or folder, and no file matches it as a glob"
        raise TraceError(message)
    return found, False


def _chosen_ranks(files: list[Path], ranks: Mapping[str, int]) -> dict[str, int]:
    chosen: dict[str, int] = {}
    for name, rank in ranks.items():
        matches = [path for path in files if str(path) == name or path.name == name]
        if not matches:
            message = f"--rank {name}={rank}: no such file among those to read"
            raise UsageError(message)
        if len(matches) > 1:
            message = f"--rank {name}={rank}: several files have this name; give the whole path"
            raise UsageError(message)
        if rank < 0:
            message = f"--rank {name}={rank}: a rank is 0 or more"
            raise UsageError(message)
        chosen[str(matches[0])] = rank
    return chosen


def _read_all(
    files: list[Path], may_skip: set[Path], options: ReadOptions, progress: Progress | None
) -> tuple[list[RankTrace], list[str]]:
    traces: list[RankTrace] = []
    warnings: list[str] = []
    for done, path in enumerate(files, start=1):
        try:
            traces.append(load_rank(path, options=options))
        except NotATraceError as error:
            if path not in may_skip:
                raise
            warnings.append(f"skipped {error}")
        if progress is not None:
            progress(done, len(files), str(path))
    if not traces:
        message = "none of the files is a profiler trace: " + "; ".join(warnings)
        raise TraceError(message)
    return traces, warnings


def _with_ranks(traces: list[RankTrace], chosen: dict[str, int]) -> list[RankTrace]:
    named: list[RankTrace] = []
    for number, trace in enumerate(traces, start=1):
        rank = chosen.get(trace.path, trace.rank)
        label = f"rank {rank}" if rank is not None else f"file {number}"
        named.append(replace(trace, rank=rank, label=label))
    return named


def _check_distinct(traces: list[RankTrace]) -> None:
    seen: dict[int, str] = {}
    clashes: list[str] = []
    for trace in traces:
        if trace.rank is None:
            continue
        if trace.rank in seen:
            clashes.append(f"{seen[trace.rank]} and {trace.path} both claim rank {trace.rank}")
        seen.setdefault(trace.rank, trace.path)
    if clashes:
        message = "; ".join(clashes) + "; keep one of them, or say whose trace it is with --rank FILE=N"
        raise TraceError(message)


def _job(traces: list[RankTrace], warnings: list[str]) -> Job:
    sizes = {trace.world_size for trace in traces if trace.world_size is not None}
    if len(sizes) > 1:
        warnings.append(f"the files state different world sizes: {', '.join(map(str, sorted(sizes)))}")
    world_size = max(sizes) if sizes else None
    given = {trace.rank for trace in traces if trace.rank is not None}
    missing = tuple(rank for rank in range(world_size or 0) if rank not in given)
    unknown = [trace.path for trace in traces if trace.rank is None]
    if unknown and len(traces) > 1:
        warnings.append(
            f"no rank is known of {', '.join(unknown)}: left out of what compares ranks; say it with --rank FILE=N"
        )
    with_missing = [
        replace(trace, quality=replace(trace.quality, missing_ranks=missing if trace.rank is not None else ()))
        for trace in traces
    ]
    return Job(ranks=tuple(with_missing), world_size=world_size, missing_ranks=missing, warnings=tuple(warnings))
