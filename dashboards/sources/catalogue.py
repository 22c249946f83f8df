"""The list of what this server may show: a link carries an id from it, never a path or an address."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal
from urllib.parse import urlsplit

from scope.errors import InputError, LimitError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

SourceKind = Literal["run", "trace", "prometheus"]

TRACE_SUFFIXES: Final = (".json", ".json.gz", ".json.zst")
MAX_SOURCES: Final = 1_000
MAX_DEPTH: Final = 3
_ID_LENGTH: Final = 12


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """Something that the pages can show.

    Attributes:
        source_id: Stable name in links: a digest of kind and place, so it neither tells nor takes a path.
        kind: What it is.
        label: Name for people; comes from the file system, so it is escaped wherever it is shown.
        place: Absolute path, or the address of a Prometheus server.
    """

    source_id: str
    kind: SourceKind
    label: str
    place: str


def find_sources(places: Sequence[str]) -> tuple[Source, ...]:
    """Return everything that can be shown below the given paths and addresses.

    A folder with a `run.json` is a run; any other folder is searched, three levels deep, for runs and for folders of
    traces; a file is a trace; an address is a Prometheus server. Symbolic links are not followed.

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
    if place.startswith(("http://", "https://")):
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
    parts = urlsplit(address)
    if not parts.hostname:
        message = f"{address} names no host: an address looks like http://localhost:9090"
        raise InputError(message)
    # A password in the address must not reach a page.
    label = parts.hostname if parts.port is None else f"{parts.hostname}:{parts.port}"
    return Source(source_id=_digest("prometheus", address), kind="prometheus", label=label, place=address.rstrip("/"))


def _search(folder: Path, root: Path, *, depth: int) -> Iterator[Source]:
    if (folder / "run.json").is_file():
        yield _source("run", folder, folder.name)
        return
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError as error:
        message = f"{folder} cannot be listed: {error.strerror}"
        raise InputError(message) from error
    if any(_is_trace(entry) for entry in entries):
        yield _source("trace", folder, folder.name if folder != root else root.name)
    if depth < MAX_DEPTH:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False) and not entry.name.startswith("."):
                yield from _search(Path(entry.path), root, depth=depth + 1)


def _is_trace(entry: os.DirEntry[str]) -> bool:
    return entry.name.endswith(TRACE_SUFFIXES) and entry.is_file(follow_symlinks=False)


def _source(kind: SourceKind, path: Path, label: str) -> Source:
    return Source(source_id=_digest(kind, str(path)), kind=kind, label=label, place=str(path))


def _digest(kind: str, place: str) -> str:
    return hashlib.sha256(f"{kind}\0{place}".encode()).hexdigest()[:_ID_LENGTH]


def by_id(sources: Iterable[Source], source_id: str | None) -> Source | None:
    """Return the source with this id, or None: an id that is not in the list is nothing at all."""
    return next((source for source in sources if source.source_id == source_id), None)
