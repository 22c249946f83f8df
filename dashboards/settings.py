"""What the dashboard was started with; handed to the Streamlit process in one environment variable."""

from __future__ import annotations

import ipaddress
import os
from typing import TYPE_CHECKING, Final

import msgspec

from scope.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from pathlib import Path

VARIABLE: Final = "SCOPE_DASHBOARD"
LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What the dashboard shows and to whom.

    Attributes:
        places: Paths of runs and traces, and addresses of Prometheus servers.
        users: bcrypt hash of the password by user name; empty means that nobody needs to sign in.
        refresh_s: Seconds between two looks at a run that goes on.
    """

    places: tuple[str, ...] = ()
    users: dict[str, str] = {}
    refresh_s: float = 2.0


def is_loopback(address: str) -> bool:
    """Return whether an address reaches this machine alone: `localhost`, 127.0.0.0/8 or `::1`."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


def check_exposure(address: str, *, allow_remote: bool, users: dict[str, str]) -> None:
    """Refuse to serve beyond this machine by accident or without a password.

    Args:
        address: Address to listen on.
        allow_remote: The user said that other machines may connect.
        users: Who may sign in.

    Raises:
        UsageError: The address is not loopback and one of the two is missing.
    """
    if is_loopback(address):
        return
    if not allow_remote:
        message = f"{address} can be reached from other machines: add --allow-remote if that is meant"
        raise UsageError(message)
    if not users:
        message = f"{address} can be reached from other machines: add --auth-file FILE with the users who may sign in"
        raise UsageError(message)


def check_tls(certificate: Path | None, key: Path | None) -> None:
    """Refuse to serve without encryption what was meant to be encrypted.

    Raises:
        UsageError: One of the two is missing.
        ConfigError: A file cannot be read.
    """
    if (certificate is None) != (key is None):
        message = "TLS needs both: --tls-cert FILE and --tls-key FILE"
        raise UsageError(message)
    for path in (certificate, key):
        if path is not None and not (path.is_file() and os.access(path, os.R_OK)):
            message = f"{path} is no file that can be read: --tls-cert and --tls-key name PEM files"
            raise ConfigError(message)


def write_environment(settings: Settings) -> dict[str, str]:
    """Return this process's environment with the settings in it."""
    return {**os.environ, VARIABLE: msgspec.json.encode(settings).decode()}


def read_environment() -> Settings:
    """Return the settings that the starting process handed over, or the defaults.

    Raises:
        ConfigError: The variable holds something else.
    """
    text = os.environ.get(VARIABLE)
    if text is None:
        return Settings()
    try:
        return msgspec.json.decode(text.encode(), type=Settings)
    except msgspec.DecodeError as error:
        message = f"{VARIABLE} is not what `scope dashboard` writes: {error}"
        raise ConfigError(message) from error
