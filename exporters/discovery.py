"""Targets for Prometheus: a cluster's nodes as file_sd and http_sd take them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import msgspec

from scope.errors import InputError, UsageError

MAX_HOSTS: Final = 100_000
_RANGE: Final = re.compile(r"(\d+)(?:-(\d+))?")
_HOST: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._:-]*[A-Za-z0-9])?")


def expand_hosts(text: str) -> list[str]:
    """Return the hosts of a list in Slurm's form.

    Args:
        text: Such as `node[001-003,7],login`; `@FILE` reads one host or list a line, `#` begins a comment.

    Raises:
        UsageError: The list cannot be understood.
        InputError: The file cannot be read.

    Examples:
        >>> expand_hosts("gpu[08-10],head")
        ['gpu08', 'gpu09', 'gpu10', 'head']
    """
    if text.startswith("@"):
        try:
            lines = Path(text[1:]).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            message = f"cannot read the hosts in {text[1:]}: {error}"
            raise InputError(message) from error
        return [host for line in lines if (entry := line.partition("#")[0].strip()) for host in expand_hosts(entry)]
    hosts = [host for item in _split(text) for host in _expand(item)]
    for host in hosts:
        if not _HOST.fullmatch(host):
            message = f"{host!r} is no host name"
            raise UsageError(message)
    return hosts


def render_targets(hosts: list[str], port: int) -> str:
    """Return the JSON of `file_sd_configs` and `http_sd_configs`.

    Args:
        hosts: Names or addresses.
        port: Port of the exporter on each; a host that names its own keeps it.
    """
    targets = [host if re.search(r":\d+$", host) else f"{host}:{port}" for host in hosts]
    return msgspec.json.encode([{"targets": targets, "labels": {"job": "scope"}}]).decode() + "\n"


def _split(text: str) -> list[str]:
    """Split at the commas that stand outside brackets."""
    items = [""]
    depth = 0
    for character in text:
        if character == "," and not depth:
            items.append("")
            continue
        depth += {"[": 1, "]": -1}.get(character, 0)
        items[-1] += character
    if depth:
        message = f"{text!r} has a bracket that is not closed"
        raise UsageError(message)
    return [item.strip() for item in items if item.strip()]


def _expand(item: str) -> list[str]:
    opening, closing = item.find("["), item.find("]")
    if opening < 0 and closing < 0:
        return [item]
    if closing < opening or opening < 0:
        message = f"{item!r} has brackets in the wrong order"
        raise UsageError(message)
    names: list[str] = []
    for part in item[opening + 1 : closing].split(","):
        match = _RANGE.fullmatch(part.strip())
        if match is None:
            message = f"{part!r} in {item!r} is no number or range such as 001-128"
            raise UsageError(message)
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first or last - first >= MAX_HOSTS:
            message = f"the range {part!r} in {item!r} is empty or larger than {MAX_HOSTS}"
            raise UsageError(message)
        width = len(match[1])
        names += [f"{item[:opening]}{number:0{width}d}{item[closing + 1 :]}" for number in range(first, last + 1)]
    return [host for name in names for host in _expand(name)] if "[" in item[closing:] else names
