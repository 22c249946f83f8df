"""Who may sign in: users and bcrypt hashes, in the format of the exporter's web configuration file."""

from __future__ import annotations

import ipaddress
import re
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import bcrypt
import yaml

from scope.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

_HASH: Final = re.compile(r"\$2[aby]\$\d{2}\$[./A-Za-z0-9]{53}")
_MAX_FILE_BYTES: Final = 1 << 20
_MAX_CLIENTS: Final = 4_096
"""Clients whose failures are remembered; the one that asked the longest ago is forgotten first."""
_SHORTEST_WAIT_S: Final = 0.5
_MAX_DOUBLINGS: Final = 6
_LONGEST_WAIT_S: Final = 30.0
_UNKNOWN_USER_HASH: Final = bcrypt.hashpw(b"no password matches this", bcrypt.gensalt(rounds=10)).decode()


def read_users(path: Path) -> dict[str, str]:
    """Return the bcrypt hash by user name from the `basic_auth_users` of a YAML file.

    Raises:
        ConfigError: The file is missing, unreadable, too large or no YAML, or holds something else.
    """
    try:
        if not path.is_file() or path.stat().st_size > _MAX_FILE_BYTES:
            message = f"{path} is no file of at most 1 MiB: it should hold a few users"
            raise ConfigError(message)
        content: object = yaml.safe_load(path.read_text(encoding="utf-8"))
    # Beside its own errors, the parser raises ValueError for an impossible date, and nests without end.
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        message = f"{path} cannot be read: {error}"
        raise ConfigError(message) from error
    users = content.get("basic_auth_users") if isinstance(content, dict) else None
    if not isinstance(users, dict) or not users:
        message = f"{path}: $.basic_auth_users must map user names to bcrypt hashes (htpasswd -nBC 10 NAME makes one)"
        raise ConfigError(message)
    wrong = [str(name) for name, value in users.items() if not (isinstance(value, str) and _HASH.fullmatch(value))]
    if wrong:
        message = f"{path}: not a bcrypt hash: " + ", ".join(f"$.basic_auth_users.{name}" for name in wrong)
        raise ConfigError(message)
    return {str(name): str(value) for name, value in users.items()}


@dataclass(slots=True)
class _Client:
    """One who has given wrong passwords."""

    num_failures: int = 0
    closed_until: float = 0.0


@dataclass(slots=True)
class Gate:
    """Checks passwords, and slows down whoever guesses, for itself alone.

    Attributes:
        users: bcrypt hash by user name.
        clock: Seconds, monotonic.
    """

    users: Mapping[str, str]
    clock: Callable[[], float] = time.monotonic
    _clients: OrderedDict[str, _Client] = field(default_factory=OrderedDict[str, _Client], init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def admits(self, name: str, password: str, *, client: str | None = None) -> bool:
        """Return whether the password is the user's; after each failure the gate stays shut for this client a while.

        An unknown name costs the same time as a wrong password, so that names cannot be probed.

        Args:
            name: Name of the user.
            password: What was given for it.
            client: Address that asks; None for this machine. The addresses of one IPv6 network count as one client.
        """
        key = _network_of(client)
        with self._lock:
            known = self._clients.setdefault(key, _Client())
            self._clients.move_to_end(key)
            if self.clock() < known.closed_until:
                return False
            # Shut before the password is looked at, so that many questions at once are no more than one.
            known.num_failures += 1
            known.closed_until = self.clock() + _wait_after_s(known.num_failures)
            if len(self._clients) > _MAX_CLIENTS:
                self._clients.popitem(last=False)
        matches = bcrypt.checkpw(password.encode()[:72], self.users.get(name, _UNKNOWN_USER_HASH).encode())
        is_admitted = matches and name in self.users
        if is_admitted:
            with self._lock:
                self._clients.pop(key, None)
        return is_admitted

    def wait_s(self, client: str | None = None) -> float:
        """Seconds until the gate looks at a password of this client again."""
        with self._lock:
            known = self._clients.get(_network_of(client))
            return max(0.0, known.closed_until - self.clock()) if known else 0.0


def _wait_after_s(num_failures: int) -> float:
    """Return twice the wait of the failure before, up to the longest, whatever the number of failures."""
    return min(_SHORTEST_WAIT_S * 2 ** min(num_failures - 1, _MAX_DOUBLINGS), _LONGEST_WAIT_S)


def _network_of(client: str | None) -> str:
    """Return what is one guesser: an IPv4 address, or the 64 bits of an IPv6 network that one owner has."""
    if client is None:
        return "this machine"
    try:
        address = ipaddress.ip_address(client.partition("%")[0])
    except ValueError:
        return client
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((address, 64), strict=False))
    return str(address)
