"""A server with a fixed answer, and certificates for it."""

from __future__ import annotations

import subprocess
import threading
from typing import TYPE_CHECKING

import pytest

from exporters.server import Content, ExporterServer
from exporters.web_config import WebConfig

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

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


@pytest.fixture(scope="session")
def make_certificate() -> Callable[..., None]:
    """Makes NAME.key and NAME.pem in a folder, signed by itself or by an authority that was made there before."""

    def make(folder: Path, name: str, *, authority: str | None = None) -> None:
        subject = ["-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1"]
        signer = ["-CA", f"{authority}.pem", "-CAkey", f"{authority}.key"] if authority else []
        kind = ["-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
        files = ["-keyout", f"{name}.key", "-out", f"{name}.pem"]
        command = ["openssl", "req", *kind, *subject, *signer, *files]
        subprocess.run(command, cwd=folder, check=True, capture_output=True)

    return make
