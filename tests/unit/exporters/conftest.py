"""A server with a fixed answer."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from exporters.server import Content, ExporterServer
from exporters.web_config import WebConfig

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BODY = "# HELP a b.\n" + "a 1\n" * 1000


@pytest.fixture
def serve() -> Iterator[Callable[..., ExporterServer]]:
    """Starts servers and stops them at the end."""
    started: list[ExporterServer] = []

    def start(config: WebConfig | None = None, *, body: str = BODY, **options: int) -> ExporterServer:
        content = Content(lambda content_type: body, lambda: None, lambda: "[]\n", "<b>T</b>")
        server = ExporterServer(("127.0.0.1", 0), content, config or WebConfig(None, {}, {}), **options)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        started.append(server)
        return server

    yield start
    for server in started:
        server.shutdown()
        server.server_close()
