"""`python -m dashboards` starts the Streamlit server; `scope dashboard` does the same."""

from __future__ import annotations

import argparse
import os
import socket
import sys
from pathlib import Path

from dashboards.settings import LOOPBACK, Settings, check_exposure, check_tls, is_loopback, write_environment
from dashboards.sources.catalogue import find_sources
from dashboards.users import read_users
from scope.errors import InputError, ScopeError

APP = Path(__file__).parent / "app.py"
SERVED = Path(__file__).parent / "served.py"
SHORTEST_REFRESH_S, LONGEST_REFRESH_S = 0.5, 86_400
LARGEST_MESSAGE_MB = 32
"""Of what a browser may send, before its sign-in too, and of what a page sends to it."""


def parse_arguments(arguments: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="scope dashboard",
        description="Show runs, traces and Prometheus servers in the browser.",
        epilog="example: scope dashboard runs/ traces/ http://localhost:9090",
    )
    parser.add_argument("places", nargs="*", default=["."], metavar="PATH|URL", help="what to show (default: here)")
    parser.add_argument("--address", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument("--port", type=_port, default=8501, help="port, 0 takes a free one (default: %(default)s)")
    parser.add_argument("--allow-remote", action="store_true", help="let other machines connect; needs --auth-file")
    parser.add_argument("--auth-file", type=Path, help="YAML with basic_auth_users: names and bcrypt hashes")
    parser.add_argument("--tls-cert", type=Path, help="certificate for https")
    parser.add_argument("--tls-key", type=Path, help="its private key")
    parser.add_argument("--refresh", type=_seconds, default=2.0, help="seconds between looks at a live run")
    # Places may stand on both sides of the options.
    return parser.parse_intermixed_args(arguments)


def _port(text: str) -> int:
    if not text.isdecimal() or not 0 <= int(text) < 1 << 16:
        message = f"{text} is no port: give a number from 0 to 65535"
        raise argparse.ArgumentTypeError(message)
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = float("nan")
    if not SHORTEST_REFRESH_S <= seconds <= LONGEST_REFRESH_S:
        message = f"{text} is no time to rest: give seconds from {SHORTEST_REFRESH_S} to {LONGEST_REFRESH_S:,}"
        raise argparse.ArgumentTypeError(message)
    return seconds


def spell_place(address: str, port: int) -> str:
    """Return address and port as a browser takes them: IPv6 in brackets."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def choose_port(address: str, port: int) -> int:
    """Return the port to listen on, a free one for 0.

    Raises:
        InputError: The port is taken, or this machine does not have the address.
    """
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(place)
            return int(probe.getsockname()[1])
    except OSError as error:
        message = f"cannot listen on {spell_place(address, port)} ({error.strerror}); --port 0 takes a free port"
        raise InputError(message) from error


def streamlit_command(options: argparse.Namespace) -> list[str]:
    """Return the command that serves the app: nothing leaves the machine, nothing is watched or uploaded."""
    flags = {
        "server.address": options.address,
        "server.port": options.port,
        "server.headless": "true",
        "server.fileWatcherType": "none",
        "server.maxUploadSize": 1,
        "server.maxMessageSize": LARGEST_MESSAGE_MB,
        "browser.gatherUsageStats": "false",
        "client.toolbarMode": "minimal",
        # The address was printed already, and by the name of the product.
        "logger.hideWelcomeMessage": "true",
        "client.showErrorDetails": "none",
        "client.showErrorLinks": "false",
        "runner.magicEnabled": "false",
        # A full collection after every refresh would cost more than all else of a live page.
        "runner.postScriptGC": "false",
    }
    allowed_hosts = sorted({*LOOPBACK, options.address}) if is_loopback(options.address) else []
    if options.tls_cert:
        flags |= {"server.sslCertFile": options.tls_cert, "server.sslKeyFile": options.tls_key}
    return [
        sys.executable,
        "-P",
        "-m",
        "dashboards.server",
        "run",
        str(SERVED),
        *(f"--{name}={value}" for name, value in flags.items()),
        # Without a sign-in, a name of somebody else's that resolves to this machine must reach nothing.
        *(f"--server.allowedHosts={host}" for host in allowed_hosts),
    ]


def start(arguments: list[str]) -> None:
    """Check what was asked for, then become the Streamlit server.

    Raises:
        ScopeError: Something asked for does not exist or would expose the dashboard.
    """
    options = parse_arguments(arguments)
    check_tls(options.tls_cert, options.tls_key)
    users = read_users(options.auth_file) if options.auth_file else {}
    check_exposure(options.address, allow_remote=options.allow_remote, users=users)
    find_sources(options.places)
    options.port = choose_port(options.address, options.port)
    settings = Settings(places=tuple(options.places), users=users, refresh_s=options.refresh)
    scheme = "https" if options.tls_cert else "http"
    print(f"Dashboard: {scheme}://{spell_place(options.address, options.port)}", flush=True)
    os.execve(sys.executable, streamlit_command(options), write_environment(settings))


def main() -> None:
    """Start the dashboard; a mistake of the user is one line on stderr."""
    try:
        start(sys.argv[1:])
    except ScopeError as error:
        print(f"scope: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
