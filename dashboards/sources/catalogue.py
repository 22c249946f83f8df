"""The list of what this server may show: a link carries an id from it, never a path or an address."""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal
from urllib.parse import urlsplit

from scope.errors import InputError, LimitError, RunError, ScopeError
from scope.run.captured import first_step_of, group_windows
from scope.run.reader import RunReader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from scope.run.reader import Trace

SourceKind = Literal["run", "trace", "prometheus"]

TRACE_SUFFIXES: Final = (".json", ".json.gz", ".json.zst")
MAX_SOURCES: Final = 1_000
MAX_DEPTH: Final = 3
_ID_LENGTH: Final = 12
_ADDRESSES: Final = ("http://", "https://")
_REST_S: Final = 5.0
_REST_FACTOR: Final = 50.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """Something that the pages can show.

    Attributes:
        source_id: Stable name in links: a digest of kind and place, so it neither tells nor takes a path.
        kind: What it is.
        label: Name for people; comes from the file system, so it is escaped wherever it is shown.
        place: Absolute path, or the address of a Prometheus server.
        files: For a window that a run captured: its traces, one a rank. Empty for what holds its own files.
        run_id: `source_id` of the run that captured it.
    """

    source_id: str
    kind: SourceKind
    label: str
    place: str
    files: tuple[str, ...] = ()
    run_id: str | None = None


def find_sources(places: Sequence[str]) -> tuple[Source, ...]:
    """Return everything that can be shown below the given paths and addresses.

    A folder with a `run.json` is a run, followed by the windows that it captured; any other folder is searched, three
    levels deep, for runs and for folders of traces; a file is a trace; an address is a Prometheus server. Symbolic
    links are not followed.

    Args:
        places: Paths and `http(s)://` addresses, in the order in which they shall be listed.

    Raises:
        InputError: A path does not exist, or an address names no host.
        LimitError: More than 1,000 sources.
    """
    found: dict[str, Source] = {}
    for place in places:
        for source in _sources_of(place):
            found.setdefault(source.source_id, source)
            if len(found) > MAX_SOURCES:
                message = f"{place} holds more than {MAX_SOURCES} runs and traces; name the ones to show"
                raise LimitError(message)
    return tuple(found.values())


def _sources_of(place: str) -> Iterator[Source]:
    if place.startswith(_ADDRESSES):
        yield _prometheus(place)
        return
    path = Path(place)
    if not path.exists():
        message = f"{place} does not exist: give a run directory, a trace, a folder of them, or http://HOST:PORT"
        raise InputError(message)
    root = path.resolve()
    if root.is_file():
        yield _source("trace", root, root.name)
    else:
        yield from _search(root, root, depth=0)


def _prometheus(address: str) -> Source:
    hostname, port = None, None
    with contextlib.suppress(ValueError):
        parts = urlsplit(address)
        hostname, port = parts.hostname, parts.port
    if not hostname:
        message = f"{address} names no host, or no port: an address looks like http://localhost:9090"
        raise InputError(message)
    # A password in the address must not reach a page.
    label = hostname if port is None else f"{hostname}:{port}"
    return Source(source_id=_digest("prometheus", address), kind="prometheus", label=label, place=address.rstrip("/"))


def _search(folder: Path, root: Path, *, depth: int) -> Iterator[Source]:
    if _is_run(folder):
        run = _source("run", folder, folder.name)
        yield run
        yield from _windows(run, folder)
        return
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError as error:
        if folder != root:
            # One folder that is closed to this user does not hide the others.
            return
        message = f"{folder} cannot be listed: {error.strerror}"
        raise InputError(message) from error
    if any(_is_trace(entry) for entry in entries):
        yield _source("trace", folder, folder.name if folder != root else root.name)
    if depth < MAX_DEPTH:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False) and not entry.name.startswith("."):
                yield from _search(Path(entry.path), root, depth=depth + 1)


def _is_run(folder: Path) -> bool:
    try:
        return (folder / "run.json").is_file()
    except OSError:
        return False


def _windows(run: Source, folder: Path) -> Iterator[Source]:
    """Yield one source for each window of a run; what ranks recorded at the same time is one window."""
    from scope.analysis.doctor.diagnosis import describe_ranks  # loads the analyses, which only a run needs

    windows = find_windows(folder)
    steps = Counter(first_step_of(traces) for traces in windows)
    for traces in windows:
        step = first_step_of(traces)
        # An attempt may make a step again that an earlier one has a window of.
        attempt = f" of {traces[0].path.parents[3].name}" if steps[step] > 1 else ""
        ranks = describe_ranks([trace.info.rank for trace in traces])
        yield Source(
            source_id=_digest("window", f"{folder}\0{traces[0].path}"),
            kind="trace",
            label=f"{folder.name}: window of step {step}{attempt}, {ranks}",
            place=str(folder),
            files=tuple(str(trace.path) for trace in traces),
            run_id=run.source_id,
        )


def find_windows(run: Path) -> list[list[Trace]]:
    """Return the captured traces of a run, those of one window together, in the order of time.

    A rank whose descriptions cannot be read is left out here; the page on data quality names its files.
    """
    windows: list[list[Trace]] = []
    reader = RunReader(run)
    for attempt in reader.attempts():
        traces: list[Trace] = []
        for rank in reader.ranks(attempt):
            with contextlib.suppress(RunError):
                traces += rank.traces()
        windows += group_windows(traces)
    return windows


def _is_trace(entry: os.DirEntry[str]) -> bool:
    return entry.name.endswith(TRACE_SUFFIXES) and entry.is_file(follow_symlinks=False)


def _source(kind: SourceKind, path: Path, label: str) -> Source:
    return Source(source_id=_digest(kind, str(path)), kind=kind, label=label, place=str(path))


def _digest(kind: str, place: str) -> str:
    return hashlib.sha256(f"{kind}\0{place}".encode(errors="surrogateescape")).hexdigest()[:_ID_LENGTH]


class SourceList:
    """The sources of a server, looked for again now and then, and never while a visitor waits.

    Args:
        places: As for `find_sources`.
        rest_s: Shortest time between two looks; after a long one it is 50 times as long as that took.
        clock: Seconds, monotonic.
    """

    def __init__(
        self, places: Sequence[str], *, rest_s: float = _REST_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._places = places
        self._rest_s = rest_s
        self._clock = clock
        self._found: tuple[Source, ...] | ScopeError | None = None
        self._rest_until = 0.0
        self._lock = threading.Lock()

    def now(self) -> tuple[Source, ...]:
        """Return what was found last; the first call looks itself, later ones let a thread look.

        Raises:
            ScopeError: As for `find_sources`, at the last look.
        """
        if self._found is None:
            self._look()
        elif self._clock() >= self._rest_until:
            threading.Thread(target=self._look, name="scope-sources", daemon=True).start()
        found = self._found
        assert found is not None
        if isinstance(found, ScopeError):
            raise found
        return found

    def _present(self) -> list[str]:
        """Return the places that are still there: one that was deleted meanwhile does not hide the others."""
        return [place for place in self._places if place.startswith(_ADDRESSES) or Path(place).exists()]

    def _look(self) -> None:
        with self._lock:
            began = self._clock()
            if self._found is not None and began < self._rest_until:
                return
            try:
                self._found = find_sources(self._places if self._found is None else self._present() or self._places)
            except ScopeError as error:
                self._found = error
            now = self._clock()
            self._rest_until = now + max(self._rest_s, _REST_FACTOR * (now - began))


def by_id(sources: Iterable[Source], source_id: str | None) -> Source | None:
    """Return the source with this id, or None: an id that is not in the list is nothing at all."""
    return next((source for source in sources if source.source_id == source_id), None)
