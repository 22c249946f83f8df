"""What identifies a company leaves the report: hosts, users, paths, addresses and ids, each consistently replaced.

One host is `host-1` wherever it appears, so that a redacted report still tells which ranks share a node. Names of
kernels, operators, process groups and annotations stay, since they are what the report is about; what looks like a
path, an address or an id inside them goes as well.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import msgspec
import polars as pl

from scope.analysis.result import LazyResult
from scope.hardware import Gpu

if TYPE_CHECKING:
    from collections.abc import Iterable

    from scope.trace.model import Job

_T = TypeVar("_T")

_UUID: Final = r"(?:GPU-|MIG-)?[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"
_DOMAINS: Final = "com|net|org|edu|gov|io|ai|dev|cloud|internal|intra|local|lan|cluster|corp|home|arpa|de|uk|fr|jp|cn"
_APART: Final = r"\s/\\:\"'<>|,;(){}\[\]="
_PART: Final = rf"[^{_APART}]+"
_HOME: Final = rf"~(?:(?<![^{_APART}]~){_PART}+|[^{_APART}]{{1,256}}+)"
_EXTENSIONS: Final = "py|pyc|cu|cuh|cpp|cc|so|json|gz|zst|txt|toml|parquet"
_EXTENSION: Final = re.compile(rf"((?:\.pt|\.trace){{0,4}}\.(?:{_EXTENSIONS})(?:\.\w{{2,3}})?)$")

# Tried in this order at each position; what a former one takes, a later one never sees. A repeat that may begin at
# every character of a name is bounded, and not bounded where it can begin but once: the time grows with the length of a
# name, not with its square.
_PATTERNS: Final[tuple[tuple[str, str], ...]] = (
    ("url", r"\b[a-zA-Z][a-zA-Z0-9+.-]{1,15}://[^\s\"'<>]+"),
    ("user", r"(?:(?<![\w.+-])[\w.+-]++|[\w.+-]{1,256}+)@[\w-]+(?:\.[\w-]+)+"),
    ("path", rf"(?<![\w.~\\])(?:[A-Za-z]:\\|\\\\)(?:{_PART}\\)*{_PART}"),
    ("path", rf"(?<![\w.)\]>*/])(?:{_HOME}|\.\.?)?/(?:{_PART}/)*{_PART}/?"),
    ("path", rf"(?<![\w.@+/-])(?:[\w.@+-]++/)+[\w.@+-]+\.(?:{_EXTENSIONS})\b"),
    ("path", rf"(?<=[@+-])(?:[\w.@+-]{{1,128}}+/){{1,16}}[\w.@+-]{{1,128}}\.(?:{_EXTENSIONS})\b"),
    ("id", rf"(?<![\w-]){_UUID}(?![\w-])"),
    ("address", r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?::\d{1,5})?(?![\w.])"),
    ("address", r"(?<![\w:])(?:[0-9a-fA-F]{2}:){5}[0-9a-fA-F]{2}(?![\w:])"),
    ("address", r"(?<![\w:])(?:[0-9a-fA-F]{1,4}:){3,7}(?::?[0-9a-fA-F])++(?![\w:])"),
    ("host", rf"(?<![\w.-])(?:[A-Za-z0-9][A-Za-z0-9-]*\.)+(?:{_DOMAINS})(?![\w.-])"),
    ("id", r"(?<![\w])(?=[0-9a-fA-F]*\d)[0-9a-fA-F]{16,}(?![\w])"),
    ("id", r"(?<=\bpid )\d+|(?<=\btid )\d+|(?<=\bthread )\d+|(?<=\bjob )\d+|(?<=\brun )\d{4,}"),
)
_TENSORBOARD_FILE: Final = re.compile(r"^(?P<host>[A-Za-z0-9][\w.-]*?)_\d+\.\d+\.pt\.trace\.json")


class Redactor:
    """Replaces what identifies; the same thing gets the same stand-in for as long as the redactor lives.

    Args:
        hosts: Names of hosts that are known.
        users: Names of users that are known.
        paths: Paths that are known; their file names stand for them as well.
        folders: Further paths that are known, whose names do not: a folder may be called as anything is.
        ids: Further ids: of runs, jobs.
    """

    def __init__(
        self,
        *,
        hosts: Iterable[str] = (),
        users: Iterable[str] = (),
        paths: Iterable[str] = (),
        folders: Iterable[str] = (),
        ids: Iterable[str] = (),
    ) -> None:
        self._numbers: dict[str, int] = {}
        self._stand_ins: dict[tuple[str, str], str] = {}
        self._known: dict[str, str] = {}
        for path in paths:
            stand_in = self._stand_in("path", path)
            self._known[path] = stand_in
            self._known.setdefault(PurePath(path).name, stand_in)
        for folder in folders:
            self._known.setdefault(folder, self._stand_in("path", folder))
        for kind, names in (("host", hosts), ("user", users), ("id", ids)):
            for name in names:
                if name:
                    self._known[name] = self._stand_in(kind, name)
        self._pattern = self._compile()

    def text(self, text: str) -> str:
        """Return `text` with what identifies replaced."""
        return self._pattern.sub(self._replace, text)

    def _compile(self) -> re.Pattern[str]:
        known = sorted(self._known, key=len, reverse=True)
        literals = [rf"(?<![\w]){re.escape(name)}(?![\w])" for name in known]
        patterns = [f"(?P<g{index}_{kind}>{pattern})" for index, (kind, pattern) in enumerate(_PATTERNS)]
        return re.compile("|".join([f"(?P<known>{'|'.join(literals)})"] * bool(literals) + patterns))

    def _replace(self, match: re.Match[str]) -> str:
        group = cast("str", match.lastgroup)
        if group == "known":
            return self._known[match[0]]
        return self._stand_in(group.rpartition("_")[2], match[0])

    def _stand_in(self, kind: str, original: str) -> str:
        found = self._stand_ins.get((kind, original))
        if found is None:
            self._numbers[kind] = self._numbers.get(kind, 0) + 1
            extension = _EXTENSION.search(original) if kind == "path" else None
            found = f"{kind}-{self._numbers[kind]}{extension[1] if extension else ''}"
            self._stand_ins[kind, original] = found
        return found


def make_redactor(*jobs: Job, folders: Iterable[str] = ()) -> Redactor:
    """Return a redactor that knows the files, hosts and users that the traces of jobs name.

    Args:
        jobs: What was read.
        folders: What the user named to have it read; it is known by its absolute path.
    """
    ranks = [rank for job in jobs for rank in job.ranks]
    paths = [rank.path for rank in ranks]
    hosts = [rank.host for rank in ranks if rank.host]
    whole = [str(Path(folder).absolute()) for folder in folders]
    for path in paths:
        named = _TENSORBOARD_FILE.match(PurePath(path).name)
        if named:
            hosts.append(named["host"])
    return Redactor(
        hosts=dict.fromkeys(hosts),
        users=dict.fromkeys(_users([*paths, *whole])),
        paths=dict.fromkeys(paths),
        folders=dict.fromkeys(whole),
    )


def redact(value: _T, redactor: Redactor) -> _T:
    """Return a copy of `value` in which every text is redacted: in records, tuples, mappings and tables alike."""
    return cast("_T", _redacted(value, redactor))


def _users(paths: Iterable[str]) -> list[str]:
    users: list[str] = []
    for path in paths:
        parts = PurePath(path).parts
        users += [name for parent, name in pairwise(parts) if parent in {"home", "Users", "users"}]
    return users


def _redacted(value: Any, redactor: Redactor) -> Any:
    if isinstance(value, str):
        return redactor.text(value)
    if isinstance(value, Gpu):
        # The catalogue's figures and where they were read are no secret.
        return value
    if isinstance(value, pl.DataFrame):
        return _redacted_frame(value, redactor)
    if isinstance(value, Mapping):
        mapping = cast("Mapping[Any, Any]", value)
        return {_redacted(key, redactor): _redacted(each, redactor) for key, each in mapping.items()}
    if isinstance(value, tuple | list):
        items = [_redacted(each, redactor) for each in cast("list[Any]", value)]
        return items if isinstance(value, list) else tuple(items)
    if isinstance(value, LazyResult):
        return value.changed(lambda each: _redacted(each, redactor))
    if isinstance(value, msgspec.Struct):
        redacted = {name: _redacted(getattr(value, name), redactor) for name in value.__struct_fields__}
        return msgspec.structs.replace(value, **redacted)
    return value


def _redacted_frame(frame: pl.DataFrame, redactor: Redactor) -> pl.DataFrame:
    columns = [name for name, dtype in frame.schema.items() if dtype == pl.String or dtype == pl.Categorical]
    return frame.with_columns(_redacted_column(frame[name], redactor) for name in columns)


def _redacted_column(column: pl.Series, redactor: Redactor) -> pl.Series:
    names: list[str] = column.cast(pl.String).unique().drop_nulls().to_list()
    renamed = [redactor.text(name) for name in names]
    return column.cast(pl.String).replace(names, renamed).cast(column.dtype)
