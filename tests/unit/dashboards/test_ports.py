"""The port of the dashboard: a free one for 0, and a taken one is said before anything is promised."""

from __future__ import annotations

import socket

import pytest

from dashboards.__main__ import choose_port, parse_arguments, spell_place
from scope.errors import InputError


def test_a_port_is_chosen_or_refused() -> None:
    """0 gives one that is free; one that somebody listens on is an error that names it."""
    assert parse_arguments(["--port", "0"]).port == 0
    assert choose_port("127.0.0.1", 0) > 0
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InputError, match=f"cannot listen on 127.0.0.1:{port} "):
            choose_port("127.0.0.1", port)


@pytest.mark.parametrize(("address", "spelled"), [("127.0.0.2", "127.0.0.2:80"), ("::1", "[::1]:80")])
def test_a_place_is_spelled_as_a_browser_takes_it(address: str, spelled: str) -> None:
    """The colons of IPv6 stand in brackets."""
    assert spell_place(address, 80) == spelled
