"""The HTTP server: `/metrics`, `/healthz`, `/sd` and a landing page, over TLS where a web-config asks for it."""

from __future__ import annotations

import errno
import html
import io
import logging
import selectors
import socket
import ssl
import threading
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from isal import isal_zlib

from exporters.gate import Gate
from exporters.render import choose_format, read_qualities
from exporters.web_config import Authenticator, WebConfig

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger("scope.exporter")

REQUEST_TIMEOUT_S: Final = 10
CONNECTION_LIMIT_S: Final = 30
IDLE_LIMIT_S: Final = 1
_PAUSE_S: Final = 0.05
_NO_RESOURCES: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS})
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
        notes: Returns lines for the landing page, of what this node does not have.
    """

    metrics: Callable[[str], str]
    health: Callable[[], str | None]
    targets: Callable[[], str]
    title: str
    notes: Callable[[], list[str]] = list[str]


class ExporterServer(ThreadingHTTPServer):
    """Serves one node's metrics; a thread a request, and no more than `max_connections` of them.

    Args:
        address: Host and port to listen at; port 0 takes a free one.
        content: What is shown.
        config: TLS, users and headers.
        max_connections: Requests answered at once; more are told 503.
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
        self.config = WebConfig(None, {}, {})
        self.authenticator: Authenticator | None = None
        self.limiter: RateLimiter | None = None
        self.use(config)
        self._slots = threading.BoundedSemaphore(max_connections)
        self._began: dict[Any, float] = {}
        self._requests: dict[Any, bytes] = {}
        self._gate = Gate(is_encrypted=config.tls is not None, let_in=self._let_in)
        self._stopping = threading.Event()
        self._stopped = threading.Event()
        super().__init__(address, _Handler)

    def use(self, config: WebConfig) -> None:
        """Serve by these users, certificates and headers from now on; TLS stays on or off as it was at first."""
        before = self.config
        if config.users != before.users:
            self.authenticator = Authenticator(config.users) if config.users else None
        if config.rate_limit != before.rate_limit:
            self.limiter = RateLimiter(*config.rate_limit) if config.rate_limit else None
        self.config = config

    @property
    def port(self) -> int:
        """The port that it listens at."""
        return int(self.server_address[1])

    def serve_forever(self, poll_interval: float = 0.5) -> None:
        """Accept connections and answer their requests until `shutdown`."""
        selector = self._gate.selector
        selector.register(self, selectors.EVENT_READ)
        try:
            while not self._stopping.is_set():
                for key, _ in selector.select(poll_interval):
                    if key.fileobj is not self:
                        self._gate.look(key.fileobj)
                        continue
                    try:
                        self._gate.admit(*self.get_request())
                    except OSError as error:
                        log.debug("a connection could not be accepted: %s", error)
                self.service_actions()
        finally:
            self._gate.close()
            self._stopped.set()

    def shutdown(self) -> None:
        """Let `serve_forever` return, and wait until it has; answers under way are finished."""
        self._stopping.set()
        self._stopped.wait()

    def take_request(self, request: Any) -> bytes:
        """Return what a connection sent before it got its thread."""
        return self._requests.pop(request, b"")

    def _let_in(self, connection: Any, address: Any, received: bytes) -> None:
        self._requests[connection] = received
        self.process_request(connection, address)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Give a request its thread; when all are taken, that of a client that idles, or refuse it."""
        if not self._slots.acquire(blocking=False) and not self._take_from_slowest():
            self._requests.pop(request, None)
            if self.config.tls is not None:
                # Inside TLS, which has not begun, nothing can be said.
                self.shutdown_request(request)
                return
            try:
                request.sendall(b"HTTP/1.0 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n")
            except OSError:
                log.debug("a refused connection was gone already")
            self.shutdown_request(request)
            return
        self._began[request] = time.monotonic()
        try:
            super().process_request(request, client_address)
        except RuntimeError as error:
            # No thread is left just now; the next request may find one.
            log.warning("a request was not answered: %s", error)
            self._began.pop(request, None)
            self._requests.pop(request, None)
            self._slots.release()
            self.shutdown_request(request)

    def _take_from_slowest(self) -> bool:
        """Close the oldest connection that should have been answered long ago; return whether its place is free now.

        A scrape takes milliseconds. Whoever holds a place for a second while others wait for one only wants to hold it.
        """
        oldest = min(list(self._began.items()), key=lambda item: item[1], default=None)
        if oldest is None or time.monotonic() - oldest[1] < IDLE_LIMIT_S:
            return False
        self._cut(oldest[0])
        return self._slots.acquire(timeout=_PAUSE_S)

    def _cut(self, request: Any) -> None:
        if self._began.pop(request, None) is not None:
            try:
                request.shutdown(socket.SHUT_RDWR)
            except OSError:
                log.debug("a slow connection was gone already")

    def get_request(self) -> Any:
        """Accept a connection; without a descriptor for it, wait a little instead of asking again at once."""
        try:
            return super().get_request()
        except OSError as error:
            if error.errno in _NO_RESOURCES:
                time.sleep(_PAUSE_S)
            raise

    def service_actions(self) -> None:
        """Close connections that have lasted too long: nobody keeps a thread by a byte now and then."""
        self._gate.close_old(min(REQUEST_TIMEOUT_S, CONNECTION_LIMIT_S))
        oldest = time.monotonic() - CONNECTION_LIMIT_S
        for request, began in list(self._began.items()):
            if began < oldest:
                self._cut(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve a connection; the handshake of TLS is done here, so that a slow client holds nobody up."""
        accepted = request
        try:
            request.settimeout(REQUEST_TIMEOUT_S)
            if self.config.tls is not None:
                request = self._begin_tls(accepted, client_address)
                if request is None:
                    return
            super().process_request_thread(request, client_address)
        finally:
            self._began.pop(accepted, None)
            self._began.pop(request, None)
            self._requests.pop(accepted, None)
            self._slots.release()

    def _begin_tls(self, accepted: Any, client_address: Any) -> Any:
        """Return the connection inside TLS, or None when there is none with this client."""
        config = self.config
        assert config.tls is not None
        began = self._began.get(accepted, time.monotonic())
        try:
            # The descriptor moves to the new object, so that is the one to close when it lasts too long; until the
            # handshake is done each of its reads has a limit of its own.
            request = config.tls.wrap_socket(accepted, server_side=True, do_handshake_on_connect=False)
            self._began.pop(accepted, None)
            self._began[request] = began
            accepted = request
            request.do_handshake()
            if not is_allowed(request.getpeercert(), config.allowed_names):
                log.debug("the certificate of %s holds no allowed name", client_address)
                self.shutdown_request(request)
                self._began.pop(request, None)
                return None
        except (OSError, ssl.SSLError) as error:
            log.debug("no TLS with %s: %s", client_address, error)
            self._began.pop(accepted, None)
            self.shutdown_request(accepted)
            return None
        return request

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log a client that went away; nothing of ours is wrong then."""
        del request
        log.debug("the connection with %s broke", client_address, exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    server: ExporterServer  # pyright: ignore[reportIncompatibleVariableOverride] - it is never another
    server_version = "scope-exporter"
    sys_version = ""
    timeout = REQUEST_TIMEOUT_S

    def setup(self) -> None:
        """Begin with what was read while the connection had no thread."""
        super().setup()
        received = self.server.take_request(self.request)
        if received:
            self.rfile.close()
            self.rfile = io.BytesIO(received)

    def do_GET(self) -> None:
        """Answer a GET."""
        self._answer()

    def do_HEAD(self) -> None:
        """Answer a HEAD."""
        self._answer()

    def _refuse_method(self) -> None:
        self._send(HTTPStatus.METHOD_NOT_ALLOWED, _PLAIN, "Only GET and HEAD are answered\n", {"Allow": "GET, HEAD"})

    do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = _refuse_method

    def log_message(self, format: str, *args: object) -> None:
        """Log requests only where somebody debugs."""
        # What a client sends must not steer the terminal.
        log.debug("%s %s", self.address_string(), (format % args).encode("unicode_escape").decode("ascii"))

    def _answer(self) -> None:
        limiter = self.server.limiter
        if limiter is not None and not limiter.allows():
            self._send(HTTPStatus.TOO_MANY_REQUESTS, _PLAIN, "Too many requests\n")
            return
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
            self._send(HTTPStatus.OK, _HTML, _landing_page(content.title, content.notes()))
        else:
            self._send(HTTPStatus.NOT_FOUND, _PLAIN, "Not found; metrics are at /metrics\n")

    def _send(self, status: HTTPStatus, content_type: str, text: str, headers: dict[str, str] | None = None) -> None:
        body = text.encode()
        self.send_response(status)
        if accepts_gzip(self.headers.get("Accept-Encoding", "")) and len(body) >= _MIN_GZIP_BYTES:
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


class RateLimiter:
    """Lets so many requests through at once, and then one more each interval, whoever sends them.

    Args:
        interval_s: Time for one request.
        burst: Requests at once.
        clock_s: A monotonic clock.
    """

    def __init__(self, interval_s: float, burst: int, *, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._interval_s = interval_s
        self._burst = burst
        self._clock_s = clock_s
        self._left = float(burst)
        self._last_s = clock_s()
        self._lock = threading.Lock()

    def allows(self) -> bool:
        """Return whether one more request may be answered now."""
        with self._lock:
            now_s = self._clock_s()
            self._left = min(self._burst, self._left + (now_s - self._last_s) / self._interval_s)
            self._last_s = now_s
            if self._left < 1:
                return False
            self._left -= 1
            return True


def is_allowed(certificate: Any, names: frozenset[str]) -> bool:
    """Return whether a client's certificate holds one of the allowed names; without a list or certificate it may pass.

    Args:
        certificate: What `SSLSocket.getpeercert` returns: names in `subjectAltName`.
        names: DNS names, addresses, e-mail addresses and URIs; empty allows all.
    """
    if not names or not certificate:
        return True
    return any(name in names for _, name in certificate.get("subjectAltName", ()))


def accepts_gzip(header: str) -> bool:
    """Return whether an Accept-Encoding header takes gzip; `q=0` is how it says that it does not.

    Examples:
        >>> accepts_gzip("br, gzip;q=0.5"), accepts_gzip("gzip;q=0"), accepts_gzip("*"), accepts_gzip("")
        (True, False, True, False)
    """
    qualities = read_qualities(header)
    return qualities.get("gzip", qualities.get("*", 0.0)) > 0


def _landing_page(title: str, notes: list[str]) -> str:
    heading = html.escape(title)
    paragraphs = "".join(f"<p>{html.escape(note)}</p>" for note in notes)
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{heading}</title><h1>{heading}</h1>"
        "<ul><li><a href=/metrics>/metrics</a> for Prometheus</li><li><a href=/healthz>/healthz</a></li>"
        f"<li><a href=/sd>/sd</a> targets for http_sd_configs</li></ul>{paragraphs}</html>\n"
    )
