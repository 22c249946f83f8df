"""The port of the dashboard: a free one for 0, and a taken one is said before anything is promised."""

from __future__ import annotations

import socket

import pytest

from dashboards.__main__ import choose_port, parse_arguments
from scope.errors import InputError


def test_a_port_is_chosen_or_refused() -> None:
    """0 gives one that is free; one that somebody listens on is an error that names it."""
    assert parse_arguments(["--port", "0"]).port == 0
    assert choose_port("127.0.0.1", 0) > 0
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InputError, match=f"cannot listen on 127.0.0.1:{port} "):
            choose_port("127.0.0.1", port)
