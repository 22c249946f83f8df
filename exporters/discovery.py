"""Targets for Prometheus: a cluster's nodes as file_sd and http_sd take them."""

from __future__ import annotations

import ipaddress
import itertools
import math
import re
import stat
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from scope.errors import InputError, UsageError

MAX_HOSTS: Final = 100_000
"""Hosts that a list may make unless the user allows more."""
_MAX_FILE_BYTES: Final = 16 << 20
_MAX_NAME: Final = 253
_MAX_BRACKETS: Final = 32
_RANGE: Final = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")
_NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_PORT: Final = re.compile(r"[0-9]{1,5}")


class _Range(NamedTuple):
    """Numbers from the first to the last, with leading zeros up to a width."""

    first: int
    last: int
    width: int

    @property
    def size(self) -> int:
        return self.last - self.first + 1

    def numbers(self) -> list[str]:
        return [f"{number:0{self.width}d}" for number in range(self.first, self.last + 1)]


_Part = str | list[_Range]
"""A piece of an item: plain text, or what stands in a pair of brackets."""


def expand_hosts(text: str, *, max_hosts: int = MAX_HOSTS) -> list[str]:
    """Return the hosts of a list in Slurm's form.

    Args:
        text: Such as `node[001-003,7],login`; `@FILE` reads one host or list a line, `#` begins a comment.
        max_hosts: The most that it may make; counted before any is made.

    Raises:
        UsageError: The list cannot be understood, a host or its port is none, or there are too many.
        InputError: The file cannot be read.

    Examples:
        >>> expand_hosts("gpu[08-10],head")
        ['gpu08', 'gpu09', 'gpu10', 'head']
    """
    lines = _read_lines(Path(text[1:])) if text.startswith("@") else [text]
    items = [_parse(item) for line in lines for item in _split(line)]
    if sum(_count(parts) for parts in items) > max_hosts:
        message = f"the list makes more than {max_hosts} hosts; --max-hosts N allows N"
        raise UsageError(message)
    hosts = [host for parts in items for host in _expand(parts)]
    for host in hosts:
        _check_host(host)
    return hosts


def render_targets(hosts: list[str], port: int) -> str:
    """Return the JSON of `file_sd_configs` and `http_sd_configs`.

    Args:
        hosts: Names or addresses, as `expand_hosts` gives them.
        port: Port of the exporter on each; a host that names its own keeps it.
    """
    targets = [_add_port(host, port) for host in hosts]
    return msgspec.json.encode([{"targets": targets, "labels": {"job": "scope"}}]).decode() + "\n"


def check_port(port: int) -> int:
    """Return a port that an exporter can be reached at.

    Raises:
        UsageError: There is no such port.
    """
    if not 1 <= port <= 65_535:
        message = f"there is no port {port}; ports are 1 to 65535"
        raise UsageError(message)
    return port


def _read_lines(path: Path) -> list[str]:
    """Return what the lines of a file say; only a regular file is read, and no more than a cluster needs."""
    try:
        # A device or a pipe may have no end; it is not even opened.
        if not stat.S_ISREG(path.stat().st_mode):
            message = f"cannot read the hosts in {path}: it is no regular file"
            raise InputError(message)
        with path.open("rb") as file:
            content = file.read(_MAX_FILE_BYTES + 1)
        text = content.decode("utf-8")
    except (OSError, ValueError) as error:
        message = f"cannot read the hosts in {path}: {error}"
        raise InputError(message) from error
    if len(content) > _MAX_FILE_BYTES:
        message = f"cannot read the hosts in {path}: it is larger than {_MAX_FILE_BYTES >> 20} MiB"
        raise InputError(message)
    return [entry for line in text.splitlines() if (entry := line.partition("#")[0].strip())]


def _split(text: str) -> list[str]:
    """Split at the commas that stand outside brackets."""
    items: list[str] = []
    depth = begin = 0
    for place, character in enumerate(text):
        if character == "," and not depth:
            items.append(text[begin:place])
            begin = place + 1
        depth += {"[": 1, "]": -1}.get(character, 0)
    if depth:
        message = f"{_shorten(text)} has a bracket that is not closed"
        raise UsageError(message)
    items.append(text[begin:])
    return [item.strip() for item in items if item.strip()]


def _parse(item: str) -> list[_Part]:
    """Return the pieces of an item, text and brackets by turns."""
    if item.count("[") > _MAX_BRACKETS:
        message = f"{_shorten(item)} has more than {_MAX_BRACKETS} pairs of brackets"
        raise UsageError(message)
    parts: list[_Part] = []
    rest = item
    while rest:
        plain, opening, rest = rest.partition("[")
        if "]" in plain:
            message = f"{_shorten(item)} has brackets in the wrong order"
            raise UsageError(message)
        parts.append(plain)
        if opening:
            inner, _, rest = rest.partition("]")
            parts.append([_parse_range(part.strip(), item) for part in inner.split(",")])
    # What could only make names that are too long is not begun with.
    if sum(len(part) if isinstance(part, str) else min(one.width for one in part) for part in parts) > _MAX_NAME + 6:
        message = f"{_shorten(item)} makes names longer than {_MAX_NAME} characters"
        raise UsageError(message)
    return parts


def _parse_range(text: str, item: str) -> _Range:
    match = _RANGE.fullmatch(text)
    if match is None:
        message = f"{_shorten(text)} in {_shorten(item)} is no number or range such as 001-128"
        raise UsageError(message)
    found = _Range(int(match[1]), int(match[2] or match[1]), len(match[1]))
    if found.size < 1:
        message = f"the range {text!r} in {_shorten(item)} is empty"
        raise UsageError(message)
    return found


def _count(parts: list[_Part]) -> int:
    return math.prod(sum(one.size for one in part) for part in parts if not isinstance(part, str))


def _expand(parts: list[_Part]) -> list[str]:
    choices = [[part] if isinstance(part, str) else [n for one in part for n in one.numbers()] for part in parts]
    return ["".join(pieces) for pieces in itertools.product(*choices)]


def _check_host(host: str) -> None:
    if _is_ipv6(host):
        return
    name, colon, port = host.partition(":")
    if len(name) > _MAX_NAME or not _NAME.fullmatch(name):
        message = f"{_shorten(host)} is no host name"
        raise UsageError(message)
    if colon and not _PORT.fullmatch(port):
        message = f"{_shorten(host)} has no port after its colon; ports are 1 to 65535"
        raise UsageError(message)
    if colon:
        check_port(int(port))


def _add_port(host: str, port: int) -> str:
    if _is_ipv6(host):
        return f"[{host}]:{port}"
    return host if ":" in host else f"{host}:{port}"


def _is_ipv6(host: str) -> bool:
    if host.count(":") < 2:
        return False
    try:
        ipaddress.IPv6Address(host)
    except ValueError:
        return False
    return "%" not in host


def _shorten(text: str) -> str:
    return repr(text if len(text) <= 80 else f"{text[:77]}...")
