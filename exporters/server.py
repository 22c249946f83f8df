"""The HTTP server: `/metrics`, `/healthz`, `/sd` and a landing page, over TLS where a web-config asks for it."""

from __future__ import annotations

import html
import logging
import socket
import ssl
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from isal import isal_zlib

from exporters.render import choose_format
from exporters.web_config import Authenticator

if TYPE_CHECKING:
    from collections.abc import Callable

    from exporters.web_config import WebConfig

log = logging.getLogger("scope.exporter")

REQUEST_TIMEOUT_S: Final = 10
_GZIP_LEVEL: Final = 1
_GZIP_WINDOW: Final = 31  # the largest window, and 16 for the header of gzip
_MIN_GZIP_BYTES: Final = 1_024
_JSON: Final = "application/json; charset=utf-8"
_HTML: Final = "text/html; charset=utf-8"
_PLAIN: Final = "text/plain; charset=utf-8"


class Content(NamedTuple):
    """What the server shows.

    Attributes:
        metrics: Returns the answer of `/metrics` in a content type.
        health: Returns None while all is well, else what is not.
        targets: Returns the answer of `/sd`, JSON for Prometheus' http_sd_configs.
        title: Line at the top of the landing page.
    """

    metrics: Callable[[str], str]
    health: Callable[[], str | None]
    targets: Callable[[], str]
    title: str


class ExporterServer(ThreadingHTTPServer):
    """Serves one node's metrics; a thread a connection, and no more than `max_connections` of them.

    Args:
        address: Host and port to listen at; port 0 takes a free one.
        content: What is shown.
        config: TLS, users and headers.
        max_connections: Connections served at once; more are answered 503.
    """

    daemon_threads = True
    block_on_close = False
    request_queue_size = 512
    allow_reuse_address = True

    def __init__(
        self, address: tuple[str, int], content: Content, config: WebConfig, *, max_connections: int = 256
    ) -> None:
        # An IPv6 literal needs a socket of its family.
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self.content = content
        self.config = config
        self.authenticator = Authenticator(config.users) if config.users else None
        self._slots = threading.BoundedSemaphore(max_connections)
        super().__init__(address, _Handler)

    @property
    def port(self) -> int:
        """The port that it listens at."""
        return int(self.server_address[1])

    def process_request(self, request: Any, client_address: Any) -> None:
        """Give a connection its thread, or refuse it when all are taken."""
        if not self._slots.acquire(blocking=False):
            try:
                request.sendall(b"HTTP/1.0 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n")
            except OSError:
                log.debug("a refused connection was gone already")
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve a connection; the handshake of TLS is done here, so that a slow client holds nobody up."""
        try:
            request.settimeout(REQUEST_TIMEOUT_S)
            if self.config.tls is not None:
                try:
                    request = self.config.tls.wrap_socket(request, server_side=True)
                except (OSError, ssl.SSLError) as error:
                    log.debug("no TLS with %s: %s", client_address, error)
                    self.shutdown_request(request)
                    return
            super().process_request_thread(request, client_address)
        finally:
            self._slots.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log a client that went away; nothing of ours is wrong then."""
        del request
        log.debug("the connection with %s broke", client_address, exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    server: ExporterServer  # pyright: ignore[reportIncompatibleVariableOverride] - it is never another
    server_version = "scope-exporter"
    sys_version = ""
    timeout = REQUEST_TIMEOUT_S

    def do_GET(self) -> None:
        """Answer a GET."""
        self._answer()

    def do_HEAD(self) -> None:
        """Answer a HEAD."""
        self._answer()

    def log_message(self, format: str, *args: object) -> None:
        """Log requests only where somebody debugs."""
        log.debug("%s %s", self.address_string(), format % args)

    def _answer(self) -> None:
        authenticator = self.server.authenticator
        if authenticator is not None and not authenticator.allows(self.headers.get("Authorization")):
            self._send(HTTPStatus.UNAUTHORIZED, _PLAIN, "Unauthorized\n", {"WWW-Authenticate": 'Basic realm="scope"'})
            return
        path = self.path.partition("?")[0]
        content = self.server.content
        if path == "/metrics":
            content_type = choose_format(self.headers.get("Accept", ""))
            self._send(HTTPStatus.OK, content_type, content.metrics(content_type))
        elif path == "/healthz":
            fault = content.health()
            status = HTTPStatus.OK if fault is None else HTTPStatus.SERVICE_UNAVAILABLE
            self._send(status, _PLAIN, f"{fault or 'ok'}\n")
        elif path == "/sd":
            self._send(HTTPStatus.OK, _JSON, content.targets())
        elif path == "/":
            self._send(HTTPStatus.OK, _HTML, _landing_page(content.title))
        else:
            self._send(HTTPStatus.NOT_FOUND, _PLAIN, "Not found; metrics are at /metrics\n")

    def _send(self, status: HTTPStatus, content_type: str, text: str, headers: dict[str, str] | None = None) -> None:
        body = text.encode()
        self.send_response(status)
        if "gzip" in self.headers.get("Accept-Encoding", "") and len(body) >= _MIN_GZIP_BYTES:
            body = isal_zlib.compress(body, _GZIP_LEVEL, _GZIP_WINDOW)  # pyright: ignore[reportUnknownMemberType]
            self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Vary", "Accept, Accept-Encoding")
        for name, value in {**self.server.config.headers, **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _landing_page(title: str) -> str:
    heading = html.escape(title)
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{heading}</title><h1>{heading}</h1>"
        "<ul><li><a href=/metrics>/metrics</a> for Prometheus</li><li><a href=/healthz>/healthz</a></li>"
        "<li><a href=/sd>/sd</a> targets for http_sd_configs</li></ul></html>\n"
    )
