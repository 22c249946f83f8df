"""Who may sign in: users and bcrypt hashes, in the format of the exporter's web configuration file."""

from __future__ import annotations

import re
import time
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
class Gate:
    """Checks passwords, and slows down whoever guesses.

    Attributes:
        users: bcrypt hash by user name.
        clock: Seconds, monotonic.
    """

    users: Mapping[str, str]
    clock: Callable[[], float] = time.monotonic
    _num_failures: int = field(default=0, init=False)
    _closed_until: float = field(default=0.0, init=False)

    def admits(self, name: str, password: str) -> bool:
        """Return whether the password is the user's; after each failure the gate stays shut for a while, for all.

        An unknown name costs the same time as a wrong password, so that names cannot be probed.
        """
        if self.clock() < self._closed_until:
            return False
        known = self.users.get(name, _UNKNOWN_USER_HASH)
        matches = bcrypt.checkpw(password.encode()[:72], known.encode()) and name in self.users
        if matches:
            self._num_failures = 0
        else:
            self._num_failures += 1
            self._closed_until = self.clock() + min(2.0**self._num_failures / 4, 30.0)
        return matches

    @property
    def wait_s(self) -> float:
        """Seconds until the gate looks at a password again."""
        return max(0.0, self._closed_until - self.clock())
