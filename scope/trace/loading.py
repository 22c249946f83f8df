"""Files of one job -> `Job`: which files, which ranks, read side by side."""

from __future__ import annotations

import gc
import glob
import os
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import polars as pl
from msgspec.structs import replace

from scope.errors import ScopeError, TraceError, UsageError
from scope.structs import Record
from scope.trace.assemble import Identity, assemble
from scope.trace.cache import Cache
from scope.trace.categories import COLLECTIVE_CATEGORY, NAMED_RANGES, PYTHON_CATEGORY
from scope.trace.deviceevents import OperatorsNeededError
from scope.trace.model import Job, RankTrace
from scope.trace.narrowing import WHOLE, Tables, narrowed, with_needs
from scope.trace.ranks import MOST_RANKS, rank_of_metadata, rank_of_name
from scope.trace.reader import NotATraceError, read_trace
from scope.trace.schema import Annotations, DeviceEvents, PythonCalls
from scope.trace.sources import Limits, Source
from scope.trace.windows import choose_window
from scope.trace.workers import read_side_by_side

if TYPE_CHECKING:
    from scope.trace.classes import Pattern
    from scope.trace.columns import Table

_WORTH_PROCESSES_BYTES: Final = 4 << 20
_COUNTERS: Final = "cuda_profiler_range"
_RANGES: Final = (*NAMED_RANGES, "user_annotation", "gpu_user_annotation", COLLECTIVE_CATEGORY, PYTHON_CATEGORY)
_MOST_NAMED: Final = 3
_SUFFIXES: Final = (".json", ".json.gz", ".json.zst")
_OWN_SUFFIXES: Final = (".capture.json", ".summary.json")
"""Names of what Scope itself lays beside a captured trace."""
Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
Progress = Callable[[int, int, str], None]
"""Called with the number of files done, the number of files, and the path of the one just done."""


class ReadOptions(Record, frozen=True, kw_only=True):
    """How files are read."""

    python_calls: bool = False
    """Read Python frames and modules too; they are most of a trace recorded with stacks."""
    tables: tuple[type[Table], ...] | None = None
    """Which tables of `scope.trace.schema` are wanted; None is all. The others are not read, which is faster, and any
    use of them raises `UsageError`. What a table cannot be made without comes with it: launches with device events, and
    both and operators with collective calls; annotations and steps are always there. A file without device events is
    read whole, since its timeline is made of host records."""
    patterns: tuple[Pattern, ...] = ()
    """The user's classes of kernels, before all other rules; see `read_patterns`."""
    use_cache: bool = True
    """Look for the tables in the user's cache first, and leave them there; `load_rank` never does."""
    limits: Limits | None = None
    """Caps on what a file may unpack to; None takes them from the environment."""


def load(
    paths: Paths,
    *,
    window: int | None = None,
    ranks: Mapping[str, int] | None = None,
    options: ReadOptions | None = None,
    processes: int | None = None,
    progress: Progress | None = None,
) -> Job:
    """Read the profiler traces of one job.

    Where the same ranks recorded several windows of steps, one is read; which, is among the `warnings` of the job.

    Args:
        paths: A file, a folder (its traces, not those of folders in it), a glob, or several of them.
        window: First step of the window that is wanted; None for the newest of those that most ranks share.
        ranks: Ranks of files that do not say theirs, or say it wrongly: path or file name -> rank.
        options: How to read.
        processes: How many files are read at the same time at most, each in a process of its own; None is one a core.
            Few small files are read in this process.
        progress: Told after each file.

    Raises:
        TraceError: No trace was found, one cannot be read, or two files claim one rank.
        UsageError: `ranks` names a file that is not among the paths, or no trace begins at the step `window`.
        LimitError: A file unpacks to more than its cap.
    """
    files, may_skip = expand(paths)
    chosen = _chosen_ranks(files, ranks or {})
    options = options or ReadOptions()
    traces, warnings = _read_all(files, may_skip, options, _Crew(processes, progress))
    owned = [_owned(trace, path, chosen=chosen.get(str(path))) for path, trace in traces.items()]
    kept, sentences = choose_window(owned, step=window)
    warnings += sentences
    named = [_labelled(trace, number) for number, trace in enumerate(kept, start=1)]
    _check_distinct(named)
    ordered = sorted(named, key=lambda trace: (trace.rank is None, trace.rank or 0, trace.path))
    return _job(ordered, warnings)


def load_rank(path: str | os.PathLike[str], *, options: ReadOptions | None = None) -> RankTrace:
    """Read one file in this process, without the cache.

    Raises:
        TraceError: It cannot be read, or is no trace.
        LimitError: It unpacks to more than its cap.
    """
    return _labelled(_owned(read_file(Path(path), options or ReadOptions()), Path(path)), 1)


def read_file(path: Path, options: ReadOptions) -> RankTrace:
    """Read one file; its rank is what the trace says, None where it does not.

    Raises:
        TraceError: It cannot be read, or is no trace.
        LimitError: It unpacks to more than its cap.
    """
    limits = options.limits or Limits.from_environment()
    loaded = tables_of(options)
    with _without_collector():
        if options.tables is None:
            return _read_tables(path, options, limits, loaded)
        try:
            trace = _read_tables(path, options, limits, loaded)
        except OperatorsNeededError:
            return _as_asked(_read_tables(path, options, limits, WHOLE), loaded)
        if trace.is_host_timeline and DeviceEvents in loaded:
            return _read_tables(path, options, limits, WHOLE)
        return trace


def _as_asked(trace: RankTrace, loaded: Tables) -> RankTrace:
    """Return a whole trace as if only some tables had been read; a host timeline stays whole."""
    is_whole = loaded == WHOLE or (trace.is_host_timeline and DeviceEvents in loaded)
    return trace if is_whole else narrowed(trace, loaded)


def tables_of(options: ReadOptions) -> Tables:
    """Return the tables that a reading with some options makes.

    Raises:
        UsageError: What stands among `tables` is no table.
    """
    return WHOLE if options.tables is None else with_needs(options.tables)


def _with_python_calls(options: ReadOptions) -> bool:
    return options.python_calls or (options.tables is not None and PythonCalls in options.tables)


def _read_tables(path: Path, options: ReadOptions, limits: Limits, loaded: Tables) -> RankTrace:
    wanted = loaded if _with_python_calls(options) else loaded - {PythonCalls}
    read = read_trace(Source(path, limits=limits), loaded=wanted)
    identity = Identity(label="", rank=rank_of_metadata(read.metadata), path=str(path))
    return assemble(read, identity, patterns=options.patterns, loaded=loaded)


def _owned(trace: RankTrace, path: Path, *, chosen: int | None = None) -> RankTrace:
    """Give a trace its rank: the user's word, else the trace's, else the file name's."""
    rank = chosen
    if rank is None:
        rank = trace.rank if trace.rank is not None else rank_of_name(str(path))
    return replace(trace, rank=rank, path=str(path))


def _labelled(trace: RankTrace, number: int) -> RankTrace:
    return replace(trace, label=f"rank {trace.rank}" if trace.rank is not None else f"file {number}")


@contextmanager
def _without_collector() -> Generator[None]:
    """Decoded records hold no cycles; looking for some would cost a fifth of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def expand(paths: Paths) -> tuple[list[Path], set[Path]]:
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
        found = sorted(child for child in path.iterdir() if _may_be_trace(child) and not child.is_dir())
        odd = next((child for child in found if not child.is_file()), None)
        if odd is not None:
            # Left out in silence, it would be a rank that nobody misses; opened, a pipe may never end.
            message = f"{odd}: is no regular file but, say, a pipe or a link to nothing; take it out of the folder"
            raise TraceError(message)
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
    return [match for match in found if not match.name.endswith(_OWN_SUFFIXES)] or found, False


def _may_be_trace(path: Path) -> bool:
    return path.name.endswith(_SUFFIXES) and not path.name.endswith(_OWN_SUFFIXES)


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
        if not 0 <= rank < MOST_RANKS:
            message = f"--rank {name}={rank}: a rank is 0 or more, and below {MOST_RANKS:,}"
            raise UsageError(message)
        chosen[str(matches[0])] = rank
    return chosen


class _Crew(Record, frozen=True):
    """Who reads, and who is told."""

    processes: int | None
    progress: Progress | None

    def size(self, files: Sequence[Path]) -> int:
        """Return how many processes are worth their start."""
        if len(files) < 2 or sum(path.stat().st_size for path in files) < _WORTH_PROCESSES_BYTES:
            return 1
        return self.processes if self.processes is not None else len(os.sched_getaffinity(0))


def _read_all(
    files: list[Path], may_skip: set[Path], options: ReadOptions, crew: _Crew
) -> tuple[dict[Path, RankTrace], list[str]]:
    cache = Cache.of_user() if options.use_cache else None
    results: dict[Path, RankTrace | ScopeError] = {}
    keys: dict[Path, str | None] = {}

    def done(path: Path) -> None:
        if crew.progress is not None:
            crew.progress(len(results), len(files), str(path))

    loaded = tables_of(options)
    with_python = _with_python_calls(options)
    for path in files:
        if cache is None:
            break
        keys[path] = cache.key(path, python_calls=with_python, patterns=options.patterns)
        key = keys[path]
        known = cache.get(key) if key is not None else None
        if known is not None:
            results[path] = _as_asked(known, loaded)
            done(path)
    missing = [path for path in files if path not in results]
    for path, result in _read_missing(missing, options, crew):
        results[path] = result
        key = keys.get(path)
        if cache is not None and key is not None and not isinstance(result, ScopeError) and not result.not_loaded:
            cache.put_aside(key, result)
        done(path)
    return _sifted(files, results, may_skip)


def _read_missing(
    files: list[Path], options: ReadOptions, crew: _Crew
) -> Iterator[tuple[Path, RankTrace | ScopeError]]:
    processes = crew.size(files)
    if processes > 1:
        yield from read_side_by_side(files, options, processes=processes)
        return
    for path in files:
        try:
            yield path, read_file(path, options)
        except ScopeError as error:
            yield path, error


def _sifted(
    files: list[Path], results: dict[Path, RankTrace | ScopeError], may_skip: set[Path]
) -> tuple[dict[Path, RankTrace], list[str]]:
    """Leave out what is no trace, and raise what else went wrong."""
    traces: dict[Path, RankTrace] = {}
    warnings: list[str] = []
    for path in files:
        result = results[path]
        if not isinstance(result, ScopeError):
            traces[path] = result
        elif isinstance(result, NotATraceError) and path in may_skip:
            warnings.append(f"skipped {result}")
        else:
            raise result
    if not traces:
        message = "none of the files is a profiler trace: " + "; ".join(warnings)
        raise TraceError(message)
    return traces, warnings


def _check_distinct(traces: list[RankTrace]) -> None:
    claims: dict[int, list[str]] = {}
    for trace in traces:
        if trace.rank is not None:
            claims.setdefault(trace.rank, []).append(trace.path)
    clashes = [
        f"{files[0]} and {files[1]} both claim rank {rank}{f' ({len(files) - 2} more too)' * (len(files) > 2)}"
        for rank, files in claims.items()
        if len(files) > 1
    ]
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
        replace(
            trace,
            quality=replace(trace.quality, missing_ranks=missing if trace.rank is not None else ()),
        )
        for trace in traces
    ]
    warnings += [
        f"{trace.path}: holds the records of {trace.num_processes} processes; what is said of operators, launches and "
        "steps mixes them: give the file of each rank, not a merged one"
        for trace in traces
        if trace.num_processes > 1
    ]
    warnings += [
        f"{trace.path}: says it is rank {trace.rank} of {trace.world_size}, which cannot be"
        for trace in traces
        if trace.rank is not None and trace.world_size is not None and trace.rank >= trace.world_size
    ]
    warnings += [
        f"{trace.path}: holds {number:,} ranges of hardware counters (cuda_profiler_range), whose values are not read"
        for trace in traces
        if (number := int((trace.annotations[Annotations.category] == _COUNTERS).sum()))
    ]
    warnings += [warning for trace in traces if (warning := _of_unknown_categories(trace)) is not None]
    return Job(ranks=tuple(with_missing), world_size=world_size, missing_ranks=missing, warnings=tuple(warnings))


def _of_unknown_categories(trace: RankTrace) -> str | None:
    """Say of a file without device events that it holds records which may be some, as other profilers write them."""
    if "device_events" in trace.not_loaded or trace.device_events.height:
        return None
    categories = trace.annotations[Annotations.category].cast(pl.String)
    unknown = categories.filter(~categories.is_in(_RANGES).fill_null(value=False))
    if unknown.is_empty():
        return None
    number = len(unknown)
    named = sorted({repr(category) if category else "none" for category in unknown.unique()})
    shown = ", ".join(named[:_MOST_NAMED]) + ", ..." * (len(named) > _MOST_NAMED)
    return (
        f"{trace.path}: has no device events, but {number:,} record{'s' * (number != 1)} of a category that "
        f"torch.profiler does not write (category: {shown}), which count as no work; give the trace that it exports"
    )
